// One run: what it is doing and why, what it has done, and what can be done to it.

import { asks, question } from "../answer.js";
import { follow, get, pause } from "../api.js";
import { branchCard, branchPieces, branches } from "../branches.js";
import { COMMANDS, act } from "../bulk.js";
import { lanes } from "../charts.js";
import { address, h, put, seen } from "../dom.js";
import { entry, pieces } from "../history.js";
import { outputs } from "../output.js";
import { ago, badge, facts, notice, pretty, refill, runLink, say, trouble, value } from "../ui.js";

export const title = "Run";

const PAGE = 100;
// so many events are in the page while it is live; older ones are asked for again
const LIVE_MOST = 300;
const TICKS = { open: "☐", done: "☑", dropped: "☒" };

export async function show(main, params, signal) {
  const agent = params.get("agent") ?? "";
  const id = params.get("id") ?? "";
  const at = ["runs", agent, id];
  document.title = seen(`${id} – Run – Surefoot`);
  const [problem, tell] = notice();
  const top = h("div", null), ask = h("div", null), timeline = h("div", null), begun = h("div", null);
  const list = h("ol", { class: "steps" });
  const older = h("p", { class: "bar" });
  const live = h("span", { class: "soft" });
  const [writing, piece] = outputs();
  put(main, h("h1", { class: "id" }, id), problem, ask, top, writing, timeline, begun,
    h("h2", { class: "line" }, "History, latest first ", live), list, older);

  let run = null;
  const refresh = async () => {
    const [fresh, why] = await Promise.all([get(at, {}, signal), get([...at, "why"], {}, signal)]);
    const asked = `${asks(fresh)} ${fresh.wait?.question}`;
    if (asked !== ask.dataset.asked) { // what is typed in stays there
      ask.dataset.asked = asked;
      put(ask, asks(fresh) ? h("section", { class: "card" }, h("h2", null, "Question"), question(fresh, refresh, signal)) : null);
    }
    run = fresh;
    refill(top, overview(run, why, (command) => act(agent, [id], command, signal).then(refresh)));
  };
  await refresh();

  let events = [];
  let before = null;
  let children = [];
  const drawLanes = () => {
    const now = Date.now();
    const found = [...pieces(events, now, run), ...branchPieces(children, now)];
    put(timeline, found.length ? h("div", { class: "card" }, lanes("When its steps ran", found)) : null);
  };
  const drawBranches = async () => {
    if (run.wait?.kind !== "children" && !events.some(({ event }) => event.children)) return;
    children = await branches(id, signal);
    refill(begun, branchCard(children));
    drawLanes();
  };
  const drawOlder = () => put(older, before === null ? h("span", { class: "soft" }, "Beginning of the history.")
    : h("button", { type: "button", onclick: () => more().catch((error) => put(older, trouble(error))) }, "Older events"));
  const more = async () => {
    const page = await get([...at, "history"], { before, limit: PAGE }, signal);
    before = page.before;
    for (const each of page.events) {
      events.push(each);
      list.append(entry(page.topic, each, run, signal));
    }
    drawOlder();
    drawLanes();
    return page;
  };
  let { topic } = await more();
  while (!events.length && before !== null) ({ topic } = await more());
  await drawBranches();

  let stale = false;
  const take = ({ id: offset, type, data }) => {
    if (type === "output") return piece(data);
    if (offset === null || events.some((each) => String(each.offset) === offset)) return undefined;
    const told = { partition: events[0]?.partition ?? "?", offset, source: null, event: data };
    events.unshift(told);
    list.prepend(entry(topic, told, run, signal));
    while (events.length > LIVE_MOST) {
      before = Number(events.pop().offset) + 1;
      list.lastElementChild.remove();
      drawOlder();
    }
    stale = true;
    return undefined;
  };
  const redraw = async () => {
    for (; !signal.aborted; await pause(250, signal)) {
      if (!stale) continue;
      stale = false;
      try {
        await refresh();
        drawLanes();
        await drawBranches();
        say(`${id} is ${run.status}`);
        tell(null);
      } catch (error) {
        if (!signal.aborted) tell(error);
      }
    }
  };
  redraw();
  const words = { live: "live", over: "over", waiting: "reconnecting" };
  const last = events[0] ? { last_event_id: events[0].offset } : {};
  await follow([...at, "events"], last, take, signal, (state) => put(live, words[state])).catch(tell);
}

function overview(run, why, perform) {
  // the one that fits fewest statuses comes first
  const can = COMMANDS.filter(({ statuses }) => statuses.includes(run.status))
    .sort((one, other) => one.statuses.length - other.statuses.length);
  return h("div", null,
    h("section", { class: "card" },
      h("div", { class: "bar" }, badge(run.status), can.map((command) =>
        h("button", { type: "button", "data-keep": command.word, onclick: () => perform(command) }, command.label))),
      why.because.map((line) => h("p", null, line)),
      why.do.length ? h("details", { open: run.status === "attention" || run.status === "failed" },
        h("summary", { "data-keep": "do" }, "Commands to type"), value("Commands to type", why.do.join("\n"))) : null,
      facts([
        ["Agent", h("a", { href: address("runs", { agent: run.agent }), "data-keep": "agent" }, run.agent)],
        ["Version", String(run.version)], [["completed", "failed", "cancelled"].includes(run.status) ? "Last step" : "Next step", run.step], ["Steps done", String(run.seq)],
        ["Failed attempts", String(run.attempt)], ["Rewound", run.epoch ? `${run.epoch} times` : null],
        ["Began", ago(run.created_ms)], ["Updated", ago(run.updated_ms)],
        ["Due", run.due_ms === null ? null : ago(run.due_ms)],
        ["Partition", String(why.backlog.partition)],
        ["Queue ahead", `${why.backlog.commands} commands, ${why.backlog.tasks} tasks`],
        ["Workers", String(why.backlog.workers)],
        ["Part of", run.parent ? runLink(run.parent.agent, run.parent.run_id) : null],
        ["Used", run.memory && Object.keys(run.memory.spent).length ? pretty(run.memory.spent) : null],
        ["Granted", run.memory && Object.keys(run.memory.granted).length ? pretty(run.memory.granted) : null],
      ])),
    h("div", { class: "grid" },
      plan(run.memory?.plan ?? []),
      part("Result", run.result), part("Input of the next step", run.payload), part("Carried over the wait", run.carry)));
}

function part(name, content) {
  return content === null ? null : h("section", { class: "card" }, h("h2", null, name), value(name, content));
}

function plan(items) {
  if (!items.length) return null;
  const done = items.filter(({ state }) => state === "done").length;
  return h("section", { class: "card" }, h("h2", null, `Plan: ${done} of ${items.length} done`),
    h("ul", { class: "plan" }, items.map(({ state, text }) =>
      h("li", null, h("span", { "aria-hidden": "true" }, TICKS[state] ?? "?"), ` ${text} `, h("span", { class: "unseen" }, `(${state})`)))));
}
