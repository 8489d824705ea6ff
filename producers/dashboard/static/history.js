// The events of a run as people read them.

import { get } from "./api.js";
import { h, put } from "./dom.js";
import { badge, clock, facts, pretty, span, trouble, value } from "./ui.js";

const MARKS = { "step.completed": "ok", "run.completed": "ok", "step.retrying": "bad", "run.failed": "bad", "run.attention": "warn" };

/** One event: when, what, with what input and output, and where it stands in the log. */
export function entry(topic, { partition, offset, source, event }, _run, signal) {
  const at = Number(event.at_ms);
  const began = event.started_ms === null ? null : Number(event.started_ms);
  const details = [
    ["Attempt", event.attempt ? String(event.attempt + 1) : null],
    ["Took", began === null ? null : span(at - began)],
    ["Due", event.due_ms === null ? null : clock(event.due_ms)],
    ["Name", event.name], ["By", event.by], ["Command", event.id],
    ["Waits for", event.wait ? waits(event.wait) : null],
    ["Children started", event.children || null],
    ["Answers", source === null ? null : h("code", null, source)],
    ["Position", h("code", null, `${topic}/${partition}/${offset}`)],
  ];
  return h("li", null,
    h("div", { class: "line" },
      clock(at),
      h("h3", null, event.type),
      event.step ? h("span", null, event.step) : null,
      event.next_step ? h("span", null, `→ ${event.next_step}`) : null,
      badge(event.status),
      h("span", { class: "soft" }, `#${event.seq}`)),
    event.failure ? trouble(`${[event.failure.code, event.failure.kind, event.failure.message].filter(Boolean).join(": ")}`) : null,
    event.failure?.frames?.length ? box("Where in the code", event.failure.frames.join("\n")) : null,
    box(event.next_step ? `Input of ${event.next_step}` : "Payload", event.payload),
    box("Output", event.result),
    box("Carried over the wait", event.carry),
    event.effects.length ? effects(event, signal) : null,
    facts(details));
}

function box(name, content) {
  if (content === null) return null;
  const text = typeof content === "string" ? content : pretty(content);
  return h("details", null,
    h("summary", null, `${name}: `, h("code", null, text.length > 80 ? `${text.slice(0, 80)}…` : text)),
    value(name, content));
}

function effects(event, signal) {
  return h("div", null, "Effects:", h("ul", null, event.effects.map((id) => {
    const told = h("span", null);
    const look = async () => {
      try {
        put(told, " ", receipt(await get(["effects", id], { since_ms: event.at_ms }, signal)));
      } catch (error) {
        put(told, " ", error.message);
      }
    };
    return h("li", null, h("code", null, id), " ",
      h("button", { type: "button", class: "small", "aria-label": `Receipt of ${id}`, onclick: look }, "Receipt"), told);
  })));
}

function receipt({ status, attempt, receipt: found, failure }) {
  return h("span", null, badge(status), attempt ? ` attempt ${attempt + 1} ` : " ",
    failure ? ` ${failure.code}: ${failure.message} ` : null,
    found === null ? null : h("code", null, pretty(found).slice(0, 400)));
}

function waits(wait) {
  const named = wait.names.join(", ");
  return `${wait.kind}${named ? ` ${named}` : ""}${wait.question ? ` ${wait.question}` : ""}`;
}

/** What is drawn in the timeline: each attempt of a step, and each wait. */
export function pieces(events, now, run) {
  const found = [];
  let until = ["completed", "failed", "cancelled"].includes(run.status) ? Number(run.updated_ms) : now;
  for (const { event } of events) { // the latest first
    const at = Number(event.at_ms);
    if (event.status === "waiting" && until > at) {
      const lane = event.wait ? `waits: ${event.wait.kind}` : "waits";
      found.push({ lane, from_ms: at, to_ms: until, mark: "warn", text: `${lane}, ${span(until - at)}` });
    }
    if (event.started_ms !== null && event.step) {
      const from = Number(event.started_ms);
      found.push({
        lane: event.step, from_ms: from, to_ms: at, mark: MARKS[event.type] ?? "live",
        text: `${event.step}, attempt ${event.attempt + 1}: ${event.type}, ${span(at - from)}`,
      });
    }
    until = at;
  }
  return found.reverse();
}
