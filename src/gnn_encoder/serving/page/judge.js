// The page at /judge: shows what GET /judging wants judged, and sends grades by POST /judging.
// server.js has at, made, say and call; it calls start after a login.
"use strict";

let next = null; // the passage that is shown
let busy = false; // while the server keeps a grade, further keys do nothing
const acts = []; // what this page did, for undo

function percent(share) {
  return `${Math.round(100 * share)} %`;
}

function number(value) {
  return (value < 0 ? "−" : "+") + Math.abs(value).toFixed(3);
}

function show(found) {
  next = found.next;
  at("pair").hidden = !next;
  at("grades").hidden = !next && !acts.length;
  for (const button of at("grades").querySelectorAll("button")) button.disabled = !next;
  at("undo").disabled = !acts.length;
  if (next) {
    at("query").textContent = next.query;
    at("number").textContent = `passage ${next.number} of ${next.of} · ${next.passage_id}`;
    at("title").textContent = next.title;
    at("title").hidden = !next.title;
    at("text").textContent = next.text;
    scrollTo(0, 0);
    at("pair").focus({ preventScroll: true });
  }
  at("bar").max = Math.max(found.deciding, 1);
  at("bar").value = found.deciding ? found.judged : 1;
  const count = (value) => value.toLocaleString();
  at("progress").textContent = `${count(found.judged)} of ${count(found.deciding)} queries judged, ` +
    `${count(found.graded)} passages; ${count(found.deciding - found.judged)} more can make a difference, ` +
    `${count(found.queries - found.deciding - found.skipped)} cannot` +
    (found.skipped ? `, ${count(found.skipped)} skipped` : "");
  const agreed = found.agreement;
  at("agreement").hidden = !agreed;
  if (agreed) {
    const kappa = (value) => (value === null ? "κ not defined" : `κ ${value.toFixed(2)}`);
    at("agreement").textContent = `You and the model, ${count(agreed.pairs)} passages: ${percent(agreed.equal)} of the ` +
      `grades equal, ${kappa(agreed.kappa)}; relevant or not ${percent(agreed.relevant_equal)}, ${kappa(agreed.relevant_kappa)}`;
  }
  at("gains").replaceChildren(...found.gains.map((gain) => {
    const over = found.baseline === null ? "" : ` over ${found.baseline}`;
    const value = gain.low === null ? `not known yet; shown from ${found.shown_from} judged queries on`
      : `${number(gain.estimate)} (95 %: ${number(gain.low)} to ${number(gain.high)})`;
    return made("li", `${found.measure} of ${gain.system}${over}: ${value}`);
  }));
}

function told(grade, shown) {
  if (!shown || shown.grade === null) return `The last one: you gave ${grade}.`;
  return `The last one: you gave ${grade}, the model ${shown.grade}${shown.reason ? `: ${shown.reason}` : "."}`;
}

async function send(given, words) {
  if (busy) return false;
  busy = true;
  try {
    const found = await call("judging", given);
    say(words(found));
    return found;
  } catch (error) {
    say(error.message, true);
    return null;
  } finally {
    busy = false;
  }
}

async function act(key) {
  if (key === "u") {
    const last = acts.at(-1);
    const found = last && (await send(last, () => "The last one is taken back."));
    if (!found) return;
    acts.pop();
    show(found);
  } else if (next) {
    const { query_id, passage_id } = next;
    const skips = key === "s";
    const given = skips ? { query_id, grade: null } : { query_id, passage_id, grade: Number(key) };
    const found = await send(given, (answer) => (skips ? "The query is skipped." : told(key, answer.shown)));
    if (!found) return;
    acts.push(skips ? { query_id, grade: 0 } : { query_id, passage_id, grade: null });
    show(found);
  }
}

at("grades").addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button) act(button.dataset.key);
});

document.addEventListener("keydown", (event) => {
  if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input")) return;
  if (/^[0-3us]$/.test(event.key)) act(event.key);
});

async function start() {
  try {
    const found = await call("judging");
    show(found);
    if (!found.next) say("All that makes a difference is judged.");
  } catch (error) {
    say(error.message, true);
  }
}

start();
