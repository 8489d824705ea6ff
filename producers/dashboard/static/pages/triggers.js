// What starts runs: schedules and their next ticks, and what came to the webhook sources.

import { agents, get, post, repeat } from "../api.js";
import { address, h, put } from "../dom.js";
import { ago, choice, confirm, count, notice, refill, runLink, say, table } from "../ui.js";

export const title = "Triggers";

const FILTERS = ["agent", "source", "outcome"];
const OUTCOMES = ["started", "ignored", "answered", "failed", "refused", "unavailable"];
const DELIVERIES = 100, RUNS = 3, EVERY_MS = 3000;
const WILL = {
  pause: "Its ticks are skipped, and queued runs are dropped. A run in progress continues.",
  resume: "It ticks again from now on.",
  trigger: "It starts a run now, after the one in progress. Its ticks do not change.",
};
const SAYS = { pause: "Pause", resume: "Resume", trigger: "Run now" };

export async function show(main, params, signal) {
  const known = await agents(signal);
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
  const schedules = h("div", null), deliveries = h("div", null);
  const [problem, tell] = notice();
  const mine = known.filter(({ name }) => !filters.agent || name === filters.agent);
  const declared = mine.flatMap(({ name, declared: { triggers } }) => triggers.map((each) => [
    name, each.kind, each.source, (each.events ?? []).join(", ") || each.cron || "all",
  ]));
  put(main,
    h("h1", null, "Triggers"),
    h("form", { class: "filters", method: "get", action: "triggers", role: "search", "aria-label": "Filter triggers" },
      choice("agent", "Agent", known.map(({ name }) => [name, name]), filters.agent, "all"),
      h("label", null, "Webhook source", h("input", { name: "source", type: "text", value: filters.source, size: 16 })),
      choice("outcome", "Outcome", OUTCOMES.map((each) => [each, each]), filters.outcome, "any"),
      h("button", { type: "submit", class: "main" }, "Filter"),
      h("a", { href: address("triggers", { ...filters, outcome: "refused" }) }, "Refused only"),
      h("a", { href: "triggers" }, "No filter")),
    problem,
    h("h2", null, "Schedules"), schedules,
    h("h2", null, "Webhook deliveries, latest first"), deliveries,
    h("h2", null, "As declared in code"),
    table("Triggers", [["Agent"], ["Kind"], ["From"], ["Which"]], declared, { empty: "No agent declares a trigger." }),
  );
  const load = async () => {
    const { agent, source, outcome } = filters;
    const [ticking, came] = await Promise.all([
      get(["schedules"], { agent }, signal),
      get(["deliveries"], { source, outcome, limit: DELIVERIES }, signal),
    ]);
    refill(schedules, scheduleTable(ticking.schedules, (each, what) => act(each, what, signal).then(load).catch(tell)));
    refill(deliveries, deliveryTable(came.deliveries));
  };
  await repeat(EVERY_MS, load, signal, tell);
}

async function act({ agent, schedule }, what, signal) {
  if (!(await confirm(`${SAYS[what]}: ${schedule}?`, [WILL[what]], SAYS[what]))) return;
  const reply = await post(["schedules", agent, schedule, what], { by: "dashboard" }, signal);
  say(reply.accepted === null ? `${schedule} was asked, and has not answered yet` : `${schedule} has been told`);
}

function scheduleTable(schedules, tell) {
  const button = (each, what) => h("button", {
    type: "button", class: "small", onclick: () => tell(each, what),
    "aria-label": `${SAYS[what]}: ${each.schedule} of ${each.agent}`, "data-keep": `${what} ${each.agent} ${each.schedule}`,
  }, SAYS[what]);
  const columns = [
    ["Agent"], ["Schedule"], ["Cron"], ["State"], ["Last tick"], ["Next ticks"], ["Runs", "number"],
    ["Skipped", "number"], ["Do"],
  ];
  const rows = schedules.map((each) => [
    each.agent,
    each.schedule,
    `${each.cron} ${each.tz}`,
    each.state,
    tick(each.last),
    each.coming.length ? h("ol", { class: "ticks" }, each.coming.map((at) => h("li", null, tick(at)))) : "none",
    count(each.runs),
    count(each.skipped),
    each.state.startsWith("not begun") ? "" : h("span", { class: "line" },
      button(each, each.paused || /^(failed|attention)/.test(each.state) ? "resume" : "pause"), button(each, "trigger")),
  ]);
  return table("Schedules", columns, rows, { empty: "No schedule is declared." });
}

// In the zone of the schedule, as it is written there.
function tick(iso) {
  return iso === null ? "" : h("time", { datetime: iso }, iso.slice(0, 19).replace("T", " ") + iso.slice(19).replace(/^\.\d+/, ""));
}

function deliveryTable(deliveries) {
  const columns = [["Came"], ["Source"], ["Event"], ["Outcome"], ["Verified"], ["Answer", "number"], ["Reason, and result"]];
  const rows = deliveries.map((each) => [
    ago(each.at_ms),
    each.source,
    each.event ?? "",
    each.outcome,
    each.verified ? "yes" : "no",
    String(each.status),
    h("div", null, became(each)),
  ]);
  return table("Deliveries", columns, rows, { empty: "No deliveries match these filters." });
}

function became({ reason, errors, runs, unrecorded }) {
  const more = runs.length - RUNS;
  return [
    reason ? h("p", null, reason) : null,
    errors.map((error) => h("p", null, error)),
    runs.slice(0, RUNS).map(({ agent, run_id }) => h("p", null, runLink(agent, run_id))),
    more > 0 ? h("p", null, `and ${count(more)} runs more`) : null,
    unrecorded ? h("p", null, `${count(unrecorded)} more were refused before`) : null,
  ];
}
