"""Payloads: what comes back equals what went in, or it is refused with the path of the value."""

from __future__ import annotations

import collections
import copy
import enum
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import types
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any, Generic, NamedTuple, TypeVar
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    PrivateAttr,
    TypeAdapter,
    computed_field,
)
from typing_extensions import TypedDict

from surefoot.schemas.payload import (
    BadPayload,
    Unserialisable,
    digest,
    dump,
    dump_and_load,
    dump_own,
    load,
    parse_json,
    strict_json,
)

ANY: TypeAdapter[Any] = TypeAdapter(Any)


class Colour(enum.Enum):
    RED = "red"


class Word(enum.StrEnum):
    A = "a"


class Point(NamedTuple):
    x: int
    y: float


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    rows: list[T]


@dataclass
class Item:
    name: str
    score: float = 0.0
    tags: list[str] = field(default_factory=list)
    extra: Any = None

    @cached_property
    def loud(self) -> str:
        return self.name.upper()


@dataclass(frozen=True, slots=True)
class Slotted:
    name: str
    score: float


@dataclass
class Base:
    pass


@dataclass(slots=True)
class Mixed(Base):
    """Has slots, and a __dict__ from its base."""

    a: int
    b: int


class Keeper:
    __slots__ = ("kept",)


@dataclass(slots=True)
class Kept(Keeper):
    """Has a slot that is no field."""

    a: int
    b: int


class Issue(BaseModel):
    number: int
    items: list[Item] = []
    _seen: int = PrivateAttr(0)

    @computed_field
    def title(self) -> str:
        return f"#{self.number}"


class Special(Issue):
    severity: int = 1


class Aliased(BaseModel):
    html_url: str = Field(alias="htmlUrl")


class Open(BaseModel):
    model_config = ConfigDict(extra="allow", ser_json_inf_nan="constants")

    value: float = 0.0


class Wordy(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")

    value: float


class Exacting(BaseModel):
    model_config = ConfigDict(extra="forbid")

    number: int

    @computed_field
    def double(self) -> int:
        return 2 * self.number


class Rude:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise RuntimeError


STORED_RUDE = Annotated[Rude, PlainValidator(lambda _: Rude()), PlainSerializer(lambda _: "rude")]
ROUNDED = Annotated[Decimal, PlainSerializer(float)]
UNSIGNED = Annotated[float, AfterValidator(lambda value: value + 0.0)]
LOWER = Annotated[
    dict[str, int], AfterValidator(lambda value: {k.lower(): value[k] for k in value})
]
SECONDS = Annotated[datetime, AfterValidator(lambda value: value.replace(microsecond=0))]
GROWING = Annotated[dict[str, int], AfterValidator(lambda value: value | {"more": 1})]


class Fickle(BaseModel):
    """Its validator changes a value that is already valid."""

    text: str

    def model_post_init(self, _context: Any) -> None:
        self.text += "!"


class Options(TypedDict):
    b: int
    a: str


def exact(sent: Any, back: Any) -> bool:
    """Equal in value and type at every level: a plain second opinion for the tests."""
    if type(sent) is not type(back):
        return False
    if isinstance(sent, dict):
        return [*map(type, sent)] == [*map(type, back)] and all(
            key in back and exact(part, back[key]) for key, part in sent.items()
        )
    if isinstance(sent, list | tuple):
        return len(sent) == len(back) and all(map(exact, sent, back))
    if isinstance(sent, float):
        return repr(sent) == repr(back)
    return bool(sent == back)


KEPT: list[tuple[Any, Any]] = [
    (Any, None),
    (Any, {"a": [1, 2.5, True, None, "é\U0001f600\u2028\x00", {}], "": []}),
    (Any, [2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**4299]),
    (Any, [0.1 + 0.2, -0.0, 0.0, 5e-324, 1.7976931348623157e308, 1e22, 1.0]),
    (Any, "NaN and Infinity and 1e400 and " + "0" * 400),
    (int | str, "5"),
    (int | float, 1),
    (int | float, 1.0),
    (dict[int, str], {1: "a", 2: "b"}),
    (dict[Word, int], {Word.A: 1}),
    (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
    (tuple[int, str], (1, "a")),
    (list[tuple[int, ...]], [(1, 2), ()]),
    (set[int], {1, 2, 3}),
    (frozenset[str], frozenset({"a"})),
    (set[tuple[int, str]], {(1, "a"), (2, "b")}),
    (Point, Point(1, 2.0)),
    (Colour, Colour.RED),
    (Decimal, Decimal("1.00")),
    (Decimal, Decimal("1E+400")),
    (Fraction, Fraction(1, 3)),
    (complex, 1 + 2j),
    (uuid.UUID, uuid.UUID(int=1)),
    (pathlib.Path, pathlib.Path("a/b")),
    (bytes, "é".encode()),
    (date, date(2026, 1, 1)),
    (time, time(1, 2, 3, 4)),
    (timedelta, timedelta(days=-1, microseconds=1)),
    (timedelta, timedelta.max),
    (ZoneInfo, ZoneInfo("Europe/Berlin")),
    (datetime, datetime(2026, 1, 1, 12, 0, 0, 123456)),  # noqa: DTZ001  naive, on purpose
    (datetime, datetime(2026, 1, 1, 12, 0, 0, 123456, tzinfo=UTC)),
    (datetime, datetime(2026, 1, 1, 12, tzinfo=ZoneInfo("UTC"))),
    (datetime, datetime(2026, 1, 1, tzinfo=timezone(timedelta(hours=-3, minutes=-30)))),
    (collections.deque[int], collections.deque([1, 2])),
    (collections.OrderedDict[str, int], collections.OrderedDict(b=1, a=2)),
    (Options, {"a": "x", "b": 1}),  # not in the order of the declaration
    (Item, Item("a", 0.5, ["x"], {"n": [1]})),
    (Slotted, Slotted("a", 1.5)),
    (Issue, Issue(number=1, items=[Item("a"), Item("b")])),
    (Special, Special(number=1, severity=3)),
    (Special | Issue, Special(number=1)),
    (Aliased, Aliased(htmlUrl="http://x")),
    (Open, Open.model_validate({"value": 1.5, "more": [1, {"a": None}]})),
    (Item | None, None),
    (Exacting, Exacting(number=1)),
    (Mixed, Mixed(1, 2)),
    (Kept, Kept(1, 2)),
]


@pytest.mark.parametrize(("declared", "value"), KEPT, ids=lambda part: repr(part)[:60])
def test_what_the_declared_type_can_restore_comes_back_equal(declared: Any, value: Any):
    adapter = TypeAdapter(declared)

    back = load(adapter, dump(adapter, value))

    assert exact(value, back)


def test_a_naive_datetime_keeps_its_wall_time_whatever_the_zone_of_the_host():
    code = (
        "from datetime import datetime; from pydantic import TypeAdapter\n"
        "from surefoot.schemas.payload import dump, load\n"
        "a = TypeAdapter(datetime); d = datetime(2026, 1, 1, 12, 0, 0, 123456)\n"
        "assert load(a, dump(a, d)) == d; print(dump(a, d).decode())"
    )
    zones = ("Asia/Shanghai", "UTC")
    outs = [
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            check=True,
        ).stdout
        for zone in zones
    ]
    assert outs == [b'"2026-01-01T12:00:00.123456"\n'] * 2


def test_a_cached_property_is_no_part_of_a_value():
    item = Item("a")
    assert item.loud == "A"

    assert load(TypeAdapter(Item), dump(TypeAdapter(Item), item)).loud == "A"


def test_how_a_value_was_made_is_no_part_of_it():
    adapter = TypeAdapter(Page[str])
    made = Page[str](["a"])
    assert vars(made)["__orig_class__"] == Page[str]
    assert load(adapter, dump(adapter, made)) == Page(["a"])


def test_a_list_that_is_referred_to_twice_is_no_cycle():
    part = [1]

    assert load(ANY, dump(ANY, [part, part])) == [[1], [1]]


def lambda_value() -> Callable[[], None]:
    return lambda: None


def with_private(number: int) -> Issue:
    issue = Issue(number=number)
    issue._seen = 5
    return issue


def stray(item: Any) -> Any:
    item.stray = 1
    return item


def keep(item: Any) -> Any:
    item.kept = 1
    return item


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


REFUSED: list[tuple[Any, Any, str, str, str]] = [
    (Any, {"a": [0, 1, 2, {"b": math.nan}]}, "$.a[3].b", "float", "nan|None"),
    (Any, [math.inf], "$[0]", "float", "use None or text"),
    (Item, Item("a", -math.inf), "$.score", "float", "use None or text"),
    (Open, Open(value=math.inf), "$.value", "float", "use None or text"),
    (Open, Open(value=math.nan), "$.value", "float", "use None or text"),
    (Any, {"a": {1, 2}}, "$.a", "set", "declare its type"),
    (Any, (1, 2), "$", "tuple", "come back as list"),
    (Any, {"a": [(1,)]}, "$.a[0]", "tuple", "come back as list"),
    (dict[str, Any], {"a": Point(1, 2)}, "$.a", f"{__name__}.Point", "come back as list"),
    (Any, {1: "a"}, "$[1]", "int", "as a key"),
    (Any, {"x": {None: 1}}, "$.x[None]", "NoneType", "as a key"),
    (Any, {1.5: "a"}, "$[1.5]", "float", "as a key"),
    (Any, {(1, 2): "a"}, "$[(1, 2)]", "tuple", "as a key"),
    (Any, {1: "a", "1": "b"}, "$[1]", "int", "as a key"),
    (dict[int | str, str], {1: "a", "1": "b"}, "$[1]", "int", "as a key"),
    (dict[int, int], {True: 1}, "$.True", "dict", "read back"),
    (dict[tuple[int, int], int], {(1, 2): 3}, "$['1,2']", "dict", "read back"),
    (Any, Decimal("1.5"), "$", "decimal.Decimal", "come back as str"),
    (Any, Fraction(1, 3), "$", "fractions.Fraction", "."),
    (Any, 1j, "$", "complex", "come back as str"),
    (Any, uuid.UUID(int=1), "$", "uuid.UUID", "come back as str"),
    (Any, pathlib.Path("a"), "$", "pathlib.PosixPath", "come back as str"),
    (Any, b"abc", "$", "bytes", "come back as str; .*Base64Bytes"),
    (bytes, b"\xff", "$", "bytes", "Base64Bytes"),
    (Any, Colour.RED, "$", f"{__name__}.Colour", "come back as str"),
    (Any, Word.A, "$", f"{__name__}.Word", "come back as str"),
    (Any, {"a": Item("x")}, "$.a", f"{__name__}.Item", "come back as dict"),
    (Any, Issue(number=1), "$", f"{__name__}.Issue", "come back as dict"),
    (Any, date(2026, 1, 1), "$", "datetime.date", "come back as str"),
    (Any, timedelta(1), "$", "datetime.timedelta", "come back as str"),
    (Any, datetime(2026, 1, 1, tzinfo=UTC), "$", "datetime.datetime", "come back as str"),
    (
        datetime,
        datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Berlin")),
        "$",
        "datetime.datetime",
        "UTC offset",
    ),
    (datetime, datetime(2026, 10, 25, 2, fold=1), "$", "datetime.datetime", "."),  # noqa: DTZ001
    (Any, ZoneInfo("Europe/Berlin"), "$", "zoneinfo.ZoneInfo", "."),
    (Any, range(3), "$", "range", "."),
    (Any, ValueError("x"), "$", "ValueError", "store str"),
    (Any, [lambda_value()], "$[0]", "function", "code cannot be stored"),
    (Any, Item, "$", "type", "code cannot be stored"),
    (Any, object(), "$", "object", "."),
    (Any, 10**5000, "$", "int", "4300 digits"),
    (int, -(10**5000), "$", "int", "4300 digits"),
    (Item, Item("a", extra=[{"f": open}]), "$.extra[0].f", "builtin_function", "code cannot"),
    (Item, Item("a", score=2**53 + 1), "$.score", "int", "come back as float"),
    (Item, Item("a", score=True), "$.score", "bool", "come back as float"),
    (int, 1.0, "$", "float", "come back as int"),
    (Item, Item("a", tags=("x",)), "$.tags", "tuple", "come back as list"),  # type: ignore[arg-type]
    (Item, Item(name=5), "$.name", "int", "."),  # type: ignore[arg-type]
    (Item, stray(Item("a")), "$.stray", "int", "would be lost"),
    (Issue, with_private(1), "$._seen", "int", "come back as 0"),
    (Issue, Special(number=1), "$", f"{__name__}.Special", "come back as .*Issue"),
    (Options, {"a": "x", "b": 1, "c": 2}, "$.c", "int", "would be lost"),
    (int, "5", "$", "str", "come back as int"),
    (Wordy, Wordy(value=math.inf), "$.value", "float", "use None or text"),
    (Any, {Word.A: 1}, "$.a", "Word", "come back as str"),
    (dict[Word, int], {"a": 1}, "$.a", "str", "come back as .*Word"),
    (dict[str, list[int]], {"a": [0, True]}, "$.a[1]", "bool", "come back as int"),
    (set[int], {True}, "$[True]", "bool", "come back as int"),
    (ROUNDED, Decimal("1.10"), "$", "decimal.Decimal", "come back as Decimal..1.1"),
    (UNSIGNED, -0.0, "$", "float", "come back as 0.0"),
    (LOWER, {"A": 1}, "$.A", "int", "would be lost"),
    (SECONDS, datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC), "$", "datetime.datetime", "come back"),
    (Kept, keep(Kept(1, 2)), "$.kept", "int", "come back as"),
    (Mixed, stray(Mixed(1, 2)), "$.stray", "int", "would be lost"),
    (GROWING, {"a": 1}, "$", "dict", "come back with 'more' added"),
    (STORED_RUDE, Rude(), "$", "Rude", "come back as a .*Rude"),
    (bool, 1, "$", "int", "come back as bool"),
    (Fickle, Fickle(text="a"), "$.text", "str", "come back as 'a!!'"),
    (collections.deque[int], collections.deque([1], maxlen=2), "$", "collections.deque", "."),
    (Any, deep(200), "$" + "[0]" * 200, "list", "nested more than 200 deep"),
    (Any, deep(5000), "$" + "[0]" * 200, "list", "nested more than 200 deep"),
]


@pytest.mark.parametrize(
    ("declared", "value", "path", "kind", "says"),
    REFUSED,
    ids=[str(number) for number in range(len(REFUSED))],
)
def test_what_would_be_changed_is_refused_with_its_path_and_type(
    declared: Any, value: Any, path: str, kind: str, says: str
):
    with pytest.raises(Unserialisable, match=says) as caught:
        dump(TypeAdapter(declared), value)

    assert caught.value.path == path
    assert kind in caught.value.type_name
    assert caught.value.path in str(caught.value)


@dataclass
class Measured:
    score: float
    tags: tuple[str, ...]
    price: Decimal = Decimal(1)


@pytest.mark.parametrize(
    ("declared", "value", "stored", "back"),
    [
        (float, 30, b"30", 30.0),
        (float | None, 30, b"30", 30.0),
        (tuple[int, str], [1, "a"], b'[1,"a"]', (1, "a")),
        (list[tuple[float, ...]], [[1, 2.5]], b"[[1,2.5]]", [(1.0, 2.5)]),
        (
            Measured,
            Measured(30, ["a"], 2),  # type: ignore[arg-type]
            b'{"score":30,"tags":["a"],"price":2}',
            Measured(30.0, ("a",), Decimal(2)),
        ),
    ],
)
def test_what_loses_nothing_is_taken_as_what_is_declared(
    declared: Any, value: Any, stored: bytes, back: Any
):
    data, made = dump_and_load(TypeAdapter(declared), value)

    assert json.loads(data) == json.loads(stored)
    assert (made, repr(made)) == (back, repr(back))
    assert load(TypeAdapter(declared), data) == back


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ({"a": Item("x")}, {"a": {"name": "x", "tags": [], "score": 0.0, "extra": None}}),
        ([Issue(number=1), (uuid.UUID(int=1), None)], [None, [f"{uuid.UUID(int=1)}", None]]),
        ({"when": date(2026, 1, 2), "all": {1}}, {"when": "2026-01-02", "all": [1]}),
        (Colour.RED, Colour.RED.value),
        (Decimal("1.50"), "1.50"),
        ({"a": [1, 2.5, None, True, "x"]}, {"a": [1, 2.5, None, True, "x"]}),
    ],
)
def test_what_nobody_declares_is_stored_as_what_it_is(value: Any, stored: Any):
    if isinstance(value, list):
        stored[0] = json.loads(value[0].model_dump_json(round_trip=True))
    assert json.loads(dump_own(value)) == stored


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"a": [Item("x"), {"b": math.nan}]}, "$.a[1].b", "use None or text"),
        ({"a": Item("x", math.inf)}, "$.a.score", "use None or text"),
        ([{1: "a"}], "$[0][1]", "as a key"),
        ({"a": object()}, "$.a", "declare its type"),
        ([ValueError("x")], "$[0]", "store str"),
        ([iter([1])], "$[0]", "only once"),
        (deep(300), "$" + "[0]" * 200, "nested more than 200 deep"),
    ],
)
def test_what_cannot_be_stored_as_what_it_is_has_a_path_too(value: Any, path: str, says: str):
    with pytest.raises(Unserialisable, match=says) as caught:
        dump_own(value)

    assert caught.value.path == path


def test_nesting_as_deep_as_can_be_read_is_kept():
    assert load(ANY, dump(ANY, deep(199))) == deep(199)


def test_a_list_that_contains_itself_is_refused():
    value: dict[str, Any] = {"a": [1]}
    value["a"] += [{"b": value}] * 10

    with pytest.raises(Unserialisable, match="contains itself") as caught:
        dump(ANY, value)
    assert caught.value.path == "$.a[1].b"


def test_a_coroutine_says_that_it_was_not_awaited():
    async def answer() -> int:
        return 42

    forgotten = answer()
    with pytest.raises(Unserialisable, match="await it first") as caught:
        dump(ANY, {"answer": forgotten})
    forgotten.close()
    assert caught.value.path == "$.answer"


@pytest.mark.parametrize("declared", [Any, list[int], Iterable[int]])
def test_a_generator_is_refused_untouched_even_an_endless_one(declared: Any):
    taken: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            taken.append(number)
            yield number

    with pytest.raises(Unserialisable, match="make a list of it"):
        dump(TypeAdapter(declared), numbers())
    assert taken == []


def test_an_endless_iterator_inside_a_dataclass_is_refused():
    with pytest.raises(Unserialisable, match="make a list") as caught:
        dump(TypeAdapter(Item), Item("a", tags=itertools.repeat("x")))  # type: ignore[arg-type]
    assert caught.value.path == "$.tags"


def test_an_open_file_is_refused_and_not_read(tmp_path: pathlib.Path):
    path = tmp_path / "notes.txt"
    path.write_text("one\ntwo\n")
    with path.open() as file:
        with pytest.raises(Unserialisable, match="read it, and store its content"):
            dump(ANY, {"notes": file})
        assert file.read() == "one\ntwo\n"


def test_refusals_survive_a_copy_with_their_path():
    error = Unserialisable("$.a", "set", "why")
    again = copy.copy(error)
    bad = copy.copy(BadPayload("$.a", "why"))

    assert (again.path, again.type_name, str(again)) == ("$.a", "set", str(error))
    assert str(bad) == "$.a: why"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8")),
    lambda parts: st.lists(parts) | st.dictionaries(st.text(st.characters(codec="utf-8")), parts),
    max_leaves=20,
)
KEYS = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.tuples(st.integers())
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.decimals()
    | st.datetimes()
    | st.uuids()
    | st.integers(4290, 4310).map(lambda digits: 10**digits)
    | st.sampled_from([Colour.RED, Word.A, math.nan]),
    lambda parts: (
        st.lists(parts)
        | st.tuples(parts, parts)
        | st.dictionaries(KEYS, parts, max_size=3)
        | st.builds(Item, st.text(), st.floats() | st.integers(), st.lists(st.text()), parts)
    ),
    max_leaves=8,
)


@given(JSON)
def test_all_plain_json_comes_back_exactly(value: Any):
    data = strict_json(value)

    assert exact(value, load(ANY, data))
    assert exact(value, parse_json(data))


@given(VALUES, st.sampled_from([Any, Item, dict[str, Any], list[Any], dict[int, Any] | float]))
def test_any_value_comes_back_exactly_or_is_refused(value: Any, declared: Any):
    adapter: TypeAdapter[Any] = TypeAdapter(declared)
    try:
        data = dump(adapter, value)
    except Unserialisable:
        return
    back = load(adapter, data)
    if isinstance(value, Item):
        value, back = vars(value), vars(back)
    assert exact(value, back)


# Loading


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a": 1,}',
        b"{'a': 1}",
        b"[1] 2",
        b"NaN",
        b'{"a": NaN}',
        b"[Infinity]",
        b"[-Infinity]",
        b"[1e400]",
        b"[-1E+400]",
        b"[" + b"9" * 400 + b".0]",
        b"[" + b"9" * 250 + b"e99]",
        b'"\xff"',
        b"[" * 202 + b"]" * 202,
        b"[" * 100_000,
        b"1" * 4301,
        '"utf-16"'.encode("utf-16"),
    ],
    ids=lambda data: repr(data[:20]),
)
def test_what_is_not_strict_json_is_a_bad_payload(data: bytes):
    for read in (lambda: load(ANY, data), lambda: parse_json(data)):
        with pytest.raises(BadPayload):
            read()


@pytest.mark.parametrize(
    ("declared", "data", "path"),
    [
        (Item, b'{"score": 1}', "$.name"),
        (Item, b'{"name": "a", "tags": ["x", 5]}', "$.tags[1]"),
        (Issue, b'{"number": 1, "items": [{"name": "a"}, {"name": null}]}', "$.items[1].name"),
        (dict[str, int], b'{"odd key": "x"}', "$['odd key']"),
        (int, b'"five"', "$"),
    ],
)
def test_a_wrong_type_is_a_bad_payload_with_its_path(declared: Any, data: bytes, path: str):
    with pytest.raises(BadPayload) as caught:
        load(TypeAdapter(declared), data)
    assert caught.value.path == path


def test_names_and_aliases_of_fields_are_both_understood():
    adapter = TypeAdapter(Aliased)

    assert load(adapter, b'{"htmlUrl": "x"}') == load(adapter, b'{"html_url": "x"}')


def repeating(value: str) -> str:
    raise ValueError(f"no {value}")


@pytest.mark.parametrize(
    ("declared", "data", "told"),
    [
        (dict[str, int], b'{"%s": "x"}', r"\$\.xxx.*…: Input should be a valid integer"),
        (Annotated[str, AfterValidator(repeating)], b'"%s"', r"\$: Value error, no xxx.*…"),
    ],
)
def test_a_bad_payload_says_no_more_than_a_person_reads(declared: Any, data: bytes, told: str):
    with pytest.raises(BadPayload, match=told) as caught:
        load(TypeAdapter(declared), data % (b"x" * 500_000))
    assert len(caught.value.message) < 1_000


def test_a_validator_that_breaks_is_a_bad_payload_and_no_crash():
    def explode(value: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(BadPayload, match="ZeroDivisionError"):
        load(TypeAdapter(Annotated[int, AfterValidator(explode)]), b"1")


@pytest.mark.parametrize(
    "text",
    [
        '{"__type__": "os.system", "args": ["touch marker"]}',
        '{"lc": 1, "type": "constructor", "id": ["os", "system"], "kwargs": {}}',
        '{"py/reduce": [{"py/function": "os.system"}, {"py/tuple": ["touch marker"]}]}',
        '"!!python/object/apply:os.system [touch marker]"',
        '"gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAZtYXJrZXKUhZRSlC4="',
    ],
)
def test_stored_data_is_only_ever_data(text: str):
    modules = set(sys.modules)

    assert load(ANY, text.encode()) == json.loads(text)
    assert set(sys.modules) == modules


# JSON from outside


def test_a_byte_order_mark_is_accepted_once_at_the_front():
    assert parse_json(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}
    with pytest.raises(BadPayload):
        parse_json(b'{"a": \xef\xbb\xbf1}')


def test_a_key_that_occurs_twice_is_refused_at_any_depth():
    with pytest.raises(BadPayload, match="the key 'b' occurs twice"):
        parse_json(b'{"a": [{"b": 1, "c": 2, "b": 1}]}')
    with pytest.raises(BadPayload, match="occurs twice"):
        parse_json(b'{"b": 1, "\\u0062": 1}')


def test_big_integers_and_floats_from_outside_are_exact():
    text = b"[18446744073709551617, -9223372036854775809, 1e22, 0.1, -0.0, 1.0]"

    assert exact(parse_json(text), json.loads(text))


def test_strict_json_is_utf_8_and_refuses_what_is_no_json():
    assert strict_json({"a": ["é", 1, None]}) == '{"a":["é",1,null]}'.encode()
    with pytest.raises(Unserialisable):
        strict_json(types.SimpleNamespace(a=1))


def test_the_digest_is_the_start_of_the_sha_256():
    assert digest(b"abc").hex() == "ba7816bf8f01cfea"
