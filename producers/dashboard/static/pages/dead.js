// Dead letters: inputs of which nothing could be made, and runs that are out of attempts.

import { get, repeat } from "../api.js";
import { address, h, put } from "../dom.js";
import { ago, count, notice, refill, runLink, table } from "../ui.js";

export const title = "Dead letters";

const PAGE = 50, EVERY_MS = 5000;

export async function show(main, params, signal) {
  const before = params.get("before") ?? "";
  const list = h("div", null);
  const [problem, tell] = notice();
  put(main,
    h("h1", null, "Dead letters"),
    h("p", { class: "soft" }, "Nothing is put back from here: a run is tried again by a command, as is an event of a topic; "
      + "another input is sent again by whoever sent it, once it is right."),
    problem, list);
  const load = async () => {
    const page = await get(["dead-letters"], { before, limit: PAGE }, signal);
    refill(list, letters(page.dead_letters), h("p", { class: "bar" },
      before ? h("a", { href: "dead" }, "Latest dead letters") : null,
      page.older === null ? null : h("a", { href: address("dead", { before: page.older }), rel: "next" }, "Older dead letters")));
  };
  await repeat(EVERY_MS, load, signal, tell);
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
  return table("Dead letters", columns, rows, { empty: "There is no dead letter." });
}

function of({ agent, run_id, step, source }) {
  if (source) return h("span", { class: "id" }, `${source.topic} / ${source.partition ?? "?"} / ${source.offset ?? "?"}`);
  if (run_id === null) return "unknown";
  return [agent === null ? h("span", { class: "id" }, run_id) : runLink(agent, run_id), step ? h("p", null, `at step ${step}`) : null];
}
