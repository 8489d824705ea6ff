"""Declarations that cannot work are refused at import, with what to do instead."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel

from surefoot import (
    Agent,
    Budget,
    ConfigError,
    Context,
    Done,
    Ended,
    Hmac,
    Next,
    Resuming,
    Retry,
    Signal,
    Webhook,
)
from surefoot.state.declare.durations import duration_s
from surefoot.state.machine.model import Amount
from surefoot.state.names.ids import check_run_id, run_id_for


@dataclass
class Payload:
    text: str


class Model(BaseModel):
    text: str


class Opaque:
    """Nothing that could be stored."""


async def good(ctx: Context, payload: Payload) -> Done:
    return Done()


async def no_payload(ctx: Context) -> Done:
    return Done()


async def one_too_many(ctx: Context, payload: int, carried: int, more: int) -> Done:
    return Done()


async def unannotated(ctx: Context, payload) -> Done:
    return Done()


async def unannotated_carry(ctx: Context, payload: int, carried) -> Done:
    return Done()


async def opaque_carry(ctx: Context, payload: int, carried: Opaque) -> Done:
    return Done()


async def opaque(ctx: Context, payload: Opaque) -> Done:
    return Done()


async def unknown_type(ctx: Context, payload: Nowhere) -> Done:  # type: ignore[name-defined]  # noqa: F821
    return Done()


def generator(ctx: Context, payload: int) -> Iterator[Done]:
    yield Done()


async def async_generator(ctx: Context, payload: int) -> AsyncIterator[Done]:
    yield Done()


@pytest.mark.parametrize("name", ["a", "triage", "a-1", "a" * 63])
def test_a_name_that_can_be_a_topic(name: str) -> None:
    assert Agent(name).name == name


@pytest.mark.parametrize("name", ["", "A", "1a", "a_b", "a.b", "-a", "ä", "a b", "a" * 64])
def test_a_name_that_cannot_be_a_topic(name: str) -> None:
    with pytest.raises(ConfigError, match="use a lower-case letter"):
        Agent(name)


@pytest.mark.parametrize("version", [0, -1])
def test_versions_begin_at_one(version: int) -> None:
    with pytest.raises(ConfigError, match="version must be 1 or more"):
        Agent("a", version=version)


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (no_payload, r"must take \(ctx: Context, payload: YourType\)"),
        (one_too_many, r"must take \(ctx: Context, payload: YourType\)"),
        (unannotated, "annotate 'payload' with the type"),
        (unannotated_carry, "annotate 'carried' with the type"),
        (opaque, "cannot be stored; use a dataclass"),
        (opaque_carry, "cannot be stored; use a dataclass"),
        (unknown_type, "annotation 'Nowhere' of 'payload' cannot be resolved"),
        (generator, "is a generator; return Next"),
        (async_generator, "is a generator; return Next"),
    ],
)
def test_a_step_that_cannot_work(fn: Callable[..., Any], told: str) -> None:
    agent = Agent("a")
    with pytest.raises(ConfigError, match=told) as raised:
        agent.step(fn)
    assert fn.__name__ in str(raised.value)
    assert "'a'" in str(raised.value)
    assert agent.steps == {}


def test_a_step_declared_twice() -> None:
    agent = Agent("a")
    agent.step(good)
    with pytest.raises(ConfigError, match="declared twice"):
        agent.step(good)


def test_two_start_steps() -> None:
    agent = Agent("a")
    agent.step(start=True)(good)

    async def other(ctx: Context, payload: int) -> Done:
        return Done()

    with pytest.raises(ConfigError, match="already starts with 'good'"):
        agent.step(start=True)(other)
    assert agent.start_step.name == "good"


def test_the_start_step_is_the_first_unless_another_says_so() -> None:
    agent = Agent("a")
    agent.step(good)
    assert agent.start_step.name == "good"

    @agent.step(start=True)
    def entry(ctx: Context, payload: Model) -> Done:
        return Done()

    assert agent.start_step.name == "entry"
    assert not agent.start_step.is_async
    assert agent.steps["good"].is_async


def test_an_agent_without_steps_has_no_start() -> None:
    with pytest.raises(ConfigError, match="has no steps"):
        _ = Agent("a").start_step


def test_a_step_is_known_by_its_function_not_by_its_name() -> None:
    agent, other = Agent("a"), Agent("b")
    agent.step(good)
    step = agent.step_of(good)
    assert step is not None
    assert step.payload_type is Payload

    async def same_name(ctx: Context, payload: Payload) -> Next:
        return Next(good, payload)

    same_name.__name__ = "good"
    assert agent.step_of(same_name) is None
    assert other.step_of(good) is None
    assert agent.step_of(lambda: None) is None


def test_decorators_give_the_function_back() -> None:
    agent = Agent("a")
    assert agent.step(good) is good

    def issue(delivery: Webhook) -> None: ...

    assert agent.webhook("github", event="issues")(issue) is issue
    [trigger] = agent.webhooks
    assert (trigger.source, trigger.provider, trigger.fn) == ("github", "github", issue)
    assert trigger.events == frozenset({"issues"})


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ("gitlab", {}, "unknown provider"),
        ("shop", {"provider": "strpe"}, "github, slack, standard, stripe"),
        ("my_shop", {"provider": "stripe"}, "source 'my_shop'"),
        ("", {"provider": "stripe"}, "source ''"),
        ("a/../b", {"provider": "stripe"}, "source"),
    ],
)
def test_a_webhook_of_an_unknown_sender_or_an_unusable_name_is_refused_at_import(
    source: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=told):
        Agent("a").webhook(source, **options)(len)


@pytest.mark.parametrize(
    "declared",
    [
        {"header": "X Sig"},
        {"header": "X-Sig", "signed": "{body}{body}"},
        {"header": "X-Sig", "signed": "{timestamp}"},
        {"header": "X-Sig", "signed": "{body}{secret}"},
        {"header": "X-Sig", "signed": "{body}{"},
        {"header": "X-Sig", "signed": "{timestamp}.{body}"},
        {"header": "X-Sig", "signed": "{id}.{body}"},
        {"header": "X-Sig", "timestamp_header": "X-Time"},
        {"header": "X-Sig", "id_header": "X-Id", "id_field": "id"},
    ],
)
def test_a_way_of_signing_that_would_not_protect_is_refused_at_import(
    declared: dict[str, Any],
) -> None:
    with pytest.raises(ConfigError, match="Hmac"):
        Hmac(**declared)


def test_a_webhook_may_want_several_events() -> None:
    agent = Agent("a")
    agent.webhook("stripe", event=("invoice.paid", "invoice.voided"))(len)
    assert agent.webhooks[0].events == frozenset({"invoice.paid", "invoice.voided"})


def test_retry_and_timeout_of_a_step() -> None:
    agent = Agent("a")
    agent.step(retry=Retry(attempts=2), timeout="2m")(good)
    assert agent.steps["good"].retry.attempts == 2
    assert agent.steps["good"].timeout_s == 120.0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("250ms", 0.25),
        ("30s", 30.0),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("2d", 172_800.0),
        ("1.5h", 5400.0),
        (" 2m ", 120.0),
        (3, 3.0),
        (0.5, 0.5),
        (None, None),
    ],
)
def test_durations(text: str | float | None, seconds: float | None) -> None:
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "m", "2 m", "-1s", "2min", "1h30m", "2m\n3s"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="a duration must look like"):
        duration_s(text)


@pytest.mark.parametrize("value", ["0s", 0, -1, float("nan")])
def test_durations_that_are_not_above_zero(value: str | float) -> None:
    with pytest.raises(ConfigError, match="must be above 0"):
        duration_s(value)


@pytest.mark.parametrize("run_id", ["a", "0", "a:b:0:1", "A.b_c~d=e+f-g", "x" * 256])
def test_a_run_id(run_id: str) -> None:
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    "run_id", ["", "@applied", "-a", "a b", "a/b", "a\n", "ä", "x" * 257, None, 1, b"a"]
)
def test_what_cannot_be_a_run_id(run_id: object) -> None:
    with pytest.raises(ValueError, match="run_id must be 1 to 256 characters"):
        check_run_id(run_id)


@pytest.mark.parametrize("name", ["a", "0", "a:b:0:1", "A.b_c~d=e+f-g", "x" * 256])
def test_a_name_that_can_be_a_run_id_is_one(name: str) -> None:
    assert run_id_for(name) == name


@pytest.mark.parametrize(
    ("name", "run_id"),
    [
        ("a@b", "a-b-7508d8b5018ea640b85269861a101203"),
        ("sg/abc==", "sg-abc-"),
        ("a~1@", "a-1-"),
        ("=a", "a-"),
        ("@", ""),
        ("é", ""),
        ("\ud800", ""),
        ("\n", ""),
        ("x" * 257, "x" * 80 + "-"),
    ],
)
def test_any_other_name_makes_a_run_id_that_tells_it_from_all_others(
    name: str, run_id: str
) -> None:
    made = run_id_for(name)
    assert made.startswith(run_id)
    assert check_run_id(made) == run_id_for(name) == run_id_for(made)
    assert len(made) <= 113
    assert not {"=", "~"} & set(made)
    assert run_id_for(f"{name}!") != made


def test_names_that_read_alike_are_different_runs() -> None:
    names = ["a@b", "a/b", "a b", "a  b", "a@@b", "@a@b", "a@b@", "a=@b"]
    assert len({run_id_for(name) for name in names}) == len(names)


def test_there_is_no_run_id_for_nothing() -> None:
    with pytest.raises(ValueError, match="run_id"):
        run_id_for("")


# More than steps -----------------------------------------------------------------------------


async def carried(ctx: Context, signals: list[Signal], kept: Payload) -> Done:
    return Done()


async def undo(ctx: Context, ended: Ended) -> Done:
    return Done()


def test_a_third_argument_is_what_is_carried_over_a_wait() -> None:
    agent = Agent("a")
    agent.step(carried)
    step = agent.steps["carried"]
    assert (step.payload_type, step.carry_type) == (list[Signal], Payload)
    assert step.carry_adapter is not None
    agent.step(good)
    assert agent.steps["good"].carry_adapter is None


def test_a_budget_is_kept_in_whole_units() -> None:
    made = Budget(tokens=5, money=1.25, seconds=0.5, steps=3)
    assert made.amounts() == (
        Amount("money", 1_250_000),
        Amount("ms", 500),
        Amount("steps", 3),
        Amount("tokens", 5),
    )
    assert Budget().amounts() == ()
    agent = Agent("a", budget=made)
    agent.step(good)
    assert agent.rules.budget == made.amounts()


@pytest.mark.parametrize("what", ["tokens", "money", "seconds", "steps"])
@pytest.mark.parametrize("value", [0, -1, float("nan")])
def test_a_budget_of_nothing(what: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"Budget: {what} must be above 0"):
        Budget(**{what: value}).amounts()  # type: ignore[arg-type]


def test_compensations_are_steps_that_no_run_begins_with() -> None:
    agent = Agent("a")
    assert agent.on_cancel(undo) is undo
    with pytest.raises(ConfigError, match="has no steps"):
        _ = agent.start_step
    agent.step(good)
    assert agent.start_step.name == "good"
    assert (agent.rules.on_cancel, agent.rules.on_failure) == ("undo", None)
    assert agent.rules.steps == {"good", "undo"}


def test_one_compensation_of_a_kind_and_it_takes_what_ended() -> None:
    agent = Agent("a")
    agent.on_failure(undo)

    async def again(ctx: Context, ended: Ended) -> Done:
        return Done()

    with pytest.raises(ConfigError, match="already has a compensation for failed runs: 'undo'"):
        agent.on_failure(again)
    with pytest.raises(ConfigError, match=r"step 'good' of agent 'a' must take \(ctx, Ended\)"):
        agent.on_cancel(good)


def test_checks_are_declared_in_order() -> None:
    agent = Agent("a")

    @agent.verify
    async def first(run: Resuming) -> None: ...

    @agent.verify
    def second(run: Resuming) -> None: ...

    assert agent.verifiers == [first, second]


@pytest.mark.parametrize("version", [0, 2, 3])
def test_an_upcaster_is_from_a_version_before_this_one(version: int) -> None:
    agent = Agent("a", version=2)
    with pytest.raises(ConfigError, match=r"below version 2"):
        agent.upcast(from_version=version)(lambda step, payload: (step, payload))


def test_an_upcaster_declared_twice() -> None:
    agent = Agent("a", version=2)
    agent.upcast(from_version=1)(lambda step, payload: (step, payload))
    with pytest.raises(ConfigError, match="declared once"):
        agent.upcast(from_version=1)(lambda step, payload: (step, payload))


def test_a_pooled_step() -> None:
    agent = Agent("a", version=3)
    agent.step(good)
    agent.step(pool="gpu", concurrency=4, retry=Retry(attempts=7), timeout="1m")(carried)
    assert agent.pools == ["gpu"]
    assert agent.rules.pools == {"carried": "gpu"}
    pool = agent.pool("gpu")
    assert (pool.name, pool.version, pool.home) == ("a.gpu", 3, agent)
    step = pool.steps["carried"]
    assert (step.retry.attempts, step.timeout_s, step.concurrency) == (7, 60.0, 4)
    assert pool.rules.pools == {}
    with pytest.raises(ConfigError, match="has no pool 'cpu'; its pools: gpu"):
        agent.pool("cpu")


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        ({"pool": "GPU"}, "use a-z 0-9 -"),
        ({"pool": "a.b"}, "use a-z 0-9 -"),
        ({"pool": "g" * 32}, "up to 31 characters"),
        ({"concurrency": 2}, "needs pool="),
        ({"pool": "gpu", "concurrency": 0}, "concurrency must be 1 or more"),
    ],
)
def test_a_pool_that_cannot_be(declared: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        Agent("a").step(**declared)(good)


def test_the_machine_is_told_whether_a_step_can_take_an_input() -> None:
    agent = Agent("a")
    agent.step(good)
    assert agent.rules.accepts("good", b'{"text":"x"}') is None
    told = agent.rules.accepts("good", b'{"text":1}')
    assert told is not None
    assert "$.text" in told
    assert "good" in agent.rules.steps
