"""What the doctor makes of what it sees: each fault is found, and what looks like it is not."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest

from surefoot.commands.admin.doctor import report
from surefoot.state.access.audit import AuditEntry
from surefoot.state.diagnosis.cluster import (
    DISK_FREE_MIN,
    HANGS_MS,
    ClusterView,
    LogDirectory,
    OpenTransaction,
    PartitionReplicas,
    judge_brokers,
    judge_disks,
    judge_replicas,
    judge_transactions,
)
from surefoot.state.diagnosis.findings import (
    RUNBOOKS,
    Diagnosis,
    DiagnosisCode,
    Examination,
    examination_json,
)
from surefoot.state.diagnosis.work import (
    DECIDED_MS,
    DONE_MS,
    ONE_PROCESS,
    RETRIED_MIN,
    STRANGERS_MIN,
    Listener,
    StartCommands,
    judge_access,
    judge_commands,
    judge_dead_letters,
    judge_effects,
    judge_listeners,
    judge_offsets,
    judge_runs,
    judge_tasks,
    judge_topics,
    judge_workers,
)
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.lag import AgentStanding, PartitionStanding
from surefoot.state.reading.runs import RunSummary

NOW_MS = 10_000_000
START = StartCommands()


def only(found: list[Diagnosis], code: DiagnosisCode) -> Diagnosis:
    """The only finding, which is this one."""
    [one] = found
    assert one.code == code
    return one


# The cluster ----------------------------------------------------------------------------------


def replicas(**fields: Any) -> PartitionReplicas:
    whole: dict[str, Any] = {
        "topic": "t",
        "partition": 0,
        "leader": 1,
        "replicas": frozenset({1, 2, 3}),
        "in_sync": frozenset({1, 2, 3}),
        "min_in_sync": 2,
    }
    return PartitionReplicas(**whole | fields)


def view(*partitions: PartitionReplicas, brokers: tuple[int, ...] = (1, 2, 3)) -> ClusterView:
    return ClusterView(brokers=frozenset(brokers), partitions=partitions)


def test_a_broker_that_has_replicas_and_is_not_there_is_found() -> None:
    one = only(
        judge_brokers(view(replicas(), replicas(partition=1), brokers=(1, 3))), "broker_missing"
    )
    assert "broker 2" in one.what
    assert "2 partitions" in one.what
    assert judge_brokers(view(replicas())) == []
    assert judge_brokers(view(replicas(), brokers=(1, 2, 3, 4))) == []


def test_a_partition_that_takes_no_writes_is_found() -> None:
    short = replicas(in_sync=frozenset({1}))
    one = only(judge_replicas(view(short, replicas(partition=1))), "under_min_isr")
    assert "t/0 " in one.what
    assert "t/1" not in one.what
    assert judge_replicas(view(replicas(in_sync=frozenset({1, 2})))) == []
    assert judge_replicas(view(replicas(in_sync=frozenset({1}), min_in_sync=1))) == []


def test_a_partition_without_a_leader_is_one_that_nobody_leads_whoever_is_in_sync() -> None:
    headless = replicas(leader=None, in_sync=frozenset({1}))
    assert "t/0" in only(judge_replicas(view(headless)), "no_leader").what


def test_a_list_of_partitions_has_an_end() -> None:
    many = [replicas(partition=number, leader=None) for number in range(8)]
    assert "t/4 and 3 more" in only(judge_replicas(view(*many)), "no_leader").what


def disk(usable: float | None, **fields: Any) -> LogDirectory:
    size = None if usable is None else int(usable * 1000)
    return LogDirectory(broker=2, path="/data", total_bytes=1000, usable_bytes=size, **fields)


def test_a_disk_that_is_nearly_full_is_found_with_what_fills_it() -> None:
    one = only(judge_disks([disk(0.09, topics={"small": 1, "large": 9})]), "disk_full")
    assert "9% free" in one.what
    assert "large, small" in one.what
    assert "--broker-list 2" in one.do[0]
    assert judge_disks([disk(DISK_FREE_MIN), disk(None)]) == []


def test_a_disk_that_the_broker_has_given_up_is_found_however_much_it_says_is_free() -> None:
    one = only(judge_disks([disk(0.9, failed="KafkaStorageError")]), "disk_failed")
    assert "KafkaStorageError" in one.what


def transaction(age_ms: int, **fields: Any) -> OpenTransaction:
    known: dict[str, Any] = {
        "topic": "t",
        "partition": 3,
        "producer_id": 7,
        "start_offset": 41,
        "transactional_id": "theirs",
    }
    return OpenTransaction(since_ms=NOW_MS - age_ms, **known | fields)


def test_a_transaction_that_stays_open_is_found_and_ended_by_its_coordinator() -> None:
    one = only(judge_transactions([transaction(HANGS_MS + 1)], NOW_MS), "transaction_hangs")
    [command] = one.do
    assert command.startswith("kafka-transactions --bootstrap-server ")
    assert command.endswith(" forceTerminateTransaction --transactionalId theirs")
    assert judge_transactions([transaction(HANGS_MS)], NOW_MS) == []


def test_a_transaction_that_no_coordinator_has_is_aborted_where_it_stands() -> None:
    places = [transaction(HANGS_MS + 1, transactional_id=None, partition=p) for p in (3, 4)]
    one = only(judge_transactions(places, NOW_MS), "transaction_hangs")
    assert [line.partition(" abort ")[2] for line in one.do] == [
        "--topic t --partition 3 --start-offset 41",
        "--topic t --partition 4 --start-offset 41",
    ]


# The work -------------------------------------------------------------------------------------


def place(kind: str, **fields: Any) -> PartitionStanding:
    known: dict[str, Any] = {"partition": 0, "start": 0, "end": 9, "stable": 9}
    return PartitionStanding(topic=f"app.a.{kind}", **known | fields)


def standing(*places: PartitionStanding, agent: str = "a") -> AgentStanding:
    return AgentStanding(agent=agent, group=f"app.{agent}", partitions=places)


def test_inputs_that_nobody_reads_are_found() -> None:
    left = place("tasks", lag=4, partition=1)
    one = only(judge_workers([standing(left, place("tasks", lag=3))], START), "nobody_works")
    assert "partitions 0, 1 of a, where 7 inputs" in one.what
    assert one.do[0] == "surefoot worker AGENT.py"
    owned, idle = place("tasks", lag=4, owner="w"), place("commands", lag=0)
    assert judge_workers([standing(owned, idle, place("events"))], START) == []


@pytest.mark.parametrize(
    ("start", "agent", "command"),
    [
        (START, "outbox", "surefoot relay"),
        (ONE_PROCESS, "outbox", "surefoot serve AGENT.py"),
        (StartCommands(pools={"a.gpu": "gpu"}), "a.gpu", "surefoot worker AGENT.py --pool gpu"),
    ],
)
def test_effects_and_pools_have_processes_of_their_own_where_there_are_several(
    start: StartCommands, agent: str, command: str
) -> None:
    left = standing(place("tasks", lag=1), agent=agent)
    assert only(judge_workers([left], start), "nobody_works").do[0] == command


@pytest.mark.parametrize(
    ("members", "unread", "found"), [(0, 3, True), (1, 3, False), (0, 0, False)]
)
def test_events_that_nobody_takes_are_found(members: int, unread: int, found: bool) -> None:
    listener = Listener(agent="a", topic="orders", members=members, unread=unread)
    told = judge_listeners([listener], START)
    assert [each.code for each in told] == ["nobody_listens"] * found


def served(**committed: int | None) -> AgentStanding:
    return standing(
        place("commands", committed=committed["commands"]),
        place("tasks", committed=committed["tasks"]),
        place("events"),
    )


def test_offsets_are_lost_where_a_partition_was_served_and_the_group_has_none() -> None:
    lost = served(commands=None, tasks=None)
    one = only(judge_offsets("app", [lost], START), "offsets_lost")
    assert "app.a has no offsets of partitions 0" in one.what
    assert judge_offsets("app", [served(commands=9, tasks=None)], START) == []
    assert judge_offsets("app", [served(commands=None, tasks=9)], START) == []


def test_a_partition_that_was_never_served_has_lost_no_offsets() -> None:
    new = standing(place("commands"), place("tasks", end=0), place("events", end=0))
    no_inputs = standing(place("commands", end=0), place("tasks", end=0), place("events"))
    assert judge_offsets("app", [new, no_inputs], START) == []


def record(run_id: str, age_ms: int) -> ConsumerRecord:
    return ConsumerRecord("t", 0, 5, NOW_MS - age_ms, run_id.encode(), b"")


def test_the_oldest_of_the_tasks_that_wait_for_long_is_found() -> None:
    tasks = [record("r1", DONE_MS + 1), record("r 2", DONE_MS + 2), record("r3", DONE_MS)]
    one = only(judge_tasks("a", tasks, NOW_MS), "steps_wait")
    assert one.do == ("surefoot runs show a 'r 2'",)
    assert judge_tasks("a", [record("r3", DONE_MS)], NOW_MS) == []


def test_a_command_that_nobody_decides_is_found() -> None:
    commands = [record("r1", DECIDED_MS + 1), record("r2", DECIDED_MS + 2)]
    one = only(judge_commands("a", commands, NOW_MS, START), "commands_wait")
    assert "run r2 of a" in one.what
    assert judge_commands("a", [record("r3", DECIDED_MS)], NOW_MS, START) == []


def letter(code: str, agent: str | None = "a", run_id: str | None = None) -> DeadLetter:
    return DeadLetter(
        offset=1,
        at_ms=NOW_MS,
        code=code,
        message="",
        attempts=0,
        agent=agent,
        run_id=run_id,
        step=None,
        source=None,
        value_bytes=0,
    )


def test_inputs_that_could_not_be_used_are_found_by_their_cause() -> None:
    letters = [letter("mapping_failed")] * 3 + [letter("undecodable", None)]
    first, second = judge_dead_letters(letters)
    assert first.what.startswith("3 inputs of a ")
    assert first.do == (
        "surefoot dead list --code mapping_failed",
        "surefoot dead redrive AGENT.py --code mapping_failed",
    )
    assert second.do == ("surefoot dead list --code undecodable",)


def test_a_dead_letter_of_a_run_is_no_unusable_input() -> None:
    assert judge_dead_letters([letter("exhausted", run_id="r")]) == []


def run(run_id: str, status: str, **fields: Any) -> RunSummary:
    known: dict[str, Any] = {
        "version": 1,
        "seq": 0,
        "step": "s",
        "attempt": 0,
        "created_ms": NOW_MS - 90_000,
        "updated_ms": NOW_MS - 60_000,
        "due_ms": None,
        "failure": None,
        "epoch": 0,
        "child": False,
        "waits": None,
        "offset": 0,
    }
    return RunSummary(run_id=run_id, status=status, **known | fields)  # type: ignore[arg-type]


def judged(*runs: RunSummary, version: int | None = 1, since_ms: int = 0) -> list[Diagnosis]:
    return judge_runs("a", version, runs, since_ms)


def test_runs_that_wait_for_a_person_are_found_whenever_it_was() -> None:
    parked = [run("r1", "attention", failure="unknown_step"), run("r2", "attention", updated_ms=1)]
    one = only(judged(*parked, since_ms=NOW_MS), "runs_parked")
    assert one.what.startswith("2 runs of a ")
    assert "unknown_step" in one.what
    assert one.do[1] == "surefoot runs show a r1"


def test_runs_that_failed_lately_are_found() -> None:
    one = only(judged(run("r1", "failed", failure="exhausted")), "runs_fail")
    assert one.do[-1] == "surefoot runs retry-failed a"
    assert judged(run("r1", "failed"), since_ms=NOW_MS) == []
    assert judged(run("r1", "completed"), run("r2", "waiting"), run("r3", "cancelled")) == []


def test_runs_of_newer_code_are_found_as_long_as_they_are_not_over() -> None:
    one = only(judged(run("r1", "running", version=3)), "runs_held")
    assert "version 3" in one.what
    assert judged(run("r1", "completed", version=3), run("r2", "running")) == []
    assert judged(run("r1", "running", version=3), version=None) == []


def test_effects_that_are_given_up_are_found_with_where_they_go() -> None:
    effects = [run("e1", "failed"), run("e2", "failed", updated_ms=NOW_MS - 3_600_000)]
    one = only(judge_effects(effects, {"e1": "shop.example"}, NOW_MS), "effects_failed")
    assert "2 effects for shop.example were given up, the first 3600 s ago" in one.what
    assert one.do[-1] == "surefoot runs retry-failed outbox"


def test_effects_that_are_tried_again_and_again_are_found() -> None:
    again = run("e1", "waiting", attempt=RETRIED_MIN)
    only(judge_effects([again], {}, NOW_MS), "effects_retried")
    once = run("e1", "waiting", attempt=RETRIED_MIN - 1)
    assert judge_effects([once, run("e2", "completed", attempt=9)], {}, NOW_MS) == []


def request(status: int = 401, unrecorded: int = 0) -> AuditEntry:
    return AuditEntry(
        id="1",
        at_ms=NOW_MS,
        who=None,
        action="read",
        status=status,
        origin="10.0.0.9",
        unrecorded=unrecorded,
    )


def test_many_requests_without_a_valid_token_are_found_also_those_that_were_only_counted() -> None:
    one = only(judge_access([request(unrecorded=STRANGERS_MIN - 1)]), "strangers")
    assert f"{STRANGERS_MIN} requests had no valid token, from 10.0.0.9" in one.what
    assert judge_access([request(unrecorded=STRANGERS_MIN - 2)]) == []
    assert judge_access([request(403, unrecorded=STRANGERS_MIN)]) == []


def test_topics_that_are_not_as_required_are_found_with_the_first_fix() -> None:
    one = only(judge_topics(["topic t does not exist; run x", "another"]), "topics_wrong")
    assert one.what == "topic t does not exist; run x (and 1 more)"
    assert judge_topics([]) == []


# What it comes to -----------------------------------------------------------------------------

FOUND = Diagnosis(code="disk_full", what="the disk is full", do=("look",))


@pytest.mark.parametrize(
    ("examination", "status"),
    [
        (Examination(looked=["topics"]), 0),
        (Examination(looked=["topics"], findings=[FOUND], blind=[("disks", "SF3093")]), 1),
        (Examination(looked=["topics"], blind=[("disks", "SF3093")]), 2),
        (Examination(blind=[("log", "SF3001")]), 2),
    ],
)
def test_the_status_tells_health_findings_and_blindness_apart(
    examination: Examination, status: int
) -> None:
    assert examination.status == status
    assert examination_json(examination)["healthy"] == (status == 0)


def test_an_examination_is_told_with_commands_runbook_and_what_could_not_look() -> None:
    seen = Examination(looked=["topics"], findings=[FOUND], blind=[("disks", "SF3093")])
    assert report(seen) == [
        "disk_full: the disk is full",
        "    look",
        "    see docs/how-to/runbooks.md#a-disk-is-full",
        "cannot look at disks: SF3093",
    ]
    assert json.loads(json.dumps(examination_json(seen)))["findings"] == [
        {
            "code": "disk_full",
            "what": "the disk is full",
            "do": ["look"],
            "runbook": "a-disk-is-full",
        }
    ]
    assert report(Examination(looked=["topics", "runs"])) == ["nothing is wrong with topics, runs"]
    assert "nothing is wrong" not in " ".join(report(Examination(blind=[("log", "away")])))


def test_every_code_has_a_runbook() -> None:
    assert set(RUNBOOKS) == set(get_args(DiagnosisCode))
