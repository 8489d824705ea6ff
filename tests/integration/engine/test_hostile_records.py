"""Records that are well formed and ask for what cannot be: each costs itself, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from surefoot import Agent, Context, Done
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import command_out
from tests.support.cluster import Cluster, Watched, cluster, headers_of
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT, PATIENT_WITHOUT_A_TOPIC

#: bytes of a record and its batch besides the payload, with no headers; those of a transaction do
#: not fit in
MARGIN = 150
PARENT = {"agent": "nowhere", "run_id": "p1", "fork": 0, "branch": 0}


def one_step(name: str) -> Agent:
    agent = Agent(name)

    @agent.step
    async def done(ctx: Context, payload: int) -> Done:
        return Done(payload)

    return agent


async def letters(kafka: Cluster, count: int) -> list[dict[str, bytes]]:
    async def told() -> list[Any]:
        dead = await kafka.dead()
        return dead if len(dead) == count else []

    found = await until(told, what=f"{count} dead letters")
    return [headers_of(letter) for letter in found]


@pytest.mark.parametrize("missing", ["nowhere", "no topic's name", "\N{SUPERSCRIPT THREE}"])
async def test_a_start_that_nobody_can_be_told_was_ignored_is_dead_lettered_once(
    bootstrap: str, app: str, agent_name: str, missing: str
) -> None:
    """Its run_id is in use, and the parent that asked for it is of an agent without topics. It is
    read again by whoever takes over, as a record before it is still in work."""
    watched = Watched(agent_name, steps=1)
    agent = watched.on("any")
    watched.hold("held")
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT_WITHOUT_A_TOPIC) as kafka:
        await kafka.start(agent, "held")
        await kafka.start(agent, "r1")
        first = await kafka.work(watched.on("A"))
        await kafka.until_status(agent, "r1", "completed")
        (owner,) = first.worker.owners.values()
        again = command_out(
            app,
            1,
            agent.name,
            run_id="r1",
            kind="start",
            sent_ms=0,
            payload=b"7",
            parent=PARENT | {"agent": missing},
        )
        offset = await kafka.send(again)
        await kafka.start(agent, "good")
        await kafka.until_status(agent, "good", "completed")
        (told,) = await letters(kafka, 1)
        assert told["sf-dead-offset"] == b"%d" % offset
        assert told["sf-dead-code"] == b"no_topic"
        assert list(first.worker.owners.values()) == [owner]  # it has not failed over it
        await first.vanish()
        assert (await kafka.committed(agent)).get(("commands", 0), 0) <= offset

        watched.let_go("held")
        await kafka.work(watched.on("B"))
        await kafka.start(agent, "last")
        await kafka.until_status(agent, ["held", "last"], "completed")
        assert len(await letters(kafka, 1)) == 1
        await kafka.check_history(agent)


async def test_a_record_that_is_too_large_to_be_sent_on_to_its_partition_is_dead_lettered(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """As large as a record may be, it has no room for what tells where it came from."""
    agent = one_step(agent_name)
    async with cluster(bootstrap, app, agent, partitions=2, **PATIENT) as kafka:
        worker = await kafka.work(agent)
        run_id = kafka.run_on(1)
        limit = kafka.settings.record_max_bytes
        out = command_out(
            app,
            2,
            agent.name,
            run_id=run_id,
            kind="start",
            sent_ms=0,
            payload=b"1" * (limit - MARGIN),
        )
        offset = await kafka.send(ProducerRecord(out.topic, 0, out.key, out.value))
        good = [kafka.run_on(partition, "good") for partition in range(2)]
        for each in good:
            await kafka.start(agent, each)
        await kafka.until_status(agent, good, "completed")
        (told,) = await letters(kafka, 1)
        assert told["sf-dead-offset"] == b"%d" % offset
        assert told["sf-dead-partition"] == b"0"
        assert told["sf-dead-code"] == b"too_large"
        assert worker.task.done() is False
