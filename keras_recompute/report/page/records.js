"use strict";
// The report's records: columns of liveness.json, and the sums that the page shows. Knows nothing of the page.

const UNITS = [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]];
const NONE = "(none)", OTHERS = "all others", UNEXPLAINED = "unexplained";
const GROUPS_AT_MOST = 7; // as many colours as stay apart
const ENOUGH = 0.9;

/** Bytes as text with three significant digits, as the tables of the command line have them. */
function formatBytes(count) {
  const size = Math.abs(count);
  const [unit, factor] = UNITS.find(([, f]) => size >= 999.5 * f / 1024) ?? ["B", 1];
  const value = count / factor, shown = Math.abs(value);
  return `${value.toFixed(unit === "B" || shown >= 99.95 ? 0 : shown >= 9.995 ? 1 : 2)} ${unit}`;
}

const formatCount = (number) => number.toLocaleString("en-US");

class Report {
  constructor({ label, document }) {
    this.label = label;
    const texts = document.texts, text = (column) => column.map((n) => n === null ? null : texts[n]);
    const { steps, buffers } = document;
    this.steps = steps.instruction.length;
    this.step = Object.fromEntries(["instruction", "op_name", "layer", "phase", "section"].map((n) => [n, text(steps[n])]));
    this.buffer = Object.fromEntries(
      ["name", "lifetime", "category", "op_name", "layer", "phase", "section", "source"].map((n) => [n, text(buffers[n])]));
    this.size = Float64Array.from(buffers.size_bytes);
    this.first = Int32Array.from(buffers.first_step);
    this.last = Int32Array.from(buffers.last_step);
    this.capacity = document.capacity_bytes;
    const mine = [];
    this.floor = 0;
    this.buffer.lifetime.forEach((kind, n) => {
      if (kind !== "input-feed") mine.push(n);
      if (kind === "always-live") this.floor += this.size[n];
    });
    // largest first, so that whoever looks for the largest few finds them early
    this.order = Int32Array.from(mine).sort((a, b) => this.size[b] - this.size[a] || this.first[a] - this.first[b] || a - b);
    this.total = Float64Array.from(steps.not_always_live_bytes, (held) => held + this.floor);
    this.peakStep = this.total.reduce((best, held, n) => held > this.total[best] ? n : best, 0);
    this.peak = this.total[this.peakStep];
    this.grouped = new Map();
    this.keys = new Map();
  }

  aliveAt(n, step) { return this.first[n] <= step && step <= this.last[n]; }

  /** The largest buffers alive at a step that are not always alive, at most `count` of them. */
  largest(step, count) {
    const found = [];
    for (const n of this.order) {
      if (this.aliveAt(n, step) && this.buffer.lifetime[n] !== "always-live" && found.push(n) === count) break;
    }
    return found;
  }

  /** Who a buffer belongs to in a few words. */
  describe(n) {
    const { layer, op_name, name } = this.buffer, operation = op_name[n] ? op_name[n].split("/").pop() : name[n];
    return layer[n] && !name[n].includes(layer[n]) ? `${layer[n]}: ${operation}` : operation;
  }

  /**
   * How deep to read the paths of layers so that the few groups with a colour of their own hold most of the peak: all of
   * each path where there are few layers, the blocks that they stand in where there are many.
   */
  layerDepth() {
    const layers = this.buffer.layer, paths = new Set(layers.filter((layer) => layer));
    const deepest = Math.max(...[...paths].map((path) => path.split("/").length), 1);
    const coverage = (depth) => {
      const sums = new Map();
      let total = 0;
      for (const n of this.order) {
        if (!this.aliveAt(n, this.peakStep)) continue;
        const name = layers[n]?.split("/").slice(0, depth).join("/") ?? NONE;
        sums.set(name, (sums.get(name) ?? 0) + this.size[n]);
        total += this.size[n];
      }
      if (sums.size < 2 && depth < deepest) return 0;
      return [...sums.values()].sort((a, b) => b - a).slice(0, GROUPS_AT_MOST).reduce((a, b) => a + b, 0) / (total || 1);
    };
    const depths = Array.from({ length: deepest }, (_, n) => [deepest - n, coverage(deepest - n)]);
    return (depths.find(([, share]) => share >= ENOUGH) ?? depths.sort((a, b) => b[1] - a[1])[0])[0];
  }

  /** What a buffer is grouped by, before small groups are put together. */
  key(by) {
    if (this.keys.has(by)) return this.keys.get(by);
    const depth = by === "layer" ? this.layerDepth() : 0, values = this.buffer[by];
    const key = depth ? (n) => values[n]?.split("/").slice(0, depth).join("/") ?? NONE : (n) => values[n] ?? NONE;
    this.keys.set(by, key);
    return key;
  }

  /** Groups by a field of the buffers, bottom of the stack first: {name, held: bytes at each step}. They add up to `total`. */
  groups(by) {
    if (this.grouped.has(by)) return this.grouped.get(by);
    const sums = new Map(), atPeak = new Map(), floors = new Map(), key = this.key(by);
    for (const n of this.order) {
      const name = key(n);
      if (!sums.has(name)) { sums.set(name, new Float64Array(this.steps + 1)); atPeak.set(name, 0); floors.set(name, 0); }
      const change = sums.get(name);
      change[this.first[n]] += this.size[n];
      change[this.last[n] + 1] -= this.size[n];
      if (this.aliveAt(n, this.peakStep)) atPeak.set(name, atPeak.get(name) + this.size[n]);
      if (this.buffer.lifetime[n] === "always-live") floors.set(name, floors.get(name) + this.size[n]);
    }
    for (const change of sums.values()) for (let n = 1; n < change.length; n++) change[n] += change[n - 1];
    const names = [...sums.keys()].sort((a, b) => atPeak.get(b) - atPeak.get(a) || (a < b ? -1 : 1));
    const kept = new Set(names.length > GROUPS_AT_MOST + 1 ? names.slice(0, GROUPS_AT_MOST) : names);
    const result = names.filter((name) => kept.has(name)).map((name) => ({ name, held: sums.get(name) }));
    const rest = names.filter((name) => !kept.has(name));
    if (rest.length) result.push({ name: `${OTHERS} (${rest.length})`, held: add(rest.map((name) => sums.get(name))), rest: new Set(rest) });
    if (by === "category" || by === "lifetime") result.sort((a, b) => (floors.get(b.name) ?? 0) - (floors.get(a.name) ?? 0));
    const known = add(result.map((group) => group.held)), open = this.total.map((held, n) => held - (known[n] ?? 0));
    if (open.some((bytes) => bytes !== 0)) result.push({ name: UNEXPLAINED, held: open });
    this.grouped.set(by, result);
    return result;
  }

  /** The group that a buffer counts to. */
  groupOf(n, by) {
    const name = this.key(by)(n);
    return this.groups(by).find((group) => group.name === name || group.rest?.has(name))?.name ?? name;
  }
}

function add(columns) {
  const sum = new Float64Array(columns[0]?.length ?? 0);
  for (const column of columns) for (let n = 0; n < sum.length; n++) sum[n] += column[n];
  return sum;
}

/** Steps to draw between two: all of them, or of each of `bins` stretches the lowest and the highest, so no peak is lost. */
function sampled(values, from, to, bins) {
  const start = Math.max(Math.floor(from), 0), end = Math.min(Math.ceil(to), values.length - 1), count = end - start + 1;
  if (count <= 2 * bins) return Array.from({ length: Math.max(count, 0) }, (_, n) => start + n);
  const found = [start];
  for (let bin = 0; bin < bins; bin++) {
    const first = start + Math.floor(bin * count / bins), after = start + Math.floor((bin + 1) * count / bins);
    let low = first, high = first;
    for (let n = first; n < after; n++) {
      if (values[n] < values[low]) low = n;
      if (values[n] > values[high]) high = n;
    }
    for (const n of low < high ? [low, high] : [high, low]) if (n > found[found.length - 1]) found.push(n);
  }
  if (found[found.length - 1] < end) found.push(end);
  return found;
}
