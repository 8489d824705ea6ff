"""A record of an Avro union is the author's type of its name, never the first one that fits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from pydantic import BaseModel, RootModel
from typing_extensions import TypedDict

from surefoot import Agent, ConfigError, Context, Done
from surefoot.testing import Unusable, from_event
from tests.support.foreign_clients import avro


@dataclass
class Created:
    id: str
    by: str | None = None


@dataclass
class Cancelled:
    id: str
    by: str | None = None


class Moved(BaseModel):
    id: str
    by: str | None = None


class Told(TypedDict):
    id: str


@dataclass
class Envelope:
    what: Created | Cancelled | Moved | str | None
    more: list[Created | Cancelled] = field(default_factory=list)
    by_name: dict[str, Cancelled | Moved] = field(default_factory=dict)
    loose: Any = None


class Wrapped(BaseModel):
    inside: Envelope | None
    which: Created | Cancelled


def record(name: str, *fields: Any) -> dict[str, Any]:
    alike = [
        {"name": "id", "type": "string"},
        {"name": "by", "type": ["null", "string"], "default": None},
    ]
    return {"type": "record", "name": name, "namespace": "shop", "fields": list(fields) or alike}


CREATED, CANCELLED, MOVED = record("Created"), record("Cancelled"), record("Moved")
ENVELOPE = record(
    "Envelope",
    {"name": "what", "type": ["null", CREATED, CANCELLED, MOVED, "string"]},
    {"name": "more", "type": {"type": "array", "items": ["shop.Created", "shop.Cancelled"]}},
    {"name": "by_name", "type": {"type": "map", "values": ["shop.Moved", "shop.Cancelled"]}},
    {"name": "loose", "type": ["null", "shop.Created", "shop.Moved"]},
)
FIELDS = {"id": "o1", "by": None}


def asked(kind: Any, schema: Any, value: Any, **declared: Any) -> Any:
    """What a trigger's function is given."""
    seen: list[Any] = []

    def on_event(event: Any) -> None:
        seen.append(event)

    on_event.__annotations__["event"] = kind
    agent = Agent("shop")

    @agent.step
    async def take(ctx: Context, payload: Any) -> Done:
        return Done()

    agent.on_event(topic="orders", **declared)(on_event)
    data = b"\x00" + (7).to_bytes(4, "big") + avro(value, schema)
    from_event(agent, "orders", data, registry={7: schema})
    return seen[0]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
@pytest.mark.parametrize("made", [Created, Cancelled, Moved])
def test_types_of_the_same_fields_are_told_apart_by_name(made: Any, order: tuple[int, ...]) -> None:
    schema = [[CREATED, CANCELLED, MOVED][n] for n in order]
    for kind in (Created | Cancelled | Moved, Moved | Cancelled | Created | None):
        found = asked(kind, schema, (f"shop.{made.__name__}", FIELDS))
        assert found == made(id="o1")
        assert type(found) is made


@pytest.mark.parametrize("kind", [Wrapped, RootModel[Wrapped]])
def test_they_are_told_apart_wherever_they_are(kind: Any) -> None:
    schema = record(
        "Wrapped",
        {"name": "inside", "type": ["null", ENVELOPE]},
        {"name": "which", "type": ["shop.Created", "shop.Cancelled"]},
    )
    cancelled, moved = ("shop.Cancelled", FIELDS), ("shop.Moved", FIELDS)
    inside = {
        "what": moved,
        "more": [cancelled, ("shop.Created", FIELDS)],
        "by_name": {"a": moved},
        "loose": moved,
    }
    found = asked(kind, schema, {"inside": inside, "which": cancelled})
    assert (found if kind is Wrapped else found.root) == Wrapped(
        inside=Envelope(
            Moved(id="o1"), [Cancelled("o1"), Created("o1")], {"a": Moved(id="o1")}, FIELDS
        ),
        which=Cancelled("o1"),
    )
    assert type((found if kind is Wrapped else found.root).inside.loose) is dict


@pytest.mark.parametrize(("what", "wanted"), [(None, None), ("text", "text")])
def test_what_is_no_record_is_taken_as_before(what: Any, wanted: Any) -> None:
    value = {"what": what, "more": [], "by_name": {}, "loose": None}
    assert asked(Envelope, ENVELOPE, value) == Envelope(wanted)


def test_without_a_union_of_records_nothing_is_looked_for_by_name() -> None:
    """The classes may be called otherwise, and nobody is given more than plain values."""
    schema = ["null", CANCELLED]
    assert asked(Created | None, schema, FIELDS) == Created("o1")
    found = asked(dict[str, Any], [CREATED, CANCELLED], ("shop.Cancelled", FIELDS))
    assert (found, type(found)) == (FIELDS, dict)
    one = asked(Created | Cancelled, CREATED, FIELDS)  # no union was written
    assert one == Created("o1")


def test_a_record_that_no_type_is_called_as_is_a_dead_letter_and_not_a_guess() -> None:
    schema = [CREATED, CANCELLED, record("Deleted")]
    with pytest.raises(Unusable, match="takes one of: Created, Cancelled") as refused:
        asked(Created | Cancelled, schema, ("shop.Deleted", FIELDS))
    assert refused.value.code == "undecodable"


def declared(kind: Any, schema: Any) -> None:
    def on_event(event: Any) -> None: ...

    on_event.__annotations__["event"] = kind
    Agent("shop").on_event(topic="orders", schema=[schema])(on_event)


OTHER = record("Cancelled") | {"namespace": "old"}


@pytest.mark.parametrize(
    ("kind", "schema", "which"),
    [
        (Created | Cancelled, record("E", {"name": "x", "type": "int"}), None),
        (Envelope, ENVELOPE, None),
        (Wrapped, record("Wrapped", {"name": "inside", "type": ENVELOPE}), None),
        (dict[str, Any], ENVELOPE, None),
        (Created, ENVELOPE, None),
        (
            Envelope,
            record("E", {"name": "what", "type": [CREATED, record("Deleted")]}),
            "Deleted",
        ),
        (
            Wrapped,
            record(
                "Wrapped",
                {
                    "name": "inside",
                    "type": [
                        "null",
                        record(
                            "E",
                            {"name": "more", "type": {"type": "array", "items": [CREATED, MOVED]}},
                        ),
                    ],
                },
            ),
            "Moved",
        ),
        (Envelope, record("E", {"name": "what", "type": [CANCELLED, OTHER]}), "Cancelled"),
        (
            list[Created | Told],
            {"type": "array", "items": [CREATED, record("Told"), MOVED]},
            "Moved",
        ),
    ],
)
def test_what_cannot_be_told_apart_is_refused_when_the_agent_is_loaded(
    kind: Any, schema: Any, which: str | None
) -> None:
    if which is None:
        declared(kind, schema)
        return
    with pytest.raises(ConfigError, match=f"the record {which} of a union") as refused:
        declared(kind, schema)
    assert refused.value.number == "SF1167"
