"""Topics may be compressed with any codec that Kafka has: other people's, and our own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka import codec as codecs

from surefoot import Agent, ConfigError, Context, Done, Next
from surefoot.infra.kafka_client.topics import Topics
from surefoot.state.names.topics import agent_specs
from tests.support.cluster import Cluster, cluster
from tests.support.long_deadlines import PATIENT
from tests.support.trigger_cluster import listening

CODECS = ["gzip", "snappy", "lz4", "zstd"]


def doubling(name: str, topic: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def take(ctx: Context, number: int) -> Next:
        return Next(double, number)

    @agent.step
    async def double(ctx: Context, number: int) -> Done:
        return Done(2 * number)

    @agent.on_event(topic=topic, start="earliest")
    def on_number(number: int) -> int:
        return number

    return agent


async def compressed_topics(kafka: Cluster, agent: Agent, codec: str) -> None:
    """As an operator may have made them, before anything else has."""
    specs = [
        replace(spec, config={**spec.config, "compression.type": codec})
        for spec in agent_specs(
            kafka.settings.app,
            agent.name,
            kafka.settings.partitions,
            kafka.settings.record_max_bytes,
        )
    ]
    async with Topics(kafka.settings) as topics:
        await topics.apply(specs)


@pytest.mark.parametrize("codec", CODECS)
async def test_runs_complete_and_are_restored_on_compressed_topics(
    codec: str, bootstrap: str, app: str, agent_name: str
) -> None:
    agent = doubling(agent_name, f"{app}-numbers")
    async with cluster(bootstrap, app, **PATIENT) as kafka:
        await compressed_topics(kafka, agent, codec)
        first = await kafka.work(agent)
        await kafka.start(agent, "before", b"1" * 400)
        await kafka.until_status(agent, ["before"], "completed")
        await first.drain()
        await kafka.work(agent)
        await kafka.start(agent, "before", b"1" * 400)  # known from the restored state
        await kafka.start(agent, "after", b"2")
        await kafka.until_status(agent, ["before", "after"], "completed")
        await kafka.check_history(agent)


async def test_our_own_records_may_be_compressed(bootstrap: str, app: str, agent_name: str) -> None:
    agent = doubling(agent_name, f"{app}-numbers")
    async with cluster(bootstrap, app, agent, compression="zstd", **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "before", b"1" * 400)
        await kafka.until_status(agent, ["before"], "completed")
        await first.drain()
        await kafka.work(agent)
        await kafka.start(agent, "after", b"2")
        await kafka.until_status(agent, ["before", "after"], "completed")
        await kafka.check_history(agent)


@pytest.mark.parametrize("codec", CODECS)
async def test_compressed_events_of_other_people_start_runs(
    codec: str, bootstrap: str, app: str, agent_name: str
) -> None:
    agent = doubling(agent_name, f"{app}-numbers")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        await heard.send(b"1")
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type=codec, linger_ms=50
        ) as producer:
            for number in (2, 3):
                await producer.send_and_wait(heard.topic, b"%d" % number)
        await heard.send(b"4")
        heard.begin()
        await heard.until_started(4)
        assert await heard.started() == [1, 2, 3, 4]


async def test_a_codec_that_is_missing_ends_the_trigger_at_its_start_and_is_named(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = doubling(agent_name, f"{app}-numbers")
    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        listening(kafka, agent, partitions=1) as heard,
    ):
        async with AIOKafkaProducer(
            bootstrap_servers=bootstrap, compression_type="zstd"
        ) as producer:
            await producer.send_and_wait(heard.topic, b"1")
        monkeypatch.setattr(codecs, "cramjam", None)
        heard.begin()
        with pytest.raises(ConfigError, match=f"{heard.topic}, partition 0, offset 0: .* zstd"):
            await heard.ended()
        monkeypatch.undo()
        heard.begin()
        await heard.until_started(1)
        assert await heard.started() == [1]


async def test_topics_that_cannot_be_unpacked_are_refused_before_anybody_starts(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = doubling(agent_name, f"{app}-numbers")
    async with cluster(bootstrap, app) as kafka:
        await compressed_topics(kafka, agent, "lz4")
        monkeypatch.setattr(codecs, "cramjam", None)
        with pytest.raises(ConfigError, match=f"{agent_name}.state has compression.type=lz4"):
            await kafka.create_topics(agent)
