// The runs of an agent: filters in the address, a page at a time, and what can be done to many.

import { agents, get, repeat } from "../api.js";
import { COMMANDS, act } from "../bulk.js";
import { address, h, put } from "../dom.js";
import { STATUSES, ago, badge, choice, count, notice, pretty, refill, runLink, table } from "../ui.js";

export const title = "Runs";

const FILTERS = ["agent", "status", "needs", "version", "step", "prefix"];
const PAGE = 100;
const EVERY_MS = 3000;
// so many runs can be acted on at once
const MOST = 5000;

export async function show(main, params, signal) {
  const known = await agents(signal);
  const agent = params.get("agent") ?? known[0]?.name;
  const filters = Object.fromEntries(FILTERS.map((name) => [name, params.get(name) ?? ""]));
  filters.agent = agent;
  const before = params.get("before") ?? "";
  const chosen = new Set();
  const list = h("div", null);
  const summary = h("p", { class: "soft" });
  const [problem, tell] = notice();
  let shown = [];

  const bar = bulkBar(agent, chosen, () => draw(), signal);
  const everything = h("button", { type: "button", onclick: async () => {
    everything.disabled = true;
    await chooseAll(agent, { ...query, before: "" }, chosen, signal).catch(tell);
    everything.disabled = false;
    draw();
  } });
  put(main,
    h("h1", null, `Runs of ${agent}`),
    form(known, filters),
    problem,
    bar.element,
    h("div", { class: "bar" }, summary, everything),
    list,
  );

  const query = { ...filters, before, limit: PAGE };
  delete query.agent;
  let page = null;
  const load = async () => {
    const fresh = await get(["runs", agent], query, signal);
    if (pretty(fresh) === pretty(page)) return; // what is being read stays as it is
    page = fresh;
    shown = page.runs;
    draw();
  };

  function draw() {
    const all = shown.length > 0 && shown.every((run) => chosen.has(run.run_id));
    const everyone = h("input", {
      type: "checkbox", "aria-label": "Choose all runs of this page", checked: all, "data-keep": "all",
      onchange: (event) => {
        for (const run of shown) event.target.checked ? chosen.add(run.run_id) : chosen.delete(run.run_id);
        draw();
      },
    });
    const rows = shown.map((run) => [
      h("input", {
        type: "checkbox", "aria-label": `Choose run ${run.run_id}`, "data-keep": `choose ${run.run_id}`,
        checked: chosen.has(run.run_id),
        onchange: (event) => {
          event.target.checked ? chosen.add(run.run_id) : chosen.delete(run.run_id);
          draw();
        },
      }),
      runLink(agent, run.run_id),
      badge(run.status),
      run.step,
      String(run.seq),
      String(run.version),
      ago(run.updated_ms),
      run.failure ? `${run.failure.number ?? ""} ${run.failure.code}` : "",
    ]);
    const columns = [
      [everyone], ["Run"], ["Status"], ["Step"], ["Steps done", "number"], ["Version", "number"],
      ["Updated"], ["Failure"],
    ];
    refill(list, table(`Runs of ${agent}`, columns, rows, { empty: "No runs match these filters." }), pager(page, filters, before));
    put(summary, `${count(page.matches)} ${page.matches === 1 ? "run" : "runs"}`
      + (page.next || before ? `; ${count(shown.length)} of them on this page` : ""));
    const most = Math.min(page.matches, MOST);
    put(everything, `Choose ${most < page.matches ? `the latest ${count(most)}` : `all ${count(most)}`}`);
    everything.hidden = page.matches <= shown.length;
    bar.update();
  }

  await repeat(EVERY_MS, load, signal, tell);
}

/** Every run that fits the filters, also those of other pages. */
async function chooseAll(agent, query, chosen, signal) {
  for (let before = ""; before !== null && chosen.size < MOST;) {
    const page = await get(["runs", agent], { ...query, before, limit: 500 }, signal);
    for (const run of page.runs) if (chosen.size < MOST) chosen.add(run.run_id);
    before = page.next;
  }
}

function form(known, filters) {
  const field = (name, label, type = "text") =>
    h("label", null, label, h("input", { name, type, value: filters[name], size: name === "version" ? 4 : 16 }));
  return h("form", { class: "filters", method: "get", action: "runs", role: "search", "aria-label": "Filter runs" },
    choice("agent", "Agent", known.map(({ name }) => [name, name]), filters.agent),
    choice("status", "Status", STATUSES.map((each) => [each, each]), filters.status, "any"),
    choice("needs", "Needs", [["person", "a person"]], filters.needs, "any"),
    field("version", "Version", "number"),
    field("step", "Step"),
    field("prefix", "Run begins with"),
    h("button", { type: "submit", class: "main" }, "Filter"),
    h("a", { href: address("runs", { agent: filters.agent, status: "failed" }) }, "Failed only"),
    h("a", { href: address("runs", { agent: filters.agent }) }, "No filter"),
  );
}

function pager(page, filters, before) {
  return h("p", { class: "bar" },
    before ? h("a", { href: address("runs", filters) }, "Latest runs") : null,
    page.next ? h("a", { href: address("runs", { ...filters, before: page.next }), rel: "next" }, "Older runs") : null,
  );
}

function bulkBar(agent, chosen, done, signal) {
  const told = h("span", null);
  const buttons = COMMANDS.map((command) =>
    h("button", {
      type: "button",
      onclick: async () => {
        if (await act(agent, [...chosen], command, signal)) chosen.clear();
        done();
      },
    }, command.label),
  );
  const update = () => {
    put(told, chosen.size ? `${count(chosen.size)} chosen` : "Choose runs to act on them");
    for (const button of buttons) button.disabled = !chosen.size;
  };
  update();
  return { element: h("div", { class: "bar", role: "group", "aria-label": "Act on the chosen runs" }, told, buttons), update };
}
