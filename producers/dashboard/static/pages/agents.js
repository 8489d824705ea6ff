// An agent: its steps and where they lead, its limits, and the versions that have runs.

import { agents, get, repeat } from "../api.js";
import { address, h, put } from "../dom.js";
import { graph } from "../graph.js";
import { STATUSES, badge, choice, count, facts, notice, refill, span, table } from "../ui.js";

export const title = "Agents";

const EVERY_MS = 5000;
const MINUTES = 60;

export async function show(main, params, signal) {
  const known = await agents(signal);
  const name = params.get("agent") ?? known[0]?.name;
  const counts = h("div", null);
  const came = h("div", null);
  const [problem, tell] = notice();
  const told = await get(["agents", name], {}, signal);
  put(main,
    h("h1", null, `Agent ${name}`),
    h("form", { class: "filters", method: "get", action: "agents", role: "search", "aria-label": "Choose an agent" },
      choice("agent", "Agent", known.map((each) => [each.name, each.name]), name),
      h("button", { type: "submit", class: "main" }, "Show")),
    problem,
    h("section", { class: "card" }, h("h2", null, "Its runs"), counts),
    h("section", { class: "card" }, h("h2", null, "Its steps"), graph(`Steps of ${name}`, told.declared)),
    h("section", { class: "card" }, h("h2", null, "Outcomes of its steps in the last hour"), came),
    h("section", { class: "card" }, h("h2", null, "Inputs of its steps"), steps(name, told.declared)),
    h("section", { class: "card" }, h("h2", null, "Its limits"), limits(told.declared)),
  );
  const load = async () => refill(counts, versions(name, await get(["agents", name], {}, signal)));
  await Promise.all([repeat(EVERY_MS, load, signal, tell), windows(name, came, signal)]);
}

/** What views say, if the gateway has been told where they are. */
async function windows(name, place, signal) {
  const figures = h("div", null);
  const [problem, tell] = notice();
  const load = async () => put(figures, figuresOf(name, await get(["views", name, "windows"], { minutes: MINUTES }, signal)));
  put(place, problem, figures);
  try {
    await load();
  } catch (error) {
    if (error.status === 404) return put(place, h("p", { class: "soft" }, "This needs views: start ",
      h("code", null, "surefoot views"), ", and the gateway with ", h("code", null, "SUREFOOT_VIEWS_URL"), "."));
    tell(error);
  }
  await repeat(EVERY_MS, load, signal, tell);
}

function figuresOf(name, { steps: found, lag }) {
  const took = (ms) => (ms === null ? "–" : span(Number(ms)));
  const rows = found.map((each) => [
    each.step, count(each.attempts), count(each.retries), count(each.failures), took(each.p50_ms), took(each.p99_ms),
    count(each.tokens), each.money ? String(each.money) : "",
  ]);
  const behind = lag.events ? h("p", { class: "soft" }, `${count(lag.events)} events are not in it yet.`) : null;
  return [behind, table(`Outcomes of the steps of ${name}`, [
    ["Step"], ["Attempts", "number"], ["Tried again", "number"], ["Failures", "number"], ["Median", "number"],
    ["99 of 100 within", "number"], ["Tokens", "number"], ["Money", "number"],
  ], rows, { empty: "No step has ended in the last hour." })];
}

function versions(name, told) {
  const shown = STATUSES.filter((status) => told.statuses[status]);
  const cell = (status, number, version) => number
    ? h("a", { href: address("runs", { agent: name, status, version }), "data-keep": `${status} ${version}` }, count(number))
    : "0";
  const rows = Object.entries(told.versions).reverse().map(([version, by]) => [
    version === String(told.declared.version) ? `${version}, as set by code` : version,
    ...shown.map((status) => cell(status, by[status], version)),
  ]);
  return table(`Runs of ${name} by version`, [["Version"], ...shown.map((status) => [badge(status), "number"])], rows,
    { empty: `No run yet. New runs get version ${told.declared.version}.` });
}

function steps(name, declared) {
  const rows = declared.steps.map((step) => [
    step.name + (step.name === declared.start ? " (begins)" : "") + (step.compensation ? " (compensates)" : ""),
    step.carries === null ? step.takes : `${step.takes}, and carries ${step.carries}`,
    String(step.attempts),
    step.timeout_s === null ? "none" : `${step.timeout_s} s`,
    step.pool === null ? "" : step.pool + (step.concurrency === null ? "" : `, ${step.concurrency} at a time`),
    step.rate === null ? "" : rate(step.rate),
  ]);
  return table(`Steps of ${name}`, [["Step"], ["Takes"], ["Attempts", "number"], ["Timeout", "number"], ["Pool"], ["Rate"]], rows);
}

function rate({ limit, per_s }) {
  return `${count(limit)} in ${per_s} s`;
}

function limits({ flow, budget }) {
  const whose = flow?.key ? "of each key" : "of the agent";
  const spent = Object.entries(budget ?? {}).map(([what, most]) => `${what}: ${most}`).join(", ");
  const none = !flow && !budget;
  return none ? h("p", { class: "soft" }, "None declared: runs begin at once, without limits.") : facts([
    [`Runs at a time, ${whose}`, flow?.concurrency],
    [`Starts, ${whose}`, flow?.throttle ? rate(flow.throttle) : null],
    ["Second run of the same key", flow?.singleton === "skip" ? "is skipped" : flow?.singleton === "cancel" ? "cancels the first" : null],
    ["Debounce", flow?.debounce_s ? `${flow.debounce_s} s` : null],
    ["Deduplicated within", flow?.dedup_s ? `${flow.dedup_s} s` : null],
    ["Priority", flow?.priority ? "set by code" : null],
    ["Budget per run", spent],
  ]);
}
