"""Calls inside a step: recorded once, given again without calling, never the wrong memo."""

from __future__ import annotations

import asyncio
import functools
import os
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from surefoot import CallFailed, ConfigError, Cost, NotDone, RetryableError, TerminalError
from surefoot.schemas.payload import Unserialisable
from surefoot.state.errors import BudgetSpent, OwnershipLost, Parked
from surefoot.state.machine.model import Amount, Entry, Memory
from surefoot.state.steps.journal import digest_of
from tests.support.fake_engine import FakeEngine, a_run


@dataclass
class Label:
    name: str
    score: float = 1.0


@dataclass
class Calls:
    """A function that counts, and answers or fails as told."""

    answers: list[Any] = field(default_factory=list)
    seen: list[tuple[Any, ...]] = field(default_factory=list)

    async def ask(self, *args: Any) -> Any:
        self.seen.append(args)
        answer = self.answers.pop(0) if self.answers else len(self.seen)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def label(self, text: str) -> Label:
        self.seen.append((text,))
        return Label(text)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def calls() -> Calls:
    return Calls()


# call ----------------------------------------------------------------------------------------


async def test_a_recorded_result_is_given_without_calling(engine: FakeEngine, calls: Calls) -> None:
    assert await engine.attempt().call("ask", calls.ask, "q") == 1
    assert await engine.attempt().call("ask", calls.ask, "q") == 1
    assert calls.seen == [("q",)]
    assert engine.kinds() == [("c:ask#0", "call")]


async def test_the_result_is_recorded_before_the_step_has_it(
    engine: FakeEngine, calls: Calls
) -> None:
    engine.dies = OwnershipLost()
    with pytest.raises(OwnershipLost):
        await engine.attempt().call("ask", calls.ask)
    engine.dies = None
    assert await engine.attempt().call("ask", calls.ask) == 2


async def test_the_same_name_again_is_the_next_occurrence(engine: FakeEngine, calls: Calls) -> None:
    ctx = engine.attempt()
    made = [await ctx.call("ask", calls.ask, n) for n in range(3)]
    assert [slot for slot, _ in engine.kinds()] == ["c:ask#0", "c:ask#1", "c:ask#2"]
    again = engine.attempt()
    assert [await again.call("ask", calls.ask, n) for n in range(3)] == made == [1, 2, 3]
    assert len(calls.seen) == 3


async def test_a_crash_in_the_middle_of_a_loop_repeats_only_what_was_not_recorded(
    engine: FakeEngine, calls: Calls
) -> None:
    ctx = engine.attempt()
    await ctx.call("ask", calls.ask, 0)
    engine.dies = OwnershipLost()
    with pytest.raises(OwnershipLost):
        await ctx.call("ask", calls.ask, 1)
    engine.dies = None
    again = engine.attempt()
    for n in range(3):
        await again.call("ask", calls.ask, n)
    assert calls.seen == [(0,), (1,), (1,), (2,)]


@pytest.mark.parametrize("how", ["gather", "task group"])
async def test_occurrences_side_by_side_are_counted_in_the_order_of_the_calls(
    engine: FakeEngine, how: str
) -> None:
    first = asyncio.Event()
    calls: list[int] = []

    async def slow(n: int) -> int:
        calls.append(n)
        if n == 0:
            await first.wait()
        first.set()
        return n * 10

    async def all_three() -> list[int]:
        ctx = engine.attempt()
        made = [ctx.call("slow", slow, n) for n in range(3)]
        if how == "gather":
            return list(await asyncio.gather(*made))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in made]
        return [task.result() for task in tasks]

    assert await all_three() == [0, 10, 20]
    assert [engine.entries[f"c:slow#{n}"].value for n in range(3)] == [b"0", b"10", b"20"]
    assert await all_three() == [0, 10, 20]
    assert sorted(calls) == [0, 1, 2]


async def test_changed_arguments_park_the_run_and_are_never_given_the_wrong_memo(
    engine: FakeEngine, calls: Calls
) -> None:
    await engine.attempt().call("ask", calls.ask, "before")
    for args in [("after",), (), ("before", "more")]:
        with pytest.raises(Parked, match=r"call ask#0: it was recorded with other arg") as parked:
            await engine.attempt().call("ask", calls.ask, *args)
        assert parked.value.code == "journal_mismatch"
    assert len(calls.seen) == 1


async def test_a_loop_in_another_order_parks_the_run(engine: FakeEngine, calls: Calls) -> None:
    ctx = engine.attempt()
    for topic in ("a", "b"):
        await ctx.call("ask", calls.ask, topic)
    with pytest.raises(Parked, match="ask#0"):
        await engine.attempt().call("ask", calls.ask, "b")


async def test_an_error_is_not_recorded_unless_it_is_permanent(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = [ValueError("not now"), RetryableError("nor now"), "at last"]
    for error in (ValueError, RetryableError):
        with pytest.raises(error):
            await engine.attempt().call("ask", calls.ask)
    assert engine.entries == {}
    assert await engine.attempt().call("ask", calls.ask) == "at last"


@pytest.mark.parametrize(
    ("error", "permanent"),
    [(TerminalError("no such repository"), ()), (KeyError("bug"), (OSError, LookupError))],
)
async def test_a_permanent_error_is_recorded_and_raised_alike_every_time(
    engine: FakeEngine, calls: Calls, error: Exception, permanent: tuple[type[Exception], ...]
) -> None:
    calls.answers = [error]
    told = []
    for _ in range(3):
        with pytest.raises(CallFailed) as failed:
            await engine.attempt().call("ask", calls.ask, permanent=permanent)
        told.append((str(failed.value), failed.value.kind))
    assert told == [(str(error), type(error).__name__)] * 3
    assert len(calls.seen) == 1


@pytest.mark.parametrize("kind", ["call", "once"])
async def test_an_error_looks_the_same_when_it_is_made_and_when_it_is_read_back(
    engine: FakeEngine, calls: Calls, kind: str
) -> None:
    calls.answers = [TerminalError("no such repository")]
    told = []

    async def step() -> None:
        ctx = engine.attempt()
        try:
            await getattr(ctx, kind)("ask", calls.ask)
        except CallFailed as error:
            text = traceback.format_exc()
            told.append((text, type(error), error.args, error.__cause__, error.__context__))
            await ctx.call("report", calls.ask, text)  # its arguments are those of the record

    for _ in range(2):
        await step()
    assert told[0] == told[1]
    assert told[0][1:] == (CallFailed, ("no such repository",), None, None)
    assert len(calls.seen) == 2


async def test_a_cancelled_call_is_not_recorded(engine: FakeEngine) -> None:
    begun = asyncio.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(engine.attempt().call("endless", endless))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine.notes == []


async def test_a_sync_function_is_called_in_a_thread(engine: FakeEngine) -> None:
    def where() -> str:
        return threading.current_thread().name

    here = threading.current_thread().name
    assert await engine.attempt().call("where", where) != here


async def test_a_result_is_the_same_now_and_from_the_record(engine: FakeEngine) -> None:
    async def measure() -> tuple[float, ...]:
        return [30, 1.5]  # type: ignore[return-value]

    for _ in range(2):
        ctx = engine.attempt()
        for way in (ctx.call, ctx.once):
            value = await way(way.__name__, measure)
            assert (value, repr(value)) == ((30.0, 1.5), "(30.0, 1.5)")


async def test_a_result_comes_back_as_the_function_says_that_it_is(
    engine: FakeEngine, calls: Calls
) -> None:
    first = await engine.attempt().call("label", calls.label, "bug")
    again = await engine.attempt().call("label", calls.label, "bug")
    assert first == again == Label("bug")


async def test_a_bound_function_has_the_result_type_of_the_function(
    engine: FakeEngine, calls: Calls
) -> None:
    bound = functools.partial(calls.label, "bug")
    first = await engine.attempt().call("label", bound)
    again = await engine.attempt().call("label", bound)
    assert first == again == Label("bug")


async def test_any_callable_will_do(engine: FakeEngine) -> None:
    @dataclass
    class Tool:
        name: str

        async def __call__(self, text: str) -> Label:
            return Label(f"{self.name} {text}")

    for _ in range(2):
        assert await engine.attempt().call("tool", Tool("x"), "y") == Label("x y")
    sync: Callable[[], int] = lambda: 7  # noqa: E731
    for _ in range(2):
        assert await engine.attempt().call("lambda", sync) == 7


async def test_a_result_that_cannot_be_stored_is_refused_with_its_path(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = [{"rows": [1, object()]}]
    with pytest.raises(Unserialisable, match=r"\$\.rows\[1\]"):
        await engine.attempt().call("ask", calls.ask)
    assert engine.entries == {}


async def test_a_result_of_another_type_than_said_is_refused(engine: FakeEngine) -> None:
    async def lies() -> int:
        return "text"  # type: ignore[return-value]

    with pytest.raises(Unserialisable, match="str"):
        await engine.attempt().call("lies", lies)


async def test_a_recorded_result_that_no_longer_fits_parks_the_run(engine: FakeEngine) -> None:
    async def before() -> str:
        return "text"

    async def after() -> int:
        return 1

    await engine.attempt().call("it", before)
    with pytest.raises(Parked, match="its recorded result does not fit") as parked:
        await engine.attempt().call("it", after)
    assert parked.value.code == "journal_mismatch"


@pytest.mark.parametrize("arg", [object(), lambda: None, (n for n in [1]), iter([1])])
async def test_arguments_that_are_no_data_are_refused_with_their_place(
    engine: FakeEngine, calls: Calls, arg: Any
) -> None:
    with pytest.raises(Unserialisable, match=r"\$\.args\[1\].*make clients"):
        await engine.attempt().call("ask", calls.ask, "fine", arg)
    assert calls.seen == []


@pytest.mark.parametrize("name", ["", "x" * 129])
async def test_names_that_are_none(engine: FakeEngine, calls: Calls, name: str) -> None:
    with pytest.raises(ConfigError, match="1 to 128 characters"):
        await engine.attempt().call(name, calls.ask)
    with pytest.raises(ConfigError, match="1 to 128 characters"):
        await engine.attempt().once(name, calls.ask)


# Budget --------------------------------------------------------------------------------------


def granted(tokens: int, *, spent: int = 0) -> Memory:
    return Memory(granted=(Amount("tokens", tokens),), spent=(Amount("tokens", spent),))


async def test_what_a_call_costs_is_recorded_with_its_result(
    engine: FakeEngine, calls: Calls
) -> None:
    ctx = engine.attempt()
    await ctx.call("ask", calls.ask, cost=lambda n: Cost(tokens=n * 100, money=0.25))
    assert engine.entries["c:ask#0"].cost == (Amount("money", 250_000), Amount("tokens", 100))
    assert ctx.spent == engine.attempt().spent == (Amount("money", 250_000), Amount("tokens", 100))


async def test_what_is_reserved_is_set_aside_before_the_call_and_settled_after(
    engine: FakeEngine,
) -> None:
    seen: list[Any] = []

    async def ask() -> int:
        seen.append((engine.kinds(), engine.entries["c:ask#0"].cost))
        return 30

    ctx = engine.attempt(granted(100))
    await ctx.call("ask", ask, reserve=Cost(tokens=80), cost=lambda n: Cost(tokens=n))
    assert seen == [([("c:ask#0", "reserved")], (Amount("tokens", 80),))]
    assert engine.entries["c:ask#0"].cost == (Amount("tokens", 30),)
    assert ctx.spent == (Amount("tokens", 30),)


async def test_without_a_cost_the_whole_reserve_is_used(engine: FakeEngine, calls: Calls) -> None:
    ctx = engine.attempt(granted(100))
    await ctx.call("ask", calls.ask, reserve=Cost(tokens=80))
    assert ctx.spent == (Amount("tokens", 80),)


async def test_a_call_over_the_budget_is_not_made(engine: FakeEngine, calls: Calls) -> None:
    ctx = engine.attempt(granted(100, spent=50))
    with pytest.raises(BudgetSpent, match="ask#0 would use more tokens than is left") as spent:
        await ctx.call("ask", calls.ask, reserve=Cost(tokens=51))
    assert spent.value.what == "tokens"
    assert calls.seen == []
    assert engine.notes == []
    await engine.attempt(granted(100, spent=50)).call("ask", calls.ask, reserve=Cost(tokens=50))


async def test_a_budget_that_is_used_up_stops_calls_without_a_reserve_too(
    engine: FakeEngine, calls: Calls
) -> None:
    ctx = engine.attempt(granted(100))
    await ctx.call("ask", calls.ask, cost=lambda _: Cost(tokens=101))
    with pytest.raises(BudgetSpent, match="ask#1"):
        await ctx.call("ask", calls.ask)
    assert len(calls.seen) == 1


async def test_calls_side_by_side_cannot_both_have_the_last_of_it(
    engine: FakeEngine, calls: Calls
) -> None:
    ctx = engine.attempt(granted(100))
    results = await asyncio.gather(
        *(ctx.call("ask", calls.ask, n, reserve=Cost(tokens=60)) for n in range(2)),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["int", "BudgetSpent"]


async def test_recorded_calls_are_free_and_an_earlier_attempts_reserve_is_not_counted_twice(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = ["first", ValueError("crash"), "second"]
    ctx = engine.attempt(granted(100))
    await ctx.call("ask", calls.ask, reserve=Cost(tokens=50))
    with pytest.raises(ValueError, match="crash"):
        await ctx.call("ask", calls.ask, reserve=Cost(tokens=50))
    again = engine.attempt(granted(100))
    assert await again.call("ask", calls.ask, reserve=Cost(tokens=50)) == "first"
    assert await again.call("ask", calls.ask, reserve=Cost(tokens=50)) == "second"
    assert again.spent == (Amount("tokens", 100),)


@pytest.mark.parametrize(
    "wrong",
    [{"tokens": -1}, {"tokens": 1.5}, {"tokens": 2**63}, {"tokens": True}, {"money": -0.01}],
)
def test_a_cost_that_cannot_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be 0 or more, and tokens whole"):
        Cost(**wrong)


# once ----------------------------------------------------------------------------------------


async def test_the_intent_is_recorded_before_and_the_outcome_after(engine: FakeEngine) -> None:
    seen: list[Any] = []

    async def charge(amount: int) -> str:
        seen.append(engine.kinds())
        return f"receipt for {amount}"

    for _ in range(2):
        assert await engine.attempt().once("charge", charge, 5) == "receipt for 5"
    assert seen == [[("c:charge#0", "intent")]]
    assert engine.kinds() == [("c:charge#0", "call")]


async def test_nothing_is_done_when_the_intent_was_not_recorded(
    engine: FakeEngine, calls: Calls
) -> None:
    engine.dies = OwnershipLost()
    with pytest.raises(OwnershipLost):
        await engine.attempt().once("charge", calls.ask)
    assert calls.seen == []


async def interrupted(engine: FakeEngine, calls: Calls, *args: Any) -> None:
    """A worker that dies between the action and the record of its outcome."""

    async def dies(*told: Any) -> Any:
        await calls.ask(*told)
        engine.dies = OwnershipLost()

    with pytest.raises(OwnershipLost):
        await engine.attempt().once("charge", dies, *args)
    engine.dies = None
    assert engine.kinds() == [("c:charge#0", "intent")]


async def test_in_doubt_and_without_a_probe_a_person_decides(
    engine: FakeEngine, calls: Calls
) -> None:
    await interrupted(engine, calls)
    assert engine.waits == 0
    for _ in range(2):
        with pytest.raises(Parked, match=r"charge#0 was begun.*surefoot runs resolve") as parked:
            await engine.attempt().once("charge", calls.ask)
        assert parked.value.code == "once_in_doubt"
    assert engine.waits == 2
    assert len(calls.seen) == 1


@pytest.mark.parametrize(
    ("told", "result", "times"),
    [
        (None, "done now", 2),
        (False, "done now", 2),
        (True, None, 1),
        ("r-1", "r-1", 1),
        (0, 0, 1),
        ("", "", 1),
    ],
)
async def test_a_probe_decides(
    engine: FakeEngine, calls: Calls, told: Any, result: Any, times: int
) -> None:
    probed: list[Any] = []

    def probe(amount: int) -> Any:
        assert engine.waits == 1  # a former owner may have been about to do it
        probed.append(amount)
        return told

    await interrupted(engine, calls, 5)
    calls.answers = ["done now"]
    for _ in range(2):
        assert await engine.attempt().once("charge", calls.ask, 5, probe=probe) == result
    assert calls.seen == [(5,)] * times
    assert probed == [5]


async def test_a_probe_is_not_asked_when_nothing_is_in_doubt(
    engine: FakeEngine, calls: Calls
) -> None:
    def probe() -> bool:
        raise AssertionError("asked")

    for _ in range(2):
        await engine.attempt().once("charge", calls.ask, probe=probe)


async def test_other_arguments_park_the_run_before_any_probe(
    engine: FakeEngine, calls: Calls
) -> None:
    await interrupted(engine, calls, 5)
    with pytest.raises(Parked, match="other arguments") as parked:
        await engine.attempt().once("charge", calls.ask, 6, probe=lambda _: False)
    assert parked.value.code == "journal_mismatch"
    assert len(calls.seen) == 1


async def test_what_certainly_did_nothing_is_withdrawn_and_tried_again(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = [NotDone("card service down"), "receipt"]
    with pytest.raises(NotDone):
        await engine.attempt().once("charge", calls.ask)
    assert engine.entries == {}
    assert await engine.attempt().once("charge", calls.ask) == "receipt"


async def test_in_the_place_of_another_run_each_action_is_in_doubt_once(
    engine: FakeEngine, calls: Calls
) -> None:
    others = Entry(run_id="r", slot="a:all", kind="again", value=b'["named"]', by="parent", at_ms=0)
    engine.entries[others.slot] = others
    assert await engine.attempt().once("named", calls.ask) == 1
    assert await engine.attempt().once("probed", calls.ask, probe=lambda: "found") == "found"
    assert await engine.attempt().once("charge", calls.ask, probe=lambda: None) == 2
    for _ in range(2):
        with pytest.raises(Parked, match=r"run parent was rewound or copied") as parked:
            await engine.attempt().once("asked", calls.ask)
        assert parked.value.code == "once_in_doubt"
    del engine.entries["c:asked#0"]  # as when somebody has found out that it did not happen
    calls.answers = [NotDone("closed"), "receipt"]
    with pytest.raises(NotDone):
        await engine.attempt().once("asked", calls.ask)
    assert await engine.attempt().once("asked", calls.ask) == "receipt"
    assert len(calls.seen) == 4


async def test_any_other_exception_leaves_it_in_doubt(engine: FakeEngine, calls: Calls) -> None:
    calls.answers = [ConnectionError("reset"), "second"]
    with pytest.raises(Parked) as parked:
        await engine.attempt().once("charge", calls.ask)
    assert parked.value.code == "once_in_doubt"
    assert isinstance(parked.value.__cause__, ConnectionError)
    with pytest.raises(Parked):
        await engine.attempt().once("charge", calls.ask)
    assert len(calls.seen) == 1


async def test_with_a_probe_an_exception_is_retried_and_probed(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = [ConnectionError("reset")]
    with pytest.raises(ConnectionError):
        await engine.attempt().once("charge", calls.ask, probe=lambda: "found")
    assert await engine.attempt().once("charge", calls.ask, probe=lambda: "found") == "found"
    assert len(calls.seen) == 1


async def test_a_permanent_error_of_a_one_shot_action_is_its_outcome(
    engine: FakeEngine, calls: Calls
) -> None:
    calls.answers = [TerminalError("card refused")]
    for _ in range(2):
        with pytest.raises(CallFailed, match="card refused"):
            await engine.attempt().once("charge", calls.ask)
    assert len(calls.seen) == 1


@pytest.mark.parametrize("kind", ["call", "once"])
async def test_nothing_is_done_without_a_lease(engine: FakeEngine, calls: Calls, kind: str) -> None:
    engine.lease_s = 0.0
    with pytest.raises(OwnershipLost):
        await getattr(engine.attempt(), kind)("charge", calls.ask)
    assert calls.seen == []
    assert engine.kinds() == []  # an intent that nothing followed would leave the run in doubt
    engine.lease_s = 1.0
    await getattr(engine.attempt(), kind)("charge", calls.ask)
    assert len(calls.seen) == 1


async def test_what_is_recorded_is_told_without_a_lease(engine: FakeEngine, calls: Calls) -> None:
    calls.answers = ["hello"]
    assert await engine.attempt().call("ask", calls.ask) == "hello"
    engine.lease_s = 0.0
    assert await engine.attempt().call("ask", calls.ask) == "hello"
    assert len(calls.seen) == 1


async def test_a_call_and_a_one_shot_action_are_not_taken_for_each_other(
    engine: FakeEngine, calls: Calls
) -> None:
    await interrupted(engine, calls)
    with pytest.raises(Parked, match=r"recorded by ctx\.once") as parked:
        await engine.attempt().call("charge", calls.ask)
    assert parked.value.code == "journal_mismatch"


async def test_what_is_recorded_is_of_the_attempt_that_made_it(calls: Calls) -> None:
    engine = FakeEngine(a_run(seq=4, attempt=2, epoch=1))
    await engine.attempt().call("ask", calls.ask)
    (note,) = engine.notes
    assert (note.work.seq, note.work.attempt, note.work.epoch) == (4, 2, 1)


# Digests -------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


class Model(BaseModel):
    tags: set[str]


@dataclass
class Tagged:
    tags: frozenset[str]
    inner: Model


def test_a_digest_tells_arguments_apart() -> None:
    different: list[tuple[Any, ...]] = [
        (),
        (None,),
        (0,),
        (1,),
        ("1",),
        (1.5,),
        (True,),
        ([],),
        ({},),
        ([[]],),
        (["a", "b"],),
        ("a", "b"),
        (["b", "a"],),
        ({"a": 1},),
        ({"a": 2},),
        ({"b": 1},),
        ("",),
        ("\ud800",),
    ]
    assert len({digest_of(args) for args in different}) == len(different)
    assert {len(digest_of(args)) for args in different} == {16}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        ((1, 2), [1, 2]),
        ({"x", "y", "z"}, {"z", "y", "x"}),
        (Label("bug"), Label("bug")),
        (Colour.RED, Colour.RED),
        (datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)),
        (UUID(int=1), UUID(int=1)),
    ],
)
def test_a_digest_is_canonical(one: Any, other: Any) -> None:
    assert digest_of([one]) == digest_of([other])
    assert digest_of([{"in": [one]}]) == digest_of([{"in": [other]}])


WORDS = sorted(f"word {n}" for n in range(40))
SCRIPT = f"""
from dataclasses import dataclass
from pydantic import BaseModel
from surefoot.state.steps.journal import digest_of

class Model(BaseModel):
    tags: set[str]

@dataclass
class Tagged:
    tags: frozenset[str]
    inner: Model

words = set({WORDS!r})
print(digest_of([words, [frozenset(words)], {{"in": words}}]).hex())
print(digest_of([Tagged(frozenset(words), Model(tags=words))]).hex())
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_a_digest_of_sets_is_the_same_in_another_process(seed: str) -> None:
    told = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    words = set(WORDS)
    assert told == [
        digest_of([words, [frozenset(words)], {"in": words}]).hex(),
        digest_of([Tagged(frozenset(words), Model(tags=words))]).hex(),
    ]


def test_arguments_that_hold_themselves_are_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(Unserialisable, match=r"\$\.args\[0\]"):
        digest_of([endless])
