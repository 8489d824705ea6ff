"""Each annotation is resolved by itself, and one that cannot be is named, never guessed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from surefoot import Agent, ConfigError, Context, Done
from surefoot.agents.tool_loop import tool
from surefoot.infra.loader import load_agents
from surefoot.schemas.payload import dump, load
from surefoot.state.annotations import MISSING, annotation
from surefoot.state.journal import result_adapter

if TYPE_CHECKING:
    import fractions as parts
    from decimal import Decimal

    Gone = int  # no import: nothing that could be found


@dataclass
class Price:
    amount: int


def odd(one: Gone, two: Price, three: list[Price | None], four, five: None) -> Gone:
    return one


def checked(one: Decimal, two: parts.Fraction) -> dict[str, Decimal]:
    return {str(two): one}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("two", Price), ("three", list[Price | None]), ("four", MISSING), ("five", type(None))],
)
def test_an_annotation_is_resolved_whatever_the_others_are(name: str, kind: Any) -> None:
    assert annotation(odd, name, "odd") == kind


@pytest.mark.parametrize(("name", "what"), [("one", "'one'"), ("return", "what it returns")])
def test_one_that_cannot_be_resolved_is_named(name: str, what: str) -> None:
    told = f"SF1183: step 'odd': the annotation 'Gone' of {what} cannot be resolved"
    with pytest.raises(ConfigError) as raised:
        annotation(odd, name, "step 'odd'")
    assert str(raised.value).startswith(told)


def test_names_for_type_checkers_are_had_of_modules_that_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from decimal import Decimal as Meant  # noqa: PLC0415
    from fractions import Fraction  # noqa: PLC0415

    assert annotation(checked, "one", "f") is Meant
    assert annotation(checked, "two", "f") is Fraction
    assert annotation(checked, "return", "f") == dict[str, Meant]
    monkeypatch.delitem(sys.modules, "decimal")
    with pytest.raises(ConfigError, match="'Decimal'"):
        annotation(checked, "one", "f")


def kept(fn: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(fn)
    def wrapper(*args: Any) -> Any:
        return fn(*args)

    return wrapper


def test_names_around_a_function_are_seen_also_through_decorators_partials_and_objects() -> None:
    @dataclass
    class Local:
        amount: int

    def inner(rate: int, what: Local) -> Local:
        return what

    class Called:
        def __call__(self, what: Local) -> Local:
            return what

    def deeper() -> Callable[..., Any]:
        def innermost(what: Local) -> None: ...

        assert annotation(innermost, "what", "f") is Local
        return innermost

    deeper()
    for fn in (inner, kept(inner), partial(inner, 1), partial(kept(inner), 1), Called()):
        assert annotation(fn, "what", "f") is Local
        assert annotation(fn, "return", "f") is Local


FILE = """
from __future__ import annotations

import typing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from surefoot import Agent
from surefoot.agents.tool_loop import tool

if TYPE_CHECKING:
    from surefoot import Context, Done
    Gone = int  # no import: nothing that could be found

agent = Agent("one")

@agent.step
async def only(ctx: Context, payload: int) -> Done | Gone: ...

@tool
def note(ctx: Context, text: str) -> Gone:
    "Note it."
"""


def test_a_file_may_import_what_only_its_annotations_need_for_type_checkers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(FILE)
    (agent,) = load_agents([path])
    assert agent.steps["only"].payload_type is int
    assert agent.start_step.fn.__globals__["note"].way == "step"


def test_the_result_of_a_call_is_of_the_type_that_is_said_or_it_is_refused() -> None:
    def fetch(one: Gone) -> Price:
        return Price(one)

    def lost(one: int) -> Gone:
        return one

    def nothing(one: int):
        return one

    adapter = result_adapter(fetch)
    assert load(adapter, dump(adapter, Price(1))) == Price(1)
    assert load(result_adapter(nothing), b"1") == 1
    with pytest.raises(
        ConfigError, match="function 'lost', which a step calls: the annotation 'Gone'"
    ):
        result_adapter(lost)


def test_a_declaration_whose_type_is_needed_names_it() -> None:
    agent = Agent("a")

    async def step(ctx: Context, payload: Gone) -> Done:
        return Done(payload)

    def event(event: Gone) -> None: ...
    def asked(text: Gone) -> None:
        """Ask."""

    declaring: list[tuple[str, Callable[[], Any]]] = [
        ("step 'step' of agent 'a'", lambda: agent.step(step)),
        ("on_event 'event' of agent 'a'", lambda: agent.on_event(topic="t")(event)),
        ("queue mapping 'event' of agent 'a'", lambda: agent.sqs("q")(event)),
        ("folder mapping 'event' of agent 'a'", lambda: agent.files("in/*")(event)),
        ("tool 'asked'", lambda: tool(asked)),
    ]
    for where, declare in declaring:
        with pytest.raises(ConfigError) as raised:
            declare()
        assert str(raised.value).startswith(f"SF1183: {where}: the annotation 'Gone' of ")


FIELDS = """
from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import BaseModel

from surefoot import Agent, Context, Done

if TYPE_CHECKING:
    from decimal import Decimal

@dataclass
class Price:
    currency: str
    amount: Decimal

class Total(BaseModel):
    total: list[Decimal]

@dataclass
class Order:
    id: str
    price: list[Price | None]
    again: Order | None = None

agent = Agent("one")

@agent.step
async def only(ctx: Context, payload: PAYLOAD) -> Done: ...
"""


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("Price", "Price.amount"),
        ("Order", "Price.amount"),
        ("list[Order]", "Price.amount"),
        ("Total", "Total.total"),
    ],
)
def test_a_field_of_a_type_that_only_type_checkers_import_is_named_with_what_to_do(
    payload: str, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(FIELDS.replace("PAYLOAD", payload))
    with pytest.raises(ConfigError) as raised:
        load_agents([path])
    assert str(raised.value) == (
        f"SF1109: step 'only' of agent 'one': {field} names a type that is not defined (name "
        "'Decimal' is not defined); define or import that type at module level, outside of "
        "`if TYPE_CHECKING:`"
    )
