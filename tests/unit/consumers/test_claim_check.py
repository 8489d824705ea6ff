"""Large payloads are kept outside of the log."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Next, Parallel, Wait
from surefoot.consumers.attempts.attempt import (
    AttemptFailed,
    AttemptLost,
    AttemptOutcome,
    EntryRequest,
    StepCall,
)
from surefoot.consumers.attempts.claim_check import ClaimCheck
from surefoot.consumers.attempts.executor import Executor
from surefoot.infra.blobs.stores import FolderBlobs
from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.payload import digest, strict_json
from surefoot.schemas.pointer import (
    Pointer,
    escaped,
    filled,
    mentions,
    pointer_of,
    pointer_to,
    pointers,
    unescaped,
)
from surefoot.state.errors import StoreRefused, Unavailable
from surefoot.state.machine.model import (
    Complete,
    Entry,
    GoTo,
    Run,
    StartChildren,
    StepReturned,
    Work,
)
from surefoot.state.machine.pooled_step import decode_outcome, encode_input
from tests.support.eventually import until
from tests.support.fake_engine import a_run

DAY_MS = 86_400_000
LARGE = "x" * 2_000
TEXT = f'"{LARGE}"'.encode()


class Store(FolderBlobs):
    """A folder that can be away."""

    away = 0
    gone_for_good = False
    refuses = 0

    async def put(self, pointer: Pointer, content: bytes) -> None:
        self._refuse()
        if self.away:
            self.away -= 1
            raise Unavailable("SF3014", "the store is away")
        await super().put(pointer, content)

    async def get(self, pointer: Pointer) -> bytes | None:
        self._refuse()
        if self.gone_for_good:
            raise Unavailable("SF3014", "the store is away")
        return await super().get(pointer)

    def _refuse(self) -> None:
        if self.refuses:
            self.refuses -= 1
            raise StoreRefused("SF3070", "s3://b refuses: AccessDenied")


@dataclass
class Bench:
    executor: Executor
    store: Store
    notes: list[EntryRequest] = field(default_factory=list)
    outcomes: list[AttemptOutcome] = field(default_factory=list)

    async def run(self, agent: Agent, run: Run, **given: Any) -> AttemptOutcome:
        before = len(self.outcomes)
        call = StepCall(
            agent=agent,
            run=run,
            partition=0,
            lease_left_s=lambda: 1.0,
            exclusive_from_s=0.0,
            on_done=self.outcomes.append,
            on_note=self._note,
            on_output=lambda _: None,
            on_beside=lambda _: None,
            **given,
        )
        self.executor.submit(call)
        await until(lambda: len(self.outcomes) > before, what="an outcome")
        return self.outcomes[-1]

    def _note(self, note: EntryRequest) -> None:
        self.notes.append(note)
        self.executor.recorded(note)

    async def stored(self, content: bytes = TEXT) -> bytes:
        pointer = pointer_to(content, DAY_MS)
        await self.store.put(pointer, content)
        return pointer.encode()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    store = Store(tmp_path / "blobs")
    executor = Executor(SystemClock(), ClaimCheck(SystemClock(), store, over_bytes=1_024))
    executor.start()
    yield Bench(executor, store)
    executor.stop()


def agent_of(*steps: Callable[..., Any]) -> Agent:
    agent = Agent("a")
    for step in steps:
        agent.step(step)
    return agent


# Pointers ------------------------------------------------------------------------------------


def test_a_pointer_names_day_content_and_size_and_is_json() -> None:
    made = pointer_to(b"[1]", 20_000 * DAY_MS)
    assert made.key == f"20241004/{hashlib.sha256(b'[1]').hexdigest()}"
    assert pointer_of(made.encode()) == made
    assert strict_json({"at": [pointer_text(made)]}) == b'{"at":[%s]}' % made.encode()
    assert (made.fits(b"[1]"), made.fits(b"[2]"), made.fits(b"[1] ")) == (True, False, False)


def pointer_text(pointer: Pointer) -> dict[str, str]:
    return {"$surefoot.blob": f"{pointer.key}/{pointer.size}"}


def test_pointers_that_were_put_together_are_filled_one_by_one() -> None:
    one, two = pointer_to(b"1", 0), pointer_to(b'{"a":2}', 0)
    payload = b'[%s,{"x":%s},%s]' % (one.encode(), two.encode(), one.encode())
    assert pointers(payload) == {one, two}
    assert filled(payload, {one: b"1", two: b'{"a":2}'}) == b'[1,{"x":{"a":2}},1]'


NAME = pointer_text(pointer_to(b"secret", 0))["$surefoot.blob"]


@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(
    st.recursive(
        st.sampled_from([None, 1, NAME, f"={NAME}", "$surefoot.blob", f"=={NAME}", ""]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["$surefoot.blob", "a", "=$surefoot.blob"]), inner, max_size=2
            )
        ),
        max_leaves=8,
    )
)
@example({"$surefoot.blob": NAME})
@example([{"$surefoot.blob": NAME}, {"x": {"$surefoot.blob": f"={NAME}"}}])
def test_what_others_write_is_never_a_pointer_and_comes_back_as_it_was(value: Any) -> None:
    payload = strict_json(value)
    stored = escaped(payload)
    assert pointers(stored) == set()
    assert pointer_of(stored) is None
    assert unescaped(stored) == filled(stored, {}) == payload
    assert strict_json(json.loads(stored)) == stored  # the machine puts it into other JSON
    assert unescaped(escaped(stored)) == stored
    assert digest(stored) == hashlib.sha256(payload).digest()[:8]


def test_beside_pointers_it_comes_back_as_well() -> None:
    real, made_up = pointer_to(b"1", 0), strict_json(pointer_text(pointer_to(b"2", 0)))
    payload = b"[%s,%s]" % (real.encode(), escaped(made_up))
    assert pointers(payload) == {real}
    assert filled(payload, {real: made_up}) == b"[%s,%s]" % (made_up, made_up)


def test_a_pointer_in_text_is_text_and_is_still_a_mention() -> None:
    one = pointer_to(b"1", 0)
    text = strict_json(one.encode().decode())
    assert pointers(text) == set()
    assert mentions(b"\x00" + text) == {one.key}


def test_the_digest_of_an_input_is_the_same_wherever_it_is_kept() -> None:
    today, later = pointer_to(TEXT, 0), pointer_to(TEXT, DAY_MS)
    assert digest(TEXT) == digest(today.encode()) == digest(later.encode())
    assert digest(b"[%s]" % today.encode()) != digest(TEXT)


def test_the_machine_lets_pass_what_it_cannot_look_into() -> None:
    async def number(ctx: Context, n: int) -> Done:
        return Done(n)

    accepts = agent_of(number).rules.accepts
    assert accepts("number", b'"text"') is not None
    assert accepts("number", pointer_to(b"1", 0).encode()) is None


# Out -----------------------------------------------------------------------------------------


async def test_what_is_large_is_stored_and_the_rest_is_not(bench: Bench) -> None:
    async def first(ctx: Context, n: int) -> Parallel:
        ctx.outbox.http("POST", "http://h", json=LARGE)
        ctx.outbox.http("POST", "http://h", json="small")
        ctx.thread.append(LARGE)
        ctx.thread.append("small")
        return Parallel([(second, LARGE), (second, "small")], join=join, carry=LARGE)

    async def second(ctx: Context, text: str) -> Done:
        return Done(text)

    async def join(ctx: Context, texts: list[str], carry: str) -> Done:
        return Done(texts)

    outcome = await bench.run(agent_of(first, second, join), a_run(step="first", payload=b"0"))
    assert isinstance(outcome, StepReturned)
    assert isinstance(outcome.then, StartChildren)
    large, small = outcome.then.branches
    pointer = pointer_of(large.payload)
    assert pointer is not None
    assert await bench.store.get(pointer) == TEXT
    assert small.payload == b'"small"'
    assert outcome.carry == large.payload
    assert [pointer_of(m) for m in outcome.messages] == [pointer, None]
    assert [pointer_of(e.payload) is None for e in outcome.effects] == [False, True]


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (lambda step: Next(step, LARGE), lambda then: isinstance(then, GoTo) and then.payload),
        (lambda _: Done(LARGE), lambda then: isinstance(then, Complete) and then.result),
    ],
)
async def test_an_input_or_a_result_is_stored(bench: Bench, made: Any, where: Any) -> None:
    async def step(ctx: Context, text: str) -> Any:
        return made(step)

    outcome = await bench.run(agent_of(step), a_run(step="step", payload=b'""'))
    assert isinstance(outcome, StepReturned)
    assert pointer_of(where(outcome.then)) is not None


async def test_while_the_store_is_away_the_result_is_held_and_the_step_is_not_run_again(
    bench: Bench,
) -> None:
    ran: list[str] = []

    async def step(ctx: Context, text: str) -> Done:
        ran.append(text)
        return Done(LARGE)

    bench.store.away = 2
    outcome = await bench.run(agent_of(step), a_run(step="step", payload=b'""'))
    assert isinstance(outcome, StepReturned)
    assert (len(ran), bench.store.away) == (1, 0)


@pytest.mark.parametrize("size", [1, 2_000])
async def test_what_looks_like_a_pointer_and_is_data_comes_back_as_data(
    bench: Bench, size: int
) -> None:
    secret = await bench.stored(b'"the payload of somebody else"')
    data = [json.loads(secret), "x" * size]

    async def first(ctx: Context, n: int) -> Next:
        return Next(second, data)

    async def second(ctx: Context, got: list[Any]) -> Done:
        return Done(got == data)

    agent = agent_of(first, second)
    outcome = await bench.run(agent, a_run(step="first", payload=b"0"))
    assert isinstance(outcome, StepReturned)
    assert isinstance(outcome.then, GoTo)
    outcome = await bench.run(agent, a_run(step="second", seq=1, payload=outcome.then.payload))
    assert isinstance(outcome, StepReturned)
    assert outcome.then == Complete(result=b"true")


async def test_the_result_of_a_call_is_stored_and_found_again(bench: Bench) -> None:
    asked: list[int] = []

    async def ask() -> str:
        asked.append(1)
        return LARGE

    async def step(ctx: Context, n: int) -> Done:
        return Done(await ctx.call("ask", ask) == LARGE)

    agent, run = agent_of(step), a_run(step="step", payload=b"0")
    await bench.run(agent, run)
    (note,) = bench.notes
    told = note.journaled
    assert pointer_of(told.value or b"") is not None
    entry = Entry(run_id="r", slot=told.slot, kind="call", digest=told.digest, value=told.value)
    outcome = await bench.run(agent, run, journal={told.slot: entry})
    assert isinstance(outcome, StepReturned)
    assert outcome.then == Complete(result=b"true")
    assert asked == [1]


# In ------------------------------------------------------------------------------------------


async def test_a_step_is_given_what_the_pointers_point_to(bench: Bench) -> None:
    seen: list[Any] = []

    async def step(ctx: Context, texts: list[str], carry: str) -> Done:
        seen.extend((texts, carry, ctx.thread.messages, ctx.inbox("s")))
        return Done()

    pointer = await bench.stored()
    run = a_run(step="step", payload=b'[%s,"y"]' % pointer, carry=pointer)
    signal = Entry(run_id="r", slot="s:1", kind="signal", id="1", name="s", value=pointer)
    await bench.run(agent_of(step), run, messages=(pointer,), signals=(signal,))
    texts, carry, messages, (got,) = seen
    assert (texts, carry, messages, got.payload) == ([LARGE, "y"], LARGE, [LARGE], LARGE)


async def test_a_step_in_a_pool_is_given_it_and_what_it_comes_to_is_stored(bench: Bench) -> None:
    agent = Agent("a")

    @agent.step(pool="gpu")
    async def heavy(ctx: Context, text: str) -> Next:
        return Next(light, text + "!")

    @agent.step
    async def light(ctx: Context, text: str) -> Done:
        return Done(text)

    home = a_run(step="heavy", seq=3, payload=await bench.stored())
    run = a_run(agent="a.gpu", step="heavy", payload=encode_input(home, {}))
    outcome = await bench.run(agent.pool("gpu"), run)
    assert isinstance(outcome, StepReturned)
    assert isinstance(outcome.then, Complete)
    told = decode_outcome(outcome.then.result, Work(seq=3, attempt=0))
    assert isinstance(told, StepReturned)
    assert isinstance(told.then, GoTo)
    pointer = pointer_of(told.then.payload)
    assert pointer is not None
    assert await bench.store.get(pointer) == f'"{LARGE}!"'.encode()


async def never(ctx: Context, text: str) -> Wait:
    raise AssertionError(text)


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda path: path.unlink(), "blob_missing"),
        (lambda path: path.write_bytes(TEXT[:-1]), "blob_corrupt"),
        (lambda path: path.write_bytes(TEXT.replace(b"x", b"y")), "blob_corrupt"),
    ],
)
async def test_a_payload_that_is_not_there_or_not_what_it_was_is_for_a_person(
    bench: Bench, spoil: Callable[[Path], Any], code: str
) -> None:
    payload = await bench.stored()
    pointer = pointer_of(payload)
    assert pointer is not None
    spoil(Path(bench.store.name) / pointer.key)
    outcome = await bench.run(agent_of(never), a_run(step="never", payload=payload))
    assert isinstance(outcome, AttemptFailed)
    assert (outcome.failure.code, outcome.park, outcome.retryable) == (code, True, False)
    assert pointer.key in outcome.failure.message


async def test_a_pointer_that_somebody_made_up_leads_nowhere(bench: Bench) -> None:
    for name in ("20260101/../../../etc/passwd/7", "s3://other/key/7", "x" * 64):
        payload = b'{"$surefoot.blob":"%s"}' % name.encode()
        outcome = await bench.run(agent_of(never), a_run(step="never", payload=payload))
        assert isinstance(outcome, AttemptFailed)
        assert outcome.failure.code == "bad_payload"


async def test_while_the_store_is_away_no_attempt_is_used_and_the_run_is_tried_again(
    bench: Bench,
) -> None:
    payload = await bench.stored()
    bench.store.gone_for_good = True
    outcome = await bench.run(agent_of(never), a_run(step="never", payload=payload))
    assert outcome == AttemptLost()


def refusing(bench: Bench, times: int, refused_s: float) -> None:
    bench.store.refuses = times
    claims = replace(bench.executor.claims, refused_s=refused_s)
    bench.executor.claims = claims


async def test_a_store_that_refuses_for_a_while_is_waited_for(bench: Bench) -> None:
    async def step(ctx: Context, text: str) -> Done:
        return Done(LARGE)

    refusing(bench, 2, refused_s=1e9)
    with capture_logs() as logs:
        outcome = await bench.run(agent_of(step), a_run(step="step", payload=b'""'))
    assert isinstance(outcome, StepReturned)
    told = [line for line in logs if line["event"] == "blob_refused"]
    assert [line["log_level"] for line in told] == ["error"] * 2
    assert "AccessDenied" in told[0]["error"]

    payload = await bench.stored()
    refusing(bench, 1, refused_s=1e9)
    assert await bench.run(agent_of(never), a_run(step="never", payload=payload)) == AttemptLost()


async def test_a_store_that_goes_on_refusing_is_told_to_a_person(bench: Bench) -> None:
    async def step(ctx: Context, text: str) -> Done:
        return Done(LARGE)

    async def call(ctx: Context, text: str) -> Done:
        return Done(await ctx.call("ask", ask))

    async def ask() -> str:
        return LARGE

    large = await bench.stored()
    for fn, payload in ((step, b'""'), (call, b'""'), (never, large)):
        refusing(bench, 1_000_000, refused_s=0)
        outcome = await bench.run(agent_of(fn), a_run(step=fn.__name__, payload=payload))
        assert isinstance(outcome, AttemptFailed)
        assert (outcome.failure.code, outcome.park) == ("blob_refused", True)
        assert "AccessDenied" in outcome.failure.message
        assert "SUREFOOT_AWS_CHECKSUMS" in outcome.failure.message


async def test_what_comes_from_outside_is_no_pointer_with_a_store_or_without(
    bench: Bench, tmp_path: Path
) -> None:
    secret = await bench.stored(b'"the payload of somebody else"')
    told = [secret, json.loads(secret)]

    async def step(ctx: Context, got: Any) -> Done:
        return Done([got, ctx.inbox("s")[0].payload, ctx.thread.messages] == [told[1]] * 2 + [[]])

    agent = agent_of(step)
    for store in (bench.store, None):
        claims = replace(bench.executor.claims, blobs=store)
        stored = await claims.stow(secret)
        assert agent.rules.accepts("step", stored) is None
        signal = Entry(run_id="r", slot="s:1", kind="signal", id="1", name="s", value=stored)
        bench.executor.claims = claims
        run = a_run(step="step", payload=stored)
        outcome = await bench.run(agent, run, signals=(signal,))
        assert isinstance(outcome, StepReturned)
        assert outcome.then == Complete(result=b"true")


async def test_a_step_is_given_no_more_than_the_limit_however_often_it_occurs(
    bench: Bench,
) -> None:
    async def count(ctx: Context, texts: list[str]) -> Done:
        return Done(len(texts))

    pointer = await bench.stored()
    bench.executor.claims = replace(bench.executor.claims, step_max_bytes=3 * len(TEXT))
    for times, fits in ((3, True), (4, False)):
        run = a_run(step="count", payload=b"[%s]" % b",".join([pointer] * times))
        outcome = await bench.run(agent_of(count), run)
        if fits:
            assert isinstance(outcome, StepReturned)
        else:
            assert isinstance(outcome, AttemptFailed)
            assert (outcome.failure.code, outcome.park) == ("blob_too_large", True)
            assert "SUREFOOT_BLOB_STEP_MAX_BYTES" in outcome.failure.message


async def test_a_process_without_the_store_says_so() -> None:
    executor = Executor(SystemClock())
    executor.start()
    bench = Bench(executor, Store(Path()))
    payload = pointer_to(TEXT, 0).encode()
    outcome = await bench.run(agent_of(never), a_run(step="never", payload=payload))
    executor.stop()
    assert isinstance(outcome, AttemptFailed)
    assert outcome.failure.code == "no_blob_store"
    assert "SUREFOOT_BLOBS" in outcome.failure.message


async def test_an_attempt_that_was_given_up_does_not_go_on_storing(bench: Bench) -> None:
    async def step(ctx: Context, text: str) -> Done:
        return Done(LARGE)

    bench.store.away = 1_000_000
    call = StepCall(
        agent=agent_of(step),
        run=a_run(step="step", payload=b'""'),
        partition=0,
        lease_left_s=lambda: 1.0,
        exclusive_from_s=0.0,
        on_done=bench.outcomes.append,
        on_note=lambda _: None,
        on_output=lambda _: None,
        on_beside=lambda _: None,
    )
    bench.executor.submit(call)
    await until(lambda: bench.store.away < 1_000_000, what="the store to be asked")
    bench.executor.give_up(call)
    await until(lambda: not bench.executor.busy(), what="the attempt to end")
    assert bench.outcomes == []


# The folder ----------------------------------------------------------------------------------


async def test_a_folder_lists_and_deletes_what_it_has_and_nothing_else(tmp_path: Path) -> None:
    store = FolderBlobs(tmp_path / "blobs")
    assert [key async for key in store.keys()] == []  # noqa: SIM118
    one, two = pointer_to(b"1", 0), pointer_to(b"22", DAY_MS)
    await asyncio.gather(*(store.put(one, b"1") for _ in range(5)), store.put(two, b"22"))
    (tmp_path / "blobs" / "notes.txt").write_text("mine")
    (tmp_path / "blobs" / one.day / "mine").write_text("mine")
    assert sorted([key async for key in store.keys()]) == [(one.key, 1), (two.key, 2)]  # noqa: SIM118
    await store.delete(one.key)
    await store.delete(one.key)
    assert await store.get(one) is None
    assert await store.get(two) == b"22"
    assert (tmp_path / "blobs" / one.day / "mine").exists()


async def test_a_folder_that_cannot_be_written_to_is_away(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    store = FolderBlobs(tmp_path / "file")
    with pytest.raises(Unavailable, match="file"):
        await store.put(pointer_to(b"1", 0), b"1")


def test_runs_that_differ_only_in_where_their_input_is_kept_are_one(tmp_path: Path) -> None:
    claims = ClaimCheck(SystemClock(), FolderBlobs(tmp_path), over_bytes=1_024)
    stowed = asyncio.run(claims.stow(TEXT))
    assert stowed != TEXT
    assert asyncio.run(replace(claims, over_bytes=10_000).stow(TEXT)) == TEXT
    assert digest(stowed) == digest(TEXT)
