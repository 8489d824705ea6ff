// In the demo: a button that crashes a worker, and what becomes of the runs that it worked on.

import { get, pause, post } from "./api.js";
import { h } from "./dom.js";
import { confirm, count, refill, runLink, say, span, table, trouble } from "./ui.js";

const EVERY_MS = 300;
const PATIENCE_MS = 60000;
const SHOWN = 12;
const MOST = 500;
const DEAD_AFTER_MS = 500;

/** The button, and the place where it is told what came of it. */
export function crashing(agents, signal) {
  const told = h("div", null);
  const button = h("button", { type: "button", class: "main", onclick: async () => {
    const lines = [
      "A worker process with runs in progress gets SIGKILL: it cannot save anything.",
      "Another process resumes its runs after the last committed step of each. No step "
        + "is committed twice, and no effect is sent twice.",
    ];
    if (!(await confirm("Crash a worker?", lines, "Yes, crash it"))) return;
    button.disabled = true;
    try {
      await watch(agents, told, signal);
    } catch (error) {
      refill(told, trouble(error));
    }
    button.disabled = false;
  } }, "Crash worker");
  return h("section", { class: "card" },
    h("div", { class: "bar" }, button, h("span", { class: "soft" }, "This is the demo: what happens when a process dies?")), told);
}

async function watch(agents, place, signal) {
  let known = await running(agents, signal);
  const began = performance.now();
  // where all is one process, it is the one that answers: it may die before it does
  await post(["ui", "demo", "crash"], {}, signal).catch((error) => { if (error.status) throw error; });
  // what went on before the signal came does not count: the runs are looked at once it has come
  await pause(DEAD_AFTER_MS, signal);
  known = await running(agents, signal).catch(() => known);
  const runs = known.map((run) => ({ ...run, now: run, resumed: null }));
  while (!signal.aborted && performance.now() - began < PATIENCE_MS) {
    try {
      const left = new Map((await running(agents, signal)).map((run) => [key(run), run]));
      const after = performance.now() - began;
      for (const run of runs) {
        const fresh = left.get(key(run));
        if (run.resumed !== null || (fresh && fresh.seq <= run.seq)) continue;
        run.now = fresh ?? await get(["runs", run.agent, run.run_id], {}, signal);
        run.resumed = after;
      }
      if (draw(place, runs, after)) return;
    } catch (error) {
      if (error.status) throw error;
      draw(place, runs, performance.now() - began);
    }
    await pause(EVERY_MS, signal);
  }
}

function draw(place, runs, after) {
  const gone = runs.filter(({ resumed }) => resumed !== null);
  const over = gone.length === runs.length;
  const slowest = Math.max(0, ...gone.map(({ resumed }) => resumed));
  const sum = !runs.length ? "No run was in progress."
    : over ? `${count(runs.length)} runs were under way, and each has gone on; the last one ${span(slowest)} after the crash.`
      : `${count(runs.length)} runs were under way; ${count(gone.length)} have gone on, ${span(after)} after the crash.`;
  const rows = [...runs].sort((one, other) => (other.resumed ?? Infinity) - (one.resumed ?? Infinity)).slice(0, SHOWN);
  refill(place, h("p", null, h("strong", null, sum)),
    table("Runs that were in progress", [["Run"], ["Steps after the crash", "number"], ["Steps now", "number"], ["Now"], ["Resumed after"]],
      rows.map((run) => [
        runLink(run.agent, run.run_id), count(run.seq), count(run.now.seq), `${run.now.step}, ${run.now.status}`,
        run.resumed === null ? "not yet" : span(run.resumed),
      ]), { empty: "None." }));
  if (over) say(sum);
  return over;
}

async function running(agents, signal) {
  const pages = await Promise.all(
    agents.map((agent) => get(["runs", agent], { status: "running", limit: MOST }, signal)),
  );
  return pages.flatMap((page) => page.runs);
}

function key(run) {
  return `${run.agent} ${run.run_id}`;
}
