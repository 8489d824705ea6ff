// What goes on: how many runs begin and end, which fail, and what has waited longest.

import { agents, get, repeat } from "../api.js";
import { bars } from "../charts.js";
import { crashing } from "../crash.js";
import { address, h, put } from "../dom.js";
import { ago, badge, choice, count, notice, refill, runLink, table } from "../ui.js";

export const title = "Now";

const EVERY_MS = 3000;
const LAG_EVERY_MS = 10000; // it takes many questions to the log
const SPANS = { 10: "10 minutes", 60: "1 hour", 1440: "1 day" };
const BUCKETS = 60;
const FAILURES = 5;
const SHOWN = ["running", "pending", "waiting", "paused", "attention", "failed", "completed"];

export async function show(main, params, signal) {
  const known = (await agents(signal)).map(({ name }) => name);
  const agent = params.get("agent") ?? "";
  const minutes = params.get("minutes") in SPANS ? params.get("minutes") : "10";
  const asked = agent ? [agent] : known;
  const [problem, tell] = notice();
  const figures = h("div", null);
  const charts = h("div", { class: "grid" });
  const rest = h("div", null);
  put(main,
    h("h1", null, "Now"),
    h("form", { class: "filters", method: "get", action: "now", "aria-label": "What to show" },
      choice("agent", "Agent", known.map((name) => [name, name]), agent, "all"),
      choice("minutes", "Of the last", Object.entries(SPANS), minutes),
      h("button", { type: "submit", class: "main" }, "Show")),
    problem, "demo" in document.body.dataset ? crashing(known, signal) : null, figures, charts, rest);

  let drawn = "";
  let lag = null;
  repeat(LAG_EVERY_MS, async () => {
    const { agents: found } = await get(["topics"], { agent }, signal);
    lag = found.reduce((sum, each) => sum + each.lag, 0);
  }, signal, (error) => { if (error) lag = null; });
  await repeat(EVERY_MS, async () => {
    const window = { bucket_s: minutes, buckets: BUCKETS }; // as many seconds as the span has minutes
    const [counts, activities, failures] = await Promise.all([
      Promise.all(asked.map((name) => get(["agents", name], {}, signal))),
      Promise.all(asked.map((name) => get(["agents", name, "activity"], window, signal))),
      Promise.all(asked.map((name) => get(["runs", name], { status: "failed", limit: FAILURES }, signal))),
    ]);
    const points = summed(activities);
    refill(figures, figuresOf(counts, activities, points, Number(minutes), agent, lag));
    refill(rest,
      h("h2", null, "Waits longest"), oldest(activities),
      h("h2", null, "Failed last"), failed(failures),
      h("h2", null, "Agents"), byAgent(counts));
    const state = JSON.stringify(points);
    if (state !== drawn) { // an open table stays open while nothing has changed
      drawn = state;
      const open = [...charts.querySelectorAll("details")].map((each) => each.open);
      put(charts,
        h("div", { class: "card" }, bars("Runs begun", points, [["started", "begun", "live"]])),
        h("div", { class: "card" }, bars("Runs ended", points, [
          ["completed", "completed", "ok"], ["failed", "failed", "bad"], ["cancelled", "cancelled", "calm"],
        ])));
      charts.querySelectorAll("details").forEach((each, at) => (each.open = open[at] ?? false));
    }
  }, signal, tell);
}

function summed(activities) {
  const points = activities[0]?.buckets.map((bucket) => ({ ...bucket })) ?? [];
  for (const { buckets } of activities.slice(1)) {
    buckets.forEach((bucket, at) => {
      for (const name of ["started", "completed", "failed", "cancelled"]) if (points[at]) points[at][name] += bucket[name];
    });
  }
  return points;
}

function figuresOf(counts, activities, points, minutes, agent, lag) {
  const statuses = {};
  for (const each of counts) {
    for (const [status, number] of Object.entries(each.statuses)) statuses[status] = (statuses[status] ?? 0) + number;
  }
  const sum = (name) => points.reduce((total, point) => total + point[name], 0);
  const ended = sum("completed") + sum("failed") + sum("cancelled");
  const share = ended ? `${((100 * sum("failed")) / ended).toFixed(1)} %` : "–";
  const people = activities.reduce((total, each) => total + each.needs_person, 0);
  const figure = (term, told) => h("div", null, h("dt", null, term), h("dd", null, told));
  const linked = (status) => {
    const number = count(statuses[status] ?? 0);
    return agent ? h("a", { href: address("runs", { agent, status }), "data-keep": status }, number) : number;
  };
  return h("dl", { class: "figures" },
    figure("started per minute", (sum("started") / minutes).toFixed(1)),
    figure("ended per minute", (ended / minutes).toFixed(1)),
    figure("of these failed", share),
    figure("records pending", lag === null ? "–" : count(lag)),
    figure("need a person", h("a", { href: "approvals", "data-keep": "people" }, count(people))),
    SHOWN.map((status) => figure(status, linked(status))));
}

function oldest(activities) {
  const rows = activities.flatMap(({ agent, oldest: found, now_ms: now }) =>
    Object.entries(found).map(([status, run]) => ({ agent, status, now, ...run })));
  rows.sort((one, other) => Number(one.since_ms) - Number(other.since_ms));
  return table("Runs that have waited longest", [["Agent"], ["Status"], ["Run"], ["Step"], ["Since"], ["Runs like this", "number"]],
    rows.map((each) => [
      each.agent, badge(each.status), runLink(each.agent, each.run_id), each.step, ago(each.since_ms, each.now),
      h("a", { href: address("runs", { agent: each.agent, status: each.status }), "data-keep": `${each.agent} ${each.status}` }, count(each.runs)),
    ]), { empty: "No run is in progress." });
}

function failed(pages) {
  const runs = pages.flatMap((page) => page.runs);
  runs.sort((one, other) => Number(other.updated_ms) - Number(one.updated_ms));
  return table("Runs that failed last", [["Agent"], ["Run"], ["Step"], ["Failure"], ["When"]],
    runs.slice(0, FAILURES).map((run) => [
      run.agent, runLink(run.agent, run.run_id), run.step, `${run.failure?.number ?? ""} ${run.failure?.code ?? ""}`, ago(run.updated_ms),
    ]), { empty: "No run has failed." });
}

function byAgent(counts) {
  return table("Agents", [["Agent"], ["Runs", "number"], ...SHOWN.map((status) => [status, "number"])],
    counts.map((each) => [
      h("a", { href: address("runs", { agent: each.agent }), "data-keep": `agent ${each.agent}` }, each.agent),
      count(each.runs), ...SHOWN.map((status) => count(each.statuses[status] ?? 0)),
    ]), { empty: "No agent." });
}
