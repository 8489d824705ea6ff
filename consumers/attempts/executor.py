"""Runs the author's code, away from the Kafka clients.

Steps run on an event loop in a thread of their own (`async def`) or in a thread each (`def`), so
that user code which blocks can starve neither heartbeats nor commits. Input is decoded and results
are encoded there too: a value that cannot be stored is refused before the result counts.

Both directions are batched: however many calls or outcomes wait, the other loop is woken once.
"""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar

import structlog

from surefoot.consumers.attempts.attempt import (
    AttemptLost,
    AttemptOutcome,
    Body,
    EntryRequest,
    StepCall,
    StepTimeout,
    classify,
    prepare,
    verify,
    word_of,
)
from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.consumers.attempts.threads import in_thread
from surefoot.consumers.deadlines import DEADLINES, ConsumerDeadlines
from surefoot.state.declare.callables import is_async
from surefoot.state.errors import OwnershipLost, Parked
from surefoot.state.machine.model import EntryRecorded, OutputPiece
from surefoot.state.ports.clock import Clock
from surefoot.state.steps.journal import require_lease
from surefoot.state.telemetry import log_context, metrics, spans

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: how long a step may block the loop while it is stopped, in seconds
STOP_S = 2.0
#: threads of one step that were given up or timed out and have not ended
LEFT_MAX = 256


class Mailbox(Generic[T]):
    """Hands items from one loop to another, all of one turn of the loop at once.

    Each hand-over wakes the other thread and releases the interpreter lock, which costs more than
    the item; so it is postponed to the end of the turn.
    """

    def __init__(
        self,
        sender: asyncio.AbstractEventLoop,
        receiver: asyncio.AbstractEventLoop,
        receive: Callable[[T], None],
    ) -> None:
        self._sender = sender
        self._receiver = receiver
        self._receive = receive
        self._items: list[T] = []

    def post(self, item: T) -> None:
        """Add an item. Call on the sender's loop."""
        if not self._items:
            self._sender.call_soon(self._hand_over)
        self._items.append(item)

    def _hand_over(self) -> None:
        items, self._items = self._items, []
        with suppress(RuntimeError):  # the receiver's loop is closed: nobody is left to notify
            self._receiver.call_soon_threadsafe(self._take, items)

    def _take(self, items: list[T]) -> None:
        for item in items:
            self._receive(item)


class Executor:
    """Runs calls on a thread of its own and reports outcomes on the engine's loop.

    Create it on that loop, and call it there."""

    def __init__(
        self,
        clock: Clock,
        claims: ClaimCheck | None = None,
        *,
        deadlines: ConsumerDeadlines = DEADLINES,
        left_max: int = LEFT_MAX,
    ) -> None:
        self._clock = clock
        self._deadlines = deadlines
        self._left_max = left_max
        #: where large payloads are kept
        self.claims = claims or ClaimCheck(clock)
        self._loop = self._new_loop()
        self._thread = threading.Thread(target=self._run, name="surefoot-steps", daemon=True)
        engine = asyncio.get_running_loop()
        self._calls = Mailbox(engine, self._loop, self._begin)
        self._cancels = Mailbox(engine, self._loop, self._cancel)
        self._outcomes = Mailbox(self._loop, engine, self._report)
        self._notes = Mailbox(self._loop, engine, self._note)
        self._outputs = Mailbox(self._loop, engine, self._output)
        self._recorded = Mailbox(engine, self._loop, _settle)
        #: calls in progress, and those waiting for an abandoned twin to end; engine's loop only
        self.live: dict[tuple[str, str, int], StepCall] = {}
        self._twins: dict[tuple[str, str, int], StepCall] = {}
        #: steps' loop only: calls by start time; (agent, step) of threads that nobody waits for
        self._active: dict[StepCall, float] = {}
        self.left: dict[asyncio.Future[Any], tuple[str, str]] = {}
        self._stopping = False

    def _new_loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that steps run on."""
        return asyncio.new_event_loop()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def submit(self, call: StepCall) -> None:
        """Begin an attempt. If an abandoned attempt of the same step of the same run has not ended
        yet (a thread cannot be stopped), this one begins when it has, or beside it after
        `twin_wait_s`."""
        if call.key in self.live:
            self._twins[call.key] = call
            wait_s = self._deadlines.twin_wait_s
            asyncio.get_running_loop().call_later(wait_s, self._begin_beside, call)
            return
        self.live[call.key] = call
        self._calls.post(call)

    def give_up(self, call: StepCall) -> None:
        """Give up a call: `on_done` will not be called.

        An async step is cancelled; a step in a thread runs to its end and its result is dropped."""
        call.given_up = True
        if self._twins.get(call.key) is call:
            del self._twins[call.key]
        else:
            self._cancels.post(call)

    def recorded(self, note: EntryRequest) -> None:
        """Confirm that the note is committed; the attempt continues."""
        self._recorded.post(note)

    def busy(self) -> list[str]:
        """Return what is in progress, longest first."""
        calls = sorted(self._active.items(), key=lambda item: item[1])
        return [call.describe() for call, _ in calls]

    def stack(self) -> str:
        """Return the present stack of the steps' thread: the author's frames, innermost last."""
        assert self._thread.ident is not None, "start() comes first"
        frames = traceback.extract_stack(sys._current_frames()[self._thread.ident])
        ours = [number for number, each in enumerate(frames) if each.filename == __file__]
        begun = next((n for n in ours if frames[n].name == self._attempt.__name__), -1)
        theirs = [each for each in frames[begun + 1 :] if each.filename != __file__]
        return "".join(traceback.format_list(theirs))

    async def probe(self, timeout_s: float) -> bool:
        """Whether the steps' loop answers in time. False: a step is blocking it."""
        answered = asyncio.Event()
        engine = asyncio.get_running_loop()
        self._loop.call_soon_threadsafe(engine.call_soon_threadsafe, answered.set)
        try:
            async with asyncio.timeout(timeout_s):
                await answered.wait()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Stop the loop. Steps still in threads are daemons and end with the process."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=STOP_S)

    # On the engine's loop --------------------------------------------------------------------

    def _begin_beside(self, call: StepCall) -> None:
        """Begin beside the abandoned twin, whose time is up."""
        if self._twins.get(call.key) is call:
            del self._twins[call.key]
            call.on_beside(self.live[call.key])
            self.live[call.key] = call
            self._calls.post(call)

    def _report(self, item: tuple[StepCall, AttemptOutcome]) -> None:
        call, outcome = item
        if self.live.get(call.key) is call:
            del self.live[call.key]
            twin = self._twins.pop(call.key, None)
            if twin is not None:
                self.submit(twin)
        else:
            log.info("abandoned_attempt_ended", run_id=call.run.run_id, step=call.run.step)
        if not call.given_up:
            call.on_done(outcome)

    def _note(self, note: EntryRequest) -> None:
        if not note.call.given_up:
            note.call.on_note(note)

    def _output(self, item: tuple[StepCall, OutputPiece]) -> None:
        call, piece = item
        if not call.given_up:
            call.on_output(piece)

    async def in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run `fn` in a daemon thread.

        Under cancellation: it runs to its end and its result is dropped; neither a pool nor the
        exit of the process waits for it."""
        return await in_thread(fn, *args)

    # On the steps' loop ----------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            while not self._stopping:
                # asyncio lets these two out of the loop even if a task of the step raised them; the
                # waiting attempt gets the error, and other steps continue.
                with suppress(SystemExit, KeyboardInterrupt):
                    self._loop.run_forever()
        finally:
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.run_until_complete(asyncio.sleep(0))
            self._loop.close()

    def _begin(self, call: StepCall) -> None:
        self._active[call] = self._clock.monotonic_s()
        call.task = self._loop.create_task(self._attempt(call))
        call.task.add_done_callback(lambda task: self._ended(call, task))

    def _cancel(self, call: StepCall) -> None:
        if call.task is not None:
            call.task.cancel()

    def _ended(self, call: StepCall, task: asyncio.Task[AttemptOutcome]) -> None:
        self._active.pop(call, None)
        self._outcomes.post((call, AttemptLost() if task.cancelled() else task.result()))

    async def _attempt(self, call: StepCall) -> AttemptOutcome:
        run = call.run
        started_ms, started_s = self._clock.now_ms(), self._clock.monotonic_s()
        log_context.ATTEMPT.set((run, call.partition))  # of this task: ends with it
        engine = _Attempt(
            call,
            claims=self.claims,
            clock=self._clock,
            in_thread=self.in_thread,
            record=self._notes.post,
            publish=self._outputs.post,
        )
        body: Body | None = None
        outcome: AttemptOutcome
        with spans.step(run, call.partition) as span:
            try:
                if await self.claims.redeem(call):
                    body = await prepare(call, engine, span.traceparent)
                    if call.resumed:
                        await verify(body, engine)
                    require_lease(engine)
                    value = await self._body(call, body)
                    outcome = body.outcome(value, started_ms, self._took_ms(started_s))
                    outcome = await self.claims.keep_outcome(call, outcome)
                else:
                    outcome = AttemptLost()
            except BaseException as error:  # noqa: BLE001  (user code: whatever it was, it is told)
                outcome = classify(error, call, body, started_ms, self._took_ms(started_s))
            engine.over = True
            span.outcome(word_of(outcome))
        step = run.step if run.step in call.agent.steps else "unknown"
        metrics.STEP_SECONDS.observe(self._clock.monotonic_s() - started_s, run.agent, step)
        metrics.STEPS.add(run.agent, step, word_of(outcome))
        return outcome

    def _took_ms(self, started_s: float) -> int:
        return max(0, round((self._clock.monotonic_s() - started_s) * 1000))

    async def _body(self, call: StepCall, body: Body) -> Any:
        timeout_s = body.step.timeout_s
        if timeout_s is None:
            return await self._called(call, body)
        limit = asyncio.timeout(timeout_s)
        try:
            async with limit:
                value = await self._called(call, body)
        except TimeoutError as error:
            if limit.expired():
                raise StepTimeout(f"no result within {timeout_s:g} s") from error
            raise
        if limit.expired():  # the step swallowed the cancellation
            raise StepTimeout(f"no result within {timeout_s:g} s")
        return value

    async def _called(self, call: StepCall, body: Body) -> Any:
        step = body.step
        if step.is_async:
            return await step.fn(*body.args)
        self._require_room(body)
        thread = asyncio.ensure_future(self.in_thread(step.fn, *body.args))
        # Otherwise, once nobody waits for it, asyncio would report its error.
        thread.add_done_callback(lambda over: over.cancelled() or over.exception())
        try:
            value = await asyncio.shield(thread)
            return await value if inspect.isawaitable(value) else value
        except asyncio.CancelledError:
            # A thread cannot be stopped. If it was given up, the attempt ends only with the thread,
            # so that no twin has to run beside it; if it timed out, the next attempt must not wait.
            self._leave(thread, body)
            if call.given_up:
                await asyncio.wait([thread])
            raise

    def _leave(self, thread: asyncio.Future[Any], body: Body) -> None:
        """Count a thread that nobody waits for, until it ends."""
        agent = body.agent.name

        def tell() -> None:
            metrics.THREADS_LEFT.set([of for of, _ in self.left.values()].count(agent), agent)

        def over(thread: asyncio.Future[Any]) -> None:
            del self.left[thread]
            tell()

        self.left[thread] = (agent, body.step.name)
        tell()
        thread.add_done_callback(over)

    def _require_room(self, body: Body) -> None:
        """Raises: Parked — too many threads of the step have not ended; another would hang too."""
        left = list(self.left.values()).count((body.agent.name, body.step.name))
        if left >= self._left_max:
            raise Parked(
                "step_hangs",
                f"{left} attempts of step {body.step.name!r} that were given up or timed out have "
                "not ended, and each holds a thread: set a timeout on what the step waits for, "
                "restart the worker, then `surefoot runs retry`",
            )


class _Attempt:
    """Implements ports.Engine for one attempt."""

    def __init__(
        self,
        call: StepCall,
        *,
        claims: ClaimCheck,
        clock: Clock,
        in_thread: Callable[..., Awaitable[Any]],
        record: Callable[[EntryRequest], None],
        publish: Callable[[tuple[StepCall, OutputPiece]], None],
    ) -> None:
        self.over = False
        self._call = call
        self._claims = claims
        self._clock = clock
        self._in_thread = in_thread
        self._record = record
        self._publish = publish

    async def record(self, note: EntryRecorded) -> None:
        mine = await self._claims.keep_note(replace(note, work=self._call.work))
        if self.over or self._call.given_up:
            raise OwnershipLost
        committed = asyncio.get_running_loop().create_future()
        self._record(EntryRequest(self._call, mine, committed))
        await committed

    async def invoke(self, fn: Callable[..., Any], args: Sequence[Any]) -> Any:
        if is_async(fn):
            return await fn(*args)
        value = await self._in_thread(fn, *args)
        return await value if inspect.isawaitable(value) else value

    def publish(self, piece: OutputPiece) -> None:
        if not self.over:
            self._publish((self._call, piece))

    def lease_left_s(self) -> float:
        return 0.0 if self._call.given_up else self._call.lease_left_s()

    async def alone(self) -> None:
        await asyncio.sleep(max(0.0, self._call.exclusive_from_s - self.monotonic_s()))

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()


def _settle(note: EntryRequest) -> None:
    if not note.committed.done():
        note.committed.set_result(None)
