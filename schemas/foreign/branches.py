"""Maps each record of an Avro union to the author's type of the same name. Pure.

Avro says of each value of a union which of its records it is. pydantic sees only the fields and
takes the first type that fits, so it cannot distinguish two types with equal fields. Here the name
selects from a union of an author's types: a record `shop.Created` is the class `Created`. A record
with any other name is refused rather than guessed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic_core import SchemaValidator, core_schema

__all__ = ["ByBranch", "UnionBranch", "named"]

#: keys under which a pydantic schema has those of its parts
_PARTS = frozenset(
    {
        "choices",
        "definitions",
        "extras_schema",
        "fields",
        "items_schema",
        "keys_schema",
        "lax_schema",
        "python_schema",
        "schema",
        "steps",
        "strict_schema",
        "values_schema",
    }
)
#: keys whose parts may be a dict by name
_BY_NAME = ("choices", "fields")
_RECORDS = ("dataclass", "model", "typed-dict")
#: name of anything that is not a record of a union
_NO_RECORD = ""


class UnionBranch(dict[str, Any]):
    """A record that was one of several in its union."""

    __slots__ = ("record",)

    def __init__(self, record: str, fields: Mapping[str, Any]) -> None:
        super().__init__(fields)
        #: its name, without the namespace
        self.record = record


def named(value: Any) -> Any:
    """Return a value read by fastavro with each (name, fields) pair as a UnionBranch."""
    match value:
        case (str() as record, dict() as fields) if isinstance(value, tuple):
            return UnionBranch(_short(record), named(fields))
        case dict():
            return {name: named(each) for name, each in value.items()}
        case list():
            return [named(each) for each in value]
    return value


def _plain(value: Any) -> Any:
    """Return the value with plain dicts for its branches."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _record_of(value: Any) -> str:
    return value.record if isinstance(value, UnionBranch) else _NO_RECORD


class ByBranch:
    """Validates values from `named` as one of the author's types."""

    def __init__(self, adapter: TypeAdapter[Any]) -> None:
        self._schema: Any = adapter.core_schema
        self._definitions = {each["ref"]: each for each in self._schema.get("definitions", ())}
        #: number of unions of records in the type
        self.unions = 0
        # Validators that classes already have do not know about branches.
        self._validator = SchemaValidator(self._tagged(self._schema), _use_prebuilt=False)

    def validate_python(self, value: Any, **how: Any) -> Any:
        """Like TypeAdapter.validate_python."""
        return self._validator.validate_python(value, **how)

    def mistakable(self, avro: Any, names: Mapping[str, Any]) -> Iterator[str]:
        """Yield a line for each record of that Avro schema, as parsed by fastavro, that cannot be
        told from others of its union."""
        yield from self._mistakable(self._schema, avro, names)

    def _tagged(self, part: Any) -> Any:
        """Return the schema, or list of schemas, with each union of records selected by name."""
        match part:
            case list():
                return [self._tagged(each) for each in part]
            case tuple():  # a choice and its label
                return (self._tagged(part[0]), *part[1:])
            case {"type": "any"}:
                return core_schema.no_info_before_validator_function(_plain, part)
            case {"type": kind}:
                made = {name: self._parts(name, each) for name, each in part.items()}
                return self._by_name(part, made) if kind == "union" else made
        return part

    def _parts(self, name: str, parts: Any) -> Any:
        if name not in _PARTS:
            return parts
        if name in _BY_NAME and isinstance(parts, dict):
            return {each: self._tagged(part) for each, part in parts.items()}
        return self._tagged(parts)

    def _by_name(self, union: Any, made: dict[str, Any]) -> Any:
        names = self._names(union)
        if len(names) <= 1:
            return made
        self.unions += 1
        choices = {
            name: _bare(made["choices"][number])
            for number, choice in enumerate(union["choices"])
            for name in self._names(choice)
            if names.count(name) == 1
        }
        ref = made.pop("ref", None)
        return core_schema.tagged_union_schema(
            {**choices, _NO_RECORD: made},
            _record_of,
            custom_error_type="branch",
            custom_error_message=f"the Avro union takes one of: {', '.join(choices)}",
            ref=ref,
        )

    def _names(self, schema: Any) -> list[str]:
        """Return the names of the records that the schema is, or selects from."""
        match self._whole(schema):
            case {"type": "dataclass" | "model" | "typed-dict", "cls": cls}:
                return [cls.__name__]
            case {"type": "union", "choices": choices}:
                return [name for each in choices for name in self._names(each)]
        return []

    def _whole(self, schema: Any) -> Any:
        """Return the schema without its wrappers."""
        schema = _bare(schema)
        match schema:
            case {"type": "definition-ref", "schema_ref": ref}:
                return self._whole(self._definitions[ref])
            case {"type": kind, "schema": inner} if kind not in _RECORDS:
                return self._whole(inner)
        return schema

    def _mistakable(self, schema: Any, avro: Any, names: Mapping[str, Any]) -> Iterator[str]:
        schema = self._whole(schema)
        match names.get(avro, avro) if isinstance(avro, str) else avro:
            case list() as branches:
                yield from self._mistakable_in_union(schema, branches, names)
            case {"type": "record", "fields": fields}:
                for field in fields:
                    if (mine := _field(schema, field["name"])) is not None:
                        yield from self._mistakable(mine, field["type"], names)
            case {"type": "array", "items": items} if "items_schema" in schema:
                yield from self._mistakable(schema["items_schema"], items, names)
            case {"type": "map", "values": values} if "values_schema" in schema:
                yield from self._mistakable(schema["values_schema"], values, names)

    def _mistakable_in_union(
        self, schema: Any, branches: Sequence[Any], names: Mapping[str, Any]
    ) -> Iterator[str]:
        mine = self._names(schema)
        theirs = [_record_name(branch, names) for branch in branches]
        records = [name for name in theirs if name]
        if len(mine) > 1 and len(records) > 1:
            for name in records:
                if records.count(name) > 1 or mine.count(name) != 1:
                    yield (
                        f"the record {name} of a union must match exactly one of {', '.join(mine)}"
                    )
        for name, branch in zip(theirs, branches, strict=True):
            choices = schema["choices"] if schema["type"] == "union" else [schema]
            for choice in choices:
                if len(mine) <= 1 or not name or name in self._names(choice):
                    yield from self._mistakable(choice, branch, names)


def _bare(choice: Any) -> Any:
    """Return a choice of a union without its label."""
    return choice[0] if isinstance(choice, tuple) else choice


def _record_name(branch: Any, names: Mapping[str, Any]) -> str:
    found = names.get(branch, branch) if isinstance(branch, str) else branch
    return _short(found["name"]) if _is_record(found) else _NO_RECORD


def _is_record(avro: Any) -> bool:
    return isinstance(avro, dict) and avro["type"] == "record"


def _short(name: str) -> str:
    return name.rpartition(".")[2]


def _field(schema: Any, name: str) -> Any:
    """Return the schema of a record's field; None if there is no such field."""
    if schema["type"] not in _RECORDS:
        return None
    inner = schema if schema["type"] == "typed-dict" else schema["schema"]
    fields = inner.get("fields", ())
    pairs = fields.items() if isinstance(fields, dict) else [(f["name"], f) for f in fields]
    for own, each in pairs:
        if name in (own, each.get("validation_alias")):
            return each["schema"]
    return None
