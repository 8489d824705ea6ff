"""What the log itself must be like: transactions that are whole and told truly, epochs and offsets
that only go up."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from tests.checker.history import Marker, Place, Record, Violation
from tests.checker.view import Findings, View


def readable(view: View) -> Findings:
    """wire: whatever the engine wrote can be read by the schemas alone."""
    yield from view.unreadable


def whole(view: View) -> Findings:
    """I4: as many records of a decision as its checkpoint says, or none."""
    found: dict[tuple[str, str | None, str | None], list[Record]] = defaultdict(list)
    said: dict[tuple[str, str | None, str | None], int] = defaultdict(int)
    for record, headers in view.written:
        if record.committed and headers.run is not None:
            found[headers.decision].append(record)
    for agent in view.agents:
        for checkpoint in view.checkpoints(agent):
            if checkpoint.headers is not None:
                said[checkpoint.headers.decision] += checkpoint["records"]
    for decision, number in said.items():
        if len(found[decision]) != number:
            there = [record.name for record in found[decision]]
            yield Violation("I4", f"of {_told(decision)} there are {there}, of {number} records")
    moved = {"step.completed", "run.started", "run.completed", "run.failed", "step.retrying"}
    for agent in view.agents:
        for event in view.events(agent):
            told = event.headers
            if event["type"] in moved and told is not None and told.decision not in said:
                yield Violation("I4", f"{event.name} is of a decision without a checkpoint")


def _told(decision: tuple[str, str | None, str | None]) -> str:
    txn, run, seq = decision
    return f"the decision on step {seq} of {run} in transaction {txn}"


def one_fate(view: View) -> Findings:
    """I4: a transaction's records were all committed or all aborted, by one marker in each
    partition, and no marker decided two transactions of one owner: nobody but the owner of a
    partition writes its state. (Owners of several partitions may share a marker elsewhere.)"""
    fates: dict[str, dict[bool | None, Record]] = defaultdict(dict)
    ends = _ends(view)
    decided: dict[tuple[Place, int], dict[str, Record]] = defaultdict(dict)
    markers: dict[tuple[str, Place], set[int]] = defaultdict(set)
    for record, headers in view.written:
        if record.producer is None:
            continue
        fates[headers.txn].setdefault(record.committed, record)
        place = (record.topic, record.partition)
        end = _next(ends.get((place, record.producer), []), record.offset)
        if end is not None:
            decided[place, end].setdefault(headers.txn, record)
            markers[headers.txn, place].add(end)
    for txn, by_fate in fates.items():
        if len(by_fate) > 1:
            told = {str(fate): record.name for fate, record in by_fate.items()}
            yield Violation("I4", f"of transaction {txn} some records are committed: {told}")
    for (place, end), transactions in decided.items():
        if len(transactions) > 1 and place[0].endswith(".state"):
            told = {txn: record.name for txn, record in transactions.items()}
            yield Violation("I4", f"the marker at {place[0]}/{place[1]}/{end} ended {told}")
    for (txn, place), its in markers.items():
        if len(its) > 1:
            yield Violation(
                "I4", f"transaction {txn} ended at {sorted(its)} in {place[0]}/{place[1]}"
            )


def _ends(view: View) -> dict[tuple[Place, tuple[int, int]], list[int]]:
    """Offsets of a producer's markers, by partition. The marker of a producer that was fenced has
    the epoch of whoever fenced it."""
    found: dict[tuple[Place, int], list[Marker]] = defaultdict(list)
    for marker in view.history.markers:
        found[(marker.topic, marker.partition), marker.producer[0]].append(marker)
    writers = {
        ((record.topic, record.partition), record.producer)
        for record in view.history.records
        if record.producer is not None
    }
    return {
        (place, producer): sorted(
            marker.offset
            for marker in found[place, producer[0]]
            if marker.producer[1] >= producer[1]
        )
        for place, producer in writers
    }


def _next(offsets: list[int], after: int) -> int | None:
    at = bisect_left(offsets, after)
    return offsets[at] if at < len(offsets) else None


def marked(view: View) -> Findings:
    """I4: a record is committed if the marker that follows it says so. (This is what readers of
    committed records go by; whoever made the history may have asked them.)"""
    ends = _ends(view)
    commit = {(m.topic, m.partition, m.offset): m.commit for m in view.history.markers}
    for record in view.history.records:
        if record.producer is None:
            continue
        end = _next(ends[(record.topic, record.partition), record.producer], record.offset)
        if end is None:
            if record.committed and view.history.markers:
                yield Violation("I4", f"{record.name} is seen and no marker ends its transaction")
            continue
        said = commit[record.topic, record.partition, end]
        if record.committed is not None and said is not record.committed:
            yield Violation(
                "I4", f"{record.name} is seen: {record.committed}, and its marker says {said}"
            )


def truth(view: View) -> Findings:
    """I5: what a commit told its owner is so."""
    there: dict[str, set[bool | None]] = defaultdict(set)
    for record, headers in view.written:
        there[headers.txn].add(record.committed)
    for commit in view.history.commits:
        fates = there.get(commit.txn, set())
        if commit.outcome == "committed" and fates != {True}:
            told = "gone" if not fates else f"there in part: {sorted(map(str, fates))}"
            yield Violation("I5", f"{commit.process} committed {commit.txn}, and it is {told}")
        if commit.outcome == "refused" and True in fates:
            yield Violation("I5", f"{commit.process} was refused {commit.txn}, and it is there")


def founded(view: View) -> Findings:
    """I6: what is committed answers what was committed."""
    for record, headers in view.written:
        if not record.committed or headers.source == "timer":
            continue
        source = view.by_name.get(headers.source)
        if source is None:
            if not _before_start(view, headers.source):
                yield Violation("I6", f"{record.name} answers {headers.source}: there is no such")
        elif not source.committed:
            yield Violation("I6", f"{record.name} answers {source.name}, which was aborted")


def _before_start(view: View, name: str) -> bool:
    topic, partition, offset = name.rsplit("/", 2)
    return int(offset) < view.history.log_start.get((topic, int(partition)), 0)


def offsets(view: View) -> Findings:
    """I7: what a group has committed never falls, and never passes the last stable offset."""
    latest: dict[tuple[str, Place], int] = {}
    for sample in view.history.samples or ():
        place = (sample.topic, sample.partition)
        told = f"{sample.group} at {sample.topic}/{sample.partition}"
        if sample.offset < latest.get((sample.group, place), 0):
            before = latest[sample.group, place]
            yield Violation("I7", f"{told} went back from {before} to {sample.offset}")
        if sample.offset > sample.stable_end:
            yield Violation("I7", f"{told} is at {sample.offset}, past {sample.stable_end}")
        latest[sample.group, place] = sample.offset


def fences(view: View) -> Findings:
    """I10: once a newer epoch of a producer has written to a partition, an older one has not; a
    marker of the older one counts as its writing."""
    newest: dict[tuple[Place, int], tuple[int, str]] = {}
    appended: Sequence[Sequence[Record | Marker]] = (view.history.records, view.history.markers)
    written: list[tuple[Place, int, tuple[int, int]]] = [
        ((each.topic, each.partition), each.offset, each.producer)
        for each in chain(*appended)
        if each.producer is not None
    ]
    for place, offset, (producer, epoch) in sorted(written):
        name = f"{place[0]}/{place[1]}/{offset}"
        before = newest.get((place, producer))
        if before is not None and epoch < before[0]:
            yield Violation(
                "I10", f"producer {producer} wrote {name} in epoch {epoch}, after {before}"
            )
        else:
            newest[place, producer] = (epoch, name)
