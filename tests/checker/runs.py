"""Runs, from their history: each step once, in order and in time, and the right end."""

from __future__ import annotations

import json
from collections import Counter, defaultdict

from tests.checker.history import Programs, Violation
from tests.checker.view import OVER, RESULTS, SKIPS, Findings, Seen, View, holes


def lives(events: list[Seen]) -> list[list[Seen]]:
    """A run's events, cut where it was started: an id may be used again when it is forgotten."""
    found: list[list[Seen]] = [[]]
    for event in events:
        if event["type"] == "run.started":
            found.append([])
        found[-1].append(event)
    return found


def once_each(view: View) -> Findings:
    """I2: each step of a run has one result, and none is left out."""
    for agent in view.agents:
        forgotten = Counter(
            (each.record.key or b"").decode() for each in view.of(agent, "state") if not each.fields
        )
        for run_id, events in view.runs(agent).items():
            starts = [event.name for event in events if event["type"] == "run.started"]
            if len(starts) > 1 + forgotten[run_id]:
                yield Violation("I2", f"{run_id} was started {len(starts)} times: {starts}")
            for life in lives(events):
                yield from _one_life(run_id, life)


def _one_life(run_id: str, life: list[Seen]) -> Findings:
    results: dict[tuple[int, int], list[str]] = defaultdict(list)
    for event in life:
        if event["type"] in RESULTS:
            results[event["epoch"], event["seq"]].append(event.name)
    for (epoch, seq), names in results.items():
        if len(names) > 1:
            yield Violation("I2", f"step {seq} of {run_id} in epoch {epoch} was committed: {names}")
    began = [e["seq"] for e in life if e["type"] == "run.started"]
    back = {e["epoch"]: e["seq"] for e in life if e["type"] == "run.rewound"}
    skipped = {(e["epoch"], e["seq"]) for e in life if e["type"] in SKIPS}
    for epoch in {epoch for epoch, _ in results}:
        first = back.get(epoch, began[0] if began else 0)
        done = {seq for e, seq in (results.keys() | skipped) if e == epoch}
        if missing := holes(done, first=first):
            yield Violation("I2", f"of {run_id} in epoch {epoch} steps {missing} are missing")


def in_order(view: View) -> Findings:
    """I9: what tells of a run's steps stands in their order, and nothing tells of a step before the
    one that it follows has ended."""
    for agent in view.agents:
        for events in view.runs(agent).values():
            for life in lives(events):
                yield from _rising([e for e in life if e["type"] in RESULTS], strict=True)
        checkpoints: dict[bytes | None, list[Seen]] = defaultdict(list)
        for each in view.state(agent, "Checkpoint"):
            if each.fields:
                checkpoints[each.record.key].append(each)
            else:  # forgotten; whoever has the id now is another run
                yield from _rising(checkpoints.pop(each.record.key, []), strict=False)
        for own in checkpoints.values():
            yield from _rising(own, strict=False)
        yield from _tasks(view, agent)


def _rising(items: list[Seen], *, strict: bool) -> Findings:
    before: Seen | None = None
    for item in items:
        if before is not None:
            was, now = before.step[1:], item.step[1:]
            if now < was or (strict and now == was):
                yield Violation(
                    "I9", f"{item['run_id']} went from {was} at {before.name} to {now}, {item.name}"
                )
        before = item


def _tasks(view: View, agent: str) -> Findings:
    """Steps are asked for in their order, unless the run was sent back; and a task is answered by
    the result of the step that it asks for."""
    moved_back = {e["run_id"] for e in view.events(agent) if e["type"] == "run.rewound"}
    asked: dict[str, Seen] = {}
    tasks = {task.name: task for task in view.of(agent, "tasks")}
    for task in tasks.values():
        run_id = task["run_id"]
        if run_id in moved_back or _moved(task):
            continue
        before = asked.get(run_id)
        if before is not None and task["seq"] < before["seq"]:
            yield Violation(
                "I9", f"{task.name} asks for step {task['seq']} of {run_id} after {before.name} did"
            )
        asked[run_id] = task
    for result in view.results(agent):
        source = tasks.get(result.answers or "")
        if source is not None and (source["run_id"], source["seq"]) != (
            result["run_id"],
            result["seq"],
        ):
            yield Violation("I9", f"{result.name} answers {source.name}, which is of another step")


def _moved(task: Seen) -> bool:
    """Whether it came from another partition."""
    return sum(name == "sf-txn" for name, _ in task.record.headers) > 1


def results(view: View, programs: Programs) -> Findings:
    """I8: a run came to what its program says, and had the effects that this takes."""
    asked = {key for agent in view.agents for e in view.events(agent) for key in e["effects"]}
    for run_id, program in programs.items():
        events = view.of_run(run_id)
        ended = [event for event in events if event["type"] == "run.completed"]
        promise = program(events) if ended else None
        if promise is None:
            continue
        came_to = json.loads(ended[-1]["result"])
        if came_to != promise.result:
            yield Violation("I8", f"{run_id} came to {came_to!r}, not {promise.result!r}")
        if missing := promise.effects - asked:
            yield Violation("I8", f"{run_id} never asked for {sorted(missing)}")


def not_early(view: View) -> Findings:
    """I13: a step that has a time does not begin before it, and a wait that ends by its time does
    not end before it."""
    if not view.history.one_clock:
        return
    for agent in view.agents:
        for run_id, events in view.runs(agent).items():
            due: Seen | None = None
            for event in events:
                if due is not None and (early_ms := _early_ms(due, event)) > 0:
                    yield Violation(
                        "I13", f"{event.name} of {run_id} is {early_ms} ms early, by {due.name}"
                    )
                if event["type"] in RESULTS | {"step.retrying", "run.resumed", "run.rewound"}:
                    due = event if event["due_ms"] is not None else None
                elif event["type"] in ("wait.over", "run.retried"):
                    due = None


def _early_ms(due: Seen, event: Seen) -> int:
    """By how much an event came before the time that an earlier one has set."""
    if event["type"] == "wait.timed_out":
        return int(due["due_ms"] - event["at_ms"])
    ends_step = event["type"] in RESULTS | {"step.retrying", "run.failed"}
    same = (event["epoch"], event["seq"]) >= (due["epoch"], due["seq"])
    if due["wait"] is None and ends_step and same and event["started_ms"] is not None:
        return int(due["due_ms"] - event["started_ms"])
    return 0


def over(view: View, programs: Programs) -> Findings:
    """I15: at rest every run that was asked for is over, or waits for what its program leaves
    open."""
    if not view.history.at_rest:
        return
    status = {
        (agent, checkpoint["run_id"]): checkpoint
        for agent in view.agents
        for checkpoint in view.checkpoints(agent)
    }
    asked = {
        (a.agent, a.run_id) for a in view.history.asked if a.kind == "start" and a.outcome == "ok"
    }
    for agent, run_id in sorted(asked | status.keys()):
        last = status.get((agent, run_id))
        events = view.runs(agent).get(run_id, [])
        if last is None:
            if not events or events[-1]["status"] not in OVER:
                yield Violation("I15", f"{run_id} was asked for and has no checkpoint")
            continue
        program = programs.get(run_id)
        free = program is not None and program(view.of_run(run_id)) is None
        if last["status"] not in OVER and not free:
            yield Violation("I15", f"{run_id} is {last['status']} at rest, at {last.name}")
