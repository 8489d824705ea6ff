"""Steps run away from the engine's loop; whatever they do, each attempt has one outcome."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from surefoot import Agent, Context, Done, Next, Retry, RetryableError, TerminalError
from surefoot.consumers.executor import Call, Executor, Failed, Lost, Outcome
from surefoot.infra.clock import SystemClock
from surefoot.state.errors import OwnershipLost
from surefoot.state.model import Returned
from tests.waiting import until


@dataclass
class Bench:
    """An executor, and the outcomes that it has reported."""

    executor: Executor
    outcomes: list[tuple[str, Outcome]] = field(default_factory=list)

    def submit(self, fn: Callable[..., Any], run_id: str = "r", payload: bytes = b"0") -> Call:
        agent = Agent("a")
        agent.step(fn)
        return self.submit_to(agent, fn.__name__, run_id, payload)

    def submit_to(self, agent: Agent, step: str, run_id: str, payload: bytes) -> Call:
        call = Call(
            agent=agent,
            step=agent.steps[step],
            context=Context(
                agent="a", run_id=run_id, seq=0, step=step, attempt=1, lease_left_s=lambda: 1.0
            ),
            payload=payload,
            on_done=lambda outcome: self.outcomes.append((run_id, outcome)),
        )
        self.executor.submit(call)
        return call

    async def outcome(self, fn: Callable[..., Any], payload: bytes = b"0") -> Outcome:
        before = len(self.outcomes)
        self.submit(fn, payload=payload)
        await until(lambda: len(self.outcomes) > before, timeout_s=10.0, what="an outcome")
        return self.outcomes[-1][1]

    async def failed(self, fn: Callable[..., Any], payload: bytes = b"0") -> Failed:
        outcome = await self.outcome(fn, payload)
        assert isinstance(outcome, Failed)
        return outcome


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    executor = Executor(SystemClock())
    executor.start()
    yield Bench(executor)
    executor.stop()


async def test_a_result_is_encoded_with_the_type_of_the_step_it_goes_to(bench: Bench) -> None:
    async def again(ctx: Context, payload: int) -> Next:
        ctx.outbox.http("POST", "http://h/", json=payload)
        return Next(again, payload + 1)

    outcome = await bench.outcome(again, b"41")
    assert isinstance(outcome, Returned)
    assert (outcome.step, outcome.payload) == ("again", b"42")
    assert [effect.run_id for effect in outcome.effects] == ["a:r:0:0"]


async def test_a_def_runs_in_a_thread_and_an_async_def_on_the_loop_of_the_steps(
    bench: Bench,
) -> None:
    def in_thread(ctx: Context, payload: int) -> Done:
        return Done(threading.current_thread().name)

    async def on_loop(ctx: Context, payload: int) -> Done:
        return Done(threading.current_thread().name)

    for fn, name in ((in_thread, b'"surefoot-step"'), (on_loop, b'"surefoot-steps"')):
        outcome = await bench.outcome(fn)
        assert isinstance(outcome, Returned)
        assert (outcome.step, outcome.payload) == (None, name)


async def test_an_input_that_does_not_fit_is_not_run(bench: Bench) -> None:
    ran: list[int] = []

    async def picky(ctx: Context, payload: int) -> Done:
        ran.append(payload)
        return Done()

    for payload in (b'"text"', b"", b"{", b"NaN", b"\xff"):
        failed = await bench.failed(picky, payload)
        assert (failed.failure.code, failed.retryable) == ("bad_payload", False)
    assert ran == []


@pytest.mark.parametrize(
    ("error", "retryable", "after_s"),
    [
        (ValueError("why"), True, None),
        (RetryableError("why", retry_after_s=7.0), True, 7.0),
        (TerminalError("why"), False, None),
        (SystemExit("why"), True, None),
        (KeyboardInterrupt("why"), True, None),
        (GeneratorExit("why"), True, None),
        (asyncio.CancelledError("why"), True, None),
        (BaseException("why"), True, None),
        (ExceptionGroup("why", [ValueError()]), True, None),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_attempt_that_raises(
    bench: Bench, error: BaseException, retryable: bool, after_s: float | None, kind: str
) -> None:
    async def on_loop(ctx: Context, payload: int) -> Done:
        raise error

    def in_thread(ctx: Context, payload: int) -> Done:
        raise error

    failed = await bench.failed(on_loop if kind == "async def" else in_thread)
    assert failed.failure.code == "step_raised"
    assert failed.failure.kind == type(error).__name__
    # asyncio drops the text of a cancellation that comes out of a future
    assert failed.failure.message.startswith(("why", "CancelledError"))
    assert failed.failure.attempt == 1
    assert (failed.retryable, failed.retry_after_s) == (retryable, after_s)
    assert failed.started_ms

    async def next_one(ctx: Context, payload: int) -> Done:
        return Done("the loop goes on")

    assert isinstance(await bench.outcome(next_one), Returned)


async def test_an_exit_in_a_task_of_a_steps_own_ends_no_other_step(bench: Bench) -> None:
    reached, end = threading.Event(), threading.Event()

    async def leave() -> None:
        sys.exit("from a task")

    async def waits(ctx: Context, payload: int) -> Done:
        reached.set()
        await until(end.is_set, what="the other step to end")
        return Done("waited")

    async def leaves(ctx: Context, payload: int) -> Done:
        await asyncio.gather(leave())
        return Done()

    bench.submit(waits, "waits")
    await until(reached.is_set, what="the first step to begin")
    left = await bench.failed(leaves)
    assert (left.failure.kind, left.failure.message) == ("SystemExit", "from a task")
    end.set()
    await until(lambda: len(bench.outcomes) == 2, timeout_s=10.0, what="the other outcome")
    assert isinstance(bench.outcomes[1][1], Returned)


async def test_an_exception_that_cannot_be_told(bench: Bench) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no words")

    class Silent(Exception):
        pass

    async def mute(ctx: Context, payload: int) -> Done:
        raise Mute

    async def silent(ctx: Context, payload: int) -> Done:
        raise Silent

    async def long(ctx: Context, payload: int) -> Done:
        raise ValueError("\ud800" + "x" * 100_000)

    assert (await bench.failed(mute)).failure.message == "Mute"
    assert (await bench.failed(silent)).failure.message == "Silent"
    message = (await bench.failed(long)).failure.message
    assert len(message) == 4096
    message.encode()


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (None, "returned NoneType"),
        (Done, "returned type"),
        ({"step": "x"}, "returned dict"),
        (Next(lambda: None, 1), "is not a step of agent 'a'"),
        (Next("odd", 1), "is not a step of agent 'a'"),  # type: ignore[arg-type]
    ],
)
async def test_a_return_value_that_means_nothing(bench: Bench, result: Any, told: str) -> None:
    async def odd(ctx: Context, payload: int) -> Any:
        return result

    failed = await bench.failed(odd)
    assert told in failed.failure.message
    assert not failed.retryable


async def test_a_value_of_the_wrong_type_for_the_next_step(bench: Bench) -> None:
    async def next_wrong(ctx: Context, payload: int) -> Next:
        return Next(next_wrong, "text")

    failed = await bench.failed(next_wrong)
    assert failed.failure.code == "unserialisable"
    assert failed.failure.message.startswith("$ (str)")


@pytest.mark.parametrize("kind", ["async def", "def"])
async def test_an_attempt_that_takes_too_long_is_over_and_the_next_one_need_not_wait(
    bench: Bench, kind: str
) -> None:
    agent = Agent("a")
    end = threading.Event()

    async def on_loop(ctx: Context, payload: int) -> Done:
        await asyncio.sleep(60)
        return Done()

    def in_thread(ctx: Context, payload: int) -> Done:
        end.wait(60)
        raise ValueError("too late to matter")

    fn = on_loop if kind == "async def" else in_thread
    agent.step(timeout="50ms", retry=Retry(attempts=3))(fn)
    for n in (1, 2):
        bench.submit_to(agent, fn.__name__, "r", b"0")
        await until(lambda n=n: len(bench.outcomes) == n, timeout_s=10.0, what="a timeout")  # type: ignore[misc]
    end.set()
    await until(lambda: "surefoot-step" not in names_of_threads(), what="the threads to end")
    assert await bench.executor.probe(10.0)  # and their ends to be heard of
    for _, outcome in bench.outcomes:
        assert isinstance(outcome, Failed)
        assert (outcome.failure.code, outcome.retryable) == ("timeout", True)
        assert outcome.failure.message == "no result within 0.05 s"


async def test_a_timeout_of_the_steps_own_is_an_error_like_any_other(bench: Bench) -> None:
    async def own(ctx: Context, payload: int) -> Done:
        async with asyncio.timeout(0.01):
            await asyncio.sleep(60)
        return Done()

    failed = await bench.failed(own)
    assert (failed.failure.code, failed.failure.kind) == ("step_raised", "TimeoutError")


async def test_losing_ownership_is_nobodys_failure(bench: Bench) -> None:
    async def lost(ctx: Context, payload: int) -> Done:
        raise OwnershipLost

    assert await bench.outcome(lost) == Lost()


async def test_an_attempt_given_up_is_cancelled_and_never_heard_of(bench: Bench) -> None:
    cancelled = threading.Event()
    begun = threading.Event()

    async def endless(ctx: Context, payload: int) -> Done:
        begun.set()
        try:
            await asyncio.sleep(60)
        except BaseException:
            cancelled.set()
            raise
        return Done()

    call = bench.submit(endless)
    await until(begun.is_set, what="the step to begin")
    assert bench.executor.busy() == ["a.endless of run r"]
    bench.executor.give_up(call)
    await until(lambda: not bench.executor._live, what="the attempt to be over")
    assert cancelled.is_set()
    assert bench.outcomes == []
    assert bench.executor.busy() == []


async def test_a_twin_begins_when_the_attempt_that_was_given_up_has_ended(bench: Bench) -> None:
    begun: list[str] = []
    end = threading.Event()

    def stubborn(ctx: Context, payload: str) -> Done:
        begun.append(payload)
        end.wait(60)
        return Done(payload)

    first = bench.submit(stubborn, payload=b'"first"')
    await until(lambda: begun == ["first"], what="the first to begin")
    bench.executor.give_up(first)
    second = bench.submit(stubborn, payload=b'"second"')
    bench.executor.give_up(second)
    third = bench.submit(stubborn, payload=b'"third"')
    assert await bench.executor.probe(10.0)
    assert begun == ["first"]
    end.set()
    await until(lambda: bench.outcomes, what="the outcome of the third")
    assert begun == ["first", "third"]
    (outcome,) = (outcome for _, outcome in bench.outcomes)
    assert isinstance(outcome, Returned)
    assert outcome.payload == b'"third"'
    assert third.key == first.key


async def test_a_step_that_blocks_the_loop_is_noticed_and_named(bench: Bench) -> None:
    begun, end = threading.Event(), threading.Event()

    async def blocking(ctx: Context, payload: int) -> Done:
        begun.set()
        end.wait(60)
        return Done()

    assert await bench.executor.probe(10.0)
    bench.submit(blocking, "guilty")
    await until(begun.is_set, what="the step to begin")
    bench.submit(blocking, "waiting")
    assert not await bench.executor.probe(0.05)
    assert bench.executor.busy()[0] == "a.blocking of run guilty"
    end.set()
    assert await bench.executor.probe(10.0)
