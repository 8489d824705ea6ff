"""Journaled calls, one-shot actions, partial output and memory, on a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from surefoot import Agent, CallFailed, Context, Done, Next, Partial, Retry
from surefoot.schemas.codec.codec import decode
from surefoot.schemas.codec.records import AvroStream
from tests.support.cluster import Cluster, Running, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

#: who takes over waits for the lease of its predecessor before it looks into a doubtful action
SHORT_LEASE = PATIENT | {
    "producer_request_timeout_ms": 10_000,
    "transaction_timeout_ms": 20_000,
    "session_timeout_ms": 30_000,
}


class Gate:
    """Counts what is called, and holds what it is told to hold."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.open = asyncio.Event()

    async def ask(self, question: str) -> str:
        self.calls[question] += 1
        return f"answer to {question}"

    async def hold(self) -> None:
        """What a step waits for before it ends; the worker is killed meanwhile."""
        self.calls["held"] += 1
        while not self.open.is_set():
            await asyncio.sleep(0.01)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@asynccontextmanager
async def killed_once(
    kafka: Cluster,
    agent: Agent,
    gate: Gate,
    *run_ids: str,
    ripe: Callable[[], Awaitable[object]] | None = None,
) -> AsyncIterator[Running]:
    """A worker is gone while a step of each of the runs (of `r`) is held, and `ripe`; another one
    has taken over inside of this."""
    first = await kafka.work(agent)
    runs = run_ids or ("r",)
    for run_id in runs:
        await kafka.start(agent, run_id)
    await until(lambda: gate.calls["held"] == len(runs), what="the steps to be held")
    if ripe is not None:
        await until(ripe, what="it to be ripe")
    await first.vanish()
    gate.open.set()
    yield await kafka.work(agent)


async def test_a_call_that_was_recorded_is_not_made_again_by_whoever_takes_over(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def think(ctx: Context, payload: int) -> Done:
        first, second = await asyncio.gather(
            ctx.call("ask", gate.ask, "one"), ctx.call("ask", gate.ask, "two")
        )
        third = await ctx.call("ask", gate.ask, "three")
        await gate.hold()
        return Done([first, second, third, await ctx.call("ask", gate.ask, "four")])

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, killed_once(kafka, agent, gate):
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        asked = ("one", "two", "three", "four")
        assert (
            checkpoint["result"]
            == ("[" + ",".join(f'"answer to {each}"' for each in asked) + "]").encode()
        )
        assert {each: gate.calls[each] for each in asked} == dict.fromkeys(asked, 1)
        assert gate.calls["held"] == 2
        await kafka.check_history(agent)


async def test_a_call_costs_one_record_and_no_tombstone(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def think(ctx: Context, payload: int) -> Next | Done:
        await ctx.call("ask", gate.ask, f"{ctx.run_id} {payload}")
        return Next(think, payload + 1) if payload < 4 else Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        runs = [f"r{number}" for number in range(20)]
        for run_id in runs:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, runs, "completed")
        records = await kafka.read(kafka.topics(agent).state)
        entries = [record.value for record in records if b"|c:" in (record.key or b"")]
        assert sum(value is not None for value in entries) == 100
        assert sum(value is None for value in entries) == 20  # when the runs end
        assert set(gate.calls.values()) == {1}


async def test_a_permanent_error_of_a_call_is_recorded_too(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)

    async def refuse() -> None:
        gate.calls["refuse"] += 1
        raise LookupError("no such model")

    @agent.step(retry=Retry(attempts=1))
    async def think(ctx: Context, payload: int) -> Done:
        try:
            await ctx.call("model", refuse, permanent=(LookupError,))
        except CallFailed as error:
            await gate.hold()
            return Done(f"{error.kind}: {error}")
        raise AssertionError

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, killed_once(kafka, agent, gate):
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == b'"LookupError: no such model"'
        assert gate.calls["refuse"] == 1


async def test_a_call_whose_arguments_have_changed_since_parks_the_run(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)
    versions = iter(["old prompt", "new prompt", "old prompt"])

    @agent.step
    async def think(ctx: Context, payload: int) -> Done:
        answer = await ctx.call("ask", gate.ask, next(versions))
        await gate.hold()
        return Done(answer)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, killed_once(kafka, agent, gate):
        await kafka.until_status(agent, "r", "attention")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "journal_mismatch"
        assert "runs retry" in checkpoint["failure"]["message"]
        assert gate.calls["new prompt"] == 0
        await kafka.tell(agent, "r", "retry")  # the old code is back
        await kafka.until_status(agent, "r", "completed")
        assert gate.calls["old prompt"] == 1


async def test_a_probe_decides_what_became_of_an_action_that_was_cut_off(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)
    expected = {"happened": (b'"charged before"', 1), "did-not": (b'"charged now"', 2)}

    async def charge(run_id: str) -> str:
        gate.calls[f"charge {run_id}"] += 1
        await gate.hold()
        return "charged now"

    async def probe(run_id: str) -> str | None:
        gate.calls[f"probe {run_id}"] += 1
        return "charged before" if run_id == "happened" else None

    @agent.step
    async def pay(ctx: Context, payload: int) -> Done:
        return Done(await ctx.once("charge", charge, ctx.run_id, probe=probe))

    async with (
        cluster(bootstrap, app, agent, **SHORT_LEASE) as kafka,
        killed_once(kafka, agent, gate, *expected),
    ):
        await kafka.until_status(agent, expected, "completed")
        for run_id, (result, charges) in expected.items():
            checkpoint = await kafka.checkpoint(agent, run_id)
            assert checkpoint is not None
            assert (checkpoint["result"], gate.calls[f"charge {run_id}"]) == (result, charges)
            assert gate.calls[f"probe {run_id}"] == 1


async def test_without_a_probe_a_person_decides(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    """What that person says of each run is the name of the run."""
    agent = Agent(agent_name)
    expected = {"happened": ("completed", 1), "did_not": ("completed", 2), "give_up": ("failed", 1)}

    async def charge(run_id: str) -> str:
        gate.calls[f"charge {run_id}"] += 1
        await gate.hold()
        return "charged now"

    @agent.step
    async def pay(ctx: Context, payload: int) -> Done:
        return Done(await ctx.once("charge", charge, ctx.run_id))

    async with (
        cluster(bootstrap, app, agent, **SHORT_LEASE) as kafka,
        killed_once(kafka, agent, gate, *expected),
    ):
        await kafka.until_status(agent, expected, "attention")
        for choice, (status, charges) in expected.items():
            checkpoint = await kafka.checkpoint(agent, choice)
            assert checkpoint is not None
            assert checkpoint["failure"]["code"] == "once_in_doubt"
            assert gate.calls[f"charge {choice}"] == 1
            await kafka.tell(agent, choice, "resolve", name=choice, payload=b'"told by a person"')
            await kafka.until_status(agent, choice, status)
            assert gate.calls[f"charge {choice}"] == charges
            checkpoint = await kafka.checkpoint(agent, choice)
            assert checkpoint is not None
            if choice == "happened":
                assert checkpoint["result"] == b'"told by a person"'
            if choice == "give_up":
                assert checkpoint["failure"]["code"] == "given_up"
        await kafka.check_history(agent)


async def test_partial_output_is_told_live_and_given_to_the_next_attempt(
    bootstrap: str, app: str, agent_name: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("surefoot.state.steps.partial_output.KEEP_EVERY_S", 0.0)
    agent = Agent(agent_name)
    given: list[Partial | None] = []

    @agent.step
    async def write(ctx: Context, payload: int) -> Done:
        async with ctx.stream("draft") as draft:
            given.append(draft.partial)
            await draft.go_on()
            if draft.text:
                await draft.write(" and went on")
                return Done(draft.text)
            await draft.write("it began")
            await gate.hold()
        return Done(draft.text)

    async def pieces() -> list[AvroStream]:
        topic = kafka.topics(agent).stream
        return [decode(record.value, "Stream")[1] for record in await kafka.read(topic)]

    async def begun() -> bool:
        """Pieces are told beside the commits, and are lost with their worker."""
        return [piece["kind"] for piece in await pieces()] == ["begin", "text"]

    async def over() -> list[AvroStream]:
        read = await pieces()
        return read if read and read[-1]["kind"] == "end" else []

    async with (
        cluster(bootstrap, app, agent, **PATIENT) as kafka,
        killed_once(kafka, agent, gate, ripe=begun),
    ):
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == b'"it began and went on"'
        assert given == [None, Partial("it began")]
        told = await until(over, what="the end of the stream")
        assert [(piece["kind"], piece["offset"], piece["text"]) for piece in told] == [
            ("begin", 0, ""),
            ("text", 0, "it began"),
            ("begin", 0, ""),
            ("text", 0, "it began"),
            ("text", 8, " and went on"),
            ("end", 20, ""),
        ]


async def test_a_thread_costs_what_is_new_and_not_what_is_there(
    bootstrap: str, app: str, agent_name: str
) -> None:
    turns, message = 200, "m" * 2_000
    agent = Agent(agent_name)

    @agent.step
    async def turn(ctx: Context, payload: int) -> Next | Done:
        assert len(ctx.thread) == len(ctx.thread.messages) == payload
        ctx.thread.append({"role": "user", "content": message, "n": payload})
        return Next(turn, payload + 1) if payload + 1 < turns else Done(len(ctx.thread))

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "completed")
        topics = kafka.topics(agent)
        records = [
            record
            for topic in (topics.state, topics.tasks, topics.events)
            for record in await kafka.read(topic)
        ]
        written = sum(
            len(r.key or b"") + len(r.value or b"") + sum(len(k) + len(v) for k, v in r.headers)
            for r in records
        )
        said = [r.value for r in records if r.key is not None and b"|m:" in r.key and r.value]
        assert len(said) == turns
        assert written < 3 * sum(map(len, said))


async def test_the_plan_and_the_thread_survive_and_are_put_into_the_next_steps_hands(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def begin(ctx: Context, payload: int) -> Next:
        ctx.thread.append("hello", {"role": "assistant"})
        ctx.plan.drop(ctx.plan.add("call a lawyer"))
        ctx.plan.add("write it down")
        return Next(end, 0)

    @agent.step
    async def end(ctx: Context, payload: int) -> Done:
        await gate.hold()
        (item,) = ctx.plan.open
        ctx.plan.tick(item.id)
        return Done([ctx.thread.messages, [[i.text, i.state] for i in ctx.plan.items]])

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka, killed_once(kafka, agent, gate):
        await kafka.until_status(agent, "r", "completed")
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        assert checkpoint["result"] == (
            b'[["hello",{"role":"assistant"}],'
            b'[["call a lawyer","dropped"],["write it down","done"]]]'
        )
        told = [event["memory"] for event in await kafka.events(agent, "r")]
        assert [item["state"] for item in told[1]["plan"]] == ["dropped", "open"]


async def test_a_failed_run_that_is_tried_again_does_not_pay_twice(
    bootstrap: str, app: str, agent_name: str, gate: Gate
) -> None:
    agent = Agent(agent_name)

    @agent.step(retry=Retry(attempts=2, initial_s=0.01))
    async def think(ctx: Context, payload: int) -> Done:
        answer = await ctx.call("ask", gate.ask, "dear")
        if not gate.open.is_set():
            raise ValueError("not yet")
        return Done(answer)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "failed")
        gate.open.set()
        await kafka.tell(agent, "r", "retry")
        await kafka.until_status(agent, "r", "completed")
        assert gate.calls["dear"] == 1
        assert names(await kafka.events(agent, "r")) == [
            "run.started",
            "step.retrying",
            "run.failed",
            "run.retried",
            "run.completed",
        ]
        (dead,) = await kafka.dead()
        assert dict(dead.headers)["sf-dead-code"] == b"step_raised"
