"""What must hold of a life, told from the records that were written, what the outside world saw and
what was promised. It knows the wire format and nothing of the engine.

The numbers are those of docs/reliability.md. Each check adds sentences to a list; nothing in it is
nothing wrong.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import fastavro
from fastavro.schema import fingerprint, to_parsing_canonical_form

ROOT = Path(__file__).parents[2] / "schemas" / "avro"
Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One record, as it stands in the log."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes]
    #: transactional id and epoch; None: not part of a transaction
    producer: tuple[str, int] | None
    committed: bool

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request that has reached the target; acted: it did what it was asked for."""

    key: str
    body: bytes
    acted: bool


@dataclass(slots=True, kw_only=True)
class History:
    """All there is to judge."""

    app: str
    agent: str
    records: list[Record]
    #: commits of offsets in order: group, place, offset
    samples: Sequence[tuple[str, Place, int]]
    #: next offset to be written, by place
    ends: Mapping[Place, int]
    #: what commits told their owners: transaction, whether it is committed; None: unknown
    told: Sequence[tuple[str, bool | None]]
    requests: Sequence[Request]
    #: (run, seq, slot, commits before its body began), and the commit of each record
    calls: Sequence[tuple[str, int, str, int]]
    commit_of: Mapping[str, int]
    done: Mapping[tuple[str, int, str], int]
    #: run and result that its plan says, and the keys of its effects; None: it may end as it likes
    promised: Mapping[str, tuple[str, list[str]] | None]
    #: whether an owner that is none any more may have begun steps
    zombies: bool
    #: whether all clocks agree
    one_time: bool
    #: records of nonsense that were sent, by place
    poison: Sequence[str]
    #: whether it has come to rest
    at_rest: bool
    wrong: list[str] = field(default_factory=list)

    def of(self, kind: str, agent: str | None = None) -> Iterator[Record]:
        name = f"{self.app}.{agent or self.agent}.{kind}"
        return (r for r in self.records if r.topic == name and r.committed)


def check(history: History) -> list[str]:
    """Everything that is wrong."""
    events = [(r, decoded(r.value)) for r in history.of("events")]
    for each in (
        _steps, _sources, _whole, _truth, _offsets, _results, _order, _fences, _effects, _acts,
        _timers, _state, _poison,
    ):  # fmt: skip
        each(history, events)
    return history.wrong


# Decoding -----------------------------------------------------------------------------------


@cache
def _schemas() -> dict[bytes, Any]:
    named: dict[str, Any] = {}
    left = {path.stem: json.loads(path.read_text()) for path in sorted(ROOT.glob("*.avsc"))}
    raw = dict(left)
    parsed: dict[bytes, Any] = {}
    while left:
        before = len(left)
        for name in list(left):
            try:
                schema = fastavro.parse_schema(left[name], named_schemas=named)
            except fastavro.schema.UnknownType:
                continue
            del left[name]
            whole = _inlined(raw[name], raw, set())
            code = fingerprint(to_parsing_canonical_form(whole), "CRC-64-AVRO")
            parsed[bytes.fromhex(code)] = schema
        assert len(left) < before, f"schemas name each other in a circle: {left}"
    return parsed


def _inlined(schema: Any, raw: Mapping[str, Any], seen: set[str]) -> Any:
    """The schema with every named type written out where it comes first."""
    if isinstance(schema, str):
        name = schema.removeprefix("surefoot.")
        if name in raw and name not in seen:
            return _inlined(raw[name], raw, seen)
        return schema
    if isinstance(schema, list):
        return [_inlined(each, raw, seen) for each in schema]
    if isinstance(schema, dict):
        if "name" in schema and "fields" in schema:
            seen.add(schema["name"])
            fields = [{**f, "type": _inlined(f["type"], raw, seen)} for f in schema["fields"]]
            return {**schema, "fields": fields}
        if schema.get("type") == "enum":
            seen.add(schema["name"])
            return schema
        return {
            k: _inlined(v, raw, seen) if k in ("type", "items") else v for k, v in schema.items()
        }
    return schema


def decoded(value: bytes | None) -> dict[str, Any]:
    import io  # noqa: PLC0415

    assert value is not None
    assert value[:2] == b"\xc3\x01", value[:20]
    schema = _schemas()[value[2:10]]
    found: Any = fastavro.schemaless_reader(io.BytesIO(value[10:]), schema, None)
    return dict(found)


# Runs and steps -----------------------------------------------------------------------------

Events = list[tuple[Record, dict[str, Any]]]
_ENDINGS = frozenset({"step.completed", "run.completed"})
_OVER = frozenset({"completed", "failed", "cancelled"})


def _steps(history: History, events: Events) -> None:
    """I2: each step of a run has one result, and none is left out."""
    ended: Counter[tuple[str, int, int]] = Counter(
        (e["run_id"], e["epoch"], e["seq"]) for _, e in events if e["type"] in _ENDINGS
    )
    history.wrong += [
        f"I2: step {seq} of {run} was committed {n} times"
        for (run, _, seq), n in ended.items()
        if n > 1
    ]
    last: dict[str, int] = {}
    for run, _, seq in ended:
        last[run] = max(seq, last.get(run, -1))
    for run, seq in last.items():
        missing = set(range(seq + 1)) - {s for r, _, s in ended if r == run}
        if missing:
            history.wrong.append(f"I2: of {run} the steps {sorted(missing)} are missing")


def _sources(history: History, events: Events) -> None:
    """I3: an input has one answer, which was committed; none is passed over; and I6: nothing
    answers an input that never was."""
    answers: dict[str, list[str]] = defaultdict(list)
    for record, event in events:
        source = record.headers.get("sf-src", b"timer").decode()
        if source != "timer" and event["type"] in _ENDINGS:
            answers[source].append(record.place)
    for source, places in answers.items():
        if len(places) > 1:
            history.wrong.append(f"I3: {source} was answered by {places}")
    committed = {record.place for record in history.records if record.committed}
    for source in answers.keys() - committed:
        history.wrong.append(f"I6: {source} is answered and was never committed")
    if not history.at_rest:
        return
    done = {(e["run_id"], e["seq"]) for _, e in events if e["type"] in _ENDINGS}
    over = {e["run_id"] for _, e in events if e["status"] in _OVER}
    for record in history.of("tasks"):
        if record.place in history.poison:
            continue
        task = decoded(record.value)
        if (task["run_id"], task["seq"]) not in done and task["run_id"] not in over:
            history.wrong.append(f"I3: the task at {record.place} was never done")
    for record in history.of("commands"):
        if record.place in history.poison:
            continue
        command = decoded(record.value)
        if command["kind"] == "start" and command["run_id"] not in over:
            history.wrong.append(f"I3: {command['run_id']} was started and is not over")


def _whole(history: History, events: Events) -> None:
    """I4: of a transaction all of it can be seen."""
    found: Counter[tuple[bytes, bytes, bytes]] = Counter()
    said: Counter[tuple[bytes, bytes, bytes]] = Counter()
    for record in history.records:
        names = record.headers
        if record.committed and "sf-run" in names and record.producer is not None:
            found[names["sf-txn"], names["sf-run"], names["sf-seq"]] += 1
    for agent in (history.agent, "outbox"):
        for record in history.of("state", agent):
            if (
                record.value
                and b"|" not in (record.key or b"")
                and not (record.key or b"").startswith(b"@")
            ):
                names = record.headers
                number = decoded(record.value)["records"]
                said[names["sf-txn"], names["sf-run"], names["sf-seq"]] += number
    for decision, number in said.items():
        if found[decision] != number:
            history.wrong.append(
                f"I4: of transaction {decision} {found[decision]} of {number} records can be seen"
            )


def _truth(history: History, events: Events) -> None:
    """I5: what a commit told its owner is so."""
    del events
    fate: dict[str, bool] = {}
    for record in history.records:
        if record.producer is not None and "sf-txn" in record.headers:
            fate[record.headers["sf-txn"].decode()] = record.committed
    for transaction, landed in history.told:
        if landed is not None and transaction in fate and fate[transaction] is not landed:
            history.wrong.append(
                f"I5: transaction {transaction} was told as committed={landed} and is not"
            )
        if landed and transaction not in fate:
            history.wrong.append(f"I5: transaction {transaction} was told as committed and is gone")


def _offsets(history: History, events: Events) -> None:
    """I7: a group's offsets never fall, and at rest nothing is left."""
    del events
    latest: dict[tuple[str, Place], int] = {}
    for group, place, offset in history.samples:
        if offset < latest.get((group, place), 0):
            history.wrong.append(f"I7: {group} at {place} went back to {offset}")
        latest[group, place] = offset
        if offset > history.ends[place]:
            history.wrong.append(f"I7: {group} at {place} is at {offset}, beyond the end")


def _results(history: History, events: Events) -> None:
    """I8: what came out is what the plan says; I15: all of it came out."""
    ended = {e["run_id"]: e for _, e in events if e["type"] == "run.completed"}
    for run_id, promise in history.promised.items():
        event = ended.get(run_id)
        if event is None:
            if history.at_rest and promise is not None:
                history.wrong.append(f"I15: {run_id} was never completed")
            continue
        if promise is not None and json.loads(event["result"]) != promise[0]:
            history.wrong.append(f"I8: {run_id} came to {event['result']!r}, not {promise[0]!r}")
    if not history.at_rest:
        history.wrong.append("I15: it never came to rest")


def _order(history: History, events: Events) -> None:
    """I9: a run's checkpoints count up."""
    del events
    for agent in (history.agent, "outbox"):
        seen: dict[bytes, tuple[int, int]] = {}
        for record in history.of("state", agent):
            key = record.key or b""
            if record.value is None or b"|" in key or key.startswith(b"@"):
                continue
            checkpoint = decoded(record.value)
            now = (checkpoint["epoch"], checkpoint["seq"])
            if now < seen.get(key, (0, 0)):
                history.wrong.append(
                    f"I9: {key!r} went from {seen[key]} to {now} at {record.place}"
                )
            seen[key] = now


def _fences(history: History, events: Events) -> None:
    """I10: once a newer epoch has written, an older one has not."""
    del events
    newest: dict[tuple[str, Place], int] = {}
    for record in history.records:
        if record.producer is None:
            continue
        name, epoch = record.producer
        at = (name, (record.topic, record.partition))
        if epoch < newest.get(at, -1):
            history.wrong.append(f"I10: {name} wrote with epoch {epoch} at {record.place}")
        newest[at] = max(epoch, newest.get(at, -1))


# The outside world --------------------------------------------------------------------------


def _effects(history: History, events: Events) -> None:
    """I11: what was asked for was done, once, as it was asked for; I12: and nothing else."""
    asked = {key for _, event in events if event["type"] in _ENDINGS for key in event["effects"]}
    bodies: dict[str, set[bytes]] = defaultdict(set)
    acted: Counter[str] = Counter()
    for request in history.requests:
        bodies[request.key].add(request.body)
        acted[request.key] += request.acted
    for key in bodies.keys() - asked:
        history.wrong.append(f"I12: {key} was requested and no committed step asked for it")
    for key, found in bodies.items():
        if len(found) > 1:
            history.wrong.append(f"I11: {key} was requested with {len(found)} bodies")
    if history.at_rest:
        for key in asked:
            if acted[key] != 1:
                history.wrong.append(f"I11: {key} was acted upon {acted[key]} times")
        for run_id, promise in history.promised.items():
            for key in promise[1] if promise is not None else ():
                if key not in asked:
                    history.wrong.append(f"I11: {run_id} never asked for {key}")


def _acts(history: History, events: Events) -> None:
    """What happens once has happened once; a call that is recorded is not made again."""
    del events
    for (run, seq, slot), times in history.done.items():
        if times > 1:
            history.wrong.append(f"once: {slot} of step {seq} of {run} was done {times} times")
    recorded: dict[tuple[str, int, str], int] = {}
    for record in history.of("state"):
        run, bar, slot = (record.key or b"").decode().partition("|")
        if bar and slot.startswith("c:") and record.value is not None:
            entry = decoded(record.value)
            number = history.commit_of[record.headers["sf-txn"].decode()]
            if entry["kind"] == "call":
                recorded.setdefault((run, entry["seq"], slot[2:].partition("#")[0]), number)
    for run, seq, name, before in () if history.zombies else history.calls:
        if before >= recorded.get((run, seq, name), before + 1):
            history.wrong.append(f"call: {name} of step {seq} of {run} was made though recorded")


def _timers(history: History, events: Events) -> None:
    """I13: nothing that was due at a time was done before."""
    if not history.one_time:
        return
    due: dict[tuple[str, int], int] = {}
    for _, event in events:
        if (
            event["due_ms"] is not None
            and event["wait"] is None
            and event["type"] == "step.completed"
        ):
            due[event["run_id"], event["seq"] + 1] = event["due_ms"]
    for _, event in events:
        at_ms = due.get((event["run_id"], event["seq"]))
        began_ms = event["started_ms"]
        if at_ms is None or began_ms is None or event["type"] not in _ENDINGS:
            continue
        if began_ms < at_ms:
            step = f"step {event['seq']} of {event['run_id']}"
            history.wrong.append(f"I13: {step} began {at_ms - began_ms} ms early")


def _state(history: History, events: Events) -> None:
    """I16: the state topic, folded, says what the events say."""
    status: dict[str, str] = {}
    for _, event in events:
        if event["type"].startswith("run."):
            status[event["run_id"]] = event["status"]
    latest: dict[str, str] = {}
    for record in history.of("state"):
        key = (record.key or b"").decode()
        if "|" in key or key.startswith("@"):
            continue
        if record.value is not None:
            latest[key] = decoded(record.value)["status"]
    for run_id, said in status.items():
        if run_id in latest and said in _OVER and latest[run_id] != said:
            history.wrong.append(f"I16: {run_id} is {latest[run_id]}, and its history says {said}")


def _poison(history: History, events: Events) -> None:
    """I19: nonsense lands once among the dead letters, with where it came from."""
    del events
    if not history.at_rest:
        return
    came: Counter[str] = Counter()
    for record in history.records:
        if record.topic == f"{history.app}.dead" and record.committed:
            came[record.headers.get("sf-src", b"").decode()] += 1
    for place in history.poison:
        if came[place] != 1:
            history.wrong.append(f"I19: {place} is {came[place]} times among the dead letters")
