// A question that a run asks, and the buttons that answer it.

import { post } from "./api.js";
import { h, put } from "./dom.js";
import { ago, choice, confirm, facts, say, trouble, value } from "./ui.js";

/** Whether a run waits for a person's yes or no. */
export function asks(run) {
  return run.status === "waiting" && ["approval", "budget"].includes(run.wait?.kind);
}

/** What is asked, and how to answer; `done` is called once it is answered. */
export function question(run, done, signal) {
  const { wait } = run;
  const budget = wait.kind === "budget";
  const what = budget
    ? h("p", null, `It has exhausted its budget of ${wait.names.join(", ")}. Grant as much again?`)
    : value(`What run ${run.run_id} asks`, run.carry);
  const accounts = "accounts" in document.body.dataset; // the answer is by who is signed in
  const by = accounts ? null : wait.by.length
    ? choice("by", "You are", wait.by.map((name) => [name, name]), wait.by[0])
    : h("label", null, "You are", h("input", { name: "by", autocomplete: "username", maxlength: 256 }));
  const note = h("label", null, "Note", h("input", { name: "note", maxlength: 4096 }));
  const told = h("div", null);
  const answer = (approved) => async () => {
    const lines = [
      approved
        ? `Run ${run.run_id} gets the answer yes and continues with step ${wait.then ?? run.step}.`
        : `Run ${run.run_id} gets the answer no. ${budget ? "It then fails." : `Step ${wait.then ?? run.step} continues with that.`}`,
      "The first answer holds.",
    ];
    if (!(await confirm(approved ? "Approve?" : "Refuse?", lines, approved ? "Yes, approve" : "Yes, refuse"))) return;
    const said = { question: wait.question, approved };
    const name = by?.querySelector("input, select").value.trim();
    const text = note.querySelector("input").value.trim();
    if (name) said.by = name;
    if (text) said.note = text;
    try {
      await post(["runs", run.agent, run.run_id, "approve"], said, signal);
      say(`Run ${run.run_id}: answered ${approved ? "yes" : "no"}.`);
      done();
    } catch (error) {
      put(told, trouble(error));
    }
  };
  return h("div", null,
    what,
    facts([
      ["Asked", ago(wait.since_ms)],
      ["Until", run.due_ms === null ? null : ago(run.due_ms)],
      ["Who may answer", wait.by.length ? wait.by.join(", ") : "anybody"],
      ["Question", h("code", null, wait.question)],
    ]),
    h("div", { class: "bar" }, by, note,
      h("button", { type: "button", class: "main", "aria-label": `Approve run ${run.run_id}`, onclick: answer(true) }, "Approve"),
      h("button", { type: "button", "aria-label": `Refuse run ${run.run_id}`, onclick: answer(false) }, "Refuse")),
    told);
}
