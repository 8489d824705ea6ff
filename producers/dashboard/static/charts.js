// Charts as SVG, each with the same numbers as a table.

import { h, svg } from "./dom.js";
import { clock, count, table } from "./ui.js";

const WIDTH = 600, HEIGHT = 160, LEFT = 40, BOTTOM = 22, TOP = 8;

/** Stacked bars over time. points: [{at_ms, NAME: number}]; series: [[NAME, text, mark]]. */
export function bars(title, points, series) {
  const sums = points.map((point) => series.reduce((sum, [name]) => sum + point[name], 0));
  const most = nice(Math.max(1, ...sums));
  const step = (WIDTH - LEFT) / points.length;
  const tall = HEIGHT - BOTTOM - TOP;
  const y = (value) => TOP + tall - (value / most) * tall;
  const marks = points.flatMap((point, at) => {
    let below = 0;
    return series.filter(([name]) => point[name]).map(([name, , mark]) => {
      const top = y(below + point[name]);
      const bar = svg("rect", {
        class: `mark-${mark}`, x: (LEFT + at * step + 0.5).toFixed(1), y: top.toFixed(1),
        width: Math.max(1, step - 1).toFixed(1), height: (y(below) - top).toFixed(1),
      });
      below += point[name];
      return bar;
    });
  });
  const total = series.map(([name, text]) => `${text}: ${count(points.reduce((sum, point) => sum + point[name], 0))}`);
  const ends = points.length ? [0, points.length - 1] : [];
  return h("figure", null,
    h("figcaption", null, title),
    h("div", null, series.map(([, text, mark]) => key(text, mark))),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${title}. ${total.join(", ")}` },
      [0, most / 2, most].map((value) => svg("g", null,
        svg("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: y(value), y2: y(value) }),
        svg("text", { x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, value % 1 ? value.toFixed(1) : count(value)))),
      marks,
      ends.map((at) => svg("text", {
        x: at ? WIDTH : LEFT, y: HEIGHT - 6, "text-anchor": at ? "end" : "start",
      }, time(points[at].at_ms)))),
    h("details", null, h("summary", null, "Show as a table"),
      table(title, [["From"], ...series.map(([, text]) => [text, "number"])],
        points.filter((_, at) => sums[at]).reverse().map((point) => [
          clock(point.at_ms), ...series.map(([name]) => count(point[name])),
        ]), { empty: "No data in this period." })));
}

/** What ran when, a lane for each name. pieces: [{lane, from_ms, to_ms, mark, text}]. */
export function lanes(title, pieces) {
  const names = [...new Set(pieces.map(({ lane }) => lane))];
  const begin = Math.min(...pieces.map(({ from_ms }) => from_ms));
  const end = Math.max(...pieces.map(({ to_ms }) => to_ms), begin + 1);
  const left = 150, high = 24, width = 900;
  const tall = names.length * high + BOTTOM;
  const x = (ms) => left + ((ms - begin) / (end - begin)) * (width - left - 8);
  return h("figure", null,
    h("figcaption", null, title),
    h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": title },
      svg("svg", { viewBox: `0 0 ${width} ${tall}`, role: "img", "aria-label": `${title}; the history below has the same in words` },
        names.map((name, at) => svg("g", null,
          svg("line", { class: "axis", x1: left, x2: width, y1: (at + 1) * high, y2: (at + 1) * high }),
          svg("text", { x: left - 6, y: at * high + 16, "text-anchor": "end" }, name.length > 22 ? `${name.slice(0, 21)}…` : name))),
        pieces.map(({ lane, from_ms, to_ms, mark, text }) => svg("rect", {
          class: `mark-${mark}`, rx: 2, x: x(from_ms).toFixed(1), y: names.indexOf(lane) * high + 5,
          width: Math.max(2, x(to_ms) - x(from_ms)).toFixed(1), height: high - 10,
        }, svg("title", null, text))),
        svg("text", { x: left, y: tall - 6 }, time(begin)),
        svg("text", { x: width - 8, y: tall - 6, "text-anchor": "end" }, time(end)))));
}

export function key(text, mark) {
  return h("span", { class: "key" },
    svg("svg", { viewBox: "0 0 10 10", "aria-hidden": "true" }, svg("rect", { class: `mark-${mark}`, width: 10, height: 10 })),
    text);
}

function nice(value) {
  const size = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 4, 5, 10].find((each) => each * size >= value) * size;
}

function time(ms) {
  return new Date(Number(ms)).toLocaleTimeString("en-GB", { hour12: false });
}
