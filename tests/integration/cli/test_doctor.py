"""The runbooks on a real broker: a fault, what the doctor says, the command that it names, and the
doctor again."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka.admin import AdminClient

from surefoot import Agent, Context, Done, Wait
from surefoot.infra.broker.java import fetch_jars, find_java
from surefoot.state.diagnosis.work import STRANGERS_MIN
from tests.integration.cli.test_cli_end_to_end import Cli
from tests.integration.outbox.test_relay import relay
from tests.support.cluster import Cluster, cluster
from tests.support.effect_target import Reply, sink
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT
from tests.support.required_programs import program
from tests.support.trigger_cluster import listening

#: what is in the file that the commands are given
SHOP = """
from surefoot import Agent, Context, Done

shop = Agent("shop")


@shop.step
async def ship(ctx: Context, order: int) -> Done:
    return Done(order)


@shop.on_event(topic="TOPIC", start="earliest")
def on_order(order: int) -> int:
    return order
"""
TWO_MINUTES_MS = 120_000


@pytest.fixture
def topic(app: str) -> str:
    return f"{app}-orders"


@pytest.fixture
def env(bootstrap: str, app: str) -> dict[str, str]:
    return {
        "SUREFOOT_BOOTSTRAP_SERVERS": bootstrap,
        "SUREFOOT_APP": app,
        "SUREFOOT_PARTITIONS": "1",
        "SUREFOOT_GATEWAY_PORT": "0",
    }


@pytest.fixture
def cli(env: dict[str, str], topic: str, tmp_path: Path) -> Iterator[Cli]:
    (tmp_path / "shop.py").write_text(SHOP.replace("TOPIC", topic))
    made = Cli(env, tmp_path)
    yield made
    made.close()


@asynccontextmanager
async def shop(bootstrap: str, app: str, agent: Agent) -> AsyncIterator[Cluster]:
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        yield kafka


def shipping() -> Agent:
    agent = Agent("shop")

    @agent.step
    async def ship(ctx: Context, order: int) -> Done:
        return Done(order)

    return agent


async def typed(cli: Cli, *words: str) -> str:
    """What a command prints that has to succeed."""
    done = await asyncio.to_thread(cli.here, *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def doctor(cli: Cli, *options: str) -> dict[str, Any]:
    """What is found, by code; without the disk, which is that of whoever runs the tests.

    Workers of this process may log to the same output."""
    done = await asyncio.to_thread(cli.here, "doctor", "shop.py", "--json", *options)
    told = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    assert told["blind"] == []
    assert done.returncode == (1 if told["findings"] else 0)
    return {each["code"]: each for each in told["findings"] if each["code"] != "disk_full"}


async def until_healthy(cli: Cli, *options: str) -> None:
    async def healthy() -> bool:
        return not await doctor(cli, *options)

    await until(healthy, what="the doctor to find nothing")


async def test_poison_is_found_and_redriven_once_the_code_takes_it(
    bootstrap: str, app: str, topic: str, cli: Cli
) -> None:
    broken = shipping()

    @broken.on_event(topic=topic, start="earliest")
    def on_order(order: int) -> int:
        assert order < 10
        return order

    async with (
        shop(bootstrap, app, broken) as kafka,
        listening(kafka, broken, partitions=1) as heard,
    ):
        await kafka.work(broken)
        heard.begin()
        await heard.send_numbers(range(7, 15))

        async def buried() -> bool:
            return len(await kafka.dead()) == 5

        await until(buried, what="all of the poison to be buried")
        found = (await doctor(cli))["inputs_dead"]
        assert found["what"].startswith("5 inputs of shop could not be used")
        _, redrive = found["do"]
        await typed(cli, *redrive.replace("AGENT.py", "shop.py").split()[1:])
        await heard.until_started(8)
        await until_healthy(cli, "--since", "1s")


async def test_lost_offsets_are_found_and_come_back_with_a_worker(
    bootstrap: str, app: str, cli: Cli
) -> None:
    agent = shipping()
    async with shop(bootstrap, app, agent) as kafka:
        worker = await kafka.work(agent)
        await kafka.start(agent, "r1")
        await kafka.until_status(agent, "r1", "completed")
        await worker.drain()
        assert await doctor(cli) == {}
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (deleted,) = admin.delete_consumer_groups([kafka.topics(agent).group]).values()
        await asyncio.to_thread(deleted.result)
        found = (await doctor(cli))["offsets_lost"]
        assert found["do"] == ["surefoot worker AGENT.py"]
        await kafka.work(agent)
        await until_healthy(cli)
        assert len(await kafka.events(agent, "r1")) == 2  # it has not run again


async def test_a_transaction_that_hangs_is_found_and_ended(
    bootstrap: str, app: str, cli: Cli
) -> None:
    program("java")
    agent = shipping()
    theirs = AIOKafkaProducer(
        bootstrap_servers=bootstrap,
        transactional_id=f"{app}-theirs",
        transaction_timeout_ms=600_000,
    )
    async with shop(bootstrap, app, agent) as kafka:
        await kafka.work(agent)
        await theirs.start()
        try:
            await theirs.begin_transaction()
            await theirs.send_and_wait(
                kafka.topics(agent).commands,
                b"never committed",
                partition=0,
                timestamp_ms=kafka.clock.now_ms() - TWO_MINUTES_MS,
            )
            await kafka.start(agent, "behind")
            found = (await doctor(cli))["transaction_hangs"]
            assert f"{app}-theirs" in found["what"]
            [command] = found["do"]
            await asyncio.to_thread(kafka_tool, command, bootstrap)
        finally:
            await theirs.stop()
        await kafka.until_status(agent, "behind", "completed")
        await until_healthy(cli)


def kafka_tool(command: str, bootstrap: str) -> None:
    """Run `kafka-transactions ...` as its script does."""
    _, *words = command.replace("$SUREFOOT_BOOTSTRAP_SERVERS", bootstrap).split()
    main = "org.apache.kafka.tools.TransactionsCommand"
    java = [find_java(), "-XX:TieredStopAtLevel=1", "-cp", f"{fetch_jars()}/*", main]
    subprocess.run([*java, *words], check=True, capture_output=True, timeout=240)


async def test_effects_whose_target_was_down_are_found_and_sent_again(
    bootstrap: str, app: str, cli: Cli
) -> None:
    agent = Agent("shop")
    async with sink() as target, shop(bootstrap, app, agent) as kafka:

        @agent.step
        async def ship(ctx: Context, order: int) -> Done:
            ctx.outbox.http("POST", f"{target.url}/orders", json=order)
            return Done(order)

        target.script = {"/orders": [Reply(503)] * 4}
        await kafka.work(agent)
        await relay(kafka)
        await kafka.start(agent, "r1")
        await kafka.until_status("outbox", "shop:r1:0:0", "failed")
        found = (await doctor(cli))["effects_failed"]
        assert found["what"].startswith("1 effects for 127.0.0.1 were given up")
        _, retry = found["do"]
        await typed(cli, *retry.split()[1:])
        await kafka.until_status("outbox", "shop:r1:0:0", "completed")
        await until_healthy(cli)
        assert [*target.acted] == ["shop:r1:0:0"]


async def test_a_run_that_a_deploy_has_parked_is_found_and_goes_on_once_it_is_undone(
    bootstrap: str, app: str, cli: Cli
) -> None:
    before, after = Agent("shop"), shipping()

    @before.step
    async def ask(ctx: Context, order: int) -> Wait:
        return Wait("paid", then=pay)

    @before.step
    async def pay(ctx: Context, order: int) -> Done:
        return Done(order)

    async with shop(bootstrap, app, before) as kafka:
        worker = await kafka.work(before)
        await kafka.start(before, "r1")
        await kafka.until_status(before, "r1", "waiting")
        await worker.drain()
        worker = await kafka.work(after)
        await kafka.until_status(after, "r1", "attention")
        found = (await doctor(cli))["runs_parked"]
        assert "unknown_step" in found["what"]
        await worker.drain()
        await kafka.work(before)
        await typed(cli, "runs", "retry", "shop", "r1")
        await until_healthy(cli)


@pytest.fixture
def guarded(env: dict[str, str], cli: Cli, tmp_path: Path) -> Iterator[Cli]:
    """The same where the gateway wants a token."""
    made = Cli({**env, "SUREFOOT_AUTH": "tokens"}, tmp_path)
    yield made
    made.close()


async def test_a_token_that_has_leaked_is_revoked_and_its_use_found_until_it_ends(
    guarded: Cli,
) -> None:
    secret = (await typed(guarded, "tokens", "create", "ci", "--role", "operator")).splitlines()[-1]
    await typed(guarded, "topics", "apply", "shop.py")
    service = guarded.start("gateway", "shop.py")
    [ready] = await asyncio.to_thread(service.wait_for, "gateway_ready")
    headers = {"Authorization": f"Bearer {secret}"}
    async with httpx.AsyncClient(base_url=ready["url"], timeout=90, headers=headers) as thief:

        async def known() -> bool:
            return (await thief.get("/runs/shop")).status_code == 200

        await until(known, what="the gateway to know the token")
        await typed(guarded, "tokens", "revoke", "ci")

        async def refused() -> bool:
            return (await thief.get("/runs/shop")).status_code == 401

        await until(refused, what="the gateway to refuse the token")

        async def found() -> dict[str, Any] | None:
            """Of more than enough requests, since a record that the log is slow to take is lost."""
            for _ in range(STRANGERS_MIN):
                await refused()
            return (await doctor(guarded)).get("strangers")

        told = await until(found, what="the doctor to find them")
    assert told is not None
    assert "from 127.0.0.1" in told["what"]
    assert "tokens revoke" in await typed(guarded, "audit")
    await until_healthy(guarded, "--since", "1s")
