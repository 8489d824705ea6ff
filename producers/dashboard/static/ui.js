// What several pages have: badges, times, tables, dialogs, messages.

import { address, h, put } from "./dom.js";

const SIGNS = {
  pending: "·", running: "▶", waiting: "◔", paused: "‖", attention: "!", completed: "✓",
  failed: "✗", cancelled: "⊘",
};
const UNITS = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];
const CLIPPED = 4000;

export const STATUSES = Object.keys(SIGNS);

/** A status by sign, word and colour. */
export function badge(status) {
  const sign = h("span", { "aria-hidden": "true" }, SIGNS[status] ?? "?");
  return h("span", { class: `badge ${status in SIGNS ? status : ""}` }, sign, ` ${status}`);
}

/** A duration by its two largest units. */
export function span(ms) {
  if (Math.abs(ms) < 1000) return `${Math.round(ms)} ms`;
  const told = [];
  let rest = Math.abs(ms);
  for (const [unit, size] of UNITS) {
    const count = Math.floor(rest / size);
    rest -= count * size;
    if (count || told.length) told.push(`${count} ${unit}`);
  }
  return told.slice(0, 2).join(" ");
}

/** A time as "3 min 2 s ago", with the exact one to point at. */
export function ago(ms, now = Date.now()) {
  if (ms === null || ms === undefined) return "";
  const iso = new Date(Number(ms)).toISOString();
  return h("time", { datetime: iso, title: iso, class: "ago" }, distance(ms, now));
}

function distance(ms, now) {
  return ms > now ? `in ${span(ms - now)}` : `${span(now - ms)} ago`;
}

/** Let the times that are told by their distance go on. */
export function age() {
  for (const each of document.querySelectorAll("time.ago")) put(each, distance(Date.parse(each.dateTime), Date.now()));
}

/** A time of day, with the exact one to point at. */
export function clock(ms) {
  const at = new Date(Number(ms));
  const text = at.toLocaleTimeString("en-GB", {
    hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3, hour12: false,
  });
  return h("time", { datetime: at.toISOString(), title: at.toISOString() }, text);
}

export function count(number) {
  return Number(number).toLocaleString("en-GB");
}

/** The link to a run. */
export function runLink(agent, runId) {
  return h("a", { href: address("run", { agent, id: runId }), class: "id", "data-keep": `${agent} ${runId}` }, runId);
}

/** columns: [title, class?]; rows: lists of cells. On a phone each row is a block of its own. */
export function table(caption, columns, rows, { empty = "Nothing here." } = {}) {
  const head = columns.map(([title, kind]) =>
    h("th", { scope: "col", role: "columnheader", class: kind }, title),
  );
  const body = rows.map((cells) =>
    h("tr", { role: "row" }, cells.map((cell, at) =>
      h("td", { role: "cell", class: columns[at][1], "data-label": labelOf(columns[at][0]) }, cell),
    )),
  );
  if (!rows.length) {
    body.push(h("tr", { role: "row" }, h("td", { role: "cell", class: "empty", colspan: columns.length }, empty)));
  }
  return h("table", { role: "table" },
    h("caption", { class: "unseen" }, caption),
    h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, head)),
    h("tbody", { role: "rowgroup" }, body),
  );
}

function labelOf(title) {
  return typeof title === "string" ? title : "";
}

/** JSON as people read it; integers are exact. */
export function pretty(value, indent = "") {
  const deeper = `${indent}  `;
  if (typeof value === "bigint") return value.toString();
  if (value === null || typeof value !== "object") return JSON.stringify(value);
  const list = Array.isArray(value);
  const parts = list
    ? value.map((each) => pretty(each, deeper))
    : Object.entries(value).map(([key, each]) => `${JSON.stringify(key)}: ${pretty(each, deeper)}`);
  const [open, close] = list ? "[]" : "{}";
  if (!parts.length) return open + close;
  const flat = `${open}${parts.join(", ")}${close}`;
  if (flat.length + indent.length <= 80 && !flat.includes("\n")) return flat;
  return `${open}\n${deeper}${parts.join(`,\n${deeper}`)}\n${indent}${close}`;
}

/** A value in a box; of a long one the beginning, and a button for the rest. */
export function value(name, content) {
  const text = typeof content === "string" ? content : pretty(content);
  const box = h("pre", { tabindex: "0", role: "region", "aria-label": name }, text.slice(0, CLIPPED));
  if (text.length <= CLIPPED) return box;
  const more = h("button", { type: "button", class: "small", onclick: () => (put(box, text), more.remove()) },
    `Show all ${count(text.length)} characters`);
  return h("div", null, box, more);
}

/** Terms and what is told of them: [[term, value], ...]; without a value it is left out. */
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs
    .filter(([, told]) => told !== null && told !== undefined && told !== "")
    .map(([term, told]) => h("div", null, h("dt", null, term), h("dd", null, told))));
}

/** Have the place hold just these, and the keyboard where it was: on the element of the same
 * data-keep. */
export function refill(place, ...children) {
  const kept = place.contains(document.activeElement) ? document.activeElement.dataset.keep : undefined;
  put(place, ...children);
  if (kept) place.querySelector(`[data-keep="${CSS.escape(kept)}"]`)?.focus({ preventScroll: true });
}

/** Options of a <select>; the first is for no choice. */
export function choice(name, label, options, chosen, none = null) {
  const all = none === null ? options : [["", none], ...options];
  return h("label", null, label, h("select", { name },
    all.map(([key, text]) => h("option", { value: key, selected: key === (chosen ?? "") }, text))));
}

/** Say something to people who do not see the page, too. */
export function say(text) {
  put(document.getElementById("said"), text);
}

/** What did not work, in place of what it was for. */
export function failed(place, error) {
  put(place, h("h1", null, "Something went wrong"), trouble(error));
}

/** In place of a page that there is not. */
export function nowhere(place, name) {
  document.title = "No such page – Surefoot";
  put(place, h("h1", null, "Page not found"),
    h("p", null, "The dashboard has no page ", h("code", null, name), ". Use the links above."));
}

/** A message of what did not work. */
export function trouble(error) {
  return h("p", { class: "trouble", role: "alert" }, error?.message ?? error);
}

/** A place for a message that comes and goes: call it with the error, or null. */
export function notice() {
  const place = h("div", null);
  let told = "";
  return [place, (error) => {
    const text = error === null ? "" : (error.message ?? String(error));
    if (text === told) return;
    told = text;
    put(place, text ? trouble(text) : null);
  }];
}

/** A dialog; `build(close)` makes its content. Resolves with what `close` was called with; null when
 * it was dismissed. */
export function dialog(title, build) {
  return new Promise((resolve) => {
    const box = h("dialog", { "aria-labelledby": "dialog-title" });
    let result = null;
    const close = (told) => ((result = told), box.close());
    box.append(h("h2", { id: "dialog-title" }, title), build(close));
    box.addEventListener("close", () => (box.remove(), resolve(result)));
    document.body.append(box);
    box.showModal();
  });
}

/** Whether the person says yes to what is told; `act` is the text of the button. */
export function confirm(title, lines, act) {
  return dialog(title, (close) => h("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), close(true)) },
    lines.map((line) => (line instanceof Node ? line : h("p", null, line))),
    h("p", { class: "buttons" },
      h("button", { type: "button", onclick: () => close(null) }, "Leave it"),
      h("button", { type: "submit", class: "main" }, act)),
  ));
}

/** The token that the gateway, or a proxy before it, asks for; null: none is given. `kept` tells how
 * long it is kept. */
export function askToken(refused, kept) {
  return dialog("Who are you?", (close) => {
    const field = h("input", { type: "password", name: "token", required: true, autocomplete: "off" });
    return h("form", { method: "dialog", onsubmit: (event) => (event.preventDefault(), close(field.value)) },
      refused ? trouble("The gateway rejects this token.") : null,
      h("p", null, `The gateway requires a token. ${kept}`),
      h("label", null, "Token", field),
      h("p", { class: "buttons" },
        h("button", { type: "button", onclick: () => close(null) }, "Leave it"),
        h("button", { type: "submit", class: "main" }, "Go on")));
  });
}
