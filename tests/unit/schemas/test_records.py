"""The types of decoded records are those that the schemas describe."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from surefoot.schemas.codec import catalog, records

TYPES = {"string": str, "bytes": bytes, "int": int, "long": int}
SCHEMAS = catalog.current()


def type_of(schema: Any) -> Any:
    """Return the type of a value that was read with the schema."""
    match schema:
        case ["null", branch]:
            return type_of(branch) | None
        case {"type": "array", "items": items}:
            return list[type_of(items)]  # type: ignore[misc]
        case {"name": name}:
            return getattr(records, f"Avro{name}")
        case str() if schema.startswith("surefoot."):
            return getattr(records, f"Avro{schema.removeprefix('surefoot.')}")
        case _:
            return TYPES[schema]


@pytest.mark.parametrize("name", [n for n, each in SCHEMAS.items() if each["type"] == "record"])
def test_the_type_of_a_record_has_the_fields_of_its_schema(name: str):
    typed = getattr(records, f"Avro{name}")

    assert get_type_hints(typed) == {
        field["name"]: type_of(field["type"]) for field in SCHEMAS[name]["fields"]
    }
    assert typed.__required_keys__ == get_type_hints(typed).keys()


def test_the_type_of_a_status_has_the_symbols_of_its_schema():
    assert list(get_args(records.AvroStatus)) == SCHEMAS["Status"]["symbols"]


def test_each_type_is_that_of_a_schema():
    typed = {name.removeprefix("Avro") for name in vars(records) if name.startswith("Avro")}

    assert typed == SCHEMAS.keys()
