"""Before a step's body: its state is brought up to date and checked; after it: what has come."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from surefoot import Agent, CallFailed, Context, Cost, Done, Next, Resuming, Retry, Wait
from surefoot.consumers.attempts.attempt import (
    AttemptFailed,
    AttemptLost,
    Body,
    StepCall,
    StepTimeout,
    classify,
    prepare,
    verify,
)
from surefoot.schemas.payload import BadPayload, Unserialisable
from surefoot.state.declare.agent import Step
from surefoot.state.errors import BadArgument, BudgetSpent, OwnershipLost, Parked, RetryableError
from surefoot.state.machine.model import (
    Amount,
    AwaitInput,
    BudgetExceeded,
    Complete,
    GoTo,
    Memory,
    PlanItem,
    Run,
    StepReturned,
    Work,
)
from surefoot.state.machine.pooled_step import decode_outcome, encode_input
from tests.support.fake_engine import FakeEngine, a_run


@dataclass
class Issue:
    title: str
    labels: list[str]


def call_of(agent: Agent, run: Run, **fields: Any) -> StepCall:
    def never(_: Any) -> None:
        raise AssertionError

    return StepCall(
        agent=agent,
        run=run,
        partition=0,
        lease_left_s=lambda: 1.0,
        exclusive_from_s=0.0,
        on_done=never,
        on_note=never,
        on_output=never,
        on_beside=never,
        **fields,
    )


async def prepared(agent: Agent, run: Run, **fields: Any) -> Body:
    return await prepare(call_of(agent, run, **fields), FakeEngine(run))


def two_steps(version: int = 1, **declared: Any) -> Agent:
    agent = Agent("a", version=version)

    @agent.step(**declared)
    async def read(ctx: Context, issue: Issue) -> Next | Wait:
        return Next(read, issue)

    @agent.step
    async def heard(ctx: Context, signal: str, issue: Issue) -> Done:
        return Done()

    return agent


ISSUE = b'{"title":"x","labels":[]}'


# Before --------------------------------------------------------------------------------------


async def test_a_step_is_given_its_input_and_what_was_carried_over_the_wait() -> None:
    agent = two_steps()
    body = await prepared(agent, a_run(step="read", payload=ISSUE))
    assert body.args == (body.context, Issue("x", []))
    body = await prepared(agent, a_run(step="heard", payload=b'"go"', carry=ISSUE))
    assert body.args == (body.context, "go", Issue("x", []))


async def test_the_context_has_all_that_the_run_remembers() -> None:
    item = PlanItem(id="0.0", text="look")
    run = a_run(
        step="read",
        payload=ISSUE,
        seq=3,
        attempt=2,
        epoch=1,
        emit=1,
        memory=Memory(plan=(item,), thread=1),
    )
    ctx = (await prepared(two_steps(), run, messages=(b'"hello"',))).context
    assert (ctx.run_id, ctx.seq, ctx.attempt, ctx.epoch) == ("r", 3, 2, 1)
    assert (ctx.thread.messages, ctx.plan.items) == (["hello"], [item])
    assert ctx.outbox.http("GET", "http://h") == "a:r~e1:3:0"


@pytest.mark.parametrize(
    "run",
    [
        a_run(step="read", payload=b'{"title":1}'),
        a_run(step="heard", payload=b'"go"', carry=b"1"),
        a_run(step="heard", payload=b'"go"', carry=None),
    ],
)
async def test_what_does_not_fit_is_refused(run: Run) -> None:
    with pytest.raises(BadPayload):
        await prepared(two_steps(), run)


async def test_a_step_that_there_is_no_more_says_what_to_do() -> None:
    with pytest.raises(Parked) as parked:
        await prepared(two_steps(version=3), a_run(step="gone", version=2))
    assert parked.value.code == "unknown_step"
    told = str(parked.value)
    for part in (
        "agent 'a' version 3 has no step 'gone'",
        "(version 2)",
        "it has heard, read",
        "@agent.upcast(from_version=2)",
        "surefoot runs retry",
        "surefoot runs rewind",
        "cancel",
    ):
        assert part in told


async def test_state_of_an_older_version_goes_through_every_upcaster_in_order() -> None:
    agent = two_steps(version=4)
    seen: list[Any] = []

    @agent.upcast(from_version=1)
    def one(step: str, payload: Any) -> tuple[str, Any]:
        seen.append((1, step, payload))
        return "scan", {"title": payload}

    @agent.upcast(from_version=3)
    def three(step: str, payload: Any) -> tuple[str, Any]:
        seen.append((3, step, payload))
        return "read", payload | {"labels": ["old"]}

    body = await prepared(agent, a_run(step="look", payload=b'"x"', version=1))
    assert (body.step.name, body.payload) == ("read", Issue("x", ["old"]))
    assert seen == [(1, "look", "x"), (3, "scan", {"title": "x"})]
    assert body.context.step == "read"
    seen.clear()
    body = await prepared(agent, a_run(step="scan", payload=b'{"title":"x"}', version=2))
    assert body.payload == Issue("x", ["old"])
    assert seen == [(3, "scan", {"title": "x"})]
    await prepared(agent, a_run(step="read", payload=ISSUE, version=4))
    assert len(seen) == 1


@pytest.mark.parametrize(
    "up",
    [
        lambda _step, payload: ("read", payload["nothing"]),
        lambda _step, _payload: None,
        lambda _step, _payload: ("read", {1, 2}),
    ],
)
async def test_an_upcaster_that_cannot_parks_the_run(up: Callable[..., Any]) -> None:
    agent = two_steps(version=2)
    agent.upcast(from_version=1)(up)
    with pytest.raises(Parked, match="from version 1 to 2, step 'read'") as parked:
        await prepared(agent, a_run(step="read", payload=ISSUE))
    assert parked.value.code == "upcast_failed"


async def test_an_upcaster_that_leads_nowhere_parks_the_run() -> None:
    agent = two_steps(version=2)
    agent.upcast(from_version=1)(lambda _step, payload: ("nowhere", payload))
    with pytest.raises(Parked, match="no step 'nowhere'"):
        await prepared(agent, a_run(step="read", payload=ISSUE))


async def test_checks_of_a_run_that_goes_on_see_it_and_the_first_that_fails_parks_it() -> None:
    agent = two_steps()
    seen: list[Resuming] = []

    @agent.verify
    async def branch_exists(run: Resuming) -> None:
        seen.append(run)

    @agent.verify
    def branch_is_open(run: Resuming) -> None:
        raise ValueError("the branch is gone")

    @agent.verify
    async def never(run: Resuming) -> None:
        raise AssertionError

    run = a_run(step="read", payload=ISSUE, seq=2)
    with pytest.raises(Parked, match=r"^branch_is_open: the branch is gone$") as parked:
        await verify(await prepared(agent, run), FakeEngine(run))
    assert parked.value.code == "verify_failed"
    assert seen == [Resuming(run_id="r", seq=2, step="read", payload=Issue("x", []))]


# After ---------------------------------------------------------------------------------------


async def test_a_result_has_all_that_the_attempt_collected() -> None:
    run = a_run(step="read", payload=ISSUE, version=1, attempt=1)
    body = await prepared(two_steps(version=2), run)
    ctx = body.context
    ctx.outbox.http("GET", "http://h")
    ctx.thread.append("hello")
    ctx.plan.add("look")
    returned = body.outcome(Next(body.step.fn, Issue("y", [])), 5, 7)
    assert returned == StepReturned(
        work=Work(seq=0, attempt=1),
        then=GoTo(step="read", payload=b'{"title":"y","labels":[]}'),
        effects=ctx.effects(),
        messages=(b'"hello"',),
        plan=(PlanItem(id="0.0", text="look"),),
        started_ms=5,
        took_ms=7,
        version=2,
    )


async def test_a_wait_has_what_is_carried() -> None:
    body = await prepared(two_steps(), a_run(step="read", payload=ISSUE))
    heard = body.agent.steps["heard"].fn
    returned = body.outcome(Wait("go", then=heard, carry=Issue("x", [])), 0, 0)
    assert isinstance(returned.then, AwaitInput)
    assert returned.carry == ISSUE


async def failed(error: BaseException, run: Run | None = None, **declared: Any) -> AttemptFailed:
    run = run or a_run(step="read", payload=ISSUE, attempt=1)
    call = call_of(two_steps(**declared), run)
    outcome = classify(error, call, await prepare(call, FakeEngine(run)), 5, 7)
    assert isinstance(outcome, AttemptFailed)
    return outcome


@pytest.mark.parametrize(
    ("error", "code", "retryable", "park"),
    [
        (ValueError("no"), "step_raised", True, False),
        (CallFailed("no", kind="KeyError"), "step_raised", False, False),
        (StepTimeout("no"), "timeout", True, False),
        (Unserialisable("$", "set", "no"), "unserialisable", False, False),
        (BadPayload("$", "no"), "bad_payload", False, False),
        (Parked("odd", "no"), "odd", False, True),
        (BadArgument("SF1206", "no"), "step_raised", False, False),
        (ExceptionGroup("", [OSError(), BadArgument("SF1206", "no")]), "step_raised", False, False),
    ],
)
async def test_what_an_exception_means(
    error: BaseException, code: str, retryable: bool, park: bool
) -> None:
    told = await failed(error)
    assert (told.failure.code, told.retryable, told.park) == (code, retryable, park)
    assert (told.failure.step, told.failure.attempt) == ("read", 1)
    assert (told.started_ms, told.took_ms) == (5, 7)
    assert "no" in told.failure.message


async def test_the_policy_says_which_exceptions_are_worth_it() -> None:
    policy = Retry(on=(OSError,), give_up_on=(FileNotFoundError,))
    for error, retryable in [
        (ConnectionError(), True),
        (FileNotFoundError(), False),
        (ValueError(), False),
        (RetryableError(), True),
        (StepTimeout(), True),
        (ExceptionGroup("", [ValueError(), ConnectionError()]), True),
        (ExceptionGroup("", [ConnectionError(), FileNotFoundError()]), False),
    ]:
        told = await failed(error, retry=policy)
        assert (told.retryable, told.retry) == (retryable, policy), error


async def test_how_long_another_side_asks_to_wait_is_understood_in_a_group() -> None:
    busy = RetryableError("busy", retry_after_s=9.0)
    told = await failed(ExceptionGroup("", [ValueError(), busy]))
    assert told.retry_after_s == 9.0


async def test_a_step_that_has_another_name_by_now_is_retried_as_it_says() -> None:
    agent = two_steps(version=2, retry=Retry(attempts=9))
    agent.upcast(from_version=1)(lambda _step, payload: ("read", payload))
    run = a_run(step="look", payload=ISSUE)
    call = call_of(agent, run)
    outcome = classify(ValueError(), call, await prepare(call, FakeEngine(run)), 0, 0)
    assert isinstance(outcome, AttemptFailed)
    assert (outcome.retryable, outcome.retry.attempts) == (True, 9)


def test_a_first_input_that_does_not_fit_fails_the_run_and_a_later_one_parks_it() -> None:
    """The first is somebody's mistake; later it was the engine's own, or a new version's."""
    for seq, park in ((0, False), (1, True)):
        call = call_of(two_steps(), a_run(step="read", payload=b"1", seq=seq))
        outcome = classify(BadPayload("$", "no"), call, None, 0, 0)
        assert isinstance(outcome, AttemptFailed)
        assert (outcome.park, outcome.retryable) == (park, False)


def test_what_is_given_up_is_lost_whatever_it_raised() -> None:
    call = call_of(two_steps(), a_run(step="read", payload=ISSUE))
    assert classify(OwnershipLost(), call, None, 0, 0) == AttemptLost()
    call.given_up = True
    assert classify(ValueError(), call, None, 0, 0) == AttemptLost()


def test_a_spent_budget_is_asked_for() -> None:
    call = call_of(two_steps(), a_run(step="read", payload=ISSUE, seq=4))
    assert classify(BudgetSpent("tokens", "why"), call, None, 0, 0) == BudgetExceeded(
        work=Work(seq=4, attempt=0), what="tokens", message="why"
    )


# In a pool -----------------------------------------------------------------------------------


def pooled() -> Agent:
    agent = Agent("a", version=2)

    @agent.step
    async def read(ctx: Context, issue: Issue) -> Next:
        return Next(heavy, issue)

    @agent.step(pool="gpu")
    async def heavy(ctx: Context, issue: Issue) -> Next:
        return Next(read, issue)

    return agent


def in_pool(agent: Agent, home: Run) -> StepCall:
    """The attempt at the step of `home`, in the pool."""
    run = a_run(
        run_id="r~1~0",
        agent="a.gpu",
        version=2,
        step="heavy",
        attempt=1,
        payload=encode_input(home, {}),
    )
    return call_of(agent.pool("gpu"), run)


async def test_a_step_in_a_pool_is_the_step_of_its_run() -> None:
    home = a_run(
        step="heavy",
        seq=5,
        epoch=2,
        emit=2,
        payload=ISSUE,
        version=2,
        memory=Memory(plan=(PlanItem(id="0.0", text="look"),)),
    )
    call = in_pool(pooled(), home)
    body = await prepare(call, FakeEngine(call.run))
    ctx = body.context
    assert (ctx.agent, ctx.run_id, ctx.seq, ctx.step, ctx.attempt) == ("a", "r", 5, "heavy", 1)
    assert ctx.outbox.http("GET", "http://h") == "a:r~e2:5:0"
    assert ctx.plan.items == [PlanItem(id="0.0", text="look")]
    assert body.payload == Issue("x", [])


async def test_what_came_of_it_goes_back_as_a_result_and_is_the_outcome_of_the_run() -> None:
    agent = pooled()
    call = in_pool(agent, a_run(step="heavy", seq=5, payload=ISSUE, version=2))
    engine = FakeEngine(call.run)
    body = await prepare(call, engine)
    ctx = body.context
    ctx.outbox.http("GET", "http://h/ü")
    ctx.thread.append("hello 🐦")
    ctx.plan.add("look")
    await ctx.call("ask", lambda: 1, cost=lambda _: Cost(tokens=3))
    returned = body.outcome(Next(agent.steps["read"].fn, Issue("y", [])), 5, 7)
    assert returned.work == Work(seq=0, attempt=1)
    assert isinstance(returned.then, Complete)
    json.loads(returned.then.result)
    home = Work(seq=5, attempt=0)
    assert decode_outcome(returned.then.result, home) == StepReturned(
        work=home,
        then=GoTo(step="read", payload=b'{"title":"y","labels":[]}'),
        effects=ctx.effects(),
        messages=('"hello 🐦"'.encode(),),
        plan=(PlanItem(id="5.0", text="look"),),
        cost=(Amount("tokens", 3),),
        started_ms=5,
        took_ms=7,
        version=2,
    )


async def test_a_budget_spent_in_a_pool_is_the_runs() -> None:
    call = in_pool(pooled(), a_run(step="heavy", seq=5, payload=ISSUE, version=2))
    body = await prepare(call, FakeEngine(call.run))
    outcome = classify(BudgetSpent("tokens", "why"), call, body, 0, 0)
    assert isinstance(outcome, StepReturned)
    assert isinstance(outcome.then, Complete)
    home = Work(seq=5, attempt=3)
    assert decode_outcome(outcome.then.result, home) == BudgetExceeded(
        work=home, what="tokens", message="why"
    )


@pytest.mark.parametrize("payload", [b"1", b"{}", b"", b"\xff"])
async def test_a_pools_run_that_somebody_else_started_is_refused(payload: bytes) -> None:
    call = call_of(pooled().pool("gpu"), a_run(step="heavy", payload=payload))
    with pytest.raises(BadPayload, match="not the input of a pool's run"):
        await prepare(call, FakeEngine(call.run))


def test_a_pool_has_its_own_steps_only() -> None:
    pool = pooled().pool("gpu")
    assert (pool.name, pool.version, list(pool.steps)) == ("a.gpu", 2, ["heavy"])
    assert isinstance(pool.steps["heavy"], Step)
    assert pool.rules.pools == {}
