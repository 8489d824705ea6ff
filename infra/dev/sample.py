"""Makes a payload to try an agent with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def sample(schema: Mapping[str, Any]) -> Any:
    """Return a value that a JSON schema (by pydantic) allows: only what it requires."""
    return _sample(schema, schema.get("$defs", {}), frozenset())


def _sample(schema: Mapping[str, Any], defs: Mapping[str, Any], parents: frozenset[str]) -> Any:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return None if name in parents else _sample(defs[name], defs, parents | {name})
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    for key in ("default", "const"):
        if key in schema:
            return schema[key]
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return _sample(choices[0], defs, parents)
    match schema.get("type"):
        case "object":
            properties = schema.get("properties", {})
            return {
                name: _sample(properties[name], defs, parents)
                for name in schema.get("required", ())
            }
        case "array":
            return [_sample(item, defs, parents) for item in schema.get("prefixItems", ())]
        case "integer" | "number":
            return schema.get("minimum", 1)
        case "boolean":
            return False
        case "string":
            return "text"
    return None
