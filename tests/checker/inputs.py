"""Inputs, commands and tasks: each is answered once, or is among the dead letters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from tests.checker.history import Marker, Place, Record, Violation
from tests.checker.view import INPUTS, OVER, RESULTS, SKIPS, Findings, Seen, View, headers_of

#: events after which a task for the step is no longer what makes it run
_SETTLED = RESULTS | SKIPS | {"step.retrying", "run.paused", "run.attention", "budget.spent"}
#: events with which a person lets a parked run do its step again
_ASKED_AGAIN = frozenset({"run.resolved", "run.retried"})
#: events with which an input is not done
_PROVISIONAL = frozenset({"run.started", "run.accepted", "step.retrying"})


def answered_once(view: View) -> Findings:
    """I3: the transaction that has the answer to an input is the last one that answers to it.
    Attempts that failed may answer to the same input before, since it may be read again until the
    group has passed it; so may one that parked the run, once a person has let it try again."""
    for agent in view.agents:
        answers: dict[str, Seen] = {}
        for event in view.events(agent):
            source, headers = event.answers, event.headers
            if source is None or headers is None:
                continue
            if event["type"] in _ASKED_AGAIN:
                parked = {"run.attention", event["run_id"]}
                answers = {
                    name: told
                    for name, told in answers.items()
                    if {told["type"], told["run_id"]} != parked
                }
            before = answers.get(source)
            if before is not None and before.headers is not None:
                if before.headers.txn != headers.txn:
                    yield Violation("I3", f"{source}: {before.name} answered it, then {event.name}")
            elif event["type"] not in _PROVISIONAL:
                answers[source] = event


def none_passed_over(view: View) -> Findings:
    """I3: whatever a group has passed was answered."""
    answered = {headers.source for record, headers in view.written if record.committed}
    for agent in view.agents:
        runs = view.runs(agent)
        for kind in INPUTS:
            for record in view.of(agent, kind):
                if record.record.offset >= view.passed.get(record.place, 0):
                    continue
                if record.name not in answered and not _settled(record, runs):
                    told = f"{record.name} ({record['run_id']})"
                    yield Violation("I3", f"{told} was passed over without an answer")


def _settled(record: Seen, runs: dict[str, list[Seen]]) -> bool:
    """Whether nothing was left to do for it: it is a repeat, or came too late."""
    events = runs.get(record["run_id"], [])
    over = bool(events) and events[-1]["status"] in OVER
    if record.type == "Task":
        same = any(e["type"] in _SETTLED and e["seq"] >= record["seq"] for e in events)
        return same or over
    match record["kind"]:
        case "start":
            return any(event["type"] == "run.started" for event in events)
        case "child":
            return over or any(e["epoch"] for e in events)
    return False


def commands_told(view: View) -> Findings:
    """I3: exactly one event answers a command that has an id."""
    buried = {_source(letter) for letter in view.dead}
    for agent in view.agents:
        told: dict[tuple[str | None, str], list[str]] = defaultdict(list)
        for event in view.events(agent):
            if event["type"] != "signal.unread":  # which was answered when it came
                told[event.answers, event["id"]].append(event.name)
        for command in view.of(agent, "commands"):
            if command["kind"] in ("start", "child") or command.name in buried:
                continue
            events = told[command.name, command["id"]]
            passed = command.record.offset < view.passed.get(command.place, 0)
            if len(events) > 1 or (passed and not events and not _rerouted(view, command)):
                yield Violation("I3", f"{command.name} was told of in {events}, not once")


def _rerouted(view: View, command: Seen) -> bool:
    """Whether it was written again to the partition of its run."""
    return any(
        headers.source == command.name and record.topic == command.record.topic and record.committed
        for record, headers in view.written
    )


def caught_up(view: View) -> Findings:
    """I15: at rest no input has anything left to read."""
    if not view.history.at_rest or view.history.samples is None:
        return
    ends: dict[Place, int] = defaultdict(int)
    appended: Sequence[Sequence[Record | Marker]] = (view.history.records, view.history.markers)
    for each in chain(*appended):
        place = (each.topic, each.partition)
        ends[place] = max(ends[place], each.offset + 1)
    for agent in view.agents:
        for kind in INPUTS:
            for partition in range(view.history.partitions):
                place = (view.topic(agent, kind), partition)
                at, end = view.passed.get(place, 0), ends[place]
                if at < end:
                    yield Violation("I15", f"{place[0]}/{partition} is at {at} of {end}, at rest")


def buried_once(view: View) -> Findings:
    """I19: what cannot be used lands among the dead letters once, byte for byte, with its place,
    and what comes after it goes on."""
    letters: dict[str, list[Record]] = defaultdict(list)
    for letter in view.dead:
        source = _source(letter)
        if source is not None:
            letters[source].append(letter)
    for source, copies in letters.items():
        record = view.by_name.get(source)
        names = [letter.name for letter in copies]
        if len(copies) > 1:
            yield Violation("I19", f"{source} was buried {len(copies)} times: {names}")
        if record is None or not record.committed:
            yield Violation("I19", f"{names} tell of {source}, which never was")
        elif any((letter.key, letter.value) != (record.key, record.value) for letter in copies):
            yield Violation("I19", f"{names} are not what stood at {source}")
    for record in view.poison:
        passed = view.passed.get((record.topic, record.partition), 0)
        if record.name not in letters and (record.offset < passed or view.history.at_rest):
            yield Violation("I19", f"{record.name} cannot be used and was not buried")


def failed_runs_buried(view: View) -> Findings:
    """I19: a run that is out of attempts has one dead letter in the transaction that failed it."""
    failed: dict[tuple[str, str], int] = defaultdict(int)
    for agent in view.agents:
        for event in view.events(agent):
            if event["type"] in ("run.failed", "run.failing") and event.headers is not None:
                failed[event.headers.txn, event["run_id"]] += 1
    for letter in view.dead:
        headers = headers_of(letter)
        told = dict(letter.headers)
        if "sf-dead-run" not in told or headers is None:
            continue
        run_id = told["sf-dead-run"].decode()
        failed[headers.txn, run_id] -= 1
        if failed[headers.txn, run_id] < 0:
            yield Violation("I19", f"{letter.name} tells of {run_id}, which did not fail there")


def _source(letter: Record) -> str | None:
    """Where a dead letter stood, if it was an input."""
    told = {name: value.decode() for name, value in letter.headers if name.startswith("sf-dead-")}
    if "sf-dead-topic" not in told:
        return None
    return f"{told['sf-dead-topic']}/{told['sf-dead-partition']}/{told['sf-dead-offset']}"
