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
from surefoot.infra.runtime.loader import load_agents
from surefoot.schemas.payload import dump, load
from surefoot.state.declare.annotations import MISSING, annotation
from surefoot.state.declare.stored_types import completed
from surefoot.state.steps.journal import result_adapter

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


@pytest.mark.parametrize(("name", "what"), [("one", "'one'"), ("return", "the return type")])
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
from typing import TYPE_CHECKING, Generic, TypeVar

import pydantic
from pydantic import BaseModel
from typing_extensions import NamedTuple, NotRequired, TypedDict

from surefoot import Agent, Context, Done

if TYPE_CHECKING:
    from FROM import Decimal

T = TypeVar("T")

@dataclass(frozen=True, slots=True)
class Price:
    currency: str
    amount: Decimal

@dataclass
class Offer(Generic[T]):
    what: T
    price: Price | None
    least: Decimal

@dataclass
class Special(Offer[int]):
    until: str

class Total(BaseModel):
    total: list[Decimal]

class Totals(Total):
    more: list[Decimal]

@pydantic.dataclasses.dataclass
class Checked:
    amount: Decimal

class Row(TypedDict):
    amount: NotRequired[Decimal]

class Pair(NamedTuple):
    amount: Decimal
    total: Total

@dataclass
class Mixed:
    either: Decimal | str

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
    ("payload", "text"),
    [
        ("Price", '{"currency":"EUR","amount":"1.50"}'),
        ("Order", '{"id":"1","price":[{"currency":"EUR","amount":"1.50"},null],"again":null}'),
        ("Offer[str]", '{"what":"a","price":null,"least":"1.50"}'),
        ("Special", '{"what":1,"price":null,"least":"1.50","until":"June"}'),
        ("Total", '{"total":["1.50"]}'),
        ("Totals | None", '{"total":["1.50"],"more":["2.5"]}'),
        ("list[Checked]", '[{"amount":"1.50"}]'),
        ("dict[str, Row]", '{"a":{"amount":"1.50"}}'),
        ("Pair", '["1.50",{"total":["1.50"]}]'),
    ],
)
def test_a_field_may_have_a_type_that_only_type_checkers_import(
    payload: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(FIELDS.replace("PAYLOAD", payload).replace("FROM", "decimal"))
    (agent,) = load_agents([path])
    adapter = agent.steps["only"].adapter
    found = load(adapter, text.encode())
    assert "Decimal('1.50')" in repr(found)
    assert dump(adapter, found) == text.encode()


EVENT = """

@agent.on_event(topic="orders", key="id")
def ordered(event: Order) -> str:
    return str(event.price[0].amount)
"""

TOOL = """

from surefoot.agents.tool_loop import agent_tool, tool

@tool
def buy(ctx: Context, at: Price, more: list[Total]) -> str:
    "Buy it."
    return repr(at)

@tool
def nested(ctx: Context, order: Order) -> str:
    "Buy it."
    return repr(order)

many = agent_tool(agent, description="Buy many.")
"""


def test_so_may_one_of_an_event_or_of_what_a_tool_is_given(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    file = FIELDS.replace("PAYLOAD", "Price")
    path.write_text(file.replace("FROM", "decimal") + EVENT + TOOL)
    (agent,) = load_agents([path])
    text = b'{"id":"1","price":[{"currency":"","amount":2}]}'
    assert "Decimal('2')" in repr(agent.event_triggers["orders"].of_json(text))
    names = agent.start_step.fn.__globals__
    given = names["buy"].parse(b'{"at":{"currency":"","amount":"1.5"},"more":[]}')
    assert "Decimal('1.5')" in repr(given)
    assert "amount" in repr(names["nested"].parameters)
    assert "amount" in repr(names["many"].parameters)

    path = tmp_path / "another.py"
    path.write_text(file.replace("FROM", "nobody.loads.it") + EVENT)
    told = r"SF1109: on_event 'ordered' of agent 'one': Price\.amount"
    with pytest.raises(ConfigError, match=told):
        load_agents([path])


def test_a_class_of_no_module_that_is_loaded_is_looked_at_too() -> None:
    names: dict[str, Any] = {"__name__": "nobody_has_loaded_it"}
    exec("class Order:\n    price: 'Gone'", names)
    assert completed(names["Order"]) == ["Order.price"]


def test_and_is_then_looked_at_as_any_other(tmp_path: Path) -> None:
    path = tmp_path / "agent.py"
    path.write_text(FIELDS.replace("PAYLOAD", "Mixed").replace("FROM", "decimal"))
    with pytest.raises(ConfigError, match=r"SF1184: .* Mixed\.either: decimal\.Decimal \| str"):
        load_agents([path])


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ("Price", "Price.amount"),
        ("Order", "Price.amount"),
        ("list[Order]", "Price.amount"),
        ("Offer[str]", "Price.amount"),
        ("Total", "Total.total"),
    ],
)
def test_a_field_of_a_type_that_nobody_has_loaded_is_named_with_what_to_do(
    payload: str, field: str, tmp_path: Path
) -> None:
    path = tmp_path / "agent.py"
    path.write_text(FIELDS.replace("PAYLOAD", payload).replace("FROM", "nobody.loads.it"))
    with pytest.raises(ConfigError) as raised:
        load_agents([path])
    assert str(raised.value) == (
        f"SF1109: step 'only' of agent 'one': {field} uses an undefined type (name "
        "'Decimal' is not defined); define or import that type at module level, outside of "
        "`if TYPE_CHECKING:`"
    )
