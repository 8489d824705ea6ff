"""A union that would lose which of its members a value was is found when it is declared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID

import httpx
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    Field,
    JsonValue,
    StringConstraints,
    TypeAdapter,
    create_model,
)
from typing_extensions import TypeAliasType, TypedDict

from surefoot import Agent, ConfigError, Context, Done
from surefoot.agents.tool_loop import Question, Turn
from surefoot.schemas.payload import dump, load
from surefoot.schemas.unions import mixed
from surefoot.state.inspect.lint import lint_agent
from surefoot.state.steps.journal import result_adapter

T = TypeVar("T")


@dataclass
class Order:
    number: int


@dataclass
class Refund:
    number: int


@dataclass
class Parcel:
    weight: float


@dataclass
class TaggedOrder:
    number: int
    kind: Literal["order"] = "order"


@dataclass
class TaggedRefund:
    number: int
    kind: Literal["refund"] = "refund"


@dataclass
class Page(Generic[T]):
    rows: list[T]


@dataclass
class Box(Generic[T]):
    page: Page[T]
    owner: str = ""


@dataclass
class Named(Generic[T]):
    what: T
    by: UUID | str


class ModelOf(BaseModel, Generic[T]):
    what: T


class RowOf(TypedDict, Generic[T]):
    what: T


class Row(TypedDict):
    number: int


class Model(BaseModel):
    number: int


class Either(BaseModel):
    what: TaggedOrder | TaggedRefund = Field(discriminator="kind")


class Deep(NamedTuple):
    id: UUID | str


class Inside(BaseModel):
    rows: list[Deep]


class Colour(Enum):
    RED = "red"


@dataclass
class Tree:
    children: list[Tree]
    parent: Tree | None = None


def refused(text: str) -> str:
    raise ValueError(text)


Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | int | None")


@pytest.mark.parametrize(
    "kind",
    [
        UUID | str,
        str | UUID,
        UUID | str | None,
        Decimal | str,
        bytes | str,
        date | str,
        timedelta | str,
        Colour | str,
        Order | Refund,
        Order | Row,
        Model | Order,
        Order | dict[str, Any],
        list[int] | tuple[int, ...],
        set[int] | list[int],
        dict[str, list[UUID | str]],
        Annotated[UUID | str, Field(description="x")],
        Inside,
        list[UUID] | list[str],
        dict[str, list[UUID]] | dict[str, list[str]],
        tuple[int, list[UUID]] | tuple[int, list[str]],
        Page[UUID] | Page[str],
        Box[UUID] | Box[str] | None,
        ModelOf[UUID] | ModelOf[str],
        RowOf[UUID] | RowOf[str],
        Named[int],
    ],
    ids=str,
)
def test_what_cannot_be_told_apart(kind: Any) -> None:
    assert mixed(kind) is not None


@pytest.mark.parametrize(
    "kind",
    [
        int | str,
        float | int,
        int | float,
        bool | str | int | float | None,
        UUID | int | None,
        Order | Parcel,
        Order | None,
        TaggedOrder | TaggedRefund,
        Either,
        Annotated[TaggedOrder | TaggedRefund, Field(discriminator="kind")],
        Literal["a"] | int,
        Annotated[str, StringConstraints(pattern="^[a-z]+$")] | UUID,
        Annotated[str, AfterValidator(refused)] | UUID,
        list[Order] | Order,
        Page[int] | Page[str],
        Page[int] | Box[int] | None,
        Page[UUID],
        str | Turn,
        dict[str, Any] | str,
        datetime | int,
        Question,
        Tree,
        Json,
        JsonValue,
        Any,
    ],
    ids=str,
)
def test_what_can_be_told_apart(kind: Any) -> None:
    assert mixed(kind) is None


def test_a_type_of_very_many_parts_is_looked_at_once() -> None:
    """Spelled out it would have 12 to the power of 8."""
    kind: Any = int
    for number in range(8):
        fields: Any = {
            f"f{each}": (kind | None | str if each % 2 else list[kind], ...) for each in range(12)
        }
        kind = create_model(f"Level{number}", **fields)
    assert mixed(kind) is None


def test_the_example_is_one_that_goes_wrong() -> None:
    """So that nobody has to take it on trust."""
    lost = mixed(Inside)
    assert str(lost) == (
        "Inside.rows: Deep.id: uuid.UUID | str: the str that is stored as "
        '"00000000-0000-0000-0000-000000000001" would come back as UUID'
    )
    adapter: TypeAdapter[Any] = TypeAdapter(UUID | str)
    assert isinstance(load(adapter, dump(TypeAdapter(str), str(UUID(int=1)))), UUID)


# Where it is said ------------------------------------------------------------------------------


def test_a_step_that_takes_such_a_union_is_an_error_at_load() -> None:
    agent = Agent("a")

    @agent.step
    async def read(ctx: Context, payload: Order | Refund) -> Done:
        return Done()

    with pytest.raises(ConfigError) as raised:
        lint_agent(agent)
    assert str(raised.value).startswith(
        "SF1184: step 'read' of agent 'a': tests.unit.schemas.test_unions.Order | "
    )

    other = Agent("b")

    @other.step
    async def heard(ctx: Context, payload: int, carried: UUID | str) -> Done:
        return Done()

    with pytest.raises(ConfigError, match=r"SF1184: step 'heard' of agent 'b'"):
        lint_agent(other)


def test_a_type_that_names_one_that_is_not_there_is_an_error_at_load() -> None:
    @dataclass
    class Torn:
        what: Nowhere  # type: ignore[name-defined]  # noqa: F821

    agent = Agent("a")

    @agent.step
    async def read(ctx: Context, payload: Torn) -> Done:
        return Done()

    with pytest.raises(ConfigError, match=r"SF1109: step 'read' .* undefined type .*Nowhere"):
        lint_agent(agent)


def fetch(url: str) -> httpx.Response:
    return httpx.Response(200)


async def find(number: int) -> UUID | str:
    return str(number)


def lost(number: int) -> Nowhere:  # type: ignore[name-defined]  # noqa: F821
    return number


@pytest.mark.parametrize(
    ("fn", "told"),
    [
        (fetch, "SF1109: function 'fetch', which step 'read' of agent 'a' (line "),
        (find, "SF1184: function 'find', which step 'read' of agent 'a' (line "),
        (lost, "SF1183: function 'lost', which step 'read' of agent 'a' (line "),
    ],
)
def test_a_step_that_calls_what_gives_no_data_is_an_error_at_load(
    fn: Callable[..., Any], told: str
) -> None:
    for once in (False, True):
        agent = Agent("a")
        if once:

            @agent.step
            async def read(ctx: Context, payload: str) -> Done:
                return Done(await ctx.once("fetch", fn=fn))
        else:

            @agent.step
            async def read(ctx: Context, payload: str) -> Done:
                return Done(await ctx.call("fetch", fn, payload))

        with pytest.raises(ConfigError) as raised:
            lint_agent(agent)
        assert str(raised.value).startswith(told)


@pytest.mark.parametrize("number", ["SF1109", "SF1183", "SF1184"])
def test_so_it_is_where_the_source_does_not_tell(number: str) -> None:
    fns: dict[str, Callable[..., Any]] = {"SF1109": fetch, "SF1183": lost, "SF1184": find}
    fn = fns[number]
    with pytest.raises(ConfigError, match=f"{number}: function '{fn.__name__}', which a step"):
        result_adapter(fn)
