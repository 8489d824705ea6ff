"""Faults to be planted in a good history: by name, the check that has to find it and the invariant
under which it has to tell it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import fastavro

from tests.checker import inputs, log, outside, runs, state
from tests.checker.history import Asked, Commit, History, Marker, Record, Sample
from tests.checker.view import RESULTS, Seen, View, headers_of
from tests.checker.wire import writers

AGENT, OUTBOX = "walk", "outbox"
#: an offset that nothing has
FAR = 100_000


class Fault(NamedTuple):
    """One way in which a good history is spoiled."""

    invariant: str
    check: Callable[..., Any]
    plant: Callable[[View], History]


# Spoiling -----------------------------------------------------------------------------------


def changed(record: Record, **fields: Any) -> Record:
    """The same with other fields in its value."""
    assert record.value is not None
    _, schema = writers()[record.value[2:10]]
    now = fastavro.schemaless_reader(io.BytesIO(record.value[10:]), schema, None)
    assert isinstance(now, dict)
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, now | fields)
    return replace(record, value=record.value[:10] + out.getvalue())


def headed(record: Record, **headers: str) -> Record:
    """The same with other headers."""
    told = {f"sf-{name}": value.encode() for name, value in headers.items()}
    return replace(
        record, headers=tuple((name, told.get(name, value)) for name, value in record.headers)
    )


def put(view: View, *records: Record) -> History:
    """The history with these in the place of those of the same name, or added."""
    new = {record.name: record for record in records}
    old = [new.pop(record.name, record) for record in view.history.records]
    return replace(view.history, records=[*old, *new.values()])


def without(view: View, *records: Record) -> History:
    names = {record.name for record in records}
    return replace(view.history, records=[r for r in view.history.records if r.name not in names])


def event(view: View, kind: str, *, agent: str = AGENT, **fields: Any) -> Seen:
    """The first event of that type; fields: what it must have."""
    return next(
        each
        for each in view.events(agent)
        if each["type"] == kind and all(each[name] == value for name, value in fields.items())
    )


def last(items: Iterable[Seen]) -> Seen:
    *_, final = items
    return final


def follower(view: View, first: Seen) -> Seen:
    """The event of the same run that comes next and ends a step."""
    own = view.runs(AGENT)[first["run_id"]]
    return next(e for e in own[own.index(first) + 1 :] if e["type"] in RESULTS)


def timed(view: View) -> Seen:
    """An event that has set a time for the next step."""
    return next(
        each
        for each in view.events(AGENT)
        if each["type"] == "step.completed" and each["due_ms"] and each["wait"] is None
    )


def of_parts(view: View) -> list[Record]:
    """Records of one transaction that has several in one partition."""
    for checkpoint in view.checkpoints(AGENT):
        mine = [r for r in view.history.records if _txn(r) == _txn(checkpoint.record)]
        here = [r for r in mine if (r.topic, r.partition) == checkpoint.place]
        if len(here) > 1:
            return here
    raise LookupError("no transaction has two records in a partition")


def _txn(record: Record) -> str | None:
    headers = headers_of(record)
    return headers.txn if headers is not None else None


def marker_after(view: View, record: Record) -> Marker:
    return next(
        marker
        for marker in sorted(view.history.markers, key=lambda marker: marker.offset)
        if (marker.topic, marker.partition) == (record.topic, record.partition)
        and marker.offset > record.offset
    )


def aborted(view: View) -> Record:
    return next(record for record in view.history.records if record.committed is False)


# The log ------------------------------------------------------------------------------------


def _garbled(view: View) -> History:
    record = event(view, "step.completed").record
    return put(view, replace(record, value=b"\xc3\x01garbled!"))


def _torn(view: View) -> History:
    return without(view, view.of(AGENT, "tasks")[0].record)


def _no_checkpoint(view: View) -> History:
    record = event(view, "run.started").record
    mine = [c.record for c in view.checkpoints(AGENT) if _txn(c.record) == _txn(record)]
    return without(view, *mine)


def _in_part(view: View) -> History:
    return put(view, replace(of_parts(view)[0], committed=False))


def _one_marker_for_two(view: View) -> History:
    return put(view, headed(of_parts(view)[0], txn="01another"))


def _two_markers(view: View) -> History:
    first, second, *_ = of_parts(view)
    assert first.producer is not None
    assert second.offset == first.offset + 1
    early = Marker(
        topic=first.topic,
        partition=first.partition,
        offset=first.offset,
        commit=True,
        producer=first.producer,
    )
    return replace(view.history, markers=[*view.history.markers, early])


def _flipped(view: View) -> History:
    marker = marker_after(view, event(view, "step.completed").record)
    others = [each for each in view.history.markers if each != marker]
    return replace(view.history, markers=[*others, replace(marker, commit=not marker.commit)])


def _resurrected(view: View) -> History:
    return put(view, replace(aborted(view), committed=True))


def _unmarked(view: View) -> History:
    record = event(view, "step.completed").record
    place = (record.topic, record.partition)
    return replace(
        view.history,
        markers=[m for m in view.history.markers if (m.topic, m.partition) != place],
    )


def _told(view: View, txn: str | None, outcome: Any) -> History:
    assert txn is not None
    commit = Commit(process="p", txn=txn, outcome=outcome)
    return replace(view.history, commits=[*view.history.commits, commit])


def _gone(view: View) -> History:
    return _told(view, "01nothing", "committed")


def _not_so(view: View) -> History:
    return _told(view, _txn(aborted(view)), "committed")


def _denied(view: View) -> History:
    return _told(view, _txn(event(view, "run.completed").record), "refused")


def _unfounded(view: View) -> History:
    record = event(view, "run.completed").record
    return put(view, headed(record, src=f"{view.topic(AGENT, 'tasks')}/0/{FAR}"))


def _on_an_aborted(view: View) -> History:
    return put(view, headed(event(view, "run.completed").record, src=aborted(view).name))


def _samples(view: View) -> Sequence[Sample]:
    assert view.history.samples is not None
    return view.history.samples


def _offset_back(view: View) -> History:
    sample = next(sample for sample in _samples(view) if sample.offset)
    back = replace(sample, offset=sample.offset - 1)
    return replace(view.history, samples=[*_samples(view), back])


def _offset_beyond(view: View) -> History:
    *before, sample = _samples(view)
    beyond = replace(sample, offset=sample.stable_end + 1)
    return replace(view.history, samples=[*before, beyond])


def _zombie(view: View) -> History:
    record = last(view.events(AGENT)).record
    assert record.producer is not None
    producer, epoch = record.producer
    newer = replace(record, offset=FAR, producer=(producer, epoch + 1))
    return put(view, newer, replace(record, offset=FAR + 1))


def _zombie_marker(view: View) -> History:
    record = last(view.events(AGENT)).record
    assert record.producer is not None
    producer, epoch = record.producer
    newer = replace(record, offset=FAR, producer=(producer, epoch + 1))
    late = Marker(
        topic=record.topic,
        partition=record.partition,
        offset=FAR + 1,
        commit=True,
        producer=record.producer,
    )
    return replace(put(view, newer), markers=[*view.history.markers, late])


# Inputs -------------------------------------------------------------------------------------


def _answered_twice(view: View) -> History:
    result = next(each for each in view.results(AGENT) if each.answers)
    again = headed(replace(result.record, offset=FAR), txn="01again")
    return put(view, changed(again, seq=result["seq"] + 50))


def _failed_after_its_end(view: View) -> History:
    """An attempt that came too late is told of all the same."""
    result = next(each for each in view.results(AGENT) if each.answers)
    again = headed(replace(result.record, offset=FAR), txn="01again")
    return put(view, changed(again, type="step.retrying"))


def _passed_over(view: View) -> History:
    """The task of a run that nobody knows, and that nothing answers."""
    result = next(each for each in view.results(AGENT) if "/" in (each.answers or ""))
    source = view.by_name[result.answers or ""]
    answers = [
        headed(record, src="timer")
        for record in view.history.records
        if (own := headers_of(record)) is not None and own.source == source.name
    ]
    return put(view, changed(source, run_id="nobody"), *answers)


def _not_told(view: View) -> History:
    return without(view, event(view, "signal.received").record)


def _told_twice(view: View) -> History:
    return put(view, replace(event(view, "signal.received").record, offset=FAR))


def _lag(view: View) -> History:
    place = (view.topic(AGENT, "tasks"), 0)
    return replace(
        view.history,
        samples=[s for s in _samples(view) if (s.topic, s.partition) != place],
    )


def _never_committed(view: View) -> History:
    return replace(view.history, samples=[])


def _buried_twice(view: View) -> History:
    return put(view, replace(view.dead[0], offset=FAR))


def _not_buried(view: View) -> History:
    return without(view, view.dead[0])


def _buried_otherwise(view: View) -> History:
    return put(view, replace(view.dead[0], value=b"something else"))


def _buried_from_nowhere(view: View) -> History:
    headers = tuple(
        (name, b"%d" % FAR if name == "sf-dead-offset" else value)
        for name, value in view.dead[0].headers
    )
    return put(view, replace(view.dead[0], offset=FAR, headers=headers))


def _obituary(view: View) -> History:
    record = event(view, "run.completed").record
    told = (("sf-dead-run", record.key or b""), ("sf-dead-code", b"step_raised"))
    letter = replace(record, topic=view.dead_topic, offset=FAR, headers=(*record.headers, *told))
    return put(view, letter)


# Runs ---------------------------------------------------------------------------------------


def _hole(view: View) -> History:
    return without(view, event(view, "step.completed", seq=1).record)


def _doubled(view: View) -> History:
    return put(view, replace(event(view, "step.completed").record, offset=FAR))


def _started_twice(view: View) -> History:
    return put(view, replace(event(view, "run.started").record, offset=FAR))


def _swapped(view: View) -> History:
    first = event(view, "step.completed", seq=0)
    second = event(view, "step.completed", seq=1, run_id=first["run_id"])
    swapped = (
        replace(first.record, value=second.record.value),
        replace(second.record, value=first.record.value),
    )
    return put(view, *swapped)


def _checkpoint_back(view: View) -> History:
    own = [c for c in view.checkpoints(AGENT) if c["run_id"] == "r0"]
    return put(view, replace(own[-1].record, value=own[0].record.value))


def _asked_back(view: View) -> History:
    own = [task for task in view.of(AGENT, "tasks") if task["run_id"] == "r0"]
    return put(view, changed(own[-1].record, seq=0))


def _of_another_step(view: View) -> History:
    result = next(e for e in view.results(AGENT) if ".tasks/" in (e.answers or "") and e["seq"] > 1)
    return put(view, changed(view.by_name[result.answers or ""], seq=1))


def _early(view: View) -> History:
    due = timed(view)
    record = follower(view, due).record
    return put(view, changed(record, started_ms=due["due_ms"] - 1))


def _timed_out_early(view: View) -> History:
    late = event(view, "wait.timed_out")
    own = view.runs(AGENT)[late["run_id"]]
    due = last(e for e in own[: own.index(late)] if e["type"] == "step.completed")
    return put(view, changed(late.record, at_ms=due["due_ms"] - 1))


def _other_result(view: View) -> History:
    record = event(view, "run.completed", run_id="r0").record
    return put(view, changed(record, result=json.dumps("something else").encode()))


def _effect_forgotten(view: View) -> History:
    asking = next(e for e in view.results(AGENT) if e["effects"])
    return put(view, changed(asking.record, effects=[]))


def _asked_in_vain(view: View) -> History:
    asked = Asked(id=None, agent=AGENT, run_id="nobody", kind="start", outcome="ok")
    return replace(view.history, asked=[*view.history.asked, asked])


def _unfinished(view: View) -> History:
    own = last(c for c in view.checkpoints(AGENT) if c["run_id"] == "r0")
    return put(view, changed(own.record, status="waiting"))


# State --------------------------------------------------------------------------------------


def _kept(view: View, change: Callable[[set[int]], None]) -> History:
    place = (view.topic(AGENT, "state"), 0)
    offsets = set(view.history.kept[place])
    change(offsets)
    return replace(view.history, kept={**view.history.kept, place: frozenset(offsets)})


def _lost_in_compaction(view: View) -> History:
    final = last(c for c in view.checkpoints(AGENT) if c.record.partition == 0)
    return _kept(view, lambda offsets: offsets.discard(final.record.offset))


def _back_from_compaction(view: View) -> History:
    """A tombstone goes, and what it has taken away stays."""
    gone = next(
        each
        for each in view.state(AGENT, "Entry")
        if not each.fields and each.record.partition == 0 and _before(view, each)
    )
    before = last(_before(view, gone))

    def change(offsets: set[int]) -> None:
        offsets.discard(gone.record.offset)
        offsets.add(before.record.offset)

    return _kept(view, change)


def _before(view: View, gone: Seen) -> list[Seen]:
    """What a tombstone has taken away."""
    return [
        each
        for each in view.state(AGENT, "Entry")
        if each.record.key == gone.record.key
        and each.record.partition == gone.record.partition
        and each.record.offset < gone.record.offset
        and each.fields
    ]


def _other_status(view: View) -> History:
    own = last(c for c in view.checkpoints(AGENT) if c["run_id"] == "r0")
    return put(view, changed(own.record, status="failed"))


def _other_seq(view: View) -> History:
    own = last(c for c in view.checkpoints(AGENT) if c["run_id"] == "r0")
    return put(view, changed(own.record, seq=own["seq"] + 1))


def _never_checkpointed(view: View) -> History:
    return without(view, *(c.record for c in view.checkpoints(AGENT) if c["run_id"] == "r0"))


def _applied_back(view: View) -> History:
    *_, before, final = (a for a in view.state(AGENT, "Applied") if a["commands"])
    assert before.record.partition == final.record.partition or before["commands"]
    return put(view, changed(replace(final.record, offset=FAR), commands=final["commands"] - 1))


def _applied_apart(view: View) -> History:
    final = last(view.state(AGENT, "Applied"))
    return put(view, changed(final.record, tasks=final["tasks"] + 1))


# Outside ------------------------------------------------------------------------------------


def _ack_lost(view: View) -> History:
    record = next(c.record for c in view.of(AGENT, "commands") if c["kind"] == "signal")
    return without(view, record)


def _sent_twice(view: View) -> History:
    record = next(c.record for c in view.of(AGENT, "commands") if c["kind"] == "start")
    return put(view, replace(record, offset=FAR))


def _failed_and_there(view: View) -> History:
    asked = [replace(each, outcome="fail") for each in view.history.asked]
    return replace(view.history, asked=asked)


def _not_in_the_outbox(view: View) -> History:
    return without(view, view.of(OUTBOX, "commands")[0].record)


def _in_the_outbox_only(view: View) -> History:
    record = view.of(OUTBOX, "commands")[0].record
    return put(view, changed(replace(record, offset=FAR), run_id="walk:r9:0:0"))


def _effect_lost(view: View) -> History:
    key = view.history.requests[0].key
    return replace(view.history, requests=[r for r in view.history.requests if r.key != key])


def _effect_twice(view: View) -> History:
    done = next(request for request in view.history.requests if request.applied)
    return replace(view.history, requests=[*view.history.requests, done])


def _requested(view: View, **fields: Any) -> History:
    """One more request, which was not acted upon."""
    more = replace(view.history.requests[0], applied=False, **fields)
    return replace(view.history, requests=[*view.history.requests, more])


def _other_body(view: View) -> History:
    return _requested(view, body=b"something else")


def _elsewhere(view: View) -> History:
    return _requested(view, url="http://elsewhere/")


def _phantom(view: View) -> History:
    return _requested(view, key="walk:r9:0:0")


def _acted(view: View, kind: str, **fields: Any) -> History:
    act = next(act for act in view.history.acts if act.kind == kind)
    return replace(view.history, acts=[*view.history.acts, replace(act, **fields)])


def _once_twice(view: View) -> History:
    return _acted(view, "once")


def _once_in_each_epoch(view: View) -> History:
    return _acted(view, "once", epoch=1)


def _called_again(view: View) -> History:
    act = next(act for act in view.history.acts if act.kind == "call")
    assert act.began_ms is not None
    return _acted(view, "call", began_ms=_on_record(view, act.run_id, act.slot))


def _on_record(view: View, run_id: str, slot: str) -> int:
    """A moment at which that call was on record."""
    entry = next(
        each
        for each in view.state(AGENT, "Entry")
        if each.fields
        and each["run_id"] == run_id
        and each["slot"] == f"c:{slot}"
        and each["kind"] == "call"
    )
    return entry.record.timestamp_ms + 1


def _called_after_its_end(view: View) -> History:
    act = next(act for act in view.history.acts if act.kind == "call")
    result = next(each for each in view.results(AGENT) if each.step == (act.run_id, 0, act.seq))
    return _acted(view, "call", slot="other#0", began_ms=result.record.timestamp_ms + 1)


FAULTS: dict[str, Fault] = {
    "a value is garbled": Fault("wire", log.readable, _garbled),
    "a decision has lost a record": Fault("I4", log.whole, _torn),
    "a decision has lost its checkpoint": Fault("I4", log.whole, _no_checkpoint),
    "a transaction is committed in part": Fault("I4", log.one_fate, _in_part),
    "one marker ends two transactions": Fault("I4", log.one_fate, _one_marker_for_two),
    "two markers end one transaction": Fault("I4", log.one_fate, _two_markers),
    "a marker is flipped": Fault("I4", log.marked, _flipped),
    "an aborted record is seen": Fault("I4", log.marked, _resurrected),
    "a record is seen before its marker": Fault("I4", log.marked, _unmarked),
    "a commit that was told as made is gone": Fault("I5", log.truth, _gone),
    "a commit that was told as made was aborted": Fault("I5", log.truth, _not_so),
    "a commit that was told as refused is there": Fault("I5", log.truth, _denied),
    "an input that never was is answered": Fault("I6", log.founded, _unfounded),
    "an aborted input is answered": Fault("I6", log.founded, _on_an_aborted),
    "an offset goes back": Fault("I7", log.offsets, _offset_back),
    "an offset passes the last stable one": Fault("I7", log.offsets, _offset_beyond),
    "an older epoch writes after a newer one": Fault("I10", log.fences, _zombie),
    "an older epoch ends a transaction after a newer one": Fault("I10", log.fences, _zombie_marker),
    "an input is answered twice": Fault("I3", inputs.answered_once, _answered_twice),
    "a step fails after its result": Fault("I3", inputs.answered_once, _failed_after_its_end),
    "an input is passed over": Fault("I3", inputs.none_passed_over, _passed_over),
    "nothing tells of a command": Fault("I3", inputs.commands_told, _not_told),
    "a command is told of twice": Fault("I3", inputs.commands_told, _told_twice),
    "an input has lag at rest": Fault("I15", inputs.caught_up, _lag),
    "no offset is ever committed": Fault("I15", inputs.caught_up, _never_committed),
    "nonsense is buried twice": Fault("I19", inputs.buried_once, _buried_twice),
    "nonsense is not buried": Fault("I19", inputs.buried_once, _not_buried),
    "something else is buried": Fault("I19", inputs.buried_once, _buried_otherwise),
    "what never was is buried": Fault("I19", inputs.buried_once, _buried_from_nowhere),
    "a run that did well is buried": Fault("I19", inputs.failed_runs_buried, _obituary),
    "a step is left out": Fault("I2", runs.once_each, _hole),
    "a step has two results": Fault("I2", runs.once_each, _doubled),
    "a run is started twice": Fault("I2", runs.once_each, _started_twice),
    "two steps are swapped": Fault("I9", runs.in_order, _swapped),
    "a checkpoint goes back": Fault("I9", runs.in_order, _checkpoint_back),
    "an earlier step is asked for again": Fault("I9", runs.in_order, _asked_back),
    "a task is answered by another step": Fault("I9", runs.in_order, _of_another_step),
    "a timer fires early": Fault("I13", runs.not_early, _early),
    "a wait times out early": Fault("I13", runs.not_early, _timed_out_early),
    "a run comes to another result": Fault("I8", runs.results, _other_result),
    "an effect is never asked for": Fault("I8", runs.results, _effect_forgotten),
    "a run is asked for and never begins": Fault("I15", runs.over, _asked_in_vain),
    "a run is never over": Fault("I15", runs.over, _unfinished),
    "compaction takes the latest": Fault("I16", state.compacted, _lost_in_compaction),
    "compaction brings back what was deleted": Fault("I16", state.compacted, _back_from_compaction),
    "the state says another end": Fault("I16", state.agrees, _other_status),
    "the state counts another step": Fault("I16", state.agrees, _other_seq),
    "a run has no state": Fault("I16", state.agrees, _never_checkpointed),
    "the state's offsets go back": Fault("I16", state.applied, _applied_back),
    "the state's offsets are not the group's": Fault("I16", state.applied, _applied_apart),
    "what was acknowledged is lost": Fault("I1", outside.acknowledged, _ack_lost),
    "what was sent once is there twice": Fault("I1", outside.acknowledged, _sent_twice),
    "what was refused is there": Fault("I1", outside.acknowledged, _failed_and_there),
    "an effect is not in the outbox": Fault("I11", outside.effects, _not_in_the_outbox),
    "an effect is lost": Fault("I11", outside.effects, _effect_lost),
    "an effect is acted upon twice": Fault("I11", outside.effects, _effect_twice),
    "an effect is requested with another body": Fault("I11", outside.effects, _other_body),
    "an effect is requested of somebody else": Fault("I11", outside.effects, _elsewhere),
    "the outbox has what nobody asked for": Fault("I12", outside.effects, _in_the_outbox_only),
    "what is not in the outbox is requested": Fault("I12", outside.effects, _phantom),
    "what happens once happens twice": Fault("once", outside.once, _once_twice),
    "what happens once happens in the next epoch too": Fault(
        "once", outside.once, _once_in_each_epoch
    ),
    "a recorded call is made again": Fault("call", outside.calls, _called_again),
    "a step that is over calls": Fault("call", outside.calls, _called_after_its_end),
}
