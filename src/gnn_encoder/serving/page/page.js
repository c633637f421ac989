// The page at /: asks POST /search, and writes labels by POST /feedback where the server takes them.
// server.js has at, made, say and call; it calls start after a login.
"use strict";

let about = {};
let asked = null; // the question, and the options, whose hits are shown
const chosen = new Map(); // field → the value that passages must have

async function describe() {
  about = await call("about");
  at("passages").textContent = `${about.passages.toLocaleString()} passages`;
  at("version").textContent = `${about.system}, version ${about.version}`;
  at("rerank").parentElement.hidden = !about.rerank;
  at("rerank").checked = about.reranks;
  at("vote-key").hidden = !about.feedback;
  at("judging").hidden = !about.judging;
  await narrow();
}

const wanted = () => (chosen.size ? { filter: Object.fromEntries(chosen) } : {});

// A list for each field: its values, with the number of passages that also have what the other lists say.
async function narrow() {
  const { facets } = await call("facets", wanted());
  const lists = Object.entries(facets).map(([field, values]) => {
    const label = made("label", `${field} `);
    const list = label.appendChild(made("select"));
    list.append(new Option("any", ""));
    values.forEach(({ value, passages }, index) => {
      const option = new Option(`${value} (${passages.toLocaleString()})`, String(index));
      option.selected = chosen.get(field) === value;
      list.append(option);
    });
    list.addEventListener("change", async () => {
      if (list.value) chosen.set(field, values[Number(list.value)].value);
      else chosen.delete(field);
      await narrow();
      search();
    });
    return label;
  });
  at("facets").replaceChildren(...lists);
  at("facets").hidden = !lists.length;
}

async function search() {
  const question = at("question").value.trim();
  if (!question) return;
  asked = { questions: question, k: Number(at("k").value), rerank: about.rerank && at("rerank").checked, ...wanted() };
  const mine = asked;
  history.replaceState(null, "", `#${encodeURIComponent(question)}`);
  say("searching …");
  try {
    const answer = await call("search", mine);
    if (mine !== asked) return; // a later question was asked meanwhile
    const hits = answer.results[0].hits;
    at("hits").replaceChildren(...hits.map((hit) => shown(hit, mine)));
    if (answer.version !== about.version) await describe(); // another bundle is served since
    say(`${hits.length} ${hits.length === 1 ? "passage" : "passages"} by ${answer.system}, version ${answer.version}`);
  } catch (error) {
    if (mine === asked) say(error.message, true);
  }
}

function shown(hit, request) {
  const item = made("li");
  item.tabIndex = -1;
  item.append(made("h2", `${hit.rank}. ${hit.title || hit.passage_id}`));
  item.append(made("p", `${hit.passage_id} · score ${hit.score.toFixed(4)}`, "quiet"));
  if (hit.text) item.append(made("p", hit.text, "text"));
  const acts = made("div", "", "acts");
  const place = made("div", "", "scroll");
  const why = made("button", "why?");
  why.dataset.key = "w";
  why.setAttribute("aria-expanded", "false");
  why.addEventListener("click", () => explain(hit, request, why, place));
  acts.append(why);
  if (about.feedback) {
    const vote = made("button", "answers it");
    vote.dataset.key = "y";
    vote.setAttribute("aria-pressed", "false");
    vote.addEventListener("click", () => mark(hit, request, vote));
    acts.append(vote);
  }
  item.append(acts, place);
  return item;
}

async function mark(hit, request, button) {
  const relevant = button.getAttribute("aria-pressed") !== "true";
  button.disabled = true;
  try {
    const kept = await call("feedback", { question: request.questions, passage_id: hit.passage_id, relevant });
    button.setAttribute("aria-pressed", String(relevant));
    const count = kept.labels === null ? "kept" : `${kept.labels.toLocaleString()} ${kept.labels === 1 ? "label" : "labels"}`;
    say(`${count} for the next training`);
  } catch (error) {
    say(error.message, true);
  }
  button.disabled = false;
  button.focus();
}

async function explain(hit, request, button, place) {
  const open = button.getAttribute("aria-expanded") !== "true";
  button.setAttribute("aria-expanded", String(open));
  place.replaceChildren();
  if (!open) return;
  place.append(made("p", "asking …", "quiet"));
  try {
    const answer = await call("search", { ...request, explain: true });
    const same = answer.results[0].hits.find((each) => each.passage_id === hit.passage_id);
    place.replaceChildren(...(same ? reasons(same) : [made("p", `not among the first ${request.k} by the vectors alone, which are what is explained`, "quiet")]));
  } catch (error) {
    place.replaceChildren(made("p", error.message, "quiet"));
  }
}

function reasons(hit) {
  const signed = (value) => (value < 0 ? "−" : "+") + Math.abs(value).toFixed(4);
  const percent = (value) => `${Math.round(100 * value)} %`;
  if (hit.why.parts) {
    return [rows(["adds", "what"], hit.why.parts.map((part) => [signed(part.amount), part.source]))];
  }
  const graph = hit.why.graph;
  const head = `With the graph ${graph.score.toFixed(4)}, rank ${graph.rank.toLocaleString()}; without it ` +
    `${graph.plain_score.toFixed(4)}, rank ${graph.plain_rank.toLocaleString()}.`;
  const queries = graph.influences.map((each) => [
    percent(each.weight), signed(each.score_change), each.query + (each.labelled ? " (labelled)" : ""),
  ]);
  if (graph.others) queries.push([percent(graph.others_weight), "", `${graph.others.toLocaleString()} more`]);
  queries.push([percent(graph.own), "", "the passage itself"]);
  return [made("p", head, "quiet"), rows(["weight", "without it", "training query"], queries)];
}

function rows(titles, body) {
  const table = made("table");
  const head = table.createTHead().insertRow();
  for (const title of titles) {
    const cell = made("th", title);
    cell.scope = "col";
    head.append(cell);
  }
  const filled = table.createTBody();
  for (const each of body) {
    const row = filled.insertRow();
    for (const text of each) row.append(made("td", text));
  }
  return table;
}

function step(by) {
  const items = [...at("hits").children];
  const now = items.findIndex((item) => item.contains(document.activeElement));
  items[Math.min(Math.max(now + by, 0), items.length - 1)]?.focus();
}

document.addEventListener("keydown", (event) => {
  const typing = event.target.matches("input[type=search], input[type=password], select");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "/") at("question").select();
  else if (event.key === "j") step(1);
  else if (event.key === "k") step(-1);
  else if (event.key === "w" || event.key === "y") {
    document.activeElement.closest?.("li")?.querySelector(`[data-key=${event.key}]`)?.click();
  } else return;
  event.preventDefault();
});

at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  search();
});

function asText(encoded) {
  try {
    return decodeURIComponent(encoded);
  } catch {
    return "";
  }
}

async function start() {
  try {
    await describe();
  } catch (error) {
    say(error.message, true);
    return;
  }
  const linked = asText(location.hash.slice(1));
  if (linked) at("question").value = linked; // else it has what was typed meanwhile
  if (linked) search();
  else at("question").focus();
}

start();
