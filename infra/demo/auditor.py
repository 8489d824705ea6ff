"""Audits what happened, from the records of the topics and the tracker's book alone. Pure.

The auditor knows the wire format but not the engine: it counts, and does not ask the engine. Each
violation is a `Finding`:

  lost         a step that a committed record asks for and nobody did; a gap in a run's steps
  twice        a step, or the answer to an input, that was committed more than once
  disorder     a run whose steps were not committed in order
  torn         a transaction with missing or extra records
  unfounded    a record that answers an input which was never committed
  unfinished   a run that has not ended
  effect_lost  an effect of a committed step that the tracker never acted upon
  effect_twice an effect that the tracker acted upon twice, or was asked for with another body
  phantom      a request, or a start of an effect, that no committed step asked for
  undecodable  a record that cannot be decoded

It requires topics so young that neither retention nor compaction has removed anything, and runs
that nobody has rewound, retried or cancelled.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from surefoot.schemas.codec.codec import UndecodableError, decode

FindingKind = Literal[
    "lost",
    "twice",
    "disorder",
    "torn",
    "unfounded",
    "unfinished",
    "effect_lost",
    "effect_twice",
    "phantom",
    "undecodable",
]

_OUTBOX = "outbox"
#: events that end a step; the run continues, is completed, or has failed
ENDINGS = frozenset({"step.completed", "run.completed", "run.failed"})
_ENDS_RUN = frozenset({"run.completed", "run.failed"})
#: events that always come with a checkpoint
_MOVES_RUN = ENDINGS | {"run.started", "step.retrying"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedRecord:
    """One committed record, as a read_committed consumer sees it."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = 0
    key: bytes | None = None
    value: bytes | None = None
    headers: Sequence[tuple[str, bytes]] = ()

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.partition}/{self.offset}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request in the tracker's book."""

    key: str
    method: str
    path: str
    #: SHA-256 of the body, in hex
    body_sha256: str
    #: whether the tracker acted upon it: not for a repeated key, not when it failed
    acted: bool


@dataclass(frozen=True, slots=True)
class Finding:
    kind: FindingKind
    what: str


@dataclass(slots=True, kw_only=True)
class Report:
    """The counts, and every violation."""

    run_ids: frozenset[str] = frozenset()
    runs: int = 0
    completed: int = 0
    failed: int = 0
    steps_committed: int = 0
    transactions: int = 0
    dead_letters: int = 0
    effects_expected: int = 0
    effects_received: int = 0
    #: requests with a key that the tracker knew already: allowed, it must act once
    effects_redelivered: int = 0
    #: times of the first and last committed step, epoch ms
    first_ms: int = 0
    last_ms: int = 0
    findings: list[Finding] = field(default_factory=list)

    def note(self, kind: FindingKind, what: str) -> None:
        self.findings.append(Finding(kind, what))

    def count(self, *kinds: FindingKind) -> int:
        return sum(finding.kind in kinds for finding in self.findings)

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, doubled, torn or unfinished, and every run completed."""
        return not self.findings and self.completed == self.runs

    @property
    def steps_per_s(self) -> float:
        """Rate between the first and the last committed step."""
        took_ms = self.last_ms - self.first_ms
        return round(self.steps_committed * 1000 / took_ms, 1) if took_ms else 0.0


def audit(topics: Mapping[str, Sequence[AuditedRecord]], book: Sequence[Request]) -> Report:
    """Check whole topics, each from its first record, against the tracker's book.

    Args: topics: by name (`app.agent.kind`, `app.dead`), by offset within each partition
    """
    report = Report()
    history = _History(topics, report)
    for agent in history.agents:
        _check_runs(history, agent, report)
        _check_inputs(history, agent, report)
    _check_answers(history, report)
    _check_transactions(history, report)
    _check_effects(history, book, report)
    report.dead_letters = len(topics.get(history.dead, ()))
    return report


Decoded = tuple[AuditedRecord, dict[str, Any]]


class _History:
    """The records, decoded and grouped by agent and kind."""

    def __init__(self, topics: Mapping[str, Sequence[AuditedRecord]], report: Report) -> None:
        self.topics = topics
        self.dead = next((name for name in topics if name.count(".") == 1), "")
        self._by_kind: dict[tuple[str, str], list[Decoded]] = defaultdict(list)
        for name in topics:
            if name != self.dead:
                agent, _, kind = name.partition(".")[2].rpartition(".")
                self._by_kind[agent, kind] = list(_decoded(topics[name], report))
        self.agents = sorted({agent for agent, _ in self._by_kind})

    def of(self, agent: str, kind: str) -> list[Decoded]:
        return self._by_kind[agent, kind]

    def events(self, agent: str) -> list[Decoded]:
        return self.of(agent, "events")

    def endings(self, agent: str) -> list[Decoded]:
        return [item for item in self.events(agent) if item[1]["type"] in ENDINGS]

    def checkpoints(self, agent: str) -> list[Decoded]:
        """Return the checkpoints: no offsets, and no entries, whose keys contain a bar."""
        return [
            item
            for item in self.of(agent, "state")
            if "run_id" in item[1] and b"|" not in (item[0].key or b"")
        ]

    def applied(self, agent: str, kind: str) -> dict[int, int]:
        """Return the applied input offset (next to read) by partition."""
        found: dict[int, int] = {}
        for record, value in self.of(agent, "state"):
            if record.key == b"@applied":
                found[record.partition] = value[kind] or 0
        return found

    def everything(self) -> Iterator[AuditedRecord]:
        for records in self.topics.values():
            yield from records


def _decoded(records: Sequence[AuditedRecord], report: Report) -> Iterator[Decoded]:
    for record in records:
        if record.value is None or record.key == b"@ready":  # a tombstone, or the gateway's probe
            continue
        try:
            yield record, decode(record.value)[1]
        except UndecodableError as error:
            report.note("undecodable", f"{record.place}: {error}")


# Runs and steps -------------------------------------------------------------------------------


def _check_runs(history: _History, agent: str, report: Report) -> None:
    """Check that every run has steps 0 to the last, each once and in order, and an end.

    Its last checkpoint has to agree with its events."""
    endings: dict[str, list[Decoded]] = {
        event["run_id"]: []
        for _, event in history.events(agent)
        if event["type"] != "start.ignored"
    }
    for item in history.endings(agent):
        endings.setdefault(item[1]["run_id"], []).append(item)
    last = {value["run_id"]: value for _, value in history.checkpoints(agent)}
    for run_id in last:
        endings.setdefault(run_id, [])
    for run_id, items in endings.items():
        _check_run(f"{agent} {run_id}", items, last.get(run_id), report)
    if agent != _OUTBOX:
        done = [item for item in history.endings(agent) if item[1]["type"] != "run.failed"]
        times = [record.timestamp_ms for record, _ in done]
        report.run_ids |= frozenset(endings)
        report.runs += len(endings)
        report.completed += _count(endings, "run.completed")
        report.failed += _count(endings, "run.failed")
        report.steps_committed += len({(e["run_id"], e["seq"]) for _, e in done})
        report.first_ms = min([*times, *([report.first_ms] if report.first_ms else [])], default=0)
        report.last_ms = max([*times, report.last_ms])


def _count(endings: Mapping[str, list[Decoded]], kind: str) -> int:
    return sum(any(event["type"] == kind for _, event in items) for items in endings.values())


def _check_run(
    name: str, items: list[Decoded], checkpoint: dict[str, Any] | None, report: Report
) -> None:
    seqs = [event["seq"] for _, event in items]
    ended = [event for _, event in items if event["type"] in _ENDS_RUN]
    for seq in sorted({seq for seq in seqs if seqs.count(seq) > 1}):
        report.note("twice", f"{name}: step {seq} was committed {seqs.count(seq)} times")
    for seq in sorted(set(range(max(seqs, default=-1) + 1)) - set(seqs)):
        report.note("lost", f"{name}: step {seq} is missing")
    if seqs != sorted(seqs) or (ended and items[-1][1] is not ended[0]):
        report.note("disorder", f"{name}: steps were committed in the order {seqs}")
    if not ended:
        report.note("unfinished", f"{name}: stands before step {len(set(seqs))}")
    if checkpoint is None:
        report.note("lost", f"{name}: has no checkpoint")
        return
    steps = len({event["seq"] for _, event in items if event["type"] != "run.failed"})
    if checkpoint["seq"] != steps:
        told = f"{name}: its checkpoint counts {checkpoint['seq']} steps, its events {steps}"
        report.note("lost", told)
    if ended and checkpoint["status"] != ended[0]["status"]:
        said, told = checkpoint["status"], ended[0]["status"]
        report.note("lost", f"{name}: its checkpoint says {said}, its events {told}")


def _check_inputs(history: _History, agent: str, report: Report) -> None:
    """Check that every committed command and task has been answered."""
    answered = {_headers(record).get("sf-src") for record in history.everything()}
    started = {event["run_id"] for _, event in history.events(agent)}
    ended = {(event["run_id"], event["seq"]) for _, event in history.endings(agent)}
    over = {event["run_id"] for _, event in history.events(agent) if event["type"] in _ENDS_RUN}
    for kind in ("commands", "tasks"):
        applied = history.applied(agent, kind)
        for record, value in history.of(agent, kind):
            run_id = value["run_id"]
            if kind == "tasks":
                done = (run_id, value["seq"]) in ended
            elif value["kind"] == "child":  # ignored if the run is over
                done = run_id in over
            else:
                done = value["kind"] == "start" and run_id in started
            if done or record.place.encode() in answered:
                continue
            passed = record.offset < applied.get(record.partition, 0)
            if passed:
                report.note("lost", f"{record.place}: skipped without an answer ({run_id})")
            else:
                report.note("unfinished", f"{record.place}: not yet processed ({run_id})")


def _check_answers(history: _History, report: Report) -> None:
    """Check that each input is answered by one decision, and each answered input committed.

    Failed attempts may answer an input before: until the group has passed it, a takeover reads it
    again."""
    answers: dict[bytes, set[bytes]] = defaultdict(set)
    sources: set[bytes] = set()
    for agent in history.agents:
        for record, event in history.events(agent):
            source = _headers(record).get("sf-src", b"timer")
            if source == b"timer" or event["type"] not in ENDINGS | {"step.retrying"}:
                continue
            sources.add(source)
            if event["type"] in ENDINGS or source in answers:
                answers[source].add(record.place.encode())
    for source, places in answers.items():
        if len(places) > 1:
            told = b", ".join(sorted(places)).decode()
            report.note("twice", f"{source.decode()} was answered by {told}")
    committed = {record.place.encode() for record in history.everything()}
    for source in sorted(sources - committed):
        report.note("unfounded", f"{source.decode()} was never committed")


def _check_transactions(history: _History, report: Report) -> None:
    """Check that each decision has as many records as its checkpoint says.

    A decision that does not move its run (a recorded call's result, a task carried forward) has no
    checkpoint."""
    found: dict[tuple[bytes, bytes, bytes], int] = defaultdict(int)
    said: dict[tuple[bytes, bytes, bytes], int] = defaultdict(int)
    transactions: set[bytes] = set()
    for record in history.everything():
        headers = _headers(record)
        transactions.add(headers.get("sf-txn", b""))
        if "sf-run" in headers:
            found[_decision(headers)] += 1
    for agent in history.agents:
        for record, checkpoint in history.checkpoints(agent):
            said[_decision(_headers(record))] += checkpoint["records"]
    moved = {
        _decision(_headers(record))
        for agent in history.agents
        for record, event in history.events(agent)
        if event["type"] in _MOVES_RUN
    }
    for decision in said.keys() | moved:
        if found[decision] != said[decision]:
            txn, run, seq = (part.decode() for part in decision)
            told = f"transaction {txn}, {run} step {seq}: {found[decision]} of {said[decision]}"
            report.note("torn", f"{told} records found")
    report.transactions = len(transactions - {b""})


def _decision(headers: Mapping[str, bytes]) -> tuple[bytes, bytes, bytes]:
    return headers.get("sf-txn", b""), headers.get("sf-run", b""), headers.get("sf-seq", b"")


def _headers(record: AuditedRecord) -> dict[str, bytes]:
    """Return the headers of the transaction that wrote the record.

    A record that was moved, to another partition or to the dead letters, has those of its first
    transaction before them."""
    names = [name for name, _ in record.headers]
    if "sf-txn" not in names:
        return {}
    own = len(names) - 1 - names[::-1].index("sf-txn")
    return dict(record.headers[own:])


# Effects --------------------------------------------------------------------------------------


def _check_effects(history: _History, book: Sequence[Request], report: Report) -> None:
    """Check each effect that a committed step asked for, and each request of the tracker.

    The effect is in the outbox, and the tracker acted upon it once, with exactly the committed
    request; and nothing else reached the tracker."""
    expected = {
        key
        for agent in history.agents
        for _, event in history.endings(agent)
        for key in event["effects"]
    }
    asked = {value["run_id"]: value["payload"] for _, value in history.of(_OUTBOX, "commands")}
    starts = [value["run_id"] for _, value in history.of(_OUTBOX, "commands")]
    requests: dict[str, list[Request]] = defaultdict(list)
    for request in book:
        requests[request.key].append(request)
    report.effects_expected = len(expected)
    report.effects_redelivered = len(book) - len(requests)
    for key in sorted(expected - asked.keys()):
        report.note("effect_lost", f"{key}: its step has committed, but it is not in the outbox")
    for key in sorted((asked.keys() | requests.keys()) - expected):
        report.note("phantom", f"{key or 'no key'}: no committed step asked for it")
    for key in sorted(expected & asked.keys()):
        if starts.count(key) > 1:
            report.note("twice", f"{key} is in the outbox {starts.count(key)} times")
        report.effects_received += _check_effect(key, asked[key], requests[key], report)


def _check_effect(key: str, payload: bytes, requests: Sequence[Request], report: Report) -> bool:
    """Whether the tracker acted upon this effect as it was committed."""
    effect = json.loads(payload)
    wanted = (effect["method"], hashlib.sha256(effect["body"].encode()).hexdigest())
    acted = sum(request.acted for request in requests)
    same = all(
        (request.method, request.body_sha256) == wanted and effect["url"].endswith(request.path)
        for request in requests
    )
    if not acted:
        report.note("effect_lost", f"{key}: the tracker never executed it")
    if acted > 1:
        report.note("effect_twice", f"{key}: the tracker executed it {acted} times")
    if not same:
        report.note("effect_twice", f"{key}: the tracker received a different request")
    return acted == 1 and same
