"""Records nobody can use, results nobody can store, steps that misbehave: none stops the rest."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from surefoot import (
    Agent,
    Approval,
    Approve,
    Context,
    Cost,
    Done,
    Handoff,
    Next,
    Parallel,
    Retry,
    Sleep,
    Wait,
)
from surefoot.consumers.partition.committer import Committer
from surefoot.consumers.partition.transaction import PendingInput, RunChange
from surefoot.schemas.codec.codec import decode, encode
from surefoot.schemas.text import refuse_halves
from surefoot.state.names.topics import APPLIED_KEY
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import command_out, start_out
from tests.support.cluster import Cluster, cluster, headers_of
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT, PATIENT_WITHOUT_A_TOPIC


def one_step(name: str) -> Agent:
    agent = Agent(name)

    async def done(ctx: Context, payload: int) -> Done:
        return Done(payload)

    agent.step(done)
    return agent


def command(**fields: Any) -> bytes:
    """A command to r1, or as told."""
    made: dict[str, Any] = {"run_id": "r1", "kind": "start", "payload": b"0", "sent_ms": 0}
    made |= fields
    return command_out("app", 1, "agent", **made).value or b""


Poison = tuple[bytes | None, bytes | None, Sequence[tuple[str, Any]]]
GOOD = command()
#: key, value, headers
POISON: dict[str, Poison] = {
    "empty": (b"k", b"", ()),
    "a zero byte": (b"k", b"\0", ()),
    "unknown schema": (b"k", b"\xc3\x01" + b"\x99" * 8 + b"\x02", ()),
    "schema registry framing": (b"k", b"\0\0\0\0\x07" + GOOD[10:], ()),
    "truncated": (b"k", GOOD[:-3], ()),
    "trailing bytes": (b"k", GOOD + b"\0", ()),
    "another record's schema": (
        b"k",
        encode("Task", {"run_id": "r1", "seq": 0, "step": "done"}),
        (),
    ),
    "key not UTF-8": (b"\xff\xfe", b"junk", ()),
    "no key": (None, b"junk", ()),
    "900 KB": (b"k", os.urandom(900_000), ()),
    "null": (b"k", None, ()),
    "headers": (
        b"k",
        b"junk",
        (("twice", b"\xff\xfe"), ("twice", b"2"), ("none", None)),
    ),
    "no run_id": (b"", command(run_id=""), ()),
    "a run_id that is none": (b"@applied", command(run_id="@applied"), ()),
    "a run_id that is not printable": (b"a\nb", command(run_id="a\nb"), ()),
    "a run_id with a bar": (b"a|s:1", command(run_id="a|s:1"), ()),
    "a run_id too long": (b"k", command(run_id="x" * 257), ()),
    "unknown command": (b"r1", command(kind="explode"), ()),
    "unknown step": (b"r1", command(step="nowhere"), ()),
    "a signal without an id": (b"r1", command(kind="signal", name="go"), ()),
    "a signal without a name": (b"r1", command(kind="signal", id="c"), ()),
    "a signal that is no JSON": (
        b"r1",
        command(kind="signal", id="c", name="go", payload=b"{"),
        (),
    ),
    "a pause without an id": (b"r1", command(kind="pause"), ()),
    "an id too long": (b"r1", command(kind="cancel", id="x" * 129), ()),
    "an answer that is none": (b"r1", command(kind="approve", id="c", name="q", payload=b"1"), ()),
    "a child of nobody": (b"r1", command(kind="child", id="c"), ()),
    "a rewind to nowhere": (b"r1", command(kind="rewind", id="c"), ()),
}


@pytest.mark.parametrize("kind", ["commands", "tasks"])
async def test_what_cannot_be_used_is_dead_lettered_byte_for_byte_once_and_the_rest_goes_on(
    bootstrap: str, app: str, agent_name: str, kind: str
) -> None:
    agent = one_step(agent_name)
    poison = [
        value
        for name, value in POISON.items()
        if kind == "commands" or name != "another record's schema"
    ]
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        topic = getattr(kafka.topics(agent), kind)
        runs, offsets = [], []
        for n, (key, value, headers) in enumerate(poison):
            offsets.append(await kafka.send(ProducerRecord(topic, 0, key, value, headers)))
            runs.append(f"good-{n}")
            await kafka.start(agent, runs[-1])
        worker = await kafka.work(agent)
        await kafka.until_status(agent, runs, "completed")

        async def all_dead() -> bool:
            return len(await kafka.dead()) == len(poison)

        await until(all_dead, what=f"{len(poison)} dead letters")
        await worker.drain()
        await kafka.work(agent)
        await kafka.start(agent, "last")
        await kafka.until_status(agent, "last", "completed")

        dead = sorted(await kafka.dead(), key=lambda r: int(headers_of(r)["sf-dead-offset"]))
        originals = {r.offset: r for r in await kafka.read(topic)}
        for letter, (key, value, headers), offset in zip(dead, poison, offsets, strict=True):
            assert (letter.key, letter.value) == (key, value)
            assert tuple(letter.headers[: len(headers)]) == tuple(headers)
            told = headers_of(letter)
            assert told["sf-dead-topic"] == topic.encode()
            assert told["sf-dead-partition"] == b"0"
            assert told["sf-dead-offset"] == b"%d" % offset
            assert told["sf-dead-timestamp"] == b"%d" % originals[offset].timestamp
            assert told["sf-dead-code"]
            assert told["sf-dead-message"]
        await moved_together(kafka, agent, kind, dead)
        await kafka.check_history(agent)


async def moved_together(kafka: Cluster, agent: Agent, kind: str, dead: Sequence[Any]) -> None:
    """The offsets past a dead letter's original were in its transaction, and never fall."""
    applied: list[tuple[bytes, Any]] = [
        (headers_of(r)["sf-txn"], dict(decode(r.value or b"", "Applied")[1])[kind])
        for r in await kafka.read(kafka.topics(agent).state)
        if r.key == APPLIED_KEY
    ]
    assert all(before <= after for (_, before), (_, after) in pairwise(applied))
    by_transaction = dict(applied)
    for letter in dead:
        headers = headers_of(letter)
        transaction = [value for name, value in letter.headers if name == "sf-txn"][-1]
        assert transaction in by_transaction
        if kind == "tasks":  # no others are in work there that would hold the offset back
            assert by_transaction[transaction] > int(headers["sf-dead-offset"])
    topic = getattr(kafka.topics(agent), kind)
    end = (await kafka.read(topic))[-1].offset + 1

    async def committed() -> bool:
        return bool((await kafka.committed(agent)).get((kind, 0), 0) >= end)

    await until(committed, what="the offset to be past the last record")


async def test_a_rerouted_command_keeps_headers_without_a_value(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = one_step(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        run_id = kafka.run_on(1)
        out = start_out(app, 2, agent.name, run_id, b"0", sent_ms=0, headers=[("none", None)])  # type: ignore[list-item]
        await kafka.send(ProducerRecord(out.topic, 0, out.key, out.value, out.headers))
        await kafka.work(agent)
        await kafka.until_status(agent, run_id, "completed")


# Too large -----------------------------------------------------------------------------------


async def limit_topic(kafka: Cluster, topic: str, size: int) -> None:
    """Lower what the broker takes, below what the client believes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.settings.bootstrap_servers)
    await admin.start()
    try:
        config = ConfigResource(
            ConfigResourceType.TOPIC, topic, configs={"max.message.bytes": str(size)}
        )
        await admin.alter_configs([config])
    finally:
        await admin.close()


async def test_a_record_that_the_broker_refuses_parks_its_run_and_no_other(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent(agent_name)
    executions: list[tuple[str, int]] = []

    @agent.step
    async def grow(ctx: Context, payload: str) -> Next | Done:
        executions.append((ctx.run_id, ctx.seq))
        if ctx.seq == 1:
            return Done()
        ctx.outbox.http("POST", "http://127.0.0.1:9/", body=ctx.run_id)
        return Next(grow, "x" * (100_000 if ctx.run_id == "big" else 100))

    runs = ["a", "b", "big", "c", "d"]
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await limit_topic(kafka, kafka.topics(agent).state, 50_000)
        batches = together(monkeypatch, len(runs) + 1)
        poison = await kafka.send(ProducerRecord(kafka.topics(agent).commands, 0, b"k", b"junk"))
        for run_id in runs:
            await kafka.start(agent, run_id, b'""')
        await kafka.work(agent)
        await kafka.until_status(agent, [r for r in runs if r != "big"], "completed")
        await kafka.until_status(agent, "big", "attention")
        assert batches[0] == len(runs) + 1
        assert executions.count(("big", 0)) == 1
        assert sorted(executions) == sorted([("big", 0), *((r, s) for r in "abcd" for s in (0, 1))])
        checkpoint = await kafka.checkpoint(agent, "big")
        assert checkpoint is not None
        assert checkpoint["seq"] == 0
        assert checkpoint["failure"]["code"] == "too_large"
        effects = {r.key for r in await kafka.read(kafka.topics("outbox").commands)}
        assert effects == {f"{agent_name}:{r}:0:0".encode() for r in "abcd"}
        dead = await kafka.dead()
        assert [headers_of(r)["sf-dead-offset"] for r in dead] == [b"%d" % poison]
        await moved_together(kafka, agent, "commands", dead)
        await kafka.check_history(agent)


def together(monkeypatch: pytest.MonkeyPatch, count: int) -> list[int]:
    """Have the first commit wait for so many decisions; returns the sizes of all commits."""
    original = Committer._commit
    sizes: list[int] = []

    async def commit(
        committer: Committer, batch: list[PendingInput], *rest: Any
    ) -> tuple[list[PendingInput], list[RunChange]]:
        if not sizes:
            await until(lambda: len(batch) + len(committer) >= count, what=f"{count} decisions")
            batch += committer._items.take(len(committer))
        sizes.append(len(batch))
        return await original(committer, batch, *rest)

    monkeypatch.setattr(Committer, "_commit", commit)
    return sizes


@pytest.mark.parametrize("where", ["next", "result", "effect"])
async def test_a_result_over_the_limit_is_told_with_its_size_and_made_once(
    bootstrap: str, app: str, agent_name: str, where: str
) -> None:
    agent = Agent(agent_name)
    executions: list[str] = []

    @agent.step
    async def make(ctx: Context, payload: Any) -> Next | Done:
        if ctx.seq:
            return Done()
        executions.append(ctx.run_id)
        made = "x" * payload
        if where == "effect":
            ctx.outbox.http("POST", "http://127.0.0.1:9/", body=made)
        return Next(make, made) if where == "next" else Done(made if where == "result" else None)

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        sizes = {"fits": 900_000, "just not": 1_000_000, "over": 1_100_000, "far over": 30_000_000}
        runs = {name.replace(" ", "-"): size for name, size in sizes.items()}
        for run_id, size in runs.items():
            await kafka.start(agent, run_id, b"%d" % size)
        await kafka.start(agent, "good", b"1")
        await kafka.work(agent)
        await kafka.until_status(agent, ("fits", "good"), "completed")
        for run_id in ("just-not", "over", "far-over"):
            await kafka.until_status(agent, run_id, "attention")
            checkpoint = await kafka.checkpoint(agent, run_id)
            assert checkpoint is not None
            failure = checkpoint["failure"]
            assert failure["code"] == "too_large"
            size, limit = (int(word) for word in failure["message"].split() if word.isdigit())
            assert size > runs[run_id]
            assert limit <= kafka.settings.record_max_bytes
        assert sorted(executions) == sorted([*runs, "good"])
        await kafka.check_history(agent)


# Misbehaving steps ---------------------------------------------------------------------------


class Opaque:
    pass


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: {"a": [1.0, float("nan")]}, "$.a[1]"),
        (lambda: {"a": {"b": [Opaque()]}}, "$.a.b[0]"),
        (lambda: {"a": {1: "int key"}}, "$.a"),
    ],
    ids=["NaN", "object", "int key"],
)
@pytest.mark.parametrize("where", ["next", "result"])
async def test_a_value_that_cannot_be_stored_fails_its_run_at_once_and_says_where_it_is(
    bootstrap: str, app: str, agent_name: str, make: Callable[[], Any], path: str, where: str
) -> None:
    agent = Agent(agent_name)
    executions: list[str] = []

    @agent.step(retry=Retry(attempts=5))
    async def produce(ctx: Context, payload: Any) -> Next | Done:
        executions.append(ctx.run_id)
        value = make() if ctx.run_id == "bad" else 1
        return Next(produce, value) if where == "next" and ctx.seq == 0 else Done(value)

    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.start(agent, "bad")
        await kafka.start(agent, "good")
        await kafka.work(agent)
        await kafka.until_status(agent, "bad", "failed")
        await kafka.until_status(agent, "good", "completed")
        assert executions.count("bad") == 1
        (failed,) = [e for e in await kafka.events(agent, "bad") if e["type"] == "run.failed"]
        assert failed["failure"]["code"] == "unserialisable"
        assert f"{path}" in failed["failure"]["message"]
        (dead,) = await kafka.dead()
        assert headers_of(dead)["sf-dead-code"] == b"unserialisable"


@pytest.fixture
def unawaited() -> Iterator[list[Any]]:
    """Holds coroutines that nobody awaits, and closes them quietly."""
    held: list[Any] = []
    yield held
    for coroutine in held:
        coroutine.close()


async def test_whatever_a_step_returns_or_raises_it_fails_alone(
    bootstrap: str, app: str, agent_name: str, unawaited: list[Any]
) -> None:
    agent = Agent(agent_name)
    raised: dict[str, BaseException] = {
        error.__name__: error("on purpose")
        for error in (
            SystemExit,
            KeyboardInterrupt,
            asyncio.CancelledError,
            GeneratorExit,
            StopIteration,
            StopAsyncIteration,
            TimeoutError,
            MemoryError,
            AssertionError,
        )
    }

    async def fetch() -> int:
        return 1

    def behave(run_id: str) -> Any:
        name = run_id.partition("-")[2]
        if name in raised:
            raise raised[name]
        if name == "forgotten":
            unawaited.append(fetch())
            return Done(unawaited[-1])
        if name == "coroutine":
            unawaited.append(fetch())
            return unawaited[-1]
        return {"none": None, "good": Done(1), "class": Done, "stray": Next(fetch, 1)}[name]

    once = Retry(attempts=1)

    @agent.step(retry=once)
    async def enter(ctx: Context, payload: int) -> Any:
        return Next(in_thread, 0) if ctx.run_id.startswith("def") else behave(ctx.run_id)

    @agent.step(retry=once)
    def in_thread(ctx: Context, payload: int) -> Any:
        return behave(ctx.run_id)

    kinds = [*raised, "forgotten", "coroutine", "none", "class", "stray"]
    bad = [f"{way}-{kind}" for way in ("async", "def") for kind in kinds]
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        for run_id in bad:
            await kafka.start(agent, run_id)
        await kafka.start(agent, "async-good")
        await kafka.start(agent, "def-good")
        await kafka.until_status(agent, ("async-good", "def-good"), "completed")
        await kafka.until_status(agent, bad, "failed")
        codes = {
            e["run_id"]: (e["failure"]["code"], e["failure"]["message"])
            for e in await kafka.events(agent)
            if e["type"] == "run.failed"
        }
        for way in ("async", "def"):
            assert {codes[f"{way}-{name}"][0] for name in raised} == {"step_raised"}
            assert codes[f"{way}-forgotten"][0] == "unserialisable"
            assert "coroutine" in codes[f"{way}-forgotten"][1]
            assert codes[f"{way}-coroutine"][0] == "bad_return"
            assert codes[f"{way}-none"][0] == "bad_return"
            assert codes[f"{way}-class"][0] == "bad_return"
            assert codes[f"{way}-stray"][0] == "unknown_step"
        assert "returned coroutine" in codes["async-coroutine"][1]
        assert "returned int" in codes["def-coroutine"][1]  # it is awaited, in its thread
        await kafka.check_history(agent)


@pytest.fixture
def halves_are_refused(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SUREFOOT_LONE_SURROGATES", "strict")
    yield
    refuse_halves(False)


@pytest.mark.usefixtures("halves_are_refused")
async def test_what_nobody_can_write_ends_or_parks_its_run_and_no_other(
    bootstrap: str, app: str, agent_name: str
) -> None:
    """A number, a text or a name that came from a model, say, and fits no record."""
    agent = Agent(agent_name)
    half = "\ud83d"

    @agent.step
    async def odd(ctx: Context, payload: int) -> Any:
        match ctx.run_id:
            case "signal":
                return Wait(half, then=odd)
            case "by":
                return Approve(1, then=answered, by=[half])
            case "call":
                await ctx.call(half, lambda: 1)
            case "heir":
                return Handoff(half, 1)
            case "heir-unheard-of":
                return Handoff("nobody", 1)
            case "heir-that-cannot-be":
                return Handoff("No such agent!", 1)
            case "branch":
                return Parallel([("no/such", 1)], join=joined)
        return Done()

    @agent.step
    async def answered(ctx: Context, approval: Approval, what: int) -> Done:
        return Done()

    @agent.step
    async def joined(ctx: Context, results: list[int]) -> Done:
        return Done()

    codes = {
        "signal": "unserialisable",
        "by": "unserialisable",
        "call": "unserialisable",
        "heir": "unserialisable",
        "heir-unheard-of": "no_topic",
        "heir-that-cannot-be": "no_topic",
        "branch": "no_topic",
    }
    at_once = [run_id for run_id, code in codes.items() if code == "unserialisable"]
    parked = [run_id for run_id, code in codes.items() if code == "no_topic"]
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT_WITHOUT_A_TOPIC) as kafka:
        await kafka.work(agent)
        for run_id in ("good-1", *codes, "good-2"):
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, ("good-1", "good-2"), "completed")
        await kafka.until_status(agent, at_once, "failed")
        await kafka.until_status(agent, parked, "attention")
        told = {}
        for run_id in codes:
            checkpoint = await kafka.checkpoint(agent, run_id)
            assert checkpoint is not None
            told[run_id] = checkpoint["failure"]["code"]
        assert told == codes
        await kafka.check_history(agent)


@pytest.mark.usefixtures("halves_are_refused")
async def test_what_can_be_told_at_once_fails_its_run(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step(retry=Retry(attempts=1))
    async def odd(ctx: Context, payload: int) -> Any:
        match ctx.run_id:
            case "after":
                return Next(odd, 1, after=1e300)
            case "sleep":
                return Sleep("9" * 40 + "d", odd, 1)
            case "plan":
                ctx.plan.add("\ud83d")
            case "thread":
                ctx.thread.append("\ud83d")
            case "stream":
                async with ctx.stream("\ud83d"):
                    pass
            case "cost":
                await ctx.call("ask", lambda: 1, cost=lambda _: Cost(tokens=2**70))
        return Done()

    codes = {
        "after": "bad_return",
        "sleep": "bad_return",
        "plan": "unserialisable",
        "thread": "unserialisable",
        "stream": "unserialisable",
        "cost": "step_raised",
    }
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        await kafka.work(agent)
        for run_id in codes:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, codes, "failed")
        events = [e for e in await kafka.events(agent) if e["type"] == "run.failed"]
        assert {e["run_id"]: e["failure"]["code"] for e in events} == codes
