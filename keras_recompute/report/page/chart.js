"use strict";
// The chart: what plotly.js draws of one report in front and, of two, the outline of the other.

// Okabe and Ito's colours, which stay apart for colour-blind readers; the bytes that are always there are grey.
const CATEGORY_COLOURS = {
  weight: "#8c8c8c", optimiser: "#0072b2", input: "#f0e442", checkpoint: "#009e73", activation: "#56b4e9",
  gradient: "#cc79a7", other: "#c2b8a3", [UNEXPLAINED]: "#d55e00",
};
// The colours of the pictures (figures.py), which stay apart in grey.
const PHASE_COLOURS = { forward: "#a6d9f7", recompute: "#e69f00", backward: "#b8568f", update: "#00694c" };
const LIFETIME_COLOURS = { "always-live": "#8c8c8c", temporary: "#56b4e9", result: "#e69f00", [UNEXPLAINED]: "#d55e00" };
const PALETTE = ["#56b4e9", "#e69f00", "#009e73", "#cc79a7", "#f0e442", "#0072b2", "#d55e00", "#c2b8a3"];
const FIXED = { category: CATEGORY_COLOURS, phase: PHASE_COLOURS, lifetime: LIFETIME_COLOURS };
const CAPACITY_TO_SCALE = 2.5; // above this multiple of the peak it is written instead, lest it press the curve flat
const BINS = 900;
const PHASES = Object.keys(PHASE_COLOURS);

/** Colour of each group of a report, by name. */
function coloursOf(report, by) {
  const fixed = new Map(Object.entries(FIXED[by] ?? {})); // a map: a category may be called "constructor"
  let next = 0;
  return new Map(report.groups(by).map(({ name, rest }) => [
    name, fixed.get(name) ?? (name === UNEXPLAINED ? "#d55e00" : name === NONE ? "#8c8c8c" : rest ? "#b9b3a6" : PALETTE[next++ % PALETTE.length]),
  ]));
}

class Chart {
  constructor(element, reports) {
    this.element = element;
    this.library = new Promise((done) => { this.tellLibraryRead = done; });
    this.reports = reports;
    this.highest = Math.max(...reports.map((report) => report.peak), 1);
    this.capacity = reports.map((report) => report.capacity).find((bytes) => bytes !== null && bytes !== undefined) ?? null;
    this.toScale = this.capacity !== null && this.capacity <= CAPACITY_TO_SCALE * this.highest;
    this.top = Math.max(1.12 * this.highest, this.toScale ? 1.08 * this.capacity : 0);
    this.steps = Math.max(...reports.map((report) => report.steps)); // one scale for both
  }

  /** Called once plotly.js was read: it stands at the end of the page, and everything else is shown before. */
  libraryRead() { this.tellLibraryRead(); }

  /** Whether there is a chart yet; nothing can be placed on it before. */
  get isDrawn() { return Boolean(this.element._fullLayout); }

  async draw({ front, by, from, to }) {
    await this.library;
    const style = getComputedStyle(document.documentElement), colour = (name) => style.getPropertyValue(`--${name}`).trim();
    const report = this.reports[front], behind = this.reports[1 - front], colours = coloursOf(report, by);
    const at = sampled(report.total, from, to, BINS), x = [...at, at.length ? at[at.length - 1] + 1 : 0];
    const closed = (values) => [...at.map((n) => values[n]), at.length ? values[at[at.length - 1]] : 0];
    const common = { mode: "lines", hoverinfo: "skip", showlegend: false };
    const line = (width, shade, dash = "solid") => ({ shape: "hv", width, color: shade, dash, simplify: false });
    const traces = report.groups(by).map(({ name, held }) => ({
      ...common, x, y: closed(held).map((bytes) => Math.max(bytes, 0)), stackgroup: "held", fillcolor: colours.get(name), line: line(0, colours.get(name)),
    }));
    traces.push({ ...common, x, y: closed(report.total), line: line(1.6, colour(front === 1 ? "other" : "curve")) });
    traces.push({ ...common, x: [0, report.steps], y: [report.floor, report.floor], line: line(1.4, colour("curve"), "dot") });
    if (behind) {
      const points = sampled(behind.total, from, to, BINS), last = points[points.length - 1];
      const outline = { ...common, x: [...points, (last ?? 0) + 1], y: [...points.map((n) => behind.total[n]), behind.total[last] ?? 0] };
      traces.push({ ...outline, line: line(4.5, colour("card")) }); // so that it stands out from any colour
      traces.push({ ...outline, line: line(2.2, colour(front === 1 ? "curve" : "other"), "7px,3px") });
    }
    const marks = (r, n) => ({
      ...common, mode: "markers", x: [r.peakStep + 0.5], y: [r.peak], cliponaxis: false,
      marker: { size: 8, color: colour(n === 1 ? "other" : "curve"), line: { width: 1.5, color: colour("card") } },
    });
    this.reports.forEach((r, n) => traces.push(marks(r, n)));
    for (const phase of PHASES) {
      if (!report.step.phase.includes(phase)) continue;
      traces.push({
        ...common, x, y: closed(report.step.phase).map((name) => name === phase ? 1 : 0), yaxis: "y2",
        fill: "tozeroy", fillcolor: PHASE_COLOURS[phase], line: line(0, PHASE_COLOURS[phase]),
      });
    }
    await Plotly.react(this.element, traces, this.layout({ front, from, to, colour }), {
      displayModeBar: false, responsive: true, doubleClick: false, showTips: false, scrollZoom: false,
    });
  }

  layout({ front, from, to, colour }) {
    const annotations = this.reports.map((report, n) => {
      const at = (report.peakStep + 0.5 - from) / Math.max(to - from, 1), letter = this.reports.length > 1 ? `${"AB"[n]} ` : "";
      return {
        x: report.peakStep + 0.5, y: report.peak, text: `<b>${letter}peak ${formatBytes(report.peak)}</b>`, showarrow: false,
        xanchor: at > 0.75 ? "right" : "left", yanchor: "bottom", xshift: at > 0.75 ? -6 : 6, yshift: 2,
        font: { size: 12.5, color: colour(n === 1 ? "other" : "text") },
        bgcolor: `${colour("card")}d9`, borderpad: 1, visible: at >= 0 && at <= 1,
      };
    });
    annotations.push({
      xref: "paper", x: 1, y: this.reports[front].floor, xanchor: "right", yanchor: "bottom", showarrow: false,
      text: `always live ${formatBytes(this.reports[front].floor)}`, font: { size: 11.5, color: colour("text") }, bgcolor: `${colour("card")}cc`,
    });
    const shapes = [];
    if (this.capacity !== null) {
      annotations.push({
        xref: "paper", showarrow: false, font: { size: 11.5, color: colour("quiet") },
        ...(this.toScale ? { x: 1, xanchor: "right", y: this.capacity, yanchor: "bottom" } : { x: 0, xanchor: "left", yref: "paper", y: 1, yanchor: "top" }),
        text: `capacity ${formatBytes(this.capacity)}${this.toScale ? "" : " ↑ above this scale"}`,
      });
    }
    if (this.toScale) {
      shapes.push({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: this.capacity, y1: this.capacity,
        line: { width: 1.5, color: colour("curve"), dash: "dash" },
      });
    }
    const ticks = this.ticks();
    return {
      margin: { l: 64, r: 12, t: 14, b: 46 }, hovermode: false, dragmode: "zoom", showlegend: false, annotations, shapes,
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: "system-ui, -apple-system, Segoe UI, Roboto, sans-serif", size: 12, color: colour("quiet") },
      xaxis: {
        range: [from, to], showgrid: false, zeroline: false, tickformat: ",d", title: { text: "program steps", standoff: 8 },
        ticks: "outside", tickcolor: colour("line"), linecolor: colour("line"), showline: true, anchor: "y2",
      },
      yaxis: {
        range: [0, this.top], fixedrange: true, gridcolor: colour("grid"), zeroline: false, domain: [0.065, 1],
        tickvals: ticks, ticktext: ticks.map((bytes) => bytes ? formatBytes(bytes).replace(/\.0+ /, " ") : "0"),
      },
      yaxis2: { range: [0, 1], fixedrange: true, domain: [0, 0.045], visible: false },
    };
  }

  ticks() {
    const unit = (UNITS.find(([, factor]) => this.top >= factor) ?? ["B", 1])[1], most = this.top / unit / 5;
    const power = 10 ** Math.floor(Math.log10(most)), step = [1, 2, 5, 10].find((n) => n * power >= most) * power * unit;
    return Array.from({ length: Math.floor(this.top / step) + 1 }, (_, n) => n * step);
  }

  /** Pixels of a step from the left edge of the chart, and the reverse. */
  pixel(step) { const axis = this.element._fullLayout.xaxis; return axis._offset + axis.d2p(step); }
  stepAt(pixel) { const axis = this.element._fullLayout.xaxis; return Math.floor(axis.p2d(pixel - axis._offset)); }
  get area() { const { _size: size } = this.element._fullLayout; return { left: size.l, top: size.t, width: size.w, height: size.h }; }
}
