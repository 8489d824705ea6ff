"""Steps run away from the engine's loop; whatever they do, each attempt has one outcome."""

from __future__ import annotations

import asyncio
import re
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Budget, Context, Cost, Done, Next, Retry, RetryableError, TerminalError
from surefoot.consumers.attempts.attempt import (
    AttemptFailed,
    AttemptLost,
    AttemptOutcome,
    EntryRequest,
    StepCall,
)
from surefoot.consumers.attempts.executor import Executor
from surefoot.consumers.deadlines import ConsumerDeadlines
from surefoot.infra.processes.worker import _watch_steps
from surefoot.infra.runtime.clock import SystemClock
from surefoot.state.errors import BudgetSpent, OwnershipLost, Parked
from surefoot.state.machine.model import (
    Amount,
    BudgetExceeded,
    Complete,
    GoTo,
    Memory,
    OutputPiece,
    PlanItem,
    StepReturned,
    Work,
)
from surefoot.state.machine.pooled_step import encode_input
from tests.support.eventually import until
from tests.support.fake_engine import a_run


@dataclass
class Bench:
    """An executor, and the outcomes that it has reported."""

    executor: Executor
    outcomes: list[tuple[str, AttemptOutcome]] = field(default_factory=list)
    notes: list[EntryRequest] = field(default_factory=list)
    pieces: list[OutputPiece] = field(default_factory=list)
    #: attempts that others have begun beside
    beside: list[StepCall] = field(default_factory=list)
    #: notes are committed as they come
    commits: bool = True
    lease_s: float = 1.0

    def submit(self, fn: Callable[..., Any], run_id: str = "r", payload: bytes = b"0") -> StepCall:
        agent = Agent("a")
        agent.step(fn)
        return self.submit_to(agent, fn.__name__, run_id, payload)

    def submit_to(
        self, agent: Agent, step: str, run_id: str, payload: bytes, **fields: Any
    ) -> StepCall:
        run = a_run(run_id=run_id, agent=agent.name, step=step, attempt=1, payload=payload)
        call = StepCall(
            agent=agent,
            run=run,
            partition=0,
            lease_left_s=lambda: self.lease_s,
            exclusive_from_s=0.0,
            on_done=lambda outcome: self.outcomes.append((run_id, outcome)),
            on_note=self._note,
            on_output=self.pieces.append,
            on_beside=self.beside.append,
            **fields,
        )
        self.executor.submit(call)
        return call

    def _note(self, note: EntryRequest) -> None:
        self.notes.append(note)
        if self.commits:
            self.executor.recorded(note)

    async def outcome(self, fn: Callable[..., Any], payload: bytes = b"0") -> AttemptOutcome:
        before = len(self.outcomes)
        self.submit(fn, payload=payload)
        await until(lambda: len(self.outcomes) > before, what="an outcome")
        return self.outcomes[-1][1]

    async def failed(self, fn: Callable[..., Any], payload: bytes = b"0") -> AttemptFailed:
        outcome = await self.outcome(fn, payload)
        assert isinstance(outcome, AttemptFailed)
        return outcome


def names_of_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    executor = Executor(SystemClock())
    executor.start()
    yield Bench(executor)
    executor.stop()


@pytest.fixture
async def impatient() -> AsyncIterator[Bench]:
    """Twins are not waited for, and two threads of a step may be left."""
    deadlines = ConsumerDeadlines(twin_wait_s=0.01)
    executor = Executor(SystemClock(), deadlines=deadlines, left_max=2)
    executor.start()
    yield Bench(executor)
    executor.stop()


async def test_a_result_is_encoded_with_the_type_of_the_step_it_goes_to(bench: Bench) -> None:
    async def again(ctx: Context, payload: int) -> Next:
        ctx.outbox.http("POST", "http://h/", json=payload)
        return Next(again, payload + 1)

    outcome = await bench.outcome(again, b"41")
    assert isinstance(outcome, StepReturned)
    assert outcome.then == GoTo(step="again", payload=b"42")
    assert outcome.work == Work(seq=0, attempt=1)
    assert outcome.started_ms
    assert outcome.version == 1
    assert [effect.run_id for effect in outcome.effects] == ["a:r:0:0"]


@pytest.mark.parametrize("sync", [False, True])
async def test_a_step_is_not_begun_without_a_lease(bench: Bench, sync: bool) -> None:
    began = []

    async def go(ctx: Context, n: int) -> Done:
        began.append(n)
        return Done(n)

    def go_sync(ctx: Context, n: int) -> Done:
        began.append(n)
        return Done(n)

    bench.lease_s = 0.0
    assert await bench.outcome(go_sync if sync else go, b"1") == AttemptLost()
    assert began == []
    bench.lease_s = 1.0
    assert isinstance(await bench.outcome(go_sync if sync else go, b"2"), StepReturned)
    assert began == [2]


async def test_a_call_is_not_begun_without_a_lease_and_uses_no_attempt(bench: Bench) -> None:
    called: list[int] = []

    async def go(ctx: Context, n: int) -> Done:
        bench.lease_s = 0.0  # the process was frozen here for a while
        return Done(await ctx.call("ask", called.append, n))

    assert await bench.outcome(go) == AttemptLost()
    assert called == []


async def test_a_step_that_was_given_up_begins_no_call(bench: Bench) -> None:
    """Its partition may have been lost and come back: then there is a lease, for others' work."""
    called: list[int] = []
    begun, go_on = threading.Event(), threading.Event()

    async def go(ctx: Context, n: int) -> Done:
        begun.set()
        go_on.wait()  # it cannot be cancelled here
        return Done(await ctx.call("ask", called.append, n))

    call = bench.submit(go)
    await until(begun.is_set, what="the step to begin")
    bench.executor.give_up(call)
    go_on.set()
    await until(lambda: not bench.executor.live, what="the attempt to be over")
    assert called == []


async def test_a_def_runs_in_a_thread_and_an_async_def_on_the_loop_of_the_steps(
    bench: Bench,
) -> None:
    def in_thread(ctx: Context, payload: int) -> Done:
        return Done(threading.current_thread().name)

    async def on_loop(ctx: Context, payload: int) -> Done:
        return Done(threading.current_thread().name)

    for fn, name in ((in_thread, b'"surefoot-step"'), (on_loop, b'"surefoot-steps"')):
        outcome = await bench.outcome(fn)
        assert isinstance(outcome, StepReturned)
        assert outcome.then == Complete(result=name)


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

    assert isinstance(await bench.outcome(next_one), StepReturned)


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
    await until(lambda: len(bench.outcomes) == 2, what="the other outcome")
    assert isinstance(bench.outcomes[1][1], StepReturned)


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
        await until(lambda n=n: len(bench.outcomes) == n, what="a timeout")  # type: ignore[misc]
    end.set()
    await until(lambda: "surefoot-step" not in names_of_threads(), what="the threads to end")
    assert await bench.executor.probe(90.0)  # and their ends to be heard of
    for _, outcome in bench.outcomes:
        assert isinstance(outcome, AttemptFailed)
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

    assert await bench.outcome(lost) == AttemptLost()


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
    await until(lambda: not bench.executor.live, what="the attempt to be over")
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
    assert await bench.executor.probe(90.0)
    assert begun == ["first"]
    end.set()
    await until(lambda: bench.outcomes, what="the outcome of the third")
    assert begun == ["first", "third"]
    (outcome,) = (outcome for _, outcome in bench.outcomes)
    assert isinstance(outcome, StepReturned)
    assert outcome.then == Complete(result=b'"third"')
    assert third.key == first.key


@pytest.mark.parametrize("sync", [False, True])
async def test_a_twin_begins_beside_an_attempt_that_was_given_up_and_does_not_end(
    impatient: Bench, sync: bool
) -> None:
    bench = impatient
    begun: list[str] = []
    end = threading.Event()

    def stubborn(ctx: Context, payload: str) -> Done:
        begun.append(payload)
        if payload == "first":
            end.wait()
        return Done(payload)

    async def deaf(ctx: Context, payload: str) -> Done:
        begun.append(payload)
        while payload == "first" and not end.is_set():
            with suppress(asyncio.CancelledError):
                await until(end.is_set, what="the end")
        return Done(payload)

    step = stubborn if sync else deaf
    first = bench.submit(step, payload=b'"first"')
    await until(lambda: begun == ["first"], what="the first to begin")
    bench.executor.give_up(first)
    bench.submit(step, payload=b'"second"')
    await until(lambda: bench.outcomes, what="the outcome of the second")
    assert bench.beside == [first]
    assert bench.executor.busy() == [f"a.{step.__name__} of run r"]  # the first
    third = bench.submit(step, payload=b'"third"')
    await until(lambda: len(bench.outcomes) == 2, what="the outcome of the third")
    assert third not in bench.beside
    end.set()
    await until(lambda: not bench.executor.busy(), what="the first to end")
    ends = [o.then for _, o in bench.outcomes if isinstance(o, StepReturned)]
    assert ends == [Complete(result=b'"second"'), Complete(result=b'"third"')]
    assert bench.executor.live == {}


@pytest.mark.parametrize("how", ["given up", "timed out"])
async def test_a_step_whose_threads_do_not_end_is_begun_so_often_and_then_waits_for_a_person(
    impatient: Bench, how: str
) -> None:
    bench = impatient
    begun, end = [], threading.Event()
    agent = Agent("a")

    @agent.step(timeout="10ms" if how == "timed out" else None)
    def hangs(ctx: Context, n: int) -> Done:
        begun.append(n)
        end.wait()
        return Done(n)

    @agent.step
    def other(ctx: Context, n: int) -> Done:
        return Done(n)

    for number in range(2):
        call = bench.submit_to(agent, "hangs", "r", str(number).encode())
        await until(lambda n=number: len(begun) > n, what="the attempt to begin")  # type: ignore[misc]
        if how == "given up":
            bench.executor.give_up(call)
        await until(lambda n=number: len(bench.executor.left) > n, what="it to be left")  # type: ignore[misc]
    before = len(bench.outcomes)
    bench.submit_to(agent, "hangs", "r", b"2")
    await until(lambda: len(bench.outcomes) > before, what="it to be refused")
    _, refused = bench.outcomes[-1]
    assert isinstance(refused, AttemptFailed)
    assert (refused.failure.code, refused.park, begun) == ("step_hangs", True, [0, 1])
    assert "2 attempts of step 'hangs'" in refused.failure.message
    bench.submit_to(agent, "other", "r2", b"2")
    await until(lambda: len(bench.outcomes) > before + 1, what="another step to be run")
    assert isinstance(bench.outcomes[-1][1], StepReturned)
    end.set()
    await until(lambda: not bench.executor.left, what="the threads to end")
    bench.submit_to(agent, "hangs", "r", b"3")
    await until(lambda: 3 in begun, what="the step to be begun again")


async def test_a_step_that_blocks_the_loop_is_noticed_and_named(bench: Bench) -> None:
    begun, end = threading.Event(), threading.Event()

    def helper() -> None:
        begun.set()
        end.wait(60)

    async def blocking(ctx: Context, payload: int) -> Done:
        helper()
        return Done()

    assert await bench.executor.probe(90.0)
    bench.submit(blocking, "guilty")
    await until(begun.is_set, what="the step to begin")
    bench.submit(blocking, "waiting")
    assert not await bench.executor.probe(0.05)
    assert bench.executor.busy()[0] == "a.blocking of run guilty"
    watching = asyncio.create_task(_watch_steps(bench.executor, every_s=0.01))
    with capture_logs() as logs:
        await until(lambda: logs, what="the warning")
    watching.cancel()
    assert (logs[0]["event"], logs[0]["steps"][0]) == (
        "step_blocks_loop",
        "a.blocking of run guilty",
    )
    frames = re.findall(r", in (\w+)\n +(.*)", logs[0]["stack"])
    assert frames[:2] == [("blocking", "helper()"), ("helper", "end.wait(60)")]
    end.set()
    assert await bench.executor.probe(90.0)


# What a step asks for while it runs ----------------------------------------------------------


async def test_a_call_goes_on_when_its_result_is_committed_and_not_before(bench: Bench) -> None:
    bench.commits = False
    after = threading.Event()

    async def asks(ctx: Context, payload: int) -> Done:
        value = await ctx.call("ask", lambda: 7)
        after.set()
        return Done(value)

    bench.submit(asks)
    await until(lambda: bench.notes, what="the result to be handed over")
    assert await bench.executor.probe(90.0)
    assert not after.is_set()
    (note,) = bench.notes
    assert (note.journaled.slot, note.journaled.value) == ("c:ask#0", b"7")
    assert note.journaled.work == Work(seq=0, attempt=1)
    bench.executor.recorded(note)
    await until(lambda: bench.outcomes, what="the outcome")
    assert after.is_set()


async def test_calls_run_on_the_loop_of_the_steps_or_in_threads_of_their_own(bench: Bench) -> None:
    def thread() -> str:
        return threading.current_thread().name

    async def loop() -> str:
        return threading.current_thread().name

    async def asks(ctx: Context, payload: int) -> Done:
        made = [
            ctx.call("thread", thread),
            ctx.call("loop", loop),
            ctx.call("made", lambda: loop()),  # noqa: PLW0108
        ]
        return Done(await asyncio.gather(*made))

    outcome = await bench.outcome(asks)
    assert isinstance(outcome, StepReturned)
    assert outcome.then == Complete(result=b'["surefoot-step","surefoot-steps","surefoot-steps"]')


async def test_what_an_attempt_collects_is_part_of_its_outcome(bench: Bench) -> None:
    async def busy(ctx: Context, payload: int) -> Done:
        ctx.thread.append("hello")
        ctx.plan.add("look")
        async with ctx.stream("draft") as draft:
            await draft.write("text")
        return Done()

    outcome = await bench.outcome(busy)
    assert isinstance(outcome, StepReturned)
    assert outcome.messages == (b'"hello"',)
    assert outcome.plan == (PlanItem(id="0.0", text="look"),)
    assert [piece.kind for piece in bench.pieces] == ["begin", "text", "end"]


async def test_an_attempt_that_is_over_records_and_tells_nothing_more(bench: Bench) -> None:
    late: list[BaseException | str] = []
    over = threading.Event()
    stray: list[asyncio.Task[None]] = []

    async def afterwards(ctx: Context) -> None:
        await until(over.is_set, what="the attempt to be over")
        draft = ctx.stream("late")
        async with draft:
            await draft.write("text")
        try:
            await ctx.call("late", lambda: late.append("called"))
        except OwnershipLost as error:
            late.append(error)

    async def leaves_a_task(ctx: Context, payload: int) -> Done:
        stray.append(asyncio.create_task(afterwards(ctx)))
        return Done()

    await bench.outcome(leaves_a_task)
    over.set()
    await until(lambda: len(late) == 2, what="the late call to be refused")
    assert late[0] == "called"
    assert isinstance(late[1], OwnershipLost)
    assert bench.notes == []
    assert bench.pieces == []


async def test_an_attempt_given_up_is_not_heard_of_whatever_it_records(bench: Bench) -> None:
    bench.commits = False
    swallowed = threading.Event()

    async def stubborn(ctx: Context, payload: int) -> Done:
        try:
            await ctx.call("first", lambda: 1)
        except asyncio.CancelledError:
            swallowed.set()
        async with ctx.stream("draft") as draft:
            await draft.write("text")
        try:
            return Done(await ctx.call("second", lambda: 2))
        finally:
            await ctx.call("clean up", lambda: 3)

    call = bench.submit(stubborn)
    await until(lambda: bench.notes, what="the first call")
    bench.executor.give_up(call)
    await until(lambda: not bench.executor.live, what="the attempt to be over")
    assert swallowed.is_set()
    assert bench.outcomes == []
    assert len(bench.notes) == 1
    assert bench.pieces == []


async def test_what_is_on_its_way_when_an_attempt_is_given_up_is_not_heard_of(
    bench: Bench,
) -> None:
    handed_over = threading.Event()

    async def nothing() -> None: ...

    async def a_little_later() -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        handed_over.set()

    async def asks(ctx: Context, payload: int) -> Done:
        await asyncio.gather(ctx.call("ask", nothing), a_little_later())
        return Done()

    call = bench.submit(asks)
    await asyncio.sleep(0)  # the call is handed over at the end of the turn
    handed_over.wait(10.0)  # and nothing is heard in this one
    bench.executor.give_up(call)
    await until(lambda: not bench.executor.live, what="the attempt to be over")
    assert bench.notes == []
    assert bench.outcomes == []


async def test_what_a_step_in_a_pool_records_is_of_the_pools_run(bench: Bench) -> None:
    agent = Agent("a")

    @agent.step(pool="gpu")
    async def heavy(ctx: Context, payload: int) -> Done:
        assert ctx.seq == 5
        return Done(await ctx.call("ask", lambda: 1))

    task = encode_input(a_run(step="heavy", seq=5, payload=b"0"), {})
    bench.submit_to(agent.pool("gpu"), "heavy", "r~1~0", task)
    await until(lambda: bench.outcomes, what="the outcome")
    (note,) = bench.notes
    assert note.journaled.work == Work(seq=0, attempt=1)
    assert isinstance(bench.outcomes[0][1], StepReturned)


async def test_an_async_step_that_will_not_be_cancelled_holds_up_its_twin_and_nobody_else(
    bench: Bench,
) -> None:
    begun: list[str] = []
    end = threading.Event()

    async def stubborn(ctx: Context, payload: str) -> Done:
        begun.append(payload)
        while not end.is_set():
            try:
                await until(end.is_set, timeout_s=60.0, what="the end")
            except asyncio.CancelledError:
                begun.append("cancelled")
        return Done(payload)

    first = bench.submit(stubborn, payload=b'"first"')
    await until(lambda: begun == ["first"], what="the first to begin")
    bench.executor.give_up(first)
    await until(lambda: begun == ["first", "cancelled"], what="the first to be cancelled")
    bench.submit(stubborn, payload=b'"second"')
    bench.submit(stubborn, "another run", payload=b'"other"')
    await until(lambda: "other" in begun, what="another run's step to begin")
    assert "second" not in begun
    end.set()
    await until(lambda: len(bench.outcomes) == 2, what="the outcomes of the other two")
    ends = {o.then for _, o in bench.outcomes if isinstance(o, StepReturned)}
    assert ends == {Complete(result=b'"other"'), Complete(result=b'"second"')}


async def test_a_timeout_counts_the_calls_of_the_step(bench: Bench) -> None:
    agent = Agent("a")
    end = threading.Event()

    @agent.step(timeout="50ms")
    async def asks(ctx: Context, payload: int) -> Done:
        await ctx.call("ask", end.wait, 60)
        return Done()

    bench.submit_to(agent, "asks", "r", b"0")
    await until(lambda: bench.outcomes, what="a timeout")
    end.set()
    await until(lambda: "surefoot-step" not in names_of_threads(), what="the thread to end")
    assert await bench.executor.probe(90.0)
    (outcome,) = (outcome for _, outcome in bench.outcomes)
    assert isinstance(outcome, AttemptFailed)
    assert outcome.failure.code == "timeout"
    assert bench.notes == []


# Signals of the engine -----------------------------------------------------------------------


def raised_by_a_call(error: BaseException) -> Callable[[], Any]:
    async def fails() -> None:
        raise error

    return fails


async def test_a_step_cannot_eat_what_is_not_for_it(bench: Bench) -> None:
    async def greedy(ctx: Context, payload: int) -> Done:
        try:
            await ctx.call("it", raised_by_a_call(Parked("odd", "look at it")))
        except Exception:  # noqa: BLE001
            return Done("eaten")
        return Done("unharmed")

    failed = await bench.failed(greedy)
    assert (failed.park, failed.retryable, failed.failure.code) == (True, False, "odd")
    assert (failed.failure.message, failed.failure.kind) == ("look at it", "")


@pytest.mark.parametrize("how", ["gather", "task group", "group in a group"])
@pytest.mark.parametrize(
    "error",
    [Parked("odd", "look"), BudgetSpent("tokens", "spent"), OwnershipLost(), TerminalError("no")],
    ids=lambda error: type(error).__name__,
)
async def test_they_are_understood_from_calls_side_by_side_too(
    bench: Bench, error: BaseException, how: str
) -> None:
    async def side_by_side(ctx: Context, payload: int) -> Done:
        made = [ctx.call("bad", raised_by_a_call(error)), ctx.call("good", lambda: 1)]
        if how == "gather":
            await asyncio.gather(*made)
        async with asyncio.TaskGroup() as group:
            for one in made:
                group.create_task(one)
            if how == "group in a group":
                async with asyncio.TaskGroup() as inner:
                    inner.create_task(ctx.call("inner", raised_by_a_call(error)))
        return Done()

    outcome = await bench.outcome(side_by_side)
    match error:
        case Parked():
            assert isinstance(outcome, AttemptFailed)
            assert (outcome.park, outcome.failure.code) == (True, "odd")
        case BudgetSpent():
            assert outcome == BudgetExceeded(
                work=Work(seq=0, attempt=1), what="tokens", message="spent"
            )
        case OwnershipLost():
            assert outcome == AttemptLost()
        case _:
            assert isinstance(outcome, AttemptFailed)
            assert not outcome.retryable


async def test_a_budget_that_is_spent_is_not_a_failure(bench: Bench) -> None:
    agent = Agent("a", budget=Budget(tokens=10))

    @agent.step
    async def asks(ctx: Context, payload: int) -> Done:
        await ctx.call("ask", lambda: 1, reserve=Cost(tokens=11))
        return Done()

    run = a_run(step="asks", payload=b"0", memory=Memory(granted=(Amount("tokens", 10),)))
    outcomes: list[AttemptOutcome] = []
    call = StepCall(
        agent=agent,
        run=run,
        partition=0,
        lease_left_s=lambda: 1.0,
        exclusive_from_s=0.0,
        on_done=outcomes.append,
        on_note=bench.notes.append,
        on_output=bench.pieces.append,
        on_beside=bench.beside.append,
    )
    bench.executor.submit(call)
    await until(lambda: outcomes, what="the outcome")
    (outcome,) = outcomes
    assert isinstance(outcome, BudgetExceeded)
    assert outcome.what == "tokens"
