"""Signals, approvals, timers, pause and cancel, on a real broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from surefoot import (
    Agent,
    Approval,
    Approve,
    Budget,
    Context,
    Cost,
    Done,
    Ended,
    Next,
    Signal,
    Sleep,
    Wait,
    all_of,
    n_of,
)
from surefoot.consumers.partition.owner import Owner
from surefoot.infra.kafka.log import KafkaOwnership
from surefoot.state.ports.log import Committed, ConsumerRecord, InputKind, ProducerRecord
from surefoot.state.records.encoding import command_out
from tests.support.cluster import Cluster, cluster, names
from tests.support.eventually import until
from tests.support.long_deadlines import PATIENT

HOUR_MS = 3_600_000


@dataclass
class Go:
    speed: int


def waiting_agent(name: str, timeout: str | None = None) -> Agent:
    """Three steps and then a wait, whose signal is the result."""
    agent = Agent(name)

    @agent.step
    async def count(ctx: Context, payload: int) -> Next | Wait:
        if payload < 2:
            return Next(count, payload + 1)
        return Wait("go", then=end, timeout=timeout, carry="carried")

    @agent.step
    async def end(ctx: Context, go: Go, carried: str) -> Done:
        return Done([go.speed, carried])

    return agent


async def result(kafka: Cluster, agent: Agent, run_id: str) -> bytes:
    checkpoint = await kafka.checkpoint(agent, run_id)
    assert checkpoint is not None
    found: bytes = checkpoint["result"]
    return found


@pytest.mark.parametrize("when", ["before the start", "right after it", "with nobody there"])
async def test_a_signal_that_comes_before_its_wait_is_kept(
    bootstrap: str, app: str, agent_name: str, when: str
) -> None:
    agent = waiting_agent(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        if when == "before the start":
            await kafka.work(agent)
            identity = await kafka.tell(agent, "r", "signal", name="go", payload=b'{"speed":3}')
            assert (await kafka.answer(agent, "r", identity))["type"] == "signal.received"
        await kafka.start(agent, "r")
        if when != "before the start":
            await kafka.tell(agent, "r", "signal", name="go", payload=b'{"speed":3}')
            await kafka.work(agent)
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent, "r") == b'[3,"carried"]'
        await kafka.check_history(agent)


async def test_a_wait_survives_its_worker_and_a_repeated_signal_counts_once(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ask(ctx: Context, payload: int) -> Wait:
        return Wait(n_of(3, "vote"), then=end)

    @agent.step
    async def end(ctx: Context, votes: list[Signal]) -> Done:
        return Done([vote.payload for vote in votes])

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "waiting")
        for number in (1, 1, 2):
            identity = await kafka.tell(
                agent, "r", "signal", id=f"vote-{number}", name="vote", payload=b"%d" % number
            )
        await kafka.answer(agent, "r", identity)
        await first.vanish()
        await kafka.work(agent)
        assert await kafka.status(agent, "r") == "waiting"
        await kafka.tell(agent, "r", "signal", id="vote-1", name="vote", payload=b"1")
        await kafka.tell(agent, "r", "signal", id="vote-3", name="vote", payload=b"3")
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent, "r") == b"[1,2,3]"
        assert names(await kafka.events(agent, "r")).count("command.repeated") == 2


async def test_signals_that_nobody_took_are_told_when_the_run_ends(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = waiting_agent(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.start(agent, "r")
        sent = [
            await kafka.tell(agent, "r", "signal", name="go", payload=b'{"speed":%d}' % number)
            for number in range(5)
        ]
        await kafka.work(agent)  # reads all of them in one poll
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent, "r") == b'[0,"carried"]'
        events = await kafka.events(agent, "r")
        assert [e["id"] for e in events if e["type"] == "signal.unread"] == sent[1:]


async def test_a_signal_that_does_not_fit_is_refused_and_the_run_waits_on(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = waiting_agent(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "waiting")
        identity = await kafka.tell(agent, "r", "signal", name="go", payload=b'{"speed":"fast"}')
        told = await kafka.answer(agent, "r", identity)
        assert (told["type"], told["name"]) == ("command.refused", "bad_payload")
        assert "$.speed" in told["failure"]["message"]
        assert await kafka.status(agent, "r") == "waiting"
        await kafka.tell(agent, "r", "signal", name="go", payload=b'{"speed":9}')
        await kafka.until_status(agent, "r", "completed")


async def test_an_answer_lands_on_its_own_question_and_the_first_one_holds(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ask(ctx: Context, payload: int) -> Approve | Done:
        return Approve(payload, then=answered, by=["ann", "bob"])

    @agent.step
    async def answered(ctx: Context, approval: Approval, number: int) -> Next | Done:
        ctx.thread.append([number, approval.approved, approval.by])
        return Next(ask, number + 1) if number < 1 else Done(ctx.thread.messages)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")

        async def question(before: str = "") -> str:
            checkpoint = await kafka.checkpoint(agent, "r")
            asked = checkpoint and checkpoint["wait"] and checkpoint["wait"]["question"]
            return str(asked) if asked and asked != before else ""

        async def say(asked: str, approved: bool, by: str) -> tuple[str, str | None]:
            verdict = b'{"approved":%s}' % (b"true" if approved else b"false")
            identity = await kafka.tell(agent, "r", "approve", name=asked, by=by, payload=verdict)
            event = await kafka.answer(agent, "r", identity)
            return event["type"], event["failure"] and event["failure"]["code"]

        first = await until(question, what="the first question")
        assert await say("0" * 32, True, "ann") == ("command.refused", "unknown_question")
        assert await say(first, True, "eve") == ("command.refused", "not_allowed")
        assert await say(first, True, "ann") == ("approval.decided", None)
        second = await until(lambda: question(first), what="the second question")
        assert await say(first, False, "bob") == ("command.refused", "already_decided")
        assert await say(second, False, "bob") == ("approval.decided", None)
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent, "r") == b'[[0,true,"ann"],[1,false,"bob"]]'


async def test_what_was_done_before_an_approval_is_not_done_again_after_it(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    bodies: list[str] = []

    @agent.step
    async def announce(ctx: Context, payload: int) -> Next:
        bodies.append("announce")
        ctx.outbox.http("POST", "http://127.0.0.1:9/announce")
        return Next(ask, payload)

    @agent.step
    async def ask(ctx: Context, payload: int) -> Approve:
        bodies.append("ask")
        return Approve(payload, then=act)

    @agent.step
    async def act(ctx: Context, approval: Approval, payload: int) -> Done:
        bodies.append("act")
        ctx.outbox.http("POST", "http://127.0.0.1:9/act")
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.until_status(agent, "r", "waiting")
        await first.vanish()
        await kafka.work(agent)
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        await kafka.tell(
            agent,
            "r",
            "approve",
            name=checkpoint["wait"]["question"],
            payload=b'{"approved":true}',
        )
        await kafka.until_status(agent, "r", "completed")
        assert bodies == ["announce", "ask", "act"]
        assert set(await kafka.effects()) == {f"{agent_name}:r:0:0", f"{agent_name}:r:2:0"}


async def test_a_sleeping_run_goes_on_where_it_is_taken_over(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def doze(ctx: Context, payload: int) -> Sleep:
        return Sleep("1h", then=end, payload=payload)

    @agent.step
    async def end(ctx: Context, payload: int) -> Done:
        return Done(payload)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "r", b"4")
        await kafka.until_status(agent, "r", "waiting")
        await first.vanish()
        await kafka.work(agent)
        assert await kafka.status(agent, "r") == "waiting"
        kafka.clock.ahead_ms += HOUR_MS
        await kafka.until_status(agent, "r", "completed")
        slept, woke = (await kafka.events(agent, "r"))[1:]
        assert woke["started_ms"] >= slept["due_ms"] == slept["at_ms"] + HOUR_MS
        await kafka.check_history(agent)


async def test_a_wait_that_is_over_goes_on_or_fails_as_the_agent_says(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ask(ctx: Context, payload: str) -> Wait:
        on_timeout = give_up if payload == "ready" else None
        return Wait("go", then=end, timeout="1h", on_timeout=on_timeout, carry=payload)

    @agent.step
    async def give_up(ctx: Context, carried: str) -> Done:
        return Done(f"nobody came, {carried}")

    @agent.step
    async def end(ctx: Context, go: Go, carried: str) -> Done:
        return Done(go.speed)

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r1", b'"ready"')
        await kafka.start(agent, "r2", b'"not"')
        await kafka.until_status(agent, ("r1", "r2"), "waiting")
        kafka.clock.ahead_ms += HOUR_MS
        await kafka.until_status(agent, "r1", "completed")
        await kafka.until_status(agent, "r2", "failed")
        assert await result(kafka, agent, "r1") == b'"nobody came, ready"'
        checkpoint = await kafka.checkpoint(agent, "r2")
        assert checkpoint is not None
        assert checkpoint["failure"]["code"] == "wait_timeout"
        await kafka.tell(agent, "r2", "retry")  # waits again, as long as before
        await kafka.tell(agent, "r2", "signal", name="go", payload=b'{"speed":1}')
        await kafka.until_status(agent, "r2", "completed")


async def test_all_of_waits_for_one_of_each(bootstrap: str, app: str, agent_name: str) -> None:
    agent = Agent(agent_name)

    @agent.step
    async def ask(ctx: Context, payload: int) -> Wait:
        return Wait(all_of("legal", "finance"), then=end)

    @agent.step
    async def end(ctx: Context, said: list[Signal]) -> Done:
        return Done({signal.name: signal.payload for signal in said})

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        for name, payload in (("legal", b"1"), ("legal", b"2"), ("finance", b"3")):
            await kafka.tell(agent, "r", "signal", name=name, payload=payload)
        await kafka.until_status(agent, "r", "completed")
        assert await result(kafka, agent, "r") == b'{"legal":1,"finance":3}'


# Pause and cancel ----------------------------------------------------------------------------


class Body:
    """A step that is held, and tells how it ends."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.cancelled = threading.Event()

    def agent(self, name: str, kind: str) -> Agent:
        agent = Agent(name)

        async def held(ctx: Context, payload: int) -> Next:
            self.began.set()
            try:
                while not self.let_go.is_set():
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                self.cancelled.set()
                if kind == "async":
                    raise
            ctx.outbox.http("POST", "http://127.0.0.1:9/never")
            return Next(after, payload)

        def held_in_a_thread(ctx: Context, payload: int) -> Next:
            self.began.set()
            self.let_go.wait()
            return Next(after, payload)

        async def after(ctx: Context, payload: int) -> Done:
            return Done("ran on")

        agent.step(held_in_a_thread if kind == "thread" else held)
        agent.step(after)
        return agent


async def test_pausing_lets_the_running_step_in_and_goes_no_further_until_resumed(
    bootstrap: str, app: str, agent_name: str
) -> None:
    body = Body()
    agent = body.agent(agent_name, "async")
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "r")
        await until(body.began.is_set, what="the step to begin")
        await kafka.tell(agent, "r", "pause")
        await kafka.until_status(agent, "r", "paused")
        assert not body.cancelled.is_set()
        body.let_go.set()

        async def committed() -> bool:
            checkpoint = await kafka.checkpoint(agent, "r")
            return checkpoint is not None and checkpoint["seq"] == 1

        await until(committed, what="the step's result")
        await first.vanish()
        await kafka.work(agent)
        other = await kafka.start(agent, "r-other")  # the partition goes on
        assert other >= 0
        assert await kafka.status(agent, "r") == "paused"
        assert [
            (await kafka.answer(agent, "r", await kafka.tell(agent, "r", kind)))["type"]
            for kind in ("pause", "resume")
        ] == ["command.repeated", "run.resumed"]
        await kafka.until_status(agent, "r", "completed")
        await kafka.check_history(agent)


@pytest.mark.parametrize("how", ["killed", "offsets set back"])
async def test_a_command_that_is_read_again_is_not_taken_again(
    bootstrap: str, app: str, agent_name: str, how: str
) -> None:
    """A run in its first step holds the offset back, so that what follows is read once more after a
    takeover: a resume that changed nothing then must not undo the pause that came after it."""
    body = Body()
    agent = body.agent(agent_name, "async")
    other = waiting_agent(agent_name)
    agent.step(other.steps["count"].fn)
    agent.step(other.steps["end"].fn)
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        first = await kafka.work(agent)
        await kafka.start(agent, "holds")
        await until(body.began.is_set, what="the step to begin")
        await kafka.send(
            command_out(
                app, 1, agent_name, run_id="r", kind="start", sent_ms=0, step="count", payload=b"0"
            )
        )
        await kafka.until_status(agent, "r", "waiting")
        for kind, event in (("resume", "command.repeated"), ("pause", "run.paused")):
            identity = await kafka.tell(agent, "r", kind)
            assert (await kafka.answer(agent, "r", identity))["type"] == event
        if how == "killed":
            await first.vanish()
            body.let_go.set()
        else:
            body.let_go.set()
            await kafka.until_status(agent, "holds", "completed")
            await first.drain()
            await kafka.set_offsets(agent, {("commands", 0): 0, ("tasks", 0): 0})
        await kafka.work(agent)
        await kafka.start(agent, "later")
        await kafka.until_status(agent, ["holds", "later"], "completed")
        assert await kafka.status(agent, "r") == "paused"
        told = names(await kafka.events(agent, "r"))
        assert (told.count("command.repeated"), told.count("run.resumed")) == (1, 0)


async def test_a_run_that_is_sent_back_to_the_step_in_work_begins_it_anew(
    bootstrap: str, app: str, agent_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its new task is read before the commit that wrote it has been answered, when it still looks
    like a copy of the task in work."""
    agent = Agent(agent_name)
    bodies = 0
    held = asyncio.Event()

    @agent.step
    async def first(ctx: Context, payload: int) -> Next:
        return Next(second, payload)

    @agent.step
    async def second(ctx: Context, payload: int) -> Done:
        nonlocal bodies
        bodies += 1
        if bodies == 1:
            held.set()
            await asyncio.Event().wait()
        return Done(payload)

    commit, ingest = KafkaOwnership.commit, Owner.ingest
    asked = asyncio.Event()

    async def late(
        self: KafkaOwnership, records: Sequence[ProducerRecord], offsets: Any
    ) -> Committed:
        committed = await commit(self, records, offsets)
        if held.is_set() and any(out.topic == kafka.topics(agent).tasks for out in records):
            await asyncio.wait_for(asked.wait(), 90)
        return committed

    def told(self: Owner, kind: InputKind, record: ConsumerRecord) -> None:
        ingest(self, kind, record)
        if held.is_set() and kind == "tasks":
            asked.set()

    monkeypatch.setattr(KafkaOwnership, "commit", late)
    monkeypatch.setattr(Owner, "ingest", told)
    async with cluster(bootstrap, app, agent, partitions=1, **PATIENT) as kafka:
        running = await kafka.work(agent)
        await kafka.start(agent, "r", b"1")
        await until(held.is_set, what="the second step to be held")
        # From then on nobody looks for runs that no task asks for.
        await until(
            lambda: running.worker.owners[0].takeover.swept, what="the inputs to have been read"
        )
        await kafka.tell(agent, "r", "rewind", epoch=0, seq=1, step="second", payload=b"2")
        await kafka.until_status(agent, "r", "completed")
        assert asked.is_set()
        assert (await result(kafka, agent, "r"), bodies) == (b"2", 2)


@pytest.mark.parametrize("kind", ["async", "swallows", "thread"])
async def test_a_cancel_reaches_the_running_step_and_its_result_does_not_count(
    bootstrap: str, app: str, agent_name: str, kind: str
) -> None:
    body = Body()
    agent = body.agent(agent_name, kind)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await until(body.began.is_set, what="the step to begin")
        identity = await kafka.tell(agent, "r", "cancel", by="ann")
        assert (await kafka.answer(agent, "r", identity))["type"] == "run.cancelled"
        if kind != "thread":
            await until(body.cancelled.is_set, what="the step to be cancelled")
        body.let_go.set()
        identity = await kafka.tell(agent, "r", "cancel")
        assert (await kafka.answer(agent, "r", identity))["type"] == "command.repeated"
        await kafka.start(agent, "r2")
        await kafka.until_status(agent, "r2", "completed")
        assert await kafka.status(agent, "r") == "cancelled"
        assert [key for key in await kafka.effects() if ":r:" in key] == []
        assert names(await kafka.events(agent, "r")) == [
            "run.started",
            "run.cancelled",
            "command.repeated",
        ]


async def test_a_cancelled_run_compensates_first(bootstrap: str, app: str, agent_name: str) -> None:
    body = Body()
    agent = body.agent(agent_name, "async")
    seen: list[Ended] = []

    @agent.on_cancel
    async def undo(ctx: Context, ended: Ended) -> Done:
        seen.append(ended)
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r", b"7")
        await until(body.began.is_set, what="the step to begin")
        await kafka.tell(agent, "r", "cancel", by="ann")
        await kafka.until_status(agent, "r", "cancelled")
        (ended,) = seen
        assert (ended.step, ended.payload, ended.code) == ("held", 7, "cancelled")
        await kafka.check_history(agent)


async def test_cancels_that_race_the_end_of_a_run_have_one_winner(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name)
    began: set[str] = set()

    @agent.step
    async def end(ctx: Context, payload: int) -> Done:
        began.add(ctx.run_id)
        ctx.outbox.http("POST", "http://127.0.0.1:9/never")
        await asyncio.sleep(payload / 1000)  # ends before the cancel, with it or after it
        return Done()

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        asked: dict[str, str] = {}
        for number in range(60):
            run_id = f"r{number}"
            await kafka.start(agent, run_id, b"%d" % (number % 12))
            await until(lambda: len(began) == number + 1, what="the step to begin")  # noqa: B023
            asked[run_id] = await kafka.tell(agent, run_id, "cancel")

        async def told() -> dict[str, list[dict[str, Any]]]:
            by_run: dict[str, list[dict[str, Any]]] = {run_id: [] for run_id in asked}
            for event in await kafka.events(agent):
                by_run[event["run_id"]].append(event)
            done = all(any(e["id"] == asked[r] for e in by_run[r]) for r in asked)
            return by_run if done else {}

        histories = await until(told, what="an answer to every cancel")
        effects = set(await kafka.effects())
        for run_id, events in histories.items():
            answer = next(e for e in events if e["id"] == asked[run_id])
            ends = [e["type"] for e in events if e["type"] in ("run.completed", "run.cancelled")]
            if answer["type"] == "run.cancelled":
                assert ends == ["run.cancelled"]
                assert f"{agent_name}:{run_id}:0:0" not in effects
            else:
                assert (answer["name"], ends) == ("too_late", ["run.completed"])
                assert f"{agent_name}:{run_id}:0:0" in effects
        await kafka.check_history(agent)


async def test_only_the_exact_run_is_cancelled(bootstrap: str, app: str, agent_name: str) -> None:
    agent = waiting_agent(agent_name)
    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        runs = [f"run-{number}" for number in range(1, 13)]
        for run_id in runs:
            await kafka.start(agent, run_id)
        await kafka.until_status(agent, runs, "waiting")
        for wrong in ("run", "run-", "RUN-1", "run-1."):
            identity = await kafka.tell(agent, wrong, "cancel")
            told = await kafka.answer(agent, wrong, identity)
            assert (told["type"], told["name"]) == ("command.refused", "unknown_run")
        await kafka.tell(agent, "run-1", "cancel")
        await kafka.until_status(agent, "run-1", "cancelled")
        await kafka.until_status(agent, runs[1:], "waiting")


async def test_a_spent_budget_asks_instead_of_failing(
    bootstrap: str, app: str, agent_name: str
) -> None:
    agent = Agent(agent_name, budget=Budget(tokens=100))
    asked: list[str] = []

    async def model(prompt: str) -> str:
        asked.append(prompt)
        return prompt

    def cost(answer: str) -> Cost:
        return Cost(tokens=60)

    @agent.step
    async def think(ctx: Context, payload: int) -> Next | Done:
        reserve = Cost(tokens=60)
        await ctx.call("model", model, f"prompt {payload}", reserve=reserve, cost=cost)
        return Next(think, payload + 1) if payload < 1 else Done(len(asked))

    async with cluster(bootstrap, app, agent, **PATIENT) as kafka:
        await kafka.work(agent)
        await kafka.start(agent, "r")
        await kafka.start(agent, "r-denied")
        await kafka.until_status(agent, ["r", "r-denied"], "waiting")
        for run_id, verdict in (("r", b"true"), ("r-denied", b"false")):
            checkpoint = await kafka.checkpoint(agent, run_id)
            assert checkpoint is not None
            assert checkpoint["wait"]["kind"] == "budget"
            await kafka.tell(
                agent,
                run_id,
                "approve",
                name=checkpoint["wait"]["question"],
                payload=b'{"approved":%s}' % verdict,
            )
        await kafka.until_status(agent, "r", "completed")
        await kafka.until_status(agent, "r-denied", "failed")
        assert sorted(asked) == ["prompt 0", "prompt 0", "prompt 1"]
        checkpoint = await kafka.checkpoint(agent, "r")
        assert checkpoint is not None
        amounts = {a["what"]: a["amount"] for a in checkpoint["memory"]["spent"]}
        assert (amounts["tokens"], amounts["steps"]) == (120, 2)
