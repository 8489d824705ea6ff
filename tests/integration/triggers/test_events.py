"""Events of other people's topics start runs on a real broker: each one, whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from confluent_kafka import TopicPartition
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, FencedError
from surefoot.infra.kafka.backend import KafkaBackend
from surefoot.infra.kafka.source import KafkaSourceLog
from surefoot.infra.processes.trigger import event_worker
from surefoot.state.errors import OutcomeUnknown
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.ports.sources import SourceOffsets
from tests.checker.kafka import stable_offsets
from tests.support.cluster import Cluster, cluster, headers_of
from tests.support.eventually import until
from tests.support.foreign_clients import (
    ORDER,
    Order,
    Registry,
    cloud_binary,
    cloud_structured,
    confluent,
    confluent_guid,
    plain_json,
    single_object,
)
from tests.support.long_deadlines import PATIENT
from tests.support.trigger_cluster import Listening, listening


def counting(name: str, topic: str, **declared: Any) -> Agent:
    """A run from each number; 13 raises, and one below 0 is not for it."""
    agent = Agent(name)

    @agent.step
    async def count(ctx: Context, number: int) -> Done:
        return Done(number)

    given: dict[str, Any] = {"topic": topic, "start": "earliest", "where": lambda n: n >= 0}

    @agent.on_event(**given | declared)
    def on_number(number: int) -> int:
        if number == 13:
            raise ValueError("unlucky")
        return number

    return agent


async def committed(heard: Listening, partition: int = 0) -> int | None:
    """What the trigger's group has committed, also in a transaction that is being completed."""
    group, bootstrap = (
        heard.kafka.topics(heard.agent).trigger_group(heard.topic),
        heard.kafka.settings.bootstrap_servers,
    )
    assert bootstrap is not None
    place = TopicPartition(heard.topic, partition)
    (found,) = await asyncio.to_thread(stable_offsets, bootstrap, group, [place])
    return int(found.offset) if found.offset >= 0 else None


def source_of(heard: Listening, slot: int = 0) -> KafkaSourceLog:
    kafka, topics = heard.kafka, heard.kafka.topics(heard.agent)
    return KafkaSourceLog(
        topics=topics,
        topic=heard.topic,
        settings=kafka.settings,
        clock=kafka.clock,
        slot=slot,
        group=topics.trigger_group(heard.topic),
    )


async def test_an_event_in_any_encoding_starts_one_run_and_poison_is_buried_with_its_place(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ship(ctx: Context, order: Order) -> Done:
        return Done(order.id)

    @agent.on_event(topic=f"{app}-orders", schema=ORDER, start="earliest")
    def on_order(order: Order) -> Order | None:
        return order if 10 // order.total else None

    value = {"id": "o", "total": 5, "note": None, "lane": "FAST"}
    makers = [plain_json, confluent, confluent_guid, single_object, cloud_binary, cloud_structured]
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        for n, make in enumerate(makers):
            await heard.send(*make(value | {"id": f"o{n}"}))
        poison = [b"\x00\x00", b'{"id": "x"}', *(plain_json(value | {"total": 0})[:1])]
        for bad in poison:
            await heard.send(bad, (("mine", b"\xff"),), key=b"k")
        await heard.send(None, key=b"k")
        await heard.send(*plain_json(value | {"total": 20}))
        await heard.send(*plain_json(value | {"id": "last"}))
        heard.begin(schemas=Registry())
        await kafka.work(agent)
        runs = [f"{heard.topic}-0-{offset}" for offset in (0, 1, 2, 3, 4, 5, 11)]
        await kafka.until_status(agent, runs, "completed")
        assert len(await heard.commands()) == len(runs)
        await heard.check_once()
        dead = await kafka.dead()
        assert [record.value for record in dead] == poison
        for offset, record in enumerate(dead, 6):
            told = headers_of(record)
            assert (record.key, told["mine"]) == (b"k", b"\xff")
            assert told["sf-dead-topic"].decode() == heard.topic
            assert (told["sf-dead-partition"], told["sf-dead-offset"]) == (b"0", b"%d" % offset)
        assert await heard.codes() == ["mapping_raised", "undecodable", "undecodable"]
        assert b"ZeroDivisionError" in headers_of(dead[2])["sf-dead-message"]


async def test_two_processes_share_the_partitions_and_no_event_is_lost_or_doubled_when_they_move(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, listening(kafka, agent) as heard:
        total = 0

        async def produce(until_set: asyncio.Event) -> None:
            nonlocal total
            while not until_set.is_set():
                await heard.send_numbers([20 + total])
                total += 1

        quiet = asyncio.Event()
        producing = asyncio.create_task(produce(quiet))
        with capture_logs() as logs:

            def assigned(*partitions: int) -> int:
                return sum(
                    line["event"] == "assignment" and line["partitions"] == [*partitions]
                    for line in logs
                )

            first = heard.begin(slot=0)
            await until(lambda: assigned(0, 1), what="the first to have both")
            await heard.until_started(5)
            heard.begin(slot=1)
            await until(lambda: assigned(0) and assigned(1), what="the two to share")
            await heard.until_started(len(await heard.commands()) + 5)
            before = assigned(0, 1)
            await heard.end(first)
            await until(lambda: assigned(0, 1) > before, what="the second to have both")
            await heard.until_started(len(await heard.commands()) + 5)
        quiet.set()
        await producing
        await heard.until_started(total)
        assert await heard.started() == [20 + n for n in range(total)]
        await heard.check_once()


async def test_an_owner_that_has_been_taken_over_from_commits_nothing(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, listening(kafka, agent) as heard:
        old, new = source_of(heard), source_of(heard, slot=1)
        await heard.send_numbers([0])
        zombie = await old.own(0)
        owner = await new.own(0)
        out = ProducerRecord(kafka.topics(agent).commands, 0, b"x", b"x")
        with pytest.raises(FencedError):
            await zombie.commit([out], 1)
        await owner.commit([], 0)
        assert await heard.commands() == []
        assert await committed(heard) == 0
        await zombie.close()
        await owner.close()


@asynccontextmanager
async def owning(
    heard: Listening, own: Callable[[KafkaSourceLog, int], Awaitable[Any]]
) -> AsyncIterator[None]:
    """The trigger runs meanwhile; `own` is asked when it takes a partition over."""
    worker = event_worker(
        heard.agent,
        heard.topic,
        heard.kafka.settings,
        KafkaBackend(heard.kafka.settings, heard.kafka.clock),
        heard.kafka.clock,
        0,
        None,
    )
    log = cast("KafkaSourceLog", worker._log)

    async def owned(partition: int) -> Any:
        return await own(log, partition)

    log.own = owned  # type: ignore[method-assign]
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_what_the_former_owner_commits_before_it_is_fenced_is_not_read_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        former = await source_of(heard, slot=1).own(0)
        await heard.send(b"20")
        await heard.send(b"21")
        has_committed = False

        async def own(log: KafkaSourceLog, partition: int) -> Any:
            nonlocal has_committed
            if not has_committed:
                await former.commit([], 1)  # with the run of 20, say
                has_committed = True
            return await KafkaSourceLog.own(log, partition)

        async with owning(heard, own):
            await heard.until_started(1)
        assert await heard.started() == [21]
        await former.close()


@pytest.mark.parametrize("landed", [True, False])
async def test_after_an_unknown_outcome_the_committed_offset_decides(
    bootstrap: str, app: str, agent_name: str, landed: bool
) -> None:
    agent = counting(agent_name, f"{app}-numbers")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        owned = 0

        async def own(log: KafkaSourceLog, partition: int) -> Any:
            nonlocal owned
            ownership = await KafkaSourceLog.own(log, partition)
            owned += 1
            if owned == 1:
                commit = ownership.commit

                async def committing(records: Sequence[ProducerRecord], offset: int) -> None:
                    if landed:
                        await commit(records, offset)
                    raise OutcomeUnknown("no answer")

                ownership.commit = committing  # type: ignore[method-assign]
            return ownership

        await heard.send_numbers([20, 21, 22])
        async with owning(heard, own):
            await heard.until_started(3)
            await heard.send(b"23")
            await heard.until_started(4)
        assert await heard.started() == [20, 21, 22, 23]
        assert owned >= 2


async def test_where_a_trigger_begins_is_settled_once_for_all_partitions(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """What comes between the decision and the first read is not lost, however it is interrupted;
    and a partition that is added later is read from its beginning."""
    agent = counting(agent_name, f"{app}-numbers", start="latest")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, listening(kafka, agent) as heard:
        await heard.send_numbers([20, 21, 22])  # from before
        both = [source_of(heard, slot) for slot in (0, 1)]
        settled = await asyncio.gather(
            *(source.settle_start("latest") for source in both), return_exceptions=True
        )
        assert None in settled
        await heard.send_numbers([30, 31])
        await both[0].settle_start("latest")
        assert [await committed(heard, p) for p in (0, 1)] == [2, 1]
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.settings.bootstrap_servers)
        await admin.start()
        await admin.create_partitions({heard.topic: NewPartitions(total_count=3)})

        async def told() -> bool:
            (topic,) = await admin.describe_topics([heard.topic])
            return len(topic["partitions"]) == 3

        await until(told, what="the new partition to be known")
        await admin.close()
        late = Cluster(kafka.settings)  # whose producer knows of it
        await late.send(ProducerRecord(heard.topic, 2, None, b"40"))
        await late.close()
        heard.begin()
        await heard.until_started(3)
        assert set(await heard.started()) == {30, 31, 40}


async def test_what_retention_took_is_told_and_kept_and_the_rest_is_read(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers", start="latest")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        await source_of(heard).settle_start("latest")
        for number in range(20, 30):
            await heard.send(b"%d" % number)
        await kafka.delete_before(heard.topic, 0, 6)
        with capture_logs() as logs:
            heard.begin()
            await heard.until_started(4)
        assert await heard.started() == [26, 27, 28, 29]
        (record,) = await kafka.dead()
        told = headers_of(record)
        assert told["sf-dead-code"] == b"events_lost"
        assert told["sf-dead-topic"].decode() == heard.topic
        assert (told["sf-dead-offset"], told["sf-dead-until"]) == (b"0", b"6")
        line = next(line for line in logs if line["event"] == "events_lost")
        assert (line["start"], line["end"], line["log_level"]) == (0, 6, "error")


@pytest.mark.parametrize(("start", "wanted"), [("earliest", [20, 21, 30]), ("latest", [30])])
async def test_a_committed_offset_beyond_the_end_is_told_once_the_broker_says_so(
    bootstrap: str, app: str, agent_name: str, start: str, wanted: list[int]
) -> None:
    agent = counting(agent_name, f"{app}-numbers", start=start)
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        await heard.send(b"20")
        await heard.send(b"21")
        ownership = await source_of(heard).own(0)
        await ownership.commit([], 9)
        await ownership.close()
        assert await committed(heard) == 9  # for everybody: no trigger begins anew
        heard.begin()

        async def told() -> list[str]:
            return await heard.codes()

        assert await until(told, what="the dead letter") == ["events_lost"]
        await heard.send(b"30")
        await heard.until_started(len(wanted))
        assert await heard.started() == wanted
        assert headers_of((await kafka.dead())[0])["sf-dead-until"] == b"9"


async def test_a_topic_that_is_not_there_is_waited_for_and_its_first_events_count(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers", start="latest")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, create=False) as heard,
    ):
        with capture_logs() as logs:
            heard.begin()
            missing = ("topic_missing", heard.topic)
            await until(
                lambda: missing in [(line["event"], line.get("topic")) for line in logs],
                what="the missing topic to be told",
            )
        await heard.create()
        await heard.send_numbers([20, 21])
        await heard.until_started(2)


async def test_that_a_topic_was_waited_for_is_remembered_when_the_log_then_does_not_answer(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = counting(agent_name, f"{app}-numbers", start="latest")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, create=False) as heard,
    ):
        real = KafkaSourceLog._standing
        away = True

        async def standing(log: KafkaSourceLog, *asked: Any) -> SourceOffsets:
            nonlocal away
            if away:
                await heard.send_numbers([20, 21])
                away = False
                raise TimeoutError
            return await real(log, *asked)

        monkeypatch.setattr(KafkaSourceLog, "_standing", standing)
        with capture_logs() as logs:
            heard.begin()
            await until(
                lambda: "topic_missing" in [line["event"] for line in logs],
                what="the missing topic to be told",
            )
        await heard.create()
        await heard.until_started(2)


async def test_skipped_events_and_markers_leave_no_lag(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = counting(agent_name, f"{app}-numbers")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        await heard.send(b"-1")
        writer = await source_of(heard).own(0)
        await writer.commit([ProducerRecord(heard.topic, 0, None, b"-2")], 0)
        await writer.close()
        heard.begin()

        async def at_end() -> bool:
            return await committed(heard) == 3  # the marker included

        await until(at_end, what="the offset to step over the marker")
        assert await heard.commands() == []
        assert await kafka.dead() == []


async def test_an_event_too_large_for_the_commands_topic_is_buried_and_the_others_go_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def count(ctx: Context, text: str) -> Done:
        return Done(len(text))

    @agent.on_event(topic=f"{app}-texts", start="earliest")
    def on_text(text: str) -> str:
        return text

    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka.settings.bootstrap_servers)
        await admin.start()
        limit = {"max.message.bytes": "20000"}
        commands = kafka.topics(agent).commands
        await admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, commands, limit)])
        await admin.close()
        for size in (10, 30_000, 10, 30_000):
            await heard.send(json.dumps("x" * size).encode())
        heard.begin()
        await heard.until_started(2)

        async def buried() -> bool:
            return await heard.codes() == ["too_large", "too_large"]

        await until(buried, what="two dead letters")
        await heard.check_once()
