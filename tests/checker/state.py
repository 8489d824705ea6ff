"""The state topic: what is made of it when it is read from its beginning."""

from __future__ import annotations

from collections import defaultdict

from tests.checker.history import Place, Record, Violation
from tests.checker.view import INPUTS, OVER, RESULTS, SKIPS, Findings, Seen, View

Fold = dict[bytes | None, Record]


def compacted(view: View) -> Findings:
    """I16: what compaction has left makes the same state as everything that was ever written."""
    whole: dict[Place, Fold] = defaultdict(dict)
    left: dict[Place, Fold] = defaultdict(dict)
    for record in view.history.records:
        place = (record.topic, record.partition)
        if not record.committed or place not in view.history.kept:
            continue
        _put(whole[place], record)
        if record.offset in view.history.kept[place]:
            _put(left[place], record)
    for place, fold in whole.items():
        for key in sorted(fold.keys() | left[place].keys(), key=repr):
            was, now = fold.get(key), left[place].get(key)
            if was != now:
                told = [record.name if record is not None else None for record in (was, now)]
                yield Violation("I16", f"{key!r} was {told[0]}, and is {told[1]} when compacted")


def _put(fold: Fold, record: Record) -> None:
    if record.value is None:
        fold.pop(record.key, None)
    else:
        fold[record.key] = record


def agrees(view: View) -> Findings:
    """I16: the last checkpoint of a run says what its history says."""
    for agent in view.agents:
        latest: dict[bytes | None, Seen] = {}
        for each in view.state(agent, "Checkpoint"):
            latest[each.record.key] = each
        for run_id, events in view.runs(agent).items():
            checkpoint = latest.get(run_id.encode())
            if checkpoint is None:
                if any(event["type"] == "run.started" for event in events):
                    yield Violation("I16", f"{run_id} was started, and no checkpoint was written")
            elif checkpoint.fields:
                yield from _compare(checkpoint, events)


def _compare(checkpoint: Seen, events: list[Seen]) -> Findings:
    epoch, seq, last = 0, 0, events[-1]
    for event in events:
        if event["type"] in RESULTS | SKIPS:
            epoch, seq = event["epoch"], event["seq"] + 1
        elif event["type"] in ("run.started", "run.rewound"):
            epoch, seq = event["epoch"], event["seq"]
    here = (checkpoint["epoch"], checkpoint["seq"])
    if here != (epoch, seq) and checkpoint["status"] not in ("failed", "cancelled"):
        yield Violation(
            "I16", f"{checkpoint.name} is at {here}, the history up to {last.name} at {epoch, seq}"
        )
    said, is_now = last["status"], checkpoint["status"]
    if said != is_now and (said in OVER or is_now in OVER):
        yield Violation("I16", f"{checkpoint.name} says {is_now}, and {last.name} says {said}")


def applied(view: View) -> Findings:
    """I16: the input offsets that the state includes never fall, and at rest they are the
    group's."""
    for agent in view.agents:
        reached: dict[tuple[int, str], tuple[int, str]] = {}
        for each in view.state(agent, "Applied"):
            for kind in INPUTS:
                at = (each.record.partition, kind)
                offset = each.fields.get(kind) or 0
                before = reached.get(at, (0, ""))
                if offset < before[0]:
                    yield Violation("I16", f"{each.name} has {kind} at {offset}, after {before}")
                reached[at] = (offset, each.name)
        if not view.history.at_rest or view.history.samples is None:
            continue
        for (partition, kind), (offset, name) in reached.items():
            group = view.passed.get((view.topic(agent, kind), partition), 0)
            if group != offset:
                yield Violation("I16", f"{name} has {kind} at {offset}, the group is at {group}")
