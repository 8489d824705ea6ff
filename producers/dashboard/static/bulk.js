// What can be done to one run or to many, and what that will come to, in words.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { count, dialog, runLink, say, table, trouble } from "./ui.js";

// in the order of the buttons: {word, label, statuses in which it can be asked for, will}
export const COMMANDS = JSON.parse(document.body.dataset.commands);
const AT_A_TIME = 6;

/** Ask, have everything that has failed try again, a batch at a time, and show what came of it. */
export async function retryFailed(agent, prefix, signal) {
  const what = agent === "outbox" ? "effect" : `run of ${agent}`;
  await dialog("Retry everything that failed?", (close) => {
    const place = h("div", null);
    put(place,
      h("p", null, `Every ${what} that has failed${prefix ? ", and whose id begins with " : ""}`, prefix ? h("code", null, prefix) : null,
        ", is tried again, with its attempts counted anew. "
          + (agent === "outbox" ? "Effects keep their keys, so that a target acts once." : "Calls that were recorded are not made again.")),
      h("p", { class: "buttons" },
        h("button", { type: "button", onclick: () => close(null) }, "Leave it"),
        h("button", { type: "button", class: "main", onclick: () => batches(agent, prefix, signal, place, close) }, "Yes, retry all")),
    );
    return place;
  });
}

async function batches(agent, prefix, signal, place, close) {
  const progress = h("progress", { max: 1, value: 0, "aria-label": "Progress of the retry" });
  const so_far = h("p", null);
  put(place, progress, so_far);
  const sum = { retried: 0, refused: 0, unanswered: 0 };
  const runs = [];
  let most = null, before = null, problem = null;
  const told = () => `${count(sum.retried)} of ${count(most ?? 0)} retried`
    + (sum.refused ? `; ${count(sum.refused)} refused` : "")
    + (sum.unanswered ? `; ${count(sum.unanswered)} asked, without an answer yet` : "");
  try {
    do {
      const said = { prefix, by: "dashboard", ...(before === null ? {} : { before }) };
      const batch = await post(["runs", agent, "retry-failed"], said, signal);
      for (const name of Object.keys(sum)) sum[name] += batch[name];
      runs.push(...batch.runs.filter((run) => run.accepted !== true));
      most ??= batch.matches;
      progress.max = Math.max(most, 1);
      progress.value = sum.retried + sum.refused + sum.unanswered;
      put(so_far, told());
      before = batch.next;
    } while (before !== null && !signal.aborted);
  } catch (error) {
    problem = error;
  }
  const shut = h("button", { type: "button", class: "main", onclick: () => close(true) }, "Close");
  put(place,
    problem ? trouble(problem) : null,
    h("p", null, h("strong", null, told())),
    runs.length === 0 ? null : table("What was not retried", [["Run"], ["Result"]],
      runs.slice(0, 500).map(({ run_id, message }) => [agent === "outbox" ? h("span", { class: "id" }, run_id) : runLink(agent, run_id), message ?? "asked; no answer yet"])),
    h("p", { class: "buttons" }, shut));
  say(told());
  shut.focus();
}

/** What is about to happen, as sentences. */
export function consequences({ will }, number) {
  const runs = number === 1 ? "This run" : `Each of ${count(number)} runs`;
  return will.map((line) => line.replace("{runs}", runs));
}

/** Ask, act, and show what came of each. Whether anything was asked of the runs. */
export async function act(agent, runs, command, signal) {
  let begun = false;
  await dialog(`${command.label} ${runs.length === 1 ? "a run" : `${count(runs.length)} runs`}?`, (close) => {
    const place = h("div", null);
    const go = async () => {
      begun = true;
      await perform(agent, runs, command.word, signal, place, close);
    };
    put(place,
      consequences(command, runs.length).map((line) => h("p", null, line)),
      runs.length === 1 ? h("p", { class: "id" }, runs[0]) : h("details", null, h("summary", null, "Which runs"),
        h("ul", null, runs.map((id) => h("li", { class: "id" }, id)))),
      h("p", { class: "buttons" },
        h("button", { type: "button", onclick: () => close(null) }, "Leave it"),
        h("button", { type: "button", class: "main", onclick: go }, `Yes, ${command.word}`)),
    );
    return place;
  });
  return begun;
}

async function perform(agent, runs, verb, signal, place, close) {
  const done = [];
  const progress = h("progress", { max: runs.length, value: 0, "aria-label": `Runs asked to ${verb}` });
  put(place, progress);
  const waiting = [...runs];
  const worker = async () => {
    for (let id = waiting.shift(); id !== undefined && !signal.aborted; id = waiting.shift()) {
      done.push([id, await ask(agent, id, verb, signal)]);
      progress.value = done.length;
    }
  };
  await Promise.all(Array.from({ length: Math.min(AT_A_TIME, runs.length) }, worker));
  const well = done.filter(([, told]) => told.ok).length;
  const sum = `${count(well)} of ${count(runs.length)} done`
    + (well < runs.length ? `; ${count(runs.length - well)} not, see why below` : "");
  const shut = h("button", { type: "button", class: "main", onclick: () => close(true) }, "Close");
  done.sort(([, one], [, other]) => one.ok - other.ok);
  put(place,
    h("p", null, h("strong", null, sum)),
    table("Result of each run", [["Run"], ["Result"]], done.slice(0, 500).map(([id, { text }]) => [runLink(agent, id), text])),
    h("p", { class: "buttons" }, shut));
  say(sum);
  shut.focus();
}

async function ask(agent, id, verb, signal) {
  try {
    const reply = await post(["runs", agent, id, verb], { by: "dashboard" }, signal);
    if (reply.accepted === null) return { ok: false, text: "asked; no answer yet" };
    return { ok: true, text: `done: it is ${reply.run?.status ?? "gone"}` };
  } catch (error) {
    return { ok: false, text: error.message };
  }
}
