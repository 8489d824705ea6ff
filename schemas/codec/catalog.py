"""The Avro schemas as files: the current ones in avro/, each released set in released/<version>/.

One file per named type, with the type's name. A file refers to another by its full name
("surefoot.Failure"). This module replaces each such reference by the definition, at its first use,
so that every schema can be parsed, fingerprinted and given to other tools by itself.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastavro.schema import fingerprint, to_parsing_canonical_form

ROOT = Path(__file__).parents[1]
_NAMESPACE = "surefoot."

#: an Avro schema: JSON as Avro defines it
Schema = dict[str, Any]


def current(root: Path = ROOT) -> dict[str, Schema]:
    """Return the schemas that this build writes, by name. Reads files."""
    return _read(root / "avro")


def released(root: Path = ROOT) -> dict[str, dict[str, Schema]]:
    """Return the schemas of every released version, by version and name, oldest first. Reads
    files."""
    versions = sorted((root / "released").glob("v*"), key=lambda folder: int(folder.name[1:]))
    return {folder.name: _read(folder) for folder in versions}


def crc64(schema: Schema) -> bytes:
    """Return the CRC-64-AVRO of the schema's parsing canonical form: 8 bytes, little-endian.

    Source: Avro 1.12 specification, "Schema Fingerprints"
    """
    return bytes.fromhex(fingerprint(to_parsing_canonical_form(schema), "CRC-64-AVRO"))


def _read(folder: Path) -> dict[str, Schema]:
    files = {path.stem: json.loads(path.read_text("utf-8")) for path in folder.glob("*.avsc")}
    return {name: _inline(schema, files, {name}) for name, schema in sorted(files.items())}


def _inline(schema: Any, files: dict[str, Schema], seen: set[str]) -> Any:
    """Return `schema` with each reference to another file replaced by its definition, once."""
    match schema:
        case str() if schema.startswith(_NAMESPACE):
            name = schema.removeprefix(_NAMESPACE)
            if name in seen:
                return schema
            seen.add(name)
            return _inline(files[name], files, seen)
        case list():
            return [_inline(branch, files, seen) for branch in schema]
        case {"type": "record", "fields": fields}:
            inlined = [{**field, "type": _inline(field["type"], files, seen)} for field in fields]
            return {**schema, "fields": inlined}
        case {"type": "array", "items": items}:
            return {**schema, "items": _inline(items, files, seen)}
        case _:
            return schema
