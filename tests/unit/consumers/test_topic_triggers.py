"""What the owner of a partition does while the registry does not have a schema, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done
from surefoot.consumers.topic_triggers.mapping import EventMapping, Schemas
from surefoot.consumers.topic_triggers.owner import TriggerOwner
from surefoot.infra.simulation.time import VirtualClock, VirtualLoop, in_thread
from surefoot.schemas.codec.codec import decode
from surefoot.state.errors import Unavailable
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord, ProducerRecord
from surefoot.state.ports.sources import SchemaMissing, SourceOffsets
from surefoot.state.records.encoding import Wire
from tests.support.foreign_clients import ORDER, confluent, plain_json

VALUE = {"id": "o1", "total": 5, "note": None, "lane": "FAST"}
KNOWN, LATE, NEVER = 7, 8, 9
WAIT_S = 600.0


class Registry:
    """Has LATE only from a time on; notes when it was asked for what."""

    def __init__(self, clock: VirtualClock, late_s: float) -> None:
        self.asked: list[tuple[float, int]] = []
        self.away_until_s = 0.0
        self._clock = clock
        self._late_s = late_s

    async def by_id(self, id: int, /) -> Any:  # noqa: A002
        now_s = self._clock.monotonic_s()
        self.asked.append((now_s, id))
        if now_s < self.away_until_s:
            raise Unavailable("SF3012", "away")
        if id == NEVER or (id == LATE and now_s < self._late_s):
            raise SchemaMissing("Schema not found")
        return ORDER

    async def by_guid(self, guid: str, /) -> Any:
        raise LookupError(guid)


class Log:
    """Implements what an Intake needs of SourceLog and SourceOwnership; notes what is committed."""

    def __init__(self, clock: VirtualClock) -> None:
        self.committed: list[tuple[float, list[ProducerRecord], int]] = []
        self._clock = clock

    def pause(self, partition: int) -> None: ...

    def resume(self, partition: int, position: int | None = None) -> None: ...

    def position(self, _partition: int) -> None: ...

    async def own(self, _partition: int) -> Log:
        return self

    async def standing(self) -> SourceOffsets:
        return SourceOffsets(0, 0, 0)

    async def commit(self, records: Sequence[ProducerRecord], offset: int) -> None:
        self.committed.append((self._clock.monotonic_s(), list(records), offset))

    async def close(self) -> None: ...


class Site:
    def __init__(self, *, late_s: float = 0.0, wait_s: float = WAIT_S) -> None:
        agent = Agent("shop")

        @agent.step
        async def take(ctx: Context, payload: Any) -> Done:
            return Done()

        @agent.on_event(topic="orders")
        def on_order(event: dict[str, Any]) -> Any:
            return event["id"]

        clock = VirtualClock(start_ms=0, seed=1)
        self.loop = VirtualLoop(clock)
        self.registry = Registry(clock, late_s)
        self.log = Log(clock)
        log: Any = self.log
        trigger = agent.event_triggers["orders"]
        self.intake = TriggerOwner(
            mapping=EventMapping(
                agent=agent,
                trigger=trigger,
                wire=Wire("app", AgentTopics("app", "shop"), 1),
                schemas=Schemas(trigger, self.registry),
                record_bytes=10_000,
                schema_wait_s=wait_s,
            ),
            partition=0,
            log=log,
            clock=clock,
        )
        self._offset = 0
        self._serving = self.loop.create_task(self.intake.serve())
        self.loop.run_until(lambda: self.intake.ready, deadline_s=0.0)

    def send(self, *schemas: int | None) -> None:
        for number in schemas:
            value, _ = plain_json(VALUE) if number is None else confluent(VALUE, number=number)
            self.intake.ingest(ConsumerRecord("orders", 0, self._offset, 0, None, value))
            self._offset += 1

    def run(self, until_s: float) -> None:
        self.loop.run_until(lambda: False, deadline_s=until_s)

    def close(self) -> None:
        self.intake.finish()
        self.loop.run_until_complete(self._serving)
        self.loop.close()

    def told(self) -> list[tuple[str, str]]:
        """(topic, run or code) of what was committed, in order."""
        found = []
        for _, records, _ in self.log.committed:
            for out in records:
                if out.topic == "app.dead":
                    found.append(("dead", dict(out.headers)["sf-dead-code"].decode()))
                else:
                    found.append(("run", decode(out.value, "Command")[1]["run_id"]))
        return found


async def at_once(fn: Callable[..., Any], *args: Any) -> Any:
    """A thread that runs on while virtual time stands still."""
    value, error = in_thread(fn, *args)
    if error is not None:
        raise error
    return value


@pytest.fixture
def site(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr("surefoot.consumers.topic_triggers.owner.in_thread", at_once)
    made = Site(**getattr(request, "param", {}))
    yield made
    made.close()


@pytest.mark.parametrize("site", [{"late_s": 300.0}], indirect=True)
def test_a_schema_that_the_registry_has_later_is_waited_for_and_nothing_is_lost(site: Site) -> None:
    site.send(KNOWN, LATE, None, LATE)
    with capture_logs() as logs:
        site.run(299.0)
        assert site.log.committed == []
        site.run(310.0)
    assert site.told() == [("run", f"orders-0-{offset}") for offset in range(4)]
    warned = [line for line in logs if line["event"] == "schema_lookup_retry"]
    assert warned[0]["log_level"] == "warning"
    assert "schema id 8: Schema not found; waited 0 of 600 s" in warned[0]["error"]
    asked = [at_s for at_s, number in site.registry.asked if number == LATE]
    assert len(asked) == len(set(asked))  # once each time, however many events wait for it
    assert len(asked) < 100
    assert [number for _, number in site.registry.asked].count(KNOWN) == 1


def test_an_event_whose_schema_does_not_come_is_a_dead_letter_when_its_time_is_over(
    site: Site,
) -> None:
    site.send(KNOWN, NEVER, None)
    site.run(WAIT_S - 1)
    assert site.log.committed == []
    site.run(WAIT_S + 6)
    assert site.told() == [("run", "orders-0-0"), ("dead", "schema_missing"), ("run", "orders-0-2")]
    (_, records, _) = site.log.committed[0]
    told = dict(records[1].headers)
    assert records[1].value == confluent(VALUE, number=NEVER)[0]
    assert told["sf-dead-agent"] == b"shop"
    assert b"schema id 9: Schema not found; waited 60" in told["sf-dead-message"]
    site.send(NEVER, KNOWN)  # it has been waited for
    site.run(WAIT_S + 12)
    assert site.told()[3:] == [("dead", "schema_missing"), ("run", "orders-0-4")]


def test_schemas_that_are_missing_are_waited_for_at_the_same_time(site: Site) -> None:
    """Bytes of anybody may look like any number of schemas."""
    registry: Any = site.registry
    registry.by_id = _none
    site.send(*range(100, 200))
    site.run(WAIT_S + 6)
    assert site.told() == [("dead", "schema_missing")] * 100


async def _none(number: int, /) -> Any:
    raise SchemaMissing(f"{number} not found")


@pytest.mark.parametrize("site", [{"late_s": 300.0}], indirect=True)
def test_while_the_registry_is_away_nothing_is_buried_however_long(site: Site) -> None:
    site.registry.away_until_s = 10 * WAIT_S
    site.send(KNOWN, LATE)
    site.run(10 * WAIT_S - 1)
    assert site.log.committed == []
    site.run(10 * WAIT_S + 6)
    assert site.told() == [("run", "orders-0-0"), ("run", "orders-0-1")]


@pytest.mark.parametrize("site", [{"wait_s": 0.0}], indirect=True)
def test_who_wants_no_waiting_has_none(site: Site) -> None:
    site.send(NEVER, None)
    site.run(1.0)
    assert site.told() == [("dead", "schema_missing"), ("run", "orders-0-1")]


def test_a_partition_that_is_given_up_while_it_waits_commits_nothing(site: Site) -> None:
    site.send(KNOWN, NEVER)
    site.run(30.0)
    site.intake.finish()
    site.run(60.0)
    assert site.log.committed == []
