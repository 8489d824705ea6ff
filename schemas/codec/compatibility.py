"""Whether the current schemas and every released version can read each other's records.

A log outlives the build that wrote it, and during a rolling upgrade old builds read what new ones
write. A change must therefore be compatible both ways: new fields need a default, fields without
one stay, an enum keeps its symbols.

To release: copy avro/ to released/v<next>/ and append the lines of `fingerprints` for it to
released/FINGERPRINTS. A released file never changes again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import avro.errors
import avro.schema
from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)

from surefoot.schemas.codec import catalog


def check_schema(name: str, root: Path = catalog.ROOT) -> list[str]:
    """Return the problems of the current schema `name` with each released one; [] if none.

    Reads files. Asks Apache Avro's own checker, in both directions.
    """
    now = catalog.current(root).get(name)
    problems = []
    for version, schemas in catalog.released(root).items():
        then = schemas.get(name)
        if then is None:
            continue
        if now is None:
            problems.append(
                f"the schema {name} is missing, but {version} wrote such records; restore it"
            )
            continue
        problems += [
            f"this build cannot read the {name} of {version}: {problem}"
            for problem in _problems(reader=now, writer=then)
        ]
        problems += [
            f"{version} cannot read the {name} of this build: {problem}"
            for problem in _problems(reader=then, writer=now)
        ]
    return problems


def check_all(root: Path = catalog.ROOT) -> list[str]:
    """Return the problems of all current schemas with all released ones. Reads files."""
    names = {name for schemas in catalog.released(root).values() for name in schemas}
    return [problem for name in sorted(names) for problem in check_schema(name, root)]


def between(now: Any, then: Any, *, new: str, old: str) -> list[str]:
    """Return why readers with one schema cannot read what the other wrote, both ways. Pure.

    Args:    new, old: names of the two for the messages
    Raises:  ValueError - one of them is not an Avro schema
    """
    return [
        *(
            f"a reader of {new} cannot read {old}: {why}"
            for why in _problems(reader=now, writer=then)
        ),
        *(
            f"a reader of {old} cannot read {new}: {why}"
            for why in _problems(reader=then, writer=now)
        ),
    ]


def fingerprints(version: str, root: Path = catalog.ROOT) -> list[str]:
    """Return one line per file of a released version: file, CRC-64-AVRO, SHA-256. Reads files.

    Records carry the CRC. It does not cover defaults and aliases, which decide how old records are
    read, so the line has a digest of the whole file as well.
    """
    folder = root / "released" / version
    return [
        f"{version}/{name}.avsc {catalog.crc64(schema).hex()} "
        f"{hashlib.sha256((folder / f'{name}.avsc').read_bytes()).hexdigest()}"
        for name, schema in catalog.released(root)[version].items()
    ]


def parse_avro_schema(schema: Any) -> Any:
    """Parse a schema with Apache Avro. Raises ValueError if it is not one."""
    try:
        return avro.schema.parse(json.dumps(schema))
    except avro.errors.AvroException as error:
        raise ValueError(f"not an Avro schema: {error}") from None


def _problems(*, reader: Any, writer: Any) -> list[str]:
    checker: Any = ReaderWriterCompatibilityChecker
    result: SchemaCompatibilityResult = checker().get_compatibility(
        parse_avro_schema(reader), parse_avro_schema(writer)
    )
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    return [
        f"{kinds}: {', '.join(sorted(result.messages))} at {', '.join(sorted(result.locations))}"
    ]
