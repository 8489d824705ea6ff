// Runs that wait for a person: questions to answer, and runs that somebody has to look at.

import { asks, question } from "../answer.js";
import { agents, get, repeat } from "../api.js";
import { address, h, put } from "../dom.js";
import { badge, count, notice, runLink, trouble } from "../ui.js";

export const title = "Approvals";

const EVERY_MS = 3000;
const SHOWN = 25;

export async function show(main, _params, signal) {
  const known = (await agents(signal)).map(({ name }) => name);
  const [problem, tell] = notice();
  const list = h("div", null);
  const told = h("p", { class: "soft" });
  put(main, h("h1", null, "Approvals"), problem, told, list);
  const cards = new Map();

  const load = async () => {
    const pages = await Promise.all(
      known.map((agent) => get(["runs", agent], { needs: "person", limit: SHOWN }, signal)),
    );
    const runs = pages.flatMap((page) => page.runs);
    const matches = pages.reduce((sum, page) => sum + page.matches, 0);
    const wanted = new Set();
    for (const run of runs) {
      const key = JSON.stringify([run.agent, run.run_id, run.updated_ms]);
      wanted.add(key);
      if (!cards.has(key)) cards.set(key, await card(run, load, signal)); // what is typed in stays there
    }
    for (const [key, element] of cards) {
      if (wanted.has(key)) continue;
      element.remove();
      cards.delete(key);
    }
    for (const key of wanted) if (!cards.get(key).isConnected) list.append(cards.get(key));
    put(told, matches ? `${count(matches)} ${matches === 1 ? "run waits" : "runs wait"} for a person` : "No run waits for a person.",
      matches > runs.length ? known.map((agent) => [" ", h("a", { href: address("runs", { agent, needs: "person" }) }, `all of ${agent}`)]) : null);
  };
  await repeat(EVERY_MS, load, signal, tell);
}

async function card(listed, done, signal) {
  const run = await get(["runs", listed.agent, listed.run_id], {}, signal);
  return h("section", { class: "card" },
    h("h2", { class: "line" }, runLink(run.agent, run.run_id), badge(run.status), h("span", { class: "soft" }, run.agent)),
    asks(run) ? question(run, done, signal) : h("div", null,
      run.failure ? trouble(`${run.failure.number ?? ""} ${run.failure.code}: ${run.failure.message}`) : null,
      h("p", null, h("a", { href: address("run", { agent: run.agent, id: run.run_id }) }, "Open the run"))));
}
