"""A right that the log denies: asked for again for a minute, and then what needs it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import structlog

from surefoot import Agent, Context, Done
from surefoot.consumers.backoff import WAIT_MOST_S, Denials
from surefoot.consumers.deadlines import DEADLINES
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.context import OwnerLimits
from surefoot.consumers.partition.transaction import PendingInput
from surefoot.consumers.partition.worker import Worker
from surefoot.consumers.polling import poll_on
from surefoot.consumers.topic_triggers.mapping import EventMapping, Schemas
from surefoot.consumers.topic_triggers.owner import TriggerOwner
from surefoot.consumers.topic_triggers.worker import EventWorker
from surefoot.infra.embedded.log import EmbeddedGroup, EmbeddedLog
from surefoot.infra.embedded.memory import MemoryBroker
from surefoot.infra.encryption.backend import EncryptedLog
from surefoot.infra.encryption.cipher import DataKey
from surefoot.infra.encryption.envelope import Envelope
from surefoot.infra.encryption.keyring import Keyring
from surefoot.infra.simulation.time import VirtualClock, VirtualLoop
from surefoot.state.errors import KeyMissing, NotAllowed, OutcomeUnknown, Unavailable
from surefoot.state.machine.decision import Rules
from surefoot.state.machine.model import StartRun
from surefoot.state.names.topics import AgentTopics, agent_specs, dead_spec, dead_topic
from surefoot.state.ports.log import Assignment
from surefoot.state.ports.sources import SourceOffsets
from surefoot.state.records.encoding import Wire, start_out

TOPICS = AgentTopics("app", "shop")
WIRE = Wire("app", TOPICS, 1)
DENIED = NotAllowed("SF3093", "User:ann lacks Write on transactional id app.shop.0")
AWAY = Unavailable("SF3001", "away")
#: longest wait between two tries
WAIT_S = WAIT_MOST_S
DENIED_S = DEADLINES.denied_s

Answer = Callable[[float], Exception | None]


def denied_until(end_s: float) -> Answer:
    return lambda now_s: DENIED if now_s < end_s else None


def away_until(end_s: float) -> Answer:
    return lambda now_s: AWAY if now_s < end_s else None


def away_between(now_s: float) -> Exception | None:
    """Denied for an hour; but within each minute there are some seconds in which nobody answers."""
    return AWAY if now_s % 50 < 2 * WAIT_S else denied_until(3_600.0)(now_s)


class Site:
    """A loop whose time is its own, and a log that answers as it is told."""

    def __init__(self) -> None:
        self.clock = VirtualClock(start_ms=0, seed=1)
        self.loop = VirtualLoop(self.clock)
        self.began_s = self.clock.monotonic_s()
        self.answer: Answer = lambda _now_s: None
        self.asked: list[float] = []

    def ask(self) -> None:
        now_s = self.now_s()
        self.asked.append(now_s)
        error = self.answer(now_s)
        if error is not None:
            raise error

    def now_s(self) -> float:
        return self.clock.monotonic_s() - self.began_s

    def run(self, work: Coroutine[Any, Any, Any], *, for_s: float = 7_200.0) -> Exception | None:
        """To its end; returns what ended it."""
        task = self.loop.create_task(work)
        self.loop.run_until(task.done, deadline_s=self.clock.monotonic_s() + for_s)
        assert task.done(), f"it goes on after {self.now_s():.0f} s"
        error = task.exception()
        assert error is None or isinstance(error, Exception)
        return error


@pytest.fixture
def site() -> Iterator[Site]:
    made = Site()
    yield made
    made.loop.close()


def ended_after_a_minute(site: Site, ended: Exception | None) -> None:
    assert ended is DENIED
    assert DENIED_S <= site.now_s() < DENIED_S + 2 * WAIT_S
    assert len(site.asked) > 5


# The count ----------------------------------------------------------------------------------


def test_a_denial_is_borne_for_a_minute_from_the_first_one_on(site: Site) -> None:
    denials = Denials(site.clock, DENIED_S)

    def at(now_s: float, error: Exception) -> Exception | None:
        site.clock.move_to(site.began_s + now_s)
        try:
            denials.look(error)
        except Unavailable as raised:
            return raised
        return None

    assert at(1_000.0, DENIED) is None
    assert at(1_059.0, DENIED) is None
    assert at(1_059.5, AWAY) is None
    assert at(1_060.0, DENIED) is None
    assert at(1_119.0, DENIED) is None
    assert at(1_120.0, DENIED) is DENIED
    assert at(1_121.0, AWAY) is None


# Who takes over the runs of a partition -------------------------------------------------------


def committer(site: Site) -> Committer:
    broker = MemoryBroker(site.clock)
    broker.create(agent_specs("app", "shop", 1, 1_000_000))
    log = EmbeddedLog(broker=broker, group=EmbeddedGroup(1), topics=TOPICS, slot=0)
    own = log.own

    async def asked(partition: int) -> Any:
        site.ask()
        return await own(partition)

    log.own = asked  # type: ignore[method-assign]

    def changed(_change: Assignment) -> None: ...

    async def rebalancing() -> None: ...

    async def join() -> None:
        await log.start(changed, rebalancing)
        await log.poll(0.0)

    assert site.run(join()) is None
    return Committer(
        rules=Rules(agent="shop", steps=frozenset({"take"})),
        partition=0,
        log=log,
        wire=WIRE,
        clock=site.clock,
        record_bytes=100_000,
        committing=nullcontext,
    )


def test_a_takeover_that_stays_denied_ends(site: Site) -> None:
    it = committer(site)
    site.answer = denied_until(3_600.0)
    ended_after_a_minute(site, site.run(it.take()))


@pytest.mark.parametrize(
    "answer",
    [denied_until(50.0), away_until(3_600.0), away_between],
    ids=["granted in time", "away for an hour", "denied, and away within each minute"],
)
def test_a_takeover_waits_for_what_may_still_come(site: Site, answer: Answer) -> None:
    it = committer(site)
    site.answer = answer
    assert site.run(it.take()) is None
    assert it.progress
    assert site.now_s() >= 50.0


def test_a_commit_whose_outcome_is_unknown_and_stays_so_for_want_of_a_right_ends(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    it = committer(site)
    assert site.run(it.take()) is None

    async def unknown(*_: Any, **__: Any) -> None:
        raise OutcomeUnknown("SF3002", "no answer")

    assert it.ownership is not None
    monkeypatch.setattr(it.ownership, "commit", unknown)
    before_s = site.now_s()
    site.answer = denied_until(3_600.0)
    start = StartRun(
        run_id="r", agent="shop", version=1, step="take", payload=b"1", input_digest=b"12345678"
    )
    it.add(PendingInput(run_id="r", inputs=(start,)))
    assert site.run(it.commit()) is DENIED
    assert site.now_s() - before_s >= DENIED_S


# Who polls -------------------------------------------------------------------------------------


def poll(site: Site) -> Exception | None:
    """Poll until the first records come."""
    taken: list[int] = []

    async def polled(_timeout_s: float) -> int:
        site.ask()
        return 1

    return site.run(
        poll_on(
            polled,
            taken.append,
            clock=site.clock,
            alive=lambda: not taken,
            logger=structlog.get_logger(__name__),
            denied_s=DENIED_S,
        )
    )


def test_polls_that_stay_denied_end(site: Site) -> None:
    site.answer = denied_until(3_600.0)
    ended_after_a_minute(site, poll(site))


@pytest.mark.parametrize("answer", [denied_until(50.0), away_until(120.0)])
def test_polls_go_on_with_what_may_still_come(site: Site, answer: Answer) -> None:
    site.answer = answer
    assert poll(site) is None
    assert site.now_s() >= 50.0


# Who takes over the events of a partition ----------------------------------------------------


class Topic:
    """What an EventWorker needs of a SourceLog, and an Intake of its ownership: one partition."""

    def __init__(self, site: Site, needs: str) -> None:
        self._site = site
        #: the call that needs a right
        self._needs = needs
        self.stopped = False

    def _ask(self, call: str) -> None:
        if call == self._needs:
            self._site.ask()

    async def settle_start(self, _start: Any) -> None:
        self._ask("settle_start")

    async def start(self, assigned: Callable[[frozenset[int]], None], _revoked: Any) -> None:
        assigned(frozenset({0}))

    async def poll(self, timeout_s: float) -> list[Any]:
        await asyncio.sleep(timeout_s)
        self._ask("poll")
        return []

    async def own(self, _partition: int) -> Topic:
        self._ask("own")
        return self

    async def standing(self) -> SourceOffsets:
        self._ask("standing")
        return SourceOffsets(0, 0, 0)

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int, position: int | None = None) -> None: ...

    def position(self, _partition: int) -> None: ...

    async def close(self) -> None: ...

    async def stop(self) -> None:
        self.stopped = True


def shop() -> Agent:
    agent = Agent("shop")

    @agent.step
    async def take(ctx: Context, payload: Any) -> Done:
        return Done()

    @agent.on_event(topic="orders")
    def on_order(event: dict[str, Any]) -> Any:
        return event["id"]

    return agent


def events(site: Site) -> EventMapping:
    agent = shop()
    trigger = agent.event_triggers["orders"]
    schemas: Any = None
    return EventMapping(
        agent=agent,
        trigger=trigger,
        wire=WIRE,
        schemas=Schemas(trigger, schemas),
        record_bytes=10_000,
        schema_wait_s=600.0,
    )


@pytest.mark.parametrize("call", ["own", "standing"])
def test_an_intake_that_stays_denied_ends(site: Site, call: str) -> None:
    log: Any = Topic(site, call)
    intake = TriggerOwner(mapping=events(site), partition=0, log=log, clock=site.clock)
    site.answer = denied_until(3_600.0)
    ended_after_a_minute(site, site.run(intake.serve()))
    assert not intake.ready


@pytest.mark.parametrize("call", ["settle_start", "own", "standing", "poll"])
def test_a_trigger_that_stays_denied_ends_and_leaves_the_group(site: Site, call: str) -> None:
    log: Any = Topic(site, call)
    worker = EventWorker(mapping=events(site), log=log, clock=site.clock, settle_s=30.0)
    site.answer = denied_until(3_600.0)
    ended_after_a_minute(site, site.run(worker.run()))
    assert log.stopped == (call != "settle_start")


# A whole worker --------------------------------------------------------------------------------


def test_a_worker_that_stays_denied_ends(site: Site) -> None:
    broker = MemoryBroker(site.clock)
    broker.create(agent_specs("app", "shop", 1, 1_000_000))
    log = EmbeddedLog(broker=broker, group=EmbeddedGroup(1), topics=TOPICS, slot=0)

    async def denied(partition: int) -> Any:
        site.ask()
        raise AssertionError(f"partition {partition} was given")

    log.own = denied  # type: ignore[method-assign]
    executor: Any = None  # nothing is run
    worker = Worker(
        agent=shop(),
        log=log,
        wire=WIRE,
        executor=executor,
        clock=site.clock,
        limits=OwnerLimits(),
        in_flight=1,
    )
    stop, abort = (asyncio.Event() for _ in range(2))
    site.answer = denied_until(3_600.0)
    ended_after_a_minute(site, site.run(worker.run(stop, drain_s=1.0, abort=abort)))


@pytest.mark.parametrize("topic", [TOPICS.commands, TOPICS.state])
def test_a_worker_without_the_key_of_a_record_ends_and_commits_nothing_past_it(
    site: Site, topic: str
) -> None:
    sealing = Envelope("app", Keyring({"k1": DataKey(b"1" * 32)}))
    start = start_out("app", 1, "shop", "r", b"1", sent_ms=0)
    broker = MemoryBroker(site.clock)
    broker.create([*agent_specs("app", "shop", 1, 1_000_000), dead_spec("app", 1_000_000)])
    broker.write([start, sealing.seal(start._replace(topic=topic))])
    log = EmbeddedLog(broker=broker, group=EmbeddedGroup(1), topics=TOPICS, slot=0)
    executor: Any = None  # nothing is run
    worker = Worker(
        agent=shop(),
        log=EncryptedLog(log, Envelope("app", Keyring())),
        wire=WIRE,
        executor=executor,
        clock=site.clock,
        limits=OwnerLimits(),
        in_flight=1,
    )
    stop, abort = (asyncio.Event() for _ in range(2))

    assert isinstance(site.run(worker.run(stop, drain_s=1.0, abort=abort)), KeyMissing)
    assert broker.committed(TOPICS.group, (TOPICS.commands, 0)) in (None, 0)
    assert broker.partition(dead_topic("app"), 0).end == 0
