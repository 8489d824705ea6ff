// The steps of an agent as a drawing, with the same as a table.

import { h, svg } from "./dom.js";
import { table } from "./ui.js";

const WIDE = 150, TALL = 34, ACROSS = 130, DOWN = 26, TURN = 30, EDGE = 12, NAME = 20;
const OVER = "the run is over", ELSEWHERE = "unknown (dynamic target)";
const KINDS = {
  next: "goes on", sleep: "after a time", wait: "after a signal", approve: "after an answer",
  timeout: "when time is over", branch: "as a branch", join: "after its branches", call: "calls",
  handoff: "hands over", done: "done", cancelled: "when cancelled", failed: "when it fails",
};

/** declared: as GET /agents/{agent} tells it. */
export function graph(title, declared) {
  const edges = named(declared);
  const at = placed(declared, edges);
  const width = Math.max(...[...at.values()].map(({ x }) => x)) + WIDE + EDGE;
  const height = Math.max(...[...at.values()].map(({ y }) => y)) + TALL + 3 * DOWN;
  const ends = edges.map((edge) => line(edge, at));
  const steps = new Set(declared.steps.map(({ name }) => name));
  const head = svg("defs", null, svg("marker", {
    id: "head", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto",
  }, svg("path", { class: "arrow", d: "M0 0 L8 4 L0 8 z" })));
  return h("figure", null,
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": `${title}, drawn` },
      svg("svg", {
        viewBox: `0 0 ${width} ${height}`, role: "img", class: "graph", style: { width: `${width}px` },
        "aria-label": `${title}: ${edges.map(({ from, to }) => `${from} to ${to}`).join(", ")}`,
      }, head, ends.map(({ path }) => path), ends.map(({ text }) => text), [...at].map(([name, place]) => box(name, place, steps.has(name))))),
    h("details", null, h("summary", null, "Show as a table"),
      table(title, [["From"], ["How"], ["To"]], edges.map(({ from, kinds, to }) => [from, kinds.join(", "), to]))));
}

// Edges between the same two are one.
function named(declared) {
  const found = new Map();
  const add = (from, kind, to) => {
    const key = JSON.stringify([from, to]);
    const edge = found.get(key) ?? { from, to, kinds: [] };
    if (!edge.kinds.includes(kind)) edge.kinds.push(kind);
    found.set(key, edge);
  };
  for (const { from, kind, to, agent } of declared.edges) {
    add(from ?? "any step", KINDS[kind] ?? kind, to === null ? OVER : agent ? `agent ${to}` : to);
  }
  for (const step of declared.steps) if (step.elsewhere) add(step.name, "may go", ELSEWHERE);
  return [...found.values()];
}

// A column for each number of edges from the start; what nothing leads to begins on the left.
function placed(declared, edges) {
  const depth = new Map([[declared.start, 0]]);
  const reach = (names) => {
    for (let wave = names; wave.length;) {
      const next = [];
      for (const name of wave) {
        for (const { from, to } of edges) {
          if (from === name && !depth.has(to)) {
            depth.set(to, depth.get(name) + 1);
            next.push(to);
          }
        }
      }
      wave = next;
    }
  };
  reach([declared.start]);
  for (const name of [...edges.map(({ from }) => from), ...declared.steps.map((step) => step.name)]) {
    if (!depth.has(name)) {
      depth.set(name, 0);
      reach([name]);
    }
  }
  const rows = new Map();
  const at = new Map();
  for (const [name, column] of depth) {
    const row = rows.get(column) ?? 0;
    rows.set(column, row + 1);
    at.set(name, { x: EDGE + column * (WIDE + ACROSS), y: DOWN + row * (TALL + 2 * DOWN) });
  }
  return at;
}

function box(name, { x, y }, step) {
  const short = name.length > NAME ? `${name.slice(0, NAME - 1)}…` : name;
  return svg("g", null, svg("title", null, name),
    svg("rect", { class: step ? "node" : "node other", x, y, width: WIDE, height: TALL, rx: step ? 6 : TALL / 2 }),
    svg("text", { class: "name", x: x + WIDE / 2, y: y + TALL / 2 + 4, "text-anchor": "middle" }, short));
}

// Its curve, and the text on it: forward from side to side, back and round below the boxes.
function line({ from, to, kinds }, at) {
  const a = at.get(from), b = at.get(to);
  const forward = b.x > a.x;
  const [x1, y1] = forward ? [a.x + WIDE, a.y + TALL / 2] : [a.x + WIDE / 2 + TURN, a.y + TALL];
  const [x2, y2] = forward ? [b.x, b.y + TALL / 2] : [b.x + WIDE / 2 - TURN, b.y + TALL];
  const bend = (x1 + x2) / 2, low = Math.max(y1, y2) + DOWN;
  const turns = forward ? `${bend} ${y1} ${bend} ${y2}` : `${x1} ${low} ${x2} ${low}`;
  const text = { x: bend, y: forward ? (y1 + y2) / 2 + 4 : low + 4, "text-anchor": "middle" };
  return {
    path: svg("path", { class: "edge", d: `M${x1} ${y1} C${turns} ${x2} ${y2}`, "marker-end": "url(#head)" }),
    text: svg("text", { class: "how", ...text }, kinds.join(", ")),
  };
}
