// Dead letters: inputs of which nothing could be made, and runs that are out of attempts.

import { agents, get, repeat } from "../api.js";
import { retryFailed } from "../bulk.js";
import { address, h, put } from "../dom.js";
import { ago, choice, count, notice, refill, runLink, table } from "../ui.js";

export const title = "Dead letters";

const PAGE = 50, EVERY_MS = 5000;

export async function show(main, params, signal) {
  const before = params.get("before") ?? "";
  const list = h("div", null);
  const [problem, tell] = notice();
  put(main,
    h("h1", null, "Dead letters"),
    h("p", { class: "soft" }, "A run is tried again, and an event of a topic put back, by the command that stands with it; "
      + "another input is sent again by whoever sent it, once it is right."),
    everything(await agents(signal), signal),
    problem, list);
  const load = async () => {
    const page = await get(["dead-letters"], { before, limit: PAGE }, signal);
    refill(list, letters(page.dead_letters), h("p", { class: "bar" },
      before ? h("a", { href: "dead" }, "Latest dead letters") : null,
      page.older === null ? null : h("a", { href: address("dead", { before: page.older }), rel: "next" }, "Older dead letters")));
  };
  await repeat(EVERY_MS, load, signal, tell);
}

/** Runs and effects that have failed, whether a letter tells of them or not. */
function everything(known, signal) {
  const options = [...known.map(({ name }) => [name, `runs of ${name}`]), ["outbox", "effects"]];
  return h("form", {
    class: "filters", "aria-label": "Retry what failed",
    onsubmit: (event) => {
      event.preventDefault();
      const said = new FormData(event.target);
      retryFailed(said.get("agent"), said.get("prefix"), signal);
    },
  },
    choice("agent", "What has failed", options, known[0]?.name),
    h("label", null, "Id begins with", h("input", { name: "prefix", type: "text", maxlength: 256, size: 16 })),
    h("button", { type: "submit" }, "Retry all failed"));
}

function letters(found) {
  const columns = [["Came"], ["Why"], ["Of"], ["Attempts", "number"], ["Bytes", "number"], ["What to do"]];
  const rows = found.map((each) => [
    ago(each.at_ms),
    h("div", null, h("strong", null, `${each.number ?? ""} ${each.code}`), h("p", null, each.message)),
    h("div", null, of(each)),
    count(each.attempts),
    count(each.value_bytes),
    h("ul", { class: "plan" }, each.do.map((line) => h("li", null, line.startsWith("surefoot ") ? h("code", null, line) : line))),
  ]);
  return table("Dead letters", columns, rows, { empty: "No dead letters." });
}

function of({ agent, run_id, step, source }) {
  if (source) return h("span", { class: "id" }, `${source.topic} / ${source.partition ?? "?"} / ${source.offset ?? "?"}`);
  if (run_id === null) return "unknown";
  return [agent === null ? h("span", { class: "id" }, run_id) : runLink(agent, run_id), step ? h("p", null, `at step ${step}`) : null];
}
