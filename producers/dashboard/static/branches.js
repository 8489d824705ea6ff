// The runs that a run has begun: its branches, and theirs.

import { agents, get } from "./api.js";
import { address, h } from "./dom.js";
import { ago, badge, count, runLink, span, table } from "./ui.js";

const SHOWN = 100;
const LANES = 20;
const OVER = ["completed", "failed", "cancelled"];
const MARKS = { completed: "ok", failed: "bad", cancelled: "calm", waiting: "warn", attention: "warn" };

/** {pages: [{agent, runs, matches}]} of each agent that has some; of many the latest. */
export async function branches(id, signal) {
  const known = await agents(signal);
  const prefix = `${id}~`;
  const pages = await Promise.all(known.map(async ({ name }) =>
    ({ agent: name, prefix, ...(await get(["runs", name], { prefix, limit: SHOWN }, signal)) })));
  const some = pages.filter(({ runs }) => runs.length);
  for (const { runs } of some) runs.sort((one, other) => one.run_id.localeCompare(other.run_id, "en", { numeric: true }));
  return some;
}

/** A card of them; null: there are none. */
export function branchCard(pages) {
  if (!pages.length) return null;
  return h("section", { class: "card" }, h("h2", null, "Runs that it started"), pages.map(({ agent, prefix, runs, matches }) => [
    table(`Runs of ${agent} that it has begun`, [["Run"], ["Status"], ["Step"], ["Began"], ["Took"]], runs.map((run) => [
      runLink(agent, run.run_id), badge(run.status), run.step, ago(run.created_ms),
      OVER.includes(run.status) ? span(Number(run.updated_ms) - Number(run.created_ms)) : "",
    ])),
    matches > runs.length
      ? h("p", null, h("a", { href: address("runs", { agent, prefix }), "data-keep": `branches ${agent}` }, `All ${count(matches)} of ${agent}`))
      : null,
  ]));
}

/** A lane for each, of the first ones. */
export function branchPieces(pages, now) {
  return pages.flatMap(({ runs }) => runs).slice(0, LANES).map((run) => {
    const from = Number(run.created_ms);
    const to = OVER.includes(run.status) ? Number(run.updated_ms) : now;
    return {
      lane: run.run_id.slice(run.run_id.indexOf("~")), from_ms: from, to_ms: to, mark: MARKS[run.status] ?? "live",
      text: `${run.run_id}: ${run.status}, ${span(to - from)}`,
    };
  });
}
