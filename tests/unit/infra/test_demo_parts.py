"""What the demo is made of: deliveries from a seed, a tracker that acts once, and the progress."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import httpx
import pytest

from surefoot.infra.demo.deliveries import FORGED, SentOutcome, plan, signature
from surefoot.infra.demo.display import Display
from surefoot.infra.demo.progress import Kill, Progress, WorkerLog
from surefoot.infra.demo.tracker import Tracker, read_book
from surefoot.infra.runtime.loader import load_agents
from surefoot.producers.webhooks.verification import sender
from surefoot.schemas.codec.codec import encode
from surefoot.schemas.payload import dump, parse_json
from surefoot.state.declare.webhooks import Webhook
from surefoot.state.ports.log import ConsumerRecord
from tests.support.eventually import until
from tests.unit.infra.test_auditor import EVENT

TRIAGE = Path(__file__).parents[3] / "examples" / "triage.py"


# Deliveries -----------------------------------------------------------------------------------


def test_the_same_seed_makes_the_same_deliveries() -> None:
    assert plan(50, Random(7)) == plan(50, Random(7))
    assert plan(50, Random(7)) != plan(50, Random(8))


def test_a_tenth_is_delivered_twice_and_three_are_forged() -> None:
    made = plan(200, Random(1))
    assert len({delivery.id for delivery in made}) == len(made) == 200 + FORGED
    assert sum(delivery.again_s is not None for delivery in made) == 20
    assert {delivery.again_s for delivery in made} > {0.0}
    assert sum(delivery.forged for delivery in made) == FORGED


def test_the_gateway_takes_the_signature() -> None:
    body = plan(10, Random(1))[0].body
    secret = "0123456789abcdef0123456789abcdef"
    verify = sender("github").verifier(secret)
    signed = {"x-hub-signature-256": signature(secret, body)}
    assert verify(signed, body, 0) is None
    assert verify(signed, body + b" ", 0) is not None


def test_the_example_agent_takes_every_delivery() -> None:
    (agent,) = load_agents([TRIAGE])
    (trigger,) = agent.webhooks
    for made in plan(100, Random(3)):
        delivery = Webhook(
            source="github",
            id=made.id,
            event="issues",
            headers={},
            body=made.body,
            json=parse_json(made.body),
        )
        assert dump(agent.start_step.adapter, trigger.fn(delivery))


# Tracker --------------------------------------------------------------------------------------


@pytest.fixture
async def tracker(tmp_path: Path) -> AsyncIterator[Tracker]:
    async with Tracker(tmp_path / "book", seed=None) as it:
        yield it


async def ask(tracker: Tracker, key: str, body: str = "{}") -> int:
    async with httpx.AsyncClient(trust_env=False) as client:
        headers = {"Idempotency-Key": key} if key else {}
        response = await client.post(f"{tracker.url}/x", content=body, headers=headers)
        return response.status_code


async def test_the_tracker_acts_once_on_a_key_and_answers_it_again(
    tracker: Tracker, tmp_path: Path
) -> None:
    assert [await ask(tracker, "a"), await ask(tracker, "a"), await ask(tracker, "b")] == [200] * 3
    book = read_book(tmp_path / "book")
    assert [(r.key, r.acted) for r in book] == [("a", True), ("a", False), ("b", True)]
    assert {(r.method, r.path) for r in book} == {("POST", "/x")}


async def test_the_tracker_refuses_a_key_that_was_used_for_something_else(
    tracker: Tracker,
) -> None:
    assert [await ask(tracker, "a", "1"), await ask(tracker, "a", "2")] == [200, 422]


async def test_without_a_key_every_request_is_acted_upon(tracker: Tracker, tmp_path: Path) -> None:
    assert [await ask(tracker, ""), await ask(tracker, "")] == [200, 200]
    assert [request.acted for request in read_book(tmp_path / "book")] == [True, True]


async def test_an_unreliable_tracker_still_acts_once_on_each_key(tmp_path: Path) -> None:
    answers = set()
    async with Tracker(tmp_path / "book", seed=2) as tracker:
        for number in range(12):
            for _ in range(5):
                try:
                    answers.add(answer := await ask(tracker, str(number)))
                except httpx.RemoteProtocolError:
                    answers.add(answer := 0)
                if answer == 200:
                    break
    book = read_book(tmp_path / "book")
    assert [int(r.key) for r in book if r.acted] == list(range(12))
    assert answers == {0, 200, 500}


# Progress -------------------------------------------------------------------------------------


class Ticks:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def event(
    kind: str, *, at_ms: int, partition: int, run_id: str = "r", **fields: object
) -> ConsumerRecord:
    value = encode("Event", EVENT | {"run_id": run_id, "type": kind, "seq": 0} | fields)
    return ConsumerRecord("demo.triage.events", partition, 0, at_ms, run_id.encode(), value)


def test_recovery_is_the_first_later_step_on_a_partition_of_the_killed_worker() -> None:
    clock = Ticks()
    progress = Progress(clock)
    kill = Kill(worker="worker-0", pid=1, at_s=100.0, at_ms=5_000, partitions=frozenset({1}))
    progress.kills.append(kill)
    clock.now_s = 101.0
    progress.apply(event("step.completed", at_ms=4_999, partition=1))  # of the one that is dead
    progress.apply(event("step.completed", at_ms=6_000, partition=2))  # of another one
    progress.apply(event("step.retrying", at_ms=6_000, partition=1))  # no step has ended
    assert progress.kills[0].recovered_s is None
    clock.now_s = 102.5
    progress.apply(event("step.completed", at_ms=6_500, partition=1))
    assert kill.recovered_s == 2.5
    clock.now_s = 103.0
    progress.apply(event("step.completed", at_ms=7_000, partition=1))
    assert kill.recovered_s == 2.5


def test_all_is_settled_when_runs_have_ended_and_effects_are_delivered() -> None:
    progress = Progress(Ticks())
    assert not progress.settled({"r"})
    progress.apply(event("run.started", at_ms=1, partition=0))
    assert progress.under_way([0])
    assert not progress.under_way([1])
    effects = ["triage:r:0:0"]
    progress.apply(
        event("run.completed", at_ms=2, partition=0, status="completed", effects=effects)
    )
    assert not progress.under_way([0])
    assert not progress.settled({"r"})
    progress.apply(
        event(
            "run.completed",
            at_ms=3,
            partition=0,
            run_id=effects[0],
            agent="outbox",
            status="completed",
        )
    )
    assert progress.settled({"r"})
    assert not progress.settled({"r", "another"})


async def test_the_rate_that_is_shown_is_said_to_be_the_demos_own_pace(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefoot.infra.demo.display._LINE_EVERY_S", 0.0)
    told = ""
    ticks = Ticks()
    display = Display(Progress(ticks), SentOutcome(), deliveries=1, monotonic_s=ticks)

    def shown() -> bool:
        nonlocal told
        told += capsys.readouterr().err
        return "steps: 0 committed, 0/s (paced)" in told

    async with display.shown():
        await until(shown, what="the line")


def test_what_a_worker_owns_is_what_its_present_process_says(tmp_path: Path) -> None:
    path = tmp_path / "worker-0.log"
    log = WorkerLog(path, "triage")
    assert not log.ready()

    def say(name: str, **fields: object) -> None:
        with path.open("a") as lines:
            lines.write(json.dumps({"agent": "triage", "event": name, **fields}) + "\n")

    say("assignment", gained=[0, 1, 2], retained=[], lost=[])
    say("assignment", gained=[4], retained=[0, 1], lost=[2])
    say("worker_ready", partitions=[0, 1, 4])
    assert log.ready()
    assert log.owned() == {0, 1, 4}
    log.next_process()
    assert not log.ready()
    assert log.owned() == frozenset()
