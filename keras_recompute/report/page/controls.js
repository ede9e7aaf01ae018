"use strict";
// What the reader does: pointer, buttons, keys. Everything ends in go() with a change of state.

function wirePointer() {
  let pressed = null, waiting = null;
  const stage = $("stage");
  stage.addEventListener("pointermove", (event) => {
    if (waiting === null) requestAnimationFrame(() => { if (waiting) showTip(waiting); waiting = null; });
    waiting = event;
  }, true);
  stage.addEventListener("pointerleave", () => { waiting = null; $("tip").hidden = $("pointer").hidden = true; });
  stage.addEventListener("pointerdown", (event) => { pressed = event.button === 0 ? [event.clientX, event.clientY] : null; }, true);
  window.addEventListener("pointerup", (event) => {
    if (pressed && Math.hypot(event.clientX - pressed[0], event.clientY - pressed[1]) < 4) {
      const step = chart.stepAt(event.clientX - stage.getBoundingClientRect().left);
      // with shift the pinned step stays as the one to compare from
      if (step >= 0 && step < report().steps) pin(step, event.shiftKey ? { base: state.base ?? state.step, scope: "change" } : {});
      $("plot").focus({ preventScroll: true });
    }
    pressed = null;
  }, true);
  stage.addEventListener("dblclick", () => zoom(0, chart.steps), true);
  $("plot").on("plotly_relayout", (change) => {
    if ("xaxis.range[0]" in change) zoom(change["xaxis.range[0]"], change["xaxis.range[1]"]);
    else placeMarks();
  });
  new ResizeObserver(() => requestAnimationFrame(placeMarks)).observe(stage);
}

function wireControls() {
  const rowOf = (event, name) => event.target.closest(`tr[data-${name}]`)?.dataset[name];
  const onRow = (table, name, act) => {
    const run = (event) => { const value = rowOf(event, name); if (value !== undefined) act(Number(value)); };
    $(table).tBodies[0].addEventListener("click", run);
    $(table).tBodies[0].addEventListener("keydown", (event) => { if (event.key === "Enter") run(event); });
  };
  onRow("buffers", "buffer", (n) => go({ buffer: state.buffer === n ? null : n }));
  onRow("steps", "step", (n) => pin(n));
  $("buffers").tHead.addEventListener("click", (event) => {
    const key = event.target.dataset.sort;
    if (key) go({ sort: key, down: state.sort === key ? !state.down : key === "bytes" });
    if (key) document.querySelector(`[data-sort="${key}"]`).focus();
  });
  for (const name of ["by", "category", "layer"]) $(name).addEventListener("change", () => go({ [name]: $(name).value }));
  $("text").addEventListener("input", () => go({ text: $("text").value }));
  for (const button of document.querySelectorAll("[data-front]")) {
    button.addEventListener("click", () => go({ front: Number(button.dataset.front) }));
  }
  $("in").addEventListener("click", () => scaleBy(0.5));
  $("out").addEventListener("click", () => scaleBy(2));
  $("all").addEventListener("click", () => zoom(0, chart.steps));
  $("peak").addEventListener("click", () => pin(report().peakStep));
  $("set-base").addEventListener("click", () => go({ base: state.step, scope: "change" }));
  $("clear-base").addEventListener("click", () => go({ base: null, scope: "step" }));
  $("more").addEventListener("click", () => { shownRows += 5 * ROWS; show(); });
  $("earlier").addEventListener("click", () => { tablePage -= 1; showTable(); });
  $("later").addEventListener("click", () => { tablePage += 1; showTable(); });
  $("table").addEventListener("toggle", () => { tablePage = Math.floor(state.step / TABLE_ROWS); showTable(); });
  $("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  $("keys").addEventListener("click", toggleHelp);
}

function toggleHelp() {
  $("help").hidden = !$("help").hidden;
  $("keys").setAttribute("aria-expanded", String(!$("help").hidden));
  if (!$("help").hidden) $("help").scrollIntoView({ block: "nearest" });
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").textContent = name === "dark" ? "Light" : "Dark";
  if (drawn) show();
}

// The keys, described in page.py, which writes the list that "?" shows.
const KEYS = {
  ArrowLeft: (event) => pin(state.step - (event.shiftKey ? stride() : 1)),
  ArrowRight: (event) => pin(state.step + (event.shiftKey ? stride() : 1)),
  Home: () => pin(0), End: () => pin(report().steps - 1), p: () => pin(report().peakStep),
  "+": () => scaleBy(0.5), "=": () => scaleBy(0.5), "-": () => scaleBy(2), 0: () => zoom(0, chart.steps),
  d: () => go(state.base === null ? { base: state.step, scope: "change" } : { base: null, scope: "step" }),
  s: () => go({ by: GROUPINGS[(GROUPINGS.indexOf(state.by) + 1) % GROUPINGS.length] }),
  a: () => go({ scope: state.scope === "all" ? "step" : "all" }),
  x: () => { if (reports.length > 1) go({ front: 1 - state.front }); },
  t: () => { $("table").open = !$("table").open; if ($("table").open) $("table").scrollIntoView({ block: "nearest" }); },
  "/": () => $("text").focus(), "?": toggleHelp,
  Escape: () => go({ buffer: null, base: null, scope: "step", text: "", category: "", layer: "" }),
};
const stride = () => Math.max(Math.round((state.to - state.from) / 20), 2);

function wireKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName);
    if (event.ctrlKey || event.metaKey || event.altKey || (typing && event.key !== "Escape")) return;
    const act = KEYS[event.key];
    if (!act || !Object.hasOwn(KEYS, event.key)) return;
    event.preventDefault();
    if (typing) event.target.blur();
    act(event);
  });
}

(async () => {
  const dark = matchMedia("(prefers-color-scheme: dark)");
  setTheme(dark.matches ? "dark" : "light");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  readAddress();
  wireControls();
  wireKeys();
  const drawing = show();
  const elapsed = () => Math.round(performance.now()); // milliseconds since the page was asked for
  document.documentElement.dataset.shown = elapsed();
  await drawing;
  wirePointer();
  window.addEventListener("hashchange", () => { readAddress(); show(); });
  document.documentElement.dataset.ready = elapsed();
})();
