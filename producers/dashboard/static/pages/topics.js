// Topics: what is in each partition, what is not done yet, and which worker has it.

import { agents, get, repeat } from "../api.js";
import { address, h, put } from "../dom.js";
import { choice, count, facts, notice, refill, table } from "../ui.js";

export const title = "Topics and lag";

const EVERY_MS = 2000;

export async function show(main, params, signal) {
  const known = await agents(signal);
  const filters = { agent: params.get("agent") ?? "", behind: params.get("behind") ?? "" };
  const list = h("div", null);
  const [problem, tell] = notice();
  put(main,
    h("h1", null, "Topics and lag"),
    h("form", { class: "filters", method: "get", action: "topics", role: "search", "aria-label": "Filter topics" },
      choice("agent", "Agent", known.map(({ name }) => [name, name]), filters.agent, "all, and the outbox"),
      choice("behind", "Partitions", [["some", "with pending records"]], filters.behind, "all"),
      h("button", { type: "submit", class: "main" }, "Filter"),
      h("a", { href: address("topics", { ...filters, behind: "some" }) }, "Behind only"),
      h("a", { href: "topics" }, "No filter")),
    h("p", { class: "soft" }, "Behind: committed records that are not done; transaction markers do not count. "
      + "“about” stands where markers are counted too."),
    problem, list);
  const open = new Set();
  const load = async () => {
    const found = (await get(["topics"], { agent: filters.agent }, signal)).agents;
    refill(list, found.map((each) => group(each, filters.behind === "some", open)));
  };
  await repeat(EVERY_MS, load, signal, tell);
}

function group(told, some, open) {
  const behind = inputs(told).filter(({ lag }) => !some || lag > 0);
  const every = h("details", {
    open: open.has(told.agent),
    ontoggle: ({ target }) => (target.open ? open.add(told.agent) : open.delete(told.agent)),
  }, h("summary", { "data-keep": `topics of ${told.agent}` }, "Offsets of every topic"), offsets(told));
  return h("section", { class: "card" },
    h("h2", null, told.agent),
    facts([["Consumer group", told.group], ["Behind", amount(told)], ["Workers", workers(told)]]),
    table(`Partitions of ${told.agent}`,
      [["Partition"], ["Worker"], ["Commands behind", "number"], ["Tasks behind", "number"]],
      behind.map(({ partition, owner, places }) => [String(partition), owner ?? "nobody", ...places.map(amount)]),
      { empty: "No pending records." }),
    every);
}

function amount({ lag, exact }) {
  return exact ? count(lag) : `about ${count(lag)}`;
}

function workers({ workers: all }) {
  return all.length ? all.map(({ name, host, partitions }) => `${name} on ${host}: ${partitions.length}`).join("; ")
    : "none is running";
}

// The partitions of what workers read: both topics of one partition are with one worker.
function inputs(told) {
  const found = new Map();
  for (const place of told.topics.filter(({ lag }) => lag !== null)) {
    const { partition, owner } = place;
    const row = found.get(partition) ?? { partition, owner, lag: 0, places: [] };
    row.places.push(place);
    row.lag += place.lag;
    found.set(partition, row);
  }
  return [...found.values()];
}

function offsets(told) {
  const columns = [
    ["Topic"], ["Partition", "number"], ["Start", "number"], ["End", "number"], ["Last stable", "number"],
    ["Committed", "number"],
  ];
  return table(`Offsets of ${told.agent}`, columns, told.topics.map((place) => [
    place.topic, String(place.partition), count(place.start), count(place.end), count(place.stable),
    place.committed === null ? "" : count(place.committed),
  ]));
}
