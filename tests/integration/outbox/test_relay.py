"""The outbox against a target that fails in every way, and against commits that do not happen."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import typer
from aiokafka.errors import KafkaError
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next, Retry
from surefoot.commands.runs import operate
from surefoot.consumers.builtin.outbox import HttpDelivery, outbox_agent
from surefoot.infra.http.deliver import HttpDeliver
from surefoot.infra.kafka_client.transactions import ProducerEpoch, TransactionClient
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.egress.policy import parse_allowed
from surefoot.state.steps import context
from tests.support.cluster import (
    LATER_MS,
    Cluster,
    MovingClock,
    Running,
    cluster,
    headers_of,
    names,
)
from tests.support.effect_target import Reply, Sink, sink
from tests.support.long_deadlines import PATIENT
from tests.support.servers import served

QUICK_RETRY = Retry(attempts=4, initial_s=0.05, max_s=0.1)


async def relay(kafka: Cluster, *, timeout_s: float = 60.0, retry: Retry = QUICK_RETRY) -> Running:
    deliver = HttpDeliver(parse_allowed("127.0.0.1"), timeout_s=timeout_s)
    return await kafka.work(outbox_agent(HttpDelivery(deliver, SystemClock(), retry=retry)))


def sender(name: str, target: Sink, *, effects: int = 1) -> Agent:
    """One step that asks for `effects` requests; their path is /run/index."""
    agent = Agent(name)

    async def send(ctx: Context, payload: int) -> Done:
        for index in range(effects):
            url = f"{target.url}/{ctx.run_id}/{index}"
            ctx.outbox.http("POST", url, json={"run": ctx.run_id, "index": index, "ä": "ü"})
        return Done()

    agent.step(send)
    return agent


async def test_whatever_the_target_does_each_effect_is_asked_for_until_it_is_taken(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with sink() as target:
        agent = sender(agent_name, target)
        target.script = {
            "/error/0": [Reply(500), Reply(503)],
            "/close/0": ["close", "close"],
            "/part/0": ["part"],
            "/busy/0": [Reply(429, {"Retry-After": "1"})],
            "/deploy/0": [Reply(404), Reply(401), Reply(403)],
        }
        runs = ["fine", "error", "close", "part", "busy", "deploy"]
        keys = {run_id: f"{agent_name}:{run_id}:0:0" for run_id in runs}
        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            await relay(kafka)
            await kafka.work(agent)
            for run_id in runs:
                await kafka.start(agent, run_id)
            await kafka.until_status("outbox", keys["fine"], "completed")
            await kafka.until_status("outbox", keys.values(), "completed")
            tries = {run_id: target.keys().count(key) for run_id, key in keys.items()}
            assert tries == {"fine": 1, "error": 3, "close": 3, "part": 2, "busy": 2, "deploy": 4}
            target.check(await kafka.effects())
            assert target.acted[keys["fine"]].body.decode() == ('{"run":"fine","index":0,"ä":"ü"}')
            asked, again = (
                e["at_ms"]
                for e in await kafka.events("outbox", keys["busy"])
                if e["type"] in ("step.retrying", "run.completed")
            )
            assert again - asked >= 1_000
            await kafka.check_history("outbox")


async def test_an_answer_that_does_not_end_is_not_waited_for(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with sink() as target:
        agent = sender(agent_name, target)
        target.script = {"/timeout/0": ["hang"], "/drip/0": ["drip"]}
        keys = {run_id: f"{agent_name}:{run_id}:0:0" for run_id in ("timeout", "drip")}
        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            # However often a machine that stalls lets good answers come too late as well.
            retry = Retry(attempts=1_000, initial_s=0.05, max_s=0.1)
            await relay(kafka, timeout_s=1.0, retry=retry)
            await kafka.work(agent)
            for run_id in keys:
                await kafka.start(agent, run_id)
            await kafka.until_status("outbox", keys.values(), "completed")
            assert all(target.keys().count(key) >= 2 for key in keys.values())
            target.check(await kafka.effects())
            await kafka.check_history("outbox")


async def test_effects_of_one_run_go_out_in_order_and_do_not_hold_up_those_of_others(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with sink() as target:
        agent = sender(agent_name, target, effects=3)
        target.script = {
            "/slow/0": [Reply(429, {"Retry-After": "1800"})],
            "/slow/1": [Reply(500), "close"],
        }
        async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
            first = await relay(kafka)
            await kafka.work(agent)
            await kafka.start(agent, "slow")
            await kafka.until_status(agent, "slow", "completed")
            others = [f"other-{n}" for n in range(5)]
            for run_id in others:
                await kafka.start(agent, run_id)
            keys = [f"{agent_name}:{run_id}:0:{i}" for run_id in others for i in range(3)]
            await kafka.until_status("outbox", keys, "completed")
            await first.drain()
            kafka.clock = MovingClock(LATER_MS)
            await relay(kafka)
            slow = [f"{agent_name}:slow:0:{i}" for i in range(3)]
            await kafka.until_status("outbox", slow, "completed")
            asked = target.keys()
            of_slow = [key for key in asked if key in slow]
            assert of_slow == [slow[0]] * 2 + [slow[1]] * 3 + [slow[2]]
            # All others were done while the slow one was told to wait.
            second = [n for n, key in enumerate(asked) if key == slow[0]][1]
            assert set(asked[:second]) == {slow[0], *keys}
            target.check(await kafka.effects())


async def test_out_of_attempts_and_refused_effects_are_dead_lettered_and_the_next_one_goes(
    bootstrap: str, app: str, agent_name: str
) -> None:
    async with sink() as target:
        agent = sender(agent_name, target, effects=3)
        target.script = {"/r/0": [Reply(500)] * 9, "/r/1": [Reply(400)]}
        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            await relay(kafka)
            await kafka.work(agent)
            await kafka.start(agent, "r")
            keys = [f"{agent_name}:r:0:{index}" for index in range(3)]
            await kafka.until_status("outbox", keys[2], "completed")
            assert target.keys() == [keys[0]] * QUICK_RETRY.attempts + [keys[1], keys[2]]
            dead = {(r.key or b"").decode(): headers_of(r) for r in await kafka.dead()}
            assert set(dead) == set(keys[:2])
            assert dead[keys[0]]["sf-dead-attempts"] == b"4"
            assert b"500" in dead[keys[0]]["sf-dead-message"]
            assert dead[keys[1]]["sf-dead-attempts"] == b"1"
            assert b"400" in dead[keys[1]]["sf-dead-message"]
            for key in keys[:2]:
                assert await kafka.status("outbox", key) == "failed"


async def test_an_effect_that_can_never_be_sent_is_dead_at_once_and_the_next_one_goes(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as a version of before wrote them, which looked at less
    monkeypatch.setattr(context, "check_request", lambda *_: None)
    agent = Agent(agent_name)
    async with sink() as target:

        @agent.step
        async def send(ctx: Context, payload: int) -> Done:
            ctx.outbox.http("POST", f"{target.url}/", headers={"Authorization": "Bearer x\n"})
            ctx.outbox.http("POST", "http://127.0.0.1:99999/")
            ctx.outbox.http("POST", f"{target.url}/")
            return Done()

        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            await relay(kafka)
            await kafka.work(agent)
            await kafka.start(agent, "r")
            keys = [f"{agent_name}:r:0:{index}" for index in range(3)]
            await kafka.until_status("outbox", keys[2], "completed")
            assert target.keys() == [keys[2]]
            dead = {(r.key or b"").decode(): headers_of(r) for r in await kafka.dead()}
            assert set(dead) == set(keys[:2])
            for key, why in zip(keys, (b"can never be sent", b"cannot be parsed"), strict=False):
                assert dead[key]["sf-dead-attempts"] == b"1"
                assert why in dead[key]["sf-dead-message"]


async def test_a_step_that_asks_for_what_can_never_be_sent_is_not_run_again(
    bootstrap: str, app: str, agent_name: str
) -> None:
    attempts: list[int] = []
    agent = Agent(agent_name)

    @agent.step
    async def send(ctx: Context, payload: int) -> Done:
        attempts.append(ctx.attempt)
        ctx.outbox.http("POST", "http://127.0.0.1/", headers={"Content-Length": "0"}, json=1)
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "failed")
        (dead,) = await kafka.dead()
        assert b"header 'Content-Length' is set by the relay" in headers_of(dead)["sf-dead-message"]
    assert attempts == [0]


async def test_failed_effects_are_all_tried_again_by_one_command(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SUREFOOT_BOOTSTRAP_SERVERS", bootstrap)
    monkeypatch.setenv("SUREFOOT_APP", app)
    async with sink() as target:
        agent = sender(agent_name, target, effects=2)
        runs = ["a1", "a2", "b1"]
        target.script = {f"/{run}/{n}": [Reply(400)] for run in runs for n in (0, 1)}
        async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
            monkeypatch.setenv("SUREFOOT_PARTITIONS", str(kafka.settings.partitions))
            await relay(kafka)
            await kafka.work(agent)
            for run_id in runs:
                await kafka.start(agent, run_id)
            keys = {run: [f"{agent_name}:{run}:0:{n}" for n in (0, 1)] for run in runs}
            everything = [key for each in keys.values() for key in each]
            await kafka.until_status("outbox", everything, "failed")
            with pytest.raises(typer.Exit) as ended:
                await asyncio.to_thread(
                    operate.retry_failed,
                    "outbox",
                    f"{agent_name}:a",
                    by="ann",
                    wait_s=180.0,
                    as_json=True,
                )
            assert ended.value.exit_code == 0
            await kafka.until_status("outbox", keys["a1"] + keys["a2"], "completed")
            assert [await kafka.status("outbox", key) for key in keys["b1"]] == ["failed"] * 2
            assert set(target.acted) == {*keys["a1"], *keys["a2"]}


async def test_failed_effects_are_all_tried_again_over_http(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """A page at a time; what the requests hold stays where it is."""
    async with sink() as target:
        agent = sender(agent_name, target, effects=3)
        target.script = {f"/r/{n}": [Reply(400)] for n in range(3)}
        async with cluster(bootstrap, app, agent, gateway_port=0, **PATIENT) as kafka:
            await relay(kafka)
            await kafka.work(agent)
            await kafka.start(agent, "r")
            keys = {f"{agent_name}:r:0:{n}" for n in range(3)}
            await kafka.until_status("outbox", keys, "failed")
            said: dict[str, Any] = {"prefix": f"{agent_name}:", "limit": 2, "by": "ann"}
            async with (
                served(agent, kafka.settings) as url,
                httpx.AsyncClient(base_url=url, timeout=180.0) as http,
            ):
                path = "/runs/outbox/retry-failed"
                first = (await http.post(path, json=said)).raise_for_status().json()
                rest = await http.post(path, json=said | {"before": first["next"]})
            second = rest.raise_for_status().json()
            assert (first["matches"], first["retried"], second["retried"]) == (3, 2, 1)
            assert second["next"] is None
            asked = first["runs"] + second["runs"]
            assert {each["run_id"] for each in asked} == keys
            assert {name for each in asked for name in each} == {"run_id", "id", "accepted"}
            await kafka.until_status("outbox", keys, "completed")
            assert set(target.acted) == keys


async def test_an_effect_of_a_step_that_did_not_commit_is_never_sent(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(agent_name)
    async with sink() as target:

        @agent.step(retry=Retry(attempts=2, initial_s=0.05, max_s=0.05))
        async def send(ctx: Context, payload: int) -> Next:
            ctx.outbox.http("POST", f"{target.url}/{ctx.attempt}", json={"try": ctx.attempt})
            if ctx.attempt == 0:
                raise ValueError("after asking for an effect")
            return Next(end, payload)

        @agent.step
        async def end(ctx: Context, payload: int) -> Done:
            return Done()

        async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
            await relay(kafka)
            await kafka.work(agent)
            aborted = break_one_transaction_with_effects(kafka, agent, monkeypatch)
            with capture_logs() as logs:
                await kafka.start(agent, "r")
                await kafka.until_status(agent, "r", "completed")
                key = f"{agent_name}:r:0:0"
                await kafka.until_status("outbox", key, "completed")
            assert aborted == [True]
            settled = [line["landed"] for line in logs if line["event"] == "commit_settled"]
            assert settled == [False]
            commands = kafka.topics("outbox").commands
            there = await kafka.read(commands, isolation="read_uncommitted")
            assert [r.key for r in there] == [key.encode()] * 2  # one of them aborted
            assert target.keys() == [key]
            assert target.book[0].path == "/1"
            assert names(await kafka.events("outbox", key)) == ["run.started", "run.completed"]


def break_one_transaction_with_effects(
    kafka: Cluster, agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> list[bool]:
    """Its records are all written; then the connection seems to break."""
    broken: list[bool] = []
    mine, commands = f"{kafka.topics(agent).group}.", kafka.topics("outbox").commands
    produce, end = TransactionClient.produce, TransactionClient.end
    with_effects: set[TransactionClient] = set()

    async def producing(client: TransactionClient, by: ProducerEpoch, batches: Any) -> Any:
        if any(batch.place.topic == commands for batch in batches):
            with_effects.add(client)
        return await produce(client, by, batches)

    async def ending(client: TransactionClient, by: ProducerEpoch, *, commit: bool) -> Any:
        if client.transactional_id.startswith(mine) and client in with_effects and not broken:
            broken.append(True)
            raise KafkaError("on purpose")
        return await end(client, by, commit=commit)

    monkeypatch.setattr(TransactionClient, "produce", producing)
    monkeypatch.setattr(TransactionClient, "end", ending)
    return broken
