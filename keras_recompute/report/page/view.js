"use strict";
// The page around the chart. One state says all that is shown; it stands in the address after "#", so that a link keeps it.
// Names come from foreign files: they enter the page as text only, never as markup.

const $ = (id) => document.getElementById(id);
const reports = JSON.parse($("data").textContent).map((entry) => new Report(entry));
const chart = new Chart($("plot"), reports);
const GROUPINGS = [...$("by").options].map((option) => option.value);
const SCOPES = { step: "alive at the step", all: "of the whole program", change: "that changed" };
const ROWS = 200, TABLE_ROWS = 100;
const COLUMNS = [
  ["bytes", "Bytes", (n) => report().size[n], true],
  ["what", "What", (n) => report().describe(n)],
  ["category", "Category", (n) => report().buffer.category[n]],
  ["layer", "Layer", (n) => report().buffer.layer[n] ?? ""],
  ["phase", "Phase", (n) => report().buffer.phase[n] ?? ""],
  ["section", "Section", (n) => report().buffer.section[n] ?? ""],
  ["steps", "Steps", (n) => report().first[n]],
];
const state = {};
let shownRows = ROWS, tablePage = 0, drawn = "", listed = "", facing = -1;

const report = () => reports[state.front];
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

function element(tag, { text, ...attributes } = {}, ...children) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// -- state and address ---------------------------------------------------------------------------------------------

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name, fallback, low, high) => {
    const value = given.has(name) ? Number(given.get(name)) : NaN;
    return Number.isFinite(value) ? clamp(Math.trunc(value), low, high) : fallback;
  };
  state.front = number("report", 0, 0, reports.length - 1);
  const last = report().steps - 1, buffers = report().size.length - 1;
  state.by = GROUPINGS.includes(given.get("by")) ? given.get("by") : GROUPINGS[0];
  state.step = number("step", report().peakStep, 0, last);
  state.base = number("base", null, 0, last);
  state.buffer = buffers < 0 ? null : number("buffer", null, 0, buffers);
  state.from = number("from", 0, 0, chart.steps - 1);
  state.to = number("to", chart.steps, state.from + 1, chart.steps);
  const usual = state.base === null ? "step" : "change", scope = given.get("scope") ?? usual;
  state.scope = Object.hasOwn(SCOPES, scope) && (scope !== "change" || state.base !== null) ? scope : usual;
  state.sort = COLUMNS.some(([name]) => name === given.get("sort")) ? given.get("sort") : "bytes";
  state.down = given.has("down") ? given.get("down") === "1" : state.sort === "bytes";
  for (const name of ["text", "category", "layer"]) state[name] = given.get(name) ?? "";
}

function writeAddress() {
  const shown = new URLSearchParams(), put = (name, value, standard) => { if (value !== standard && value !== null) shown.set(name, value); };
  put("report", state.front, 0);
  put("by", state.by, GROUPINGS[0]);
  put("step", state.step, report().peakStep);
  put("base", state.base, null);
  put("buffer", state.buffer, null);
  put("from", Math.round(state.from), 0);
  put("to", Math.round(state.to), chart.steps);
  put("scope", state.scope, state.base === null ? "step" : "change");
  put("sort", state.sort, "bytes");
  put("down", state.down ? 1 : 0, state.sort === "bytes" ? 1 : 0);
  for (const name of ["text", "category", "layer"]) put(name, state[name], "");
  const address = shown.toString();
  if (location.hash.slice(1) !== address) history.replaceState(null, "", address ? `#${address}` : location.pathname + location.search);
}

/** Change the state and show it. */
function go(changes) {
  const before = state.front;
  Object.assign(state, changes);
  if (state.front !== before) {
    Object.assign(state, { buffer: null, base: null, category: "", layer: "", step: changes.step ?? report().peakStep });
    if (state.scope === "change") state.scope = "step";
  }
  state.step = clamp(state.step, 0, report().steps - 1);
  if (state.base === null && state.scope === "change") state.scope = "step";
  shownRows = ROWS;
  show();
}

async function show() {
  writeAddress();
  if (facing !== state.front) fillChoices();
  showControls();
  showStep();
  showBuffers();
  showBuffer();
  showTable();
  const wanted = [state.front, state.by, state.from, state.to, document.documentElement.dataset.theme].join();
  if (wanted !== drawn) {
    drawn = wanted;
    showLegend();
    await chart.draw(state);
  }
  if (chart.isDrawn) placeMarks();
}

// -- chart ---------------------------------------------------------------------------------------------------------

function zoom(from, to) {
  const width = clamp(to - from, Math.min(4, chart.steps), chart.steps), start = clamp(from, 0, chart.steps - width);
  go({ from: Math.round(start), to: Math.round(start + width) });
}

function scaleBy(factor) {
  const width = (state.to - state.from) * factor, middle = clamp(state.step, state.from, state.to);
  zoom(middle - width * (middle - state.from) / (state.to - state.from), middle + width * (state.to - middle) / (state.to - state.from));
}

/** Pin a step and keep it in view. */
function pin(step, changes = {}) {
  const at = clamp(step, 0, report().steps - 1), width = state.to - state.from;
  const view = at < state.from || at >= state.to ? { from: clamp(at - width / 2, 0, chart.steps - width) } : {};
  if (view.from !== undefined) { view.from = Math.floor(view.from); view.to = view.from + width; }
  go({ step: at, ...view, ...changes });
  $("say").textContent = `step ${formatCount(at)}, ${formatBytes(report().total[at])}`;
}

function placeMarks() {
  const { left, top, width, height } = chart.area;
  const place = (mark, step, last, label) => {
    const from = step === null ? NaN : chart.pixel(step), to = last === undefined ? from : chart.pixel(last + 1);
    mark.hidden = !(to >= left - 1 && from <= left + width + 1);
    if (mark.hidden) return;
    const start = clamp(from, left, left + width);
    mark.style.left = `${start}px`;
    mark.style.top = `${top}px`;
    mark.style.height = `${height}px`;
    if (last !== undefined) mark.style.width = `${Math.max(clamp(to, left, left + width) - start, 2)}px`;
    mark.classList.toggle("left", start > left + 0.8 * width);
    if (label) mark.firstElementChild.textContent = label;
  };
  place($("pinned"), state.step + 0.5, undefined, `step ${formatCount(state.step)}`);
  place($("baseline"), state.base === null ? null : state.base + 0.5, undefined, `from step ${formatCount(state.base ?? 0)}`);
  const chosen = state.buffer;
  place($("lifetime"), chosen === null ? null : report().first[chosen], chosen === null ? undefined : report().last[chosen]);
}

function showLegend() {
  const colours = coloursOf(report(), state.by), style = getComputedStyle(document.documentElement);
  const items = [...colours].reverse().map(([name, colour]) => [`background:${colour}`, "swatch", name]);
  const curve = (n) => style.getPropertyValue(n === 1 ? "--other" : "--curve");
  if (reports.length > 1) {
    items.push([`border-color:${curve(state.front)}`, "stroke", `${"AB"[state.front]}: ${report().label}`]);
    items.push([`border-color:${curve(1 - state.front)};border-top-style:dashed`, "stroke", `${"AB"[1 - state.front]}: ${reports[1 - state.front].label}`]);
  }
  items.push([`border-color:${style.getPropertyValue("--curve")};border-top-style:dotted`, "stroke", "always live"]);
  const phases = PHASES.filter((phase) => report().step.phase.includes(phase));
  if (state.by !== "phase" && phases.length) {
    items.push(["", "", "strip below:"], ...phases.map((phase) => [`background:${PHASE_COLOURS[phase]}`, "swatch", phase]));
  }
  $("legend").replaceChildren(...items.map(([css, kind, name]) => {
    const sign = element("span", { class: kind });
    sign.style.cssText = css;
    return element("li", {}, ...(kind ? [sign] : []), name);
  }));
}

function showTip(event) {
  const box = $("stage").getBoundingClientRect(), { left, top, width, height } = chart.area;
  const x = event.clientX - box.left, y = event.clientY - box.top, step = chart.stepAt(x);
  const inside = x >= left && x <= left + width && y >= 0 && y <= top + height + 30 && step >= 0 && step < chart.steps;
  $("tip").hidden = $("pointer").hidden = !inside;
  if (!inside) return;
  const now = report(), runs = step < now.steps, alive = runs ? now.largest(step, 6) : [], facts = ["phase", "section", "layer"].map((name) => now.step[name][step]).filter(Boolean);
  const rows = alive.map((n) => {
    const sign = element("span", { class: "swatch" });
    sign.style.background = coloursOf(now, state.by).get(now.groupOf(n, state.by));
    return element("div", { class: "row" }, sign, element("span", { class: "size", text: formatBytes(now.size[n]) }), element("span", { text: now.describe(n) }));
  });
  const behind = reports[1 - state.front]?.total[step];
  const held = runs ? `${formatBytes(now.total[step])} at step ${formatCount(step)}` : `${"AB"[state.front]} has no step ${formatCount(step)}`;
  $("tip").replaceChildren(
    element("div", {}, element("b", { text: held })),
    ...(behind === undefined ? [] : [element("div", { text: `${"AB"[1 - state.front]} holds ${formatBytes(behind)} at its step of this number` })]),
    ...(runs ? [
      element("div", { class: "quiet", text: now.step.instruction[step] }),
      element("div", { class: "quiet", text: facts.join(" · ") || "phase and layer not known" }), ...rows,
      element("div", { class: "row" }, element("span", { class: "swatch" }), element("span", { class: "size", text: formatBytes(now.floor) }), element("span", { text: "always live" })),
    ] : []));
  const wide = $("tip").offsetWidth, high = $("tip").offsetHeight, beside = x + 16 + wide > box.width ? x - 16 - wide : x + 16;
  $("tip").style.left = `${clamp(beside, 8 - box.left, Math.max(innerWidth - box.left - wide - 8, 8 - box.left))}px`; // never out of the window
  $("tip").style.top = `${clamp(y + 12, 0, Math.max(box.height - high, 0))}px`;
  $("pointer").style.cssText = `left:${x}px;top:${top}px;height:${height}px`;
}

// -- step and buffer -----------------------------------------------------------------------------------------------

function facts(list, rows) {
  list.replaceChildren(...rows.filter(([, value]) => value !== null && value !== undefined && value !== "").map(
    ([name, value]) => element("div", {}, element("dt", { text: name }), element("dd", { text: value }))));
}

const signed = (bytes) => `${bytes > 0 ? "+" : bytes < 0 ? "−" : ""}${formatBytes(Math.abs(bytes))}`;

function showStep() {
  const now = report(), { step, base } = state;
  $("step-title").textContent = `${reports.length > 1 ? `${"AB"[state.front]}: ` : ""}Step ${formatCount(step)} of ${formatCount(now.steps)}${step === now.peakStep ? ", the peak" : ""}`;
  facts($("step-facts"), [
    ["holds", formatBytes(now.total[step])],
    ["since base", base === null ? null : `${signed(now.total[step] - now.total[base])} from step ${formatCount(base)}`],
    ["runs", now.step.instruction[step]], ["operation", now.step.op_name[step]], ["layer", now.step.layer[step]],
    ["phase", now.step.phase[step]], ["section", now.step.section[step]],
  ]);
  const colours = coloursOf(now, state.by), rows = now.groups(state.by).map(({ name, held }) => [name, held[step], base === null ? 0 : held[base]]);
  $("step-groups").replaceChildren(...rows.filter(([, held, old]) => held || old).sort((a, b) => b[1] - a[1]).map(([name, held, old]) => {
    const sign = element("span", { class: "swatch" }), bar = element("i");
    sign.style.background = bar.style.background = colours.get(name);
    bar.style.width = `${clamp(100 * held / (now.total[step] || 1), 0, 100)}%`;
    const words = base === null ? formatBytes(held) : `${formatBytes(held)} (${signed(held - old)})`;
    return element("li", {}, sign, element("span", { text: name, title: name }), element("span", { text: words }), bar);
  }));
}

function showBuffer() {
  const n = state.buffer, now = report();
  $("buffer").hidden = n === null;
  if (n === null) return;
  const of = (name) => now.buffer[name][n];
  $("buffer-title").textContent = `Buffer ${of("name")}`;
  facts($("buffer-facts"), [
    ["size", formatBytes(now.size[n])], ["exactly", `${formatCount(now.size[n])} bytes`],
    ["lives", `step ${formatCount(now.first[n])} to ${formatCount(now.last[n])}, ${formatCount(now.last[n] - now.first[n] + 1)} steps`],
    ["kind", of("lifetime")], ["category", of("category")], ["operation", of("op_name")], ["layer", of("layer")],
    ["phase", of("phase")], ["section", of("section")], ["source", of("source")],
  ]);
}

// -- list of buffers -----------------------------------------------------------------------------------------------

function chosenBuffers() {
  const now = report(), { step, base, scope, text, category, layer } = state, words = text.toLowerCase();
  const inScope = {
    step: (n) => now.aliveAt(n, step), all: () => true,
    change: (n) => now.aliveAt(n, step) !== now.aliveAt(n, base),
  }[scope];
  const { name, op_name, layer: layers, source, category: categories } = now.buffer;
  const found = [];
  for (const n of now.order) {
    if (!inScope(n) || (category && categories[n] !== category) || (layer && (layers[n] ?? NONE) !== layer)) continue;
    if (words && ![name[n], op_name[n], layers[n], source[n]].some((part) => part?.toLowerCase().includes(words))) continue;
    found.push(n);
  }
  const of = COLUMNS.find(([key]) => key === state.sort)[2], way = state.down ? -1 : 1;
  if (state.sort === "bytes" && state.down) return found; // they come in this order
  const keys = new Map(found.map((n) => [n, of(n)]));
  return found.sort((a, b) => way * (keys.get(a) < keys.get(b) ? -1 : keys.get(a) > keys.get(b) ? 1 : 0));
}

function showBuffers() {
  const wanted = JSON.stringify([state, shownRows, state.by]);
  if (wanted === listed) return;
  listed = wanted;
  const now = report(), { step, base, scope } = state, found = chosenBuffers();
  $("buffers-title").textContent = `Buffers ${SCOPES[scope]}`;
  const sum = (rows) => rows.reduce((bytes, n) => bytes + now.size[n], 0);
  if (scope === "change") {
    const born = found.filter((n) => now.aliveAt(n, step)), gone = found.filter((n) => !now.aliveAt(n, step));
    $("sums").textContent = `From step ${formatCount(base)} to ${formatCount(step)}: ${formatCount(born.length)} came, ${signed(sum(born))}; `
      + `${formatCount(gone.length)} went, ${signed(-sum(gone))}; together ${signed(sum(born) - sum(gone))}`;
  } else {
    $("sums").textContent = `${formatCount(found.length)} buffers, ${formatBytes(sum(found))}`
      + (scope === "step" ? ` of the ${formatBytes(now.total[step])} held` : ", counted each once");
  }
  const colours = coloursOf(now, state.by);
  $("buffers").tBodies[0].replaceChildren(...found.slice(0, shownRows).map((n) => {
    const life = element("i"), span = element("div", { class: "life" }, life), of = (name) => now.buffer[name][n] ?? "";
    life.style.cssText = `left:${100 * now.first[n] / now.steps}%;width:${100 * (now.last[n] - now.first[n] + 1) / now.steps}%`;
    life.style.background = colours.get(now.groupOf(n, state.by)) ?? "currentColor";
    const change = scope !== "change" ? "" : now.aliveAt(n, step) ? "+" : "−";
    return element("tr", { "data-buffer": n, tabindex: "0", "aria-selected": String(n === state.buffer) },
      element("td", { class: `right ${change === "+" ? "more" : change ? "less" : ""}`, text: change + formatBytes(now.size[n]) }),
      element("td", { class: "what", text: now.describe(n) }), element("td", { class: "plain", text: of("category") }),
      element("td", { class: "layer", text: of("layer") }), element("td", { class: "plain", text: of("phase") }),
      element("td", { class: "plain", text: of("section") }),
      element("td", { class: "plain" }, `${formatCount(now.first[n])}–${formatCount(now.last[n])}`, span));
  }));
  const left = found.length - shownRows;
  $("more").hidden = left <= 0;
  $("more").textContent = `Show ${formatCount(Math.min(left, 5 * ROWS))} more of ${formatCount(left)}, ${formatBytes(sum(found.slice(shownRows)))}`;
  $("buffers").tHead.rows[0].replaceChildren(...COLUMNS.map(([key, label, , right]) => {
    const head = element("th", { scope: "col", ...(right ? { class: "right" } : {}) });
    if (state.sort === key) head.setAttribute("aria-sort", state.down ? "descending" : "ascending");
    head.append(element("button", { type: "button", "data-sort": key, text: `${label}${state.sort === key ? state.down ? " ↓" : " ↑" : ""}` }));
    return head;
  }));
}

function fillChoices() {
  facing = state.front;
  for (const name of ["category", "layer"]) {
    const values = [...new Set(report().buffer[name].map((value) => value ?? NONE))].sort();
    $(name).replaceChildren(element("option", { value: "", text: "all" }), ...values.map((value) => element("option", { value, text: value })));
  }
}

function showControls() {
  $("by").value = state.by;
  $("category").value = state.category;
  $("layer").value = state.layer;
  if ($("text").value !== state.text) $("text").value = state.text;
  for (const button of document.querySelectorAll("[data-front]")) button.setAttribute("aria-pressed", String(Number(button.dataset.front) === state.front));
  $("set-base").textContent = state.base === null ? "Compare from this step" : "Compare from here instead";
  $("clear-base").hidden = state.base === null;
}

// -- all steps as a table ------------------------------------------------------------------------------------------

function showTable() {
  if (!$("table").open) return;
  const now = report(), pages = Math.ceil(now.steps / TABLE_ROWS);
  tablePage = clamp(tablePage, 0, pages - 1);
  const first = tablePage * TABLE_ROWS, count = Math.min(TABLE_ROWS, now.steps - first);
  $("page-of").textContent = `steps ${formatCount(first)} to ${formatCount(first + count - 1)} of ${formatCount(now.steps)}`;
  $("earlier").disabled = tablePage === 0;
  $("later").disabled = tablePage === pages - 1;
  $("steps").tBodies[0].replaceChildren(...Array.from({ length: count }, (_, n) => {
    const step = first + n, row = element("tr", { "data-step": step, tabindex: "0", "aria-selected": String(step === state.step) });
    row.append(element("td", { text: formatCount(step) }), element("td", { class: "right", text: formatBytes(now.total[step]) }));
    row.append(...["instruction", "phase", "section", "layer"].map((name) => element("td", { class: name === "layer" ? "layer" : "plain", text: now.step[name][step] ?? "" })));
    return row;
  }));
}
