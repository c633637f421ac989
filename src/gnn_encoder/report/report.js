"use strict";
const byId = (id) => document.getElementById(id);
const all = (selector, within = document) => [...within.querySelectorAll(selector)];
function element(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// Charts: specifications are beside their places. Their text has the page's colours, also at night and in print.
const AXIS = { labelColor: "currentColor", titleColor: "currentColor", gridColor: "#88888840", domainColor: "#888888", tickColor: "#888888", labelFontSize: 11, titleFontWeight: 500 };
const CONFIG = { background: null, font: "system-ui, sans-serif", aria: false, view: { stroke: null }, axis: AXIS, text: { color: "currentColor" },
  legend: { labelColor: "currentColor", titleColor: "currentColor" }, title: { color: "currentColor" } };
function draw(figure) {
  const [place, spec] = [figure.querySelector(".drawn"), figure.querySelector("script")];
  // The place has a description; its parts would have none.
  vegaEmbed(place, JSON.parse(spec.textContent), { renderer: "svg", actions: false, config: CONFIG, logLevel: vega.Error })
    .then(() => place.querySelector("svg").setAttribute("aria-hidden", "true"), (error) => place.append(String(error)));
}
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries.filter((each) => each.isIntersecting)) { seen.unobserve(entry.target); draw(entry.target); }
}, { rootMargin: "600px" });
for (const figure of all("figure.chart")) seen.observe(figure);
addEventListener("beforeprint", () => {
  for (const figure of all("figure.chart")) if (!figure.querySelector("svg")) draw(figure);
  for (const details of all("details:not(#settings *)")) details.open = true;
});

// Tables of systems: sorting by a column; measures, p-values, intervals and the other split on demand.
for (const table of all("table.systems")) {
  const body = table.tBodies[0];
  for (const head of all("thead th", table)) {
    const button = element("button", { type: "button" }, ...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const up = head.getAttribute("aria-sort") === "descending" ? 1 : -1;
      const value = (row) => row.cells[head.cellIndex].dataset.v ?? row.cells[head.cellIndex].textContent;
      const compare = (a, b) => (isNaN(a) || isNaN(b) ? String(b).localeCompare(String(a)) : a - b);
      for (const other of all("th", head.parentNode)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", up > 0 ? "ascending" : "descending");
      body.append(...[...body.rows].sort((a, b) => up * compare(value(a) || -1, value(b) || -1)));
    });
  }
}
const options = byId("options");
function showTables() {
  const wanted = new Set(all("[name=measure]:checked", options).map((box) => box.value));
  for (const of of all("[data-block]")) of.hidden = of.dataset.block !== options.elements.block.value;
  for (const cell of all("[data-m]")) {
    const measures = cell.closest("table").dataset.measures.split("|");
    cell.hidden = measures.some((name) => wanted.has(name)) && !wanted.has(cell.dataset.m);
  }
  for (const kind of ["p", "ci", "other"]) document.body.classList.toggle(`with-${kind}`, Boolean(options.elements[kind]?.checked));
}
function asText(kind) {
  const table = all("[data-block] table").find((each) => each.offsetParent);
  const shown = (row) => [...row.cells].filter((cell) => !cell.hidden);
  const lines = [...table.rows].map((row) => shown(row).map((cell) => cell.dataset.v ?? cell.textContent.trim()));
  if (kind === "csv") return lines.map((line) => line.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join(",")).join("\n");
  const escaped = (text) => (text !== "" && !isNaN(text) ? Number(text).toFixed(3) : text.replace(/[&%$#_{}]/g, "\\$&"));
  const [head, ...rest] = lines.map((line) => `${line.map(escaped).join(" & ")} \\\\`);
  return [`\\begin{tabular}{l${"r".repeat(lines[0].length - 1)}}`, "\\toprule", head, "\\midrule", ...rest, "\\bottomrule", "\\end{tabular}"].join("\n");
}
if (options) {
  options.hidden = false;
  options.addEventListener("change", showTables);
  showTables();
  for (const button of all("[data-as]", options)) button.addEventListener("click", () => {
    const area = byId("copied");
    area.value = asText(button.dataset.as);
    area.hidden = false;
    area.select();
    navigator.clipboard?.writeText(area.value).catch(() => {});
  });
}
for (const pre of all("pre.command")) {
  const button = element("button", { type: "button", class: "copy" }, "Copy");
  button.addEventListener("click", () => { navigator.clipboard?.writeText(pre.textContent); button.textContent = "Copied"; });
  pre.after(button);
}

// The browser of queries: files beside the page call `part`.
const loaded = new Map(), asked = new Map();
function part(name, value) { loaded.set(name, value); }
function load(name) {
  if (!asked.has(name)) asked.set(name, new Promise((done, fail) => {
    const script = element("script", { src: `queries/${name}.js` });
    script.onload = () => done(loaded.get(name));
    script.onerror = fail;
    document.head.append(script);
  }));
  return asked.get(name);
}
const ROWS = 60;
const three = (value) => value.toFixed(3);
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "±") + Math.abs(value).toFixed(3);
const segmenter = window.Intl?.Segmenter && new Intl.Segmenter(undefined, { granularity: "word" });
const beginning = (word) => word.toLowerCase().slice(0, 6);
function wordsOf(text) {
  return segmenter ? [...segmenter.segment(text)].map((each) => [each.segment, each.isWordLike]) : text.split(/(\s+)/).map((each) => [each, each.trim() !== ""]);
}
function browse(index) {
  const form = byId("search"), list = byId("found"), detail = byId("hits"), more = byId("more");
  const { systems, ids, texts, figures, strata } = index;
  const fields = form.elements, members = Object.fromEntries(Object.entries(strata).map(([name, rows]) => [name, new Set(rows)]));
  const lower = texts.map((text, row) => `${text} ${ids[row]}`.toLowerCase());
  const common = new Map(), sample = texts.slice(0, 500);  // in how many queries a word is: frequent ones are not marked
  for (const text of sample) for (const word of new Set(wordsOf(text).map(([each]) => beginning(each)))) common.set(word, 1 + (common.get(word) ?? 0));
  for (const name of ["one", "other"]) for (const system of systems) fields[name].append(element("option", {}, system));
  for (const name of Object.keys(strata)) fields.stratum.append(element("option", { value: name }, `${name} (${members[name].size.toLocaleString("en")})`));
  fields.one.value = index.one;
  fields.other.value = index.other;
  const isRelevant = (grade) => grade >= index.relevant;  // as the measure takes labels
  let rows = [], shown = 0, current = -1;
  const both = () => [figures[systems.indexOf(fields.one.value)], figures[systems.indexOf(fields.other.value)]];

  function choose(event) {
    const [one, other] = both(), words = fields.find.value.toLowerCase().split(/\s+/).filter(Boolean);
    const inside = members[fields.stratum.value], least = Number(fields.least.value);
    const within = ids.map((_, row) => row).filter((row) => (!inside || inside.has(row)) && words.every((word) => lower[row].includes(word)));
    const side = { won: (gain) => gain > 0, lost: (gain) => gain < 0, equal: (gain) => !gain }[fields.outcome.value];
    const gain = (row) => one[row] - other[row];
    rows = within.filter((row) => (!side || side(gain(row))) && Math.abs(gain(row)) >= least - 1e-5 && (fields.outcome.value !== "none" || !(one[row] || other[row])));
    const order = { gap: (a, b) => Math.abs(gain(b)) - Math.abs(gain(a)), low: (a, b) => one[a] - one[b] }[fields.order.value];
    if (order) rows.sort(order);
    const count = (test) => within.filter((row) => test(gain(row))).length.toLocaleString("en");
    byId("counts").textContent = `Of ${within.length.toLocaleString("en")} queries, ${fields.one.value} won ${count((g) => g > 0)}, lost ${count((g) => g < 0)}, and had the same ${index.measure} in ${count((g) => !g)}. ${rows.length.toLocaleString("en")} are listed.`;
    shown = 0;
    list.replaceChildren();
    extend();
    const isKept = ["one", "other"].includes(event?.target.name) && rows.includes(current);
    if (rows.length) open(isKept ? current : rows[0]);
    else detail.replaceChildren();
  }
  function extend() {
    const [one, other] = both();
    for (const row of rows.slice(shown, shown + ROWS)) {
      const gain = one[row] - other[row];
      const figure = element("small", { class: gain > 0 ? "better" : gain < 0 ? "worse" : "" }, `${three(one[row])} against ${three(other[row])}: ${signed(gain)}`);
      const button = element("button", { type: "button", "data-row": row, "aria-pressed": row === current }, texts[row], figure);
      list.append(element("li", {}, button));
    }
    shown = Math.min(shown + ROWS, rows.length);
    more.hidden = shown === rows.length;
    more.textContent = `Show more of ${rows.length.toLocaleString("en")}`;
  }
  async function open(row) {
    current = row;
    for (const button of all("button", list)) button.setAttribute("aria-pressed", Number(button.dataset.row) === row);
    const size = index.part, [hits, labels] = (await load(`hits-${Math.floor(row / size)}`))[row % size];
    const pair = [fields.one.value, fields.other.value].map((name) => systems.indexOf(name));
    const relevant = new Map(labels), needed = new Set([...pair.flatMap((system) => hits[system]), ...labels.filter(([, grade]) => isRelevant(grade)).map(([passage]) => passage)]);
    const read = await Promise.all([...new Set([...needed].map((passage) => Math.floor(passage / size)))].map((number) => load(`passages-${number}`).then((value) => [number, value])));
    if (row !== current) return;
    const files = new Map(read), passage = (number) => files.get(Math.floor(number / size))[number % size];
    const wanted = new Set(wordsOf(texts[row]).filter(([word, isWord]) => isWord && (common.get(beginning(word)) ?? 0) <= Math.max(3, sample.length / 12)).map(([word]) => beginning(word)));
    const marked = (text) => wordsOf(text).map(([word, isWord]) => (isWord && wanted.has(beginning(word)) ? element("mark", {}, word) : word));
    const item = (number, compared) => {
      const [id, title, text, source, training] = passage(number), grade = relevant.get(number), node = element("li", isRelevant(grade) ? { class: "relevant" } : {});
      const verdict = isRelevant(grade) ? `relevant${grade > 1 ? ` (label ${grade})` : ""}` : grade !== undefined ? `label ${grade}` : "no label";
      node.append(element("p", {}, element("strong", {}, verdict), " ", title ? element("em", {}, ...marked(title)) : "", " ", ...marked(text)));
      const name = /^(https?|file):/.test(source) ? element("a", { href: source }, id) : id;
      const others = systems.map((system, at) => [system, hits[at].indexOf(number) + 1]).filter(([system, rank]) => rank && system !== compared);
      const simple = others.filter(([system]) => index.simple.includes(system)), by = (simple.length ? simple : others).map(([system, rank]) => `${system} ${rank}`);
      node.append(element("p", { class: "quiet" }, name, by.length ? ` · rank in others: ${by.join("; ")}` : compared ? " · in no other system's first hits" : ""));
      if (training.length) node.append(element("p", { class: "quiet" }, `Training queries with this passage: ${training.map((each) => `“${each}”`).join(" ")}`));
      return node;
    };
    const columns = pair.map((system, at) => element("div", {}, element("h3", {}, `${systems[system]}: ${index.measure} ${three(figures[system][row])}`), element("ol", {}, ...hits[system].map((number) => item(number, systems[system])))));
    const missed = labels.filter(([number, grade]) => isRelevant(grade) && !pair.some((system) => hits[system].includes(number))).map(([number]) => number);
    const inside = Object.keys(members).filter((name) => members[name].has(row));
    const heading = element("h3", { tabindex: -1 }, texts[row]), ranked = [...new Set([...pair, ...index.simple.map((name) => systems.indexOf(name))])];
    const first = ranked.map((at) => `${systems[at]} ${hits[at].findIndex((number) => isRelevant(relevant.get(number))) + 1 || "none"}`);
    detail.replaceChildren(heading, element("p", { class: "quiet" }, `${ids[row]}${inside.length ? ` · ${inside.join(", ")}` : ""} · marked: words of the query that few other queries have`), element("p", { class: "quiet" }, element("strong", {}, "First relevant hit"), `: ${first.join("; ")}`), element("div", { class: "rankings" }, ...columns));
    if (missed.length) detail.append(element("div", { class: "rankings" }, element("div", {}, element("h3", {}, "Relevant, and not among these hits"), element("ol", {}, ...missed.map((number) => item(number))))));
    const graph = document.getElementById(`explained-${ids[row]}`);
    if (graph) detail.append(element("p", {}, element("a", { href: `#explained-${encodeURIComponent(ids[row])}` }, "What the graph changed for this query")));
  }
  form.addEventListener("input", choose);
  for (const link of all("[data-outcome]")) link.addEventListener("click", () => {
    form.reset();
    [fields.one.value, fields.other.value, fields.outcome.value] = [index.one, index.other, link.dataset.outcome];
    choose();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  more.addEventListener("click", extend);
  list.addEventListener("click", (event) => { const button = event.target.closest("button"); if (button) open(Number(button.dataset.row)); });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], buttons = all("button", list), next = step && buttons[buttons.indexOf(document.activeElement) + step];
    if (next) { event.preventDefault(); next.focus(); open(Number(next.dataset.row)); }
  });
  choose();
  byId("browse").hidden = false;
  byId("unavailable").hidden = true;
}
const beside = ["file:", "http:", "https:"].includes(location.protocol);  // not in a frame of another page
if (beside && byId("browse")) addEventListener("load", () => load("index").then(browse, () => {}));
