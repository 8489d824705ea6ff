"""The auditor bites: each kind of violation, planted in a good history, is named for what it is."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from surefoot.infra.demo.auditor import AuditedRecord, Finding, Report, Request, audit
from surefoot.schemas.codec.codec import encode
from surefoot.state.records.encoding import command_out

APP = "demo"
AGENT = "triage"
KEY = f"{AGENT}:r1:1:0"
BODY = '{"labels":["bug"]}'
EFFECT = {"method": "PUT", "url": "http://tracker:1/issues/1/labels", "headers": {}, "body": BODY}
EVENT = {
    "agent": AGENT,
    "version": 1,
    "status": "running",
    "step": None,
    "next_step": None,
    "attempt": 0,
    "at_ms": 0,
    "started_ms": None,
    "due_ms": None,
    "effects": [],
    "result": None,
    "failure": None,
    "epoch": 0,
    "id": None,
    "name": None,
    "by": None,
    "payload": None,
    "carry": None,
    "memory": None,
    "wait": None,
    "children": 0,
}
CHECKPOINT = {
    "agent": AGENT,
    "version": 1,
    "status": "running",
    "step": "label",
    "attempt": 0,
    "payload": b"{}",
    "due_ms": None,
    "result": None,
    "failure": None,
    "created_ms": 0,
    "updated_ms": 0,
    "input_digest": b"12345678",
    "traceparent": None,
    "tracestate": None,
    "baggage": None,
    "epoch": 0,
    "emit": 0,
    "forks": 0,
    "wait": None,
    "carry": None,
    "parent": None,
    "memory": None,
    "ending": None,
    "reason": None,
    "commands": [],
}


def name(agent: str, kind: str) -> str:
    return f"{APP}.{agent}.{kind}"


@dataclass
class History:
    """Topics as they come out of a real run, and the tracker's book."""

    topics: dict[str, list[AuditedRecord]] = field(default_factory=dict)
    book: list[Request] = field(default_factory=list)

    def add(
        self, topic: str, record: str, headers: dict[str, str] | None = None, **value: Any
    ) -> AuditedRecord:
        key = value["run_id"].encode() if "run_id" in value else b"@applied"
        return self.put(topic, key, encode(record, value), headers)

    def put(
        self, topic: str, key: bytes, value: bytes | None, headers: Any = None
    ) -> AuditedRecord:
        records = self.topics.setdefault(topic, [])
        added = AuditedRecord(
            topic=topic,
            partition=0,
            offset=len(records) * 2,  # between two transactions there is a marker
            timestamp_ms=1000 + 100 * sum(map(len, self.topics.values())),
            key=key,
            value=value,
            headers=[(k, v.encode()) for k, v in (headers or {}).items()],
        )
        records.append(added)
        return added

    def start(self, agent: str, run_id: str, payload: str, headers: Any = None) -> AuditedRecord:
        out = command_out(
            APP, 1, agent, run_id=run_id, kind="start", sent_ms=0, payload=payload.encode()
        )
        return self.put(out.topic, run_id.encode(), out.value, headers)

    def event(self, agent: str, kind: str, headers: Any, **value: Any) -> AuditedRecord:
        fields = EVENT | {"agent": agent, "type": kind, "seq": 0} | value
        return self.add(name(agent, "events"), "Event", headers, **fields)

    def checkpoint(self, agent: str, headers: Any, **value: Any) -> AuditedRecord:
        return self.add(
            name(agent, "state"), "Checkpoint", headers, **(CHECKPOINT | {"agent": agent} | value)
        )

    def task(self, agent: str, headers: Any, run_id: str, seq: int) -> AuditedRecord:
        return self.add(name(agent, "tasks"), "Task", headers, run_id=run_id, seq=seq, step="label")

    def applied(self, agent: str, commands: int | None, tasks: int | None) -> None:
        self.add(
            name(agent, "state"),
            "Applied",
            commands=commands,
            tasks=tasks,
            answered=[],
            answered_tasks=[],
        )

    def audit(self) -> Report:
        return audit(self.topics, self.book)

    def drop(self, topic: str, index: int) -> None:
        del self.topics[topic][index]

    def change(self, topic: str, index: int, **fields: Any) -> None:
        self.topics[topic][index] = replace(self.topics[topic][index], **fields)

    def copy(self, topic: str, index: int, **fields: Any) -> None:
        """The same record once more, at the end."""
        records = self.topics[topic]
        records.append(replace(records[index], offset=records[-1].offset + 2, **fields))


def headers(txn: str, src: AuditedRecord, run_id: str, seq: int) -> dict[str, str]:
    return {"sf-txn": txn, "sf-src": src.place, "sf-run": run_id, "sf-seq": str(seq)}


@pytest.fixture
def history() -> History:
    """A run of two steps; the second one has an effect, which the outbox delivers."""
    it = History(topics={f"{APP}.dead": []})
    command = it.start(AGENT, "r1", "{}")
    first = headers("t1", command, "r1", 0)
    it.checkpoint(AGENT, first, run_id="r1", seq=1, records=4)
    it.event(AGENT, "run.started", first, run_id="r1")
    it.event(AGENT, "step.completed", first, run_id="r1", step="classify", next_step="label")
    task = it.task(AGENT, first, "r1", 1)
    it.applied(AGENT, 1, 0)
    second = headers("t2", task, "r1", 1)
    it.checkpoint(AGENT, second, run_id="r1", seq=2, status="completed", records=3)
    done = {"run_id": "r1", "seq": 1, "status": "completed", "step": "label", "effects": [KEY]}
    it.event(AGENT, "run.completed", second, **done)
    effect = it.start("outbox", KEY, json.dumps(EFFECT), second)
    it.applied(AGENT, 1, 1)
    third = headers("t3", effect, KEY, 0)
    it.checkpoint("outbox", third, run_id=KEY, seq=1, status="completed", records=3)
    it.event("outbox", "run.started", third, run_id=KEY)
    it.event("outbox", "run.completed", third, run_id=KEY, status="completed")
    it.applied("outbox", 1, None)
    it.book.append(request())
    return it


def request(**fields: Any) -> Request:
    return replace(
        Request(
            key=KEY,
            method="PUT",
            path="/issues/1/labels",
            body_sha256=hashlib.sha256(BODY.encode()).hexdigest(),
            acted=True,
        ),
        **fields,
    )


def test_a_good_history_is_clean_and_counted(history: History) -> None:
    report = history.audit()
    assert report.findings == []
    assert report.clean
    assert (report.runs, report.completed, report.steps_committed) == (1, 1, 2)
    assert (report.effects_expected, report.effects_received) == (1, 1)
    assert report.run_ids == {"r1"}
    assert report.transactions == 3
    assert report.steps_per_s > 0


def test_a_repeated_request_that_was_not_acted_upon_again_is_allowed(history: History) -> None:
    history.book.append(request(acted=False))
    report = history.audit()
    assert report.clean
    assert report.effects_redelivered == 1


def test_a_request_that_failed_before_it_was_acted_upon_is_allowed(history: History) -> None:
    history.book.insert(0, request(acted=False))
    assert history.audit().clean


def test_a_repeated_start_command_needs_no_answer_of_its_own(history: History) -> None:
    history.copy(name(AGENT, "commands"), 0)
    history.applied(AGENT, 3, 1)
    assert history.audit().clean


def test_a_start_that_is_read_again_after_a_failed_attempt_is_answered_by_the_next_one(
    history: History,
) -> None:
    command = history.start(AGENT, "r2", "{}")
    failed = headers("t5", command, "r2", 0)
    history.checkpoint(AGENT, failed, run_id="r2", seq=0, status="waiting", records=3)
    history.event(AGENT, "run.started", failed, run_id="r2")
    history.event(AGENT, "step.retrying", failed, run_id="r2")
    done = headers("t6", command, "r2", 0)
    history.checkpoint(AGENT, done, run_id="r2", seq=1, status="completed", records=2)
    history.event(AGENT, "run.completed", done, run_id="r2", status="completed")
    assert history.audit().clean


def test_the_probe_of_the_gateway_and_tombstones_are_no_records_of_runs(history: History) -> None:
    state = name(AGENT, "state")
    history.copy(state, 0, key=b"@ready", value=b"host", headers=[])
    history.copy(state, 0, key=b"old", value=None, headers=[("sf-txn", b"t9")])
    assert history.audit().clean


def test_a_record_that_was_moved_counts_for_the_transaction_that_moved_it(
    history: History,
) -> None:
    moved = [*history.topics[name(AGENT, "tasks")][0].headers, ("sf-txn", b"t9"), ("sf-src", b"x")]
    history.copy(name(AGENT, "tasks"), 0, headers=moved)
    assert history.audit().clean


def test_what_a_running_step_has_recorded_moves_no_run(history: History) -> None:
    task = history.topics[name(AGENT, "tasks")][0]
    recorded = headers("t8", task, "r1", 1)
    entry = {
        "run_id": "r1",
        "slot": "c:ask#0",
        "kind": "call",
        "seq": 1,
        "epoch": 0,
        "digest": b"d",
        "value": b"1",
        "failure": None,
        "id": None,
        "name": None,
        "by": None,
        "cost": [],
        "at_ms": 0,
    }
    history.put(name(AGENT, "state"), b"r1|c:ask#0", encode("Entry", entry), recorded)
    history.applied(AGENT, 1, 1)
    assert history.audit().clean


def test_a_command_is_answered_by_an_event_of_its_transaction(history: History) -> None:
    topic = name(AGENT, "commands")
    out = command_out(APP, 1, AGENT, run_id="r1", kind="pause", id="c1", sent_ms=0)
    command = history.put(topic, b"r1", out.value)
    history.applied(AGENT, 3, 1)
    (finding,) = history.audit().findings
    assert finding.kind == "lost"
    told = {"run_id": "r1", "seq": 2, "status": "completed", "id": "c1", "name": "too_late"}
    history.event(AGENT, "command.refused", headers("t8", command, "r1", 2), **told)
    assert history.audit().clean


def test_a_child_that_tells_a_run_that_is_over_needs_no_answer(history: History) -> None:
    out = command_out(APP, 1, AGENT, run_id="r1", kind="child", id="r1~1~0", sent_ms=0)
    history.put(name(AGENT, "commands"), b"r1", out.value)
    history.applied(AGENT, 3, 1)
    assert history.audit().clean


def test_an_agent_of_a_pool_is_an_agent(history: History) -> None:
    history.start(f"{AGENT}.gpu", "r1~1~0", "{}")
    assert [finding.kind for finding in history.audit().findings] == ["unfinished"]


EVENTS, STATE, TASKS = name(AGENT, "events"), name(AGENT, "state"), name(AGENT, "tasks")
OUTBOX = name("outbox", "commands")


def lose_the_first_step(it: History) -> None:
    it.drop(EVENTS, 1)


def lose_the_last_step(it: History) -> None:
    it.drop(EVENTS, 2)


def lose_all_of_the_second_transaction(it: History) -> None:
    """As when the offset was committed without what belongs to it."""
    it.drop(EVENTS, 2)
    it.drop(STATE, 2)
    it.drop(OUTBOX, 0)


def lose_a_checkpoint(it: History) -> None:
    it.drop(STATE, 2)


def lose_an_earlier_checkpoint(it: History) -> None:
    it.drop(STATE, 0)


def lose_a_run(it: History) -> None:
    it.start(AGENT, "r2", "{}")
    it.applied(AGENT, 3, 1)


def leave_a_command_unread(it: History) -> None:
    it.start(AGENT, "r2", "{}")


def leave_a_task_unread(it: History) -> None:
    lose_all_of_the_second_transaction(it)
    it.applied(AGENT, 1, 0)


def commit_a_step_twice(it: History) -> None:
    it.copy(EVENTS, 1, headers=headers_of("t4", "timer", "r1", "0"))
    it.copy(STATE, 0, headers=headers_of("t4", "timer", "r1", "0"))


def answer_an_input_twice(it: History) -> None:
    task = it.topics[TASKS][0].place
    again = {"sf-txn": "t4", "sf-src": task, "sf-run": "r1", "sf-seq": "1"}
    it.event(AGENT, "step.retrying", again, run_id="r1", seq=1)


def put_an_effect_in_the_outbox_twice(it: History) -> None:
    it.copy(OUTBOX, 0)


def swap_two_steps(it: History) -> None:
    events = it.topics[EVENTS]
    events[1], events[2] = events[2], events[1]


def go_on_after_the_end(it: History) -> None:
    it.copy(EVENTS, 1, value=step_completed(2), headers=headers_of("t4", "timer", "r1", "2"))


def step_completed(seq: int) -> bytes:
    return encode("Event", EVENT | {"run_id": "r1", "type": "step.completed", "seq": seq})


def headers_of(txn: str, src: str, run: str, seq: str) -> list[tuple[str, bytes]]:
    names = ("sf-txn", "sf-src", "sf-run", "sf-seq")
    return [(n, v.encode()) for n, v in zip(names, (txn, src, run, seq), strict=True)]


def tear_a_transaction(it: History) -> None:
    it.drop(TASKS, 0)


def add_to_a_transaction(it: History) -> None:
    it.copy(EVENTS, 0)


def answer_what_was_never_committed(it: History) -> None:
    headers_ = headers_of("t1", f"{TASKS}/0/999", "r1", "0")
    it.change(EVENTS, 1, headers=headers_)


def lose_an_effect_on_its_way(it: History) -> None:
    it.book.clear()


def never_act_upon_an_effect(it: History) -> None:
    it.book[:] = [request(acted=False)]


def lose_an_effect_at_its_commit(it: History) -> None:
    it.drop(OUTBOX, 0)


def act_twice(it: History) -> None:
    it.book.append(request())


def ask_with_another_body(it: History) -> None:
    it.book.append(request(acted=False, body_sha256="0" * 64))


def ask_at_another_path(it: History) -> None:
    it.book[0] = request(path="/issues/2/labels")


def ask_without_a_commit(it: History) -> None:
    it.book.append(request(key=f"{AGENT}:r1:0:0"))


def ask_without_a_key(it: History) -> None:
    it.book.append(request(key=""))


def start_an_effect_that_no_step_asked_for(it: History) -> None:
    it.start("outbox", f"{AGENT}:r1:0:0", json.dumps(EFFECT))


def garble_a_record(it: History) -> None:
    it.change(EVENTS, 0, value=b"\xc3\x01garbage")


@pytest.mark.parametrize(
    ("plant", "kind"),
    [
        (lose_the_first_step, "lost"),
        (lose_the_last_step, "unfinished"),
        (lose_all_of_the_second_transaction, "lost"),
        (lose_a_checkpoint, "lost"),
        (lose_an_earlier_checkpoint, "torn"),
        (lose_a_run, "lost"),
        (leave_a_command_unread, "unfinished"),
        (leave_a_task_unread, "unfinished"),
        (commit_a_step_twice, "twice"),
        (answer_an_input_twice, "twice"),
        (put_an_effect_in_the_outbox_twice, "twice"),
        (swap_two_steps, "disorder"),
        (go_on_after_the_end, "disorder"),
        (tear_a_transaction, "torn"),
        (add_to_a_transaction, "torn"),
        (answer_what_was_never_committed, "unfounded"),
        (lose_an_effect_on_its_way, "effect_lost"),
        (never_act_upon_an_effect, "effect_lost"),
        (lose_an_effect_at_its_commit, "effect_lost"),
        (act_twice, "effect_twice"),
        (ask_with_another_body, "effect_twice"),
        (ask_at_another_path, "effect_twice"),
        (ask_without_a_commit, "phantom"),
        (ask_without_a_key, "phantom"),
        (start_an_effect_that_no_step_asked_for, "phantom"),
        (garble_a_record, "undecodable"),
    ],
)
def test_a_planted_violation_is_found(
    history: History, plant: Callable[[History], None], kind: str
) -> None:
    plant(history)
    report = history.audit()
    assert kind in {finding.kind for finding in report.findings}
    assert not report.clean


def test_a_run_that_failed_is_no_violation_but_not_clean(history: History) -> None:
    command = history.start(AGENT, "r2", "{}")
    failed = headers("t5", command, "r2", 0)
    history.checkpoint(AGENT, failed, run_id="r2", seq=0, status="failed", records=3)
    history.event(AGENT, "run.started", failed, run_id="r2")
    history.event(AGENT, "run.failed", failed, run_id="r2", status="failed")
    report = history.audit()
    assert report.findings == []
    assert (report.runs, report.completed, report.failed) == (2, 1, 1)
    assert not report.clean


def test_findings_of_a_kind_are_counted(history: History) -> None:
    act_twice(history)
    report = history.audit()
    assert report.count("effect_twice") == 1
    assert report.count("lost", "twice") == 0
    assert report.findings == [Finding("effect_twice", f"{KEY}: the tracker executed it 2 times")]
    assert report.effects_received == 0
