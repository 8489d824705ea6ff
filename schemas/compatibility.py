"""Whether the current schemas and every released version can read each other's records.

A log outlives the build that wrote it, and while workers are replaced one by one, old builds read
what new ones write. So a change must be compatible both ways: new fields need a default, fields
without one stay, an enum keeps its symbols.

To release: copy avro/ to released/v<next>/ and append the lines of `fingerprints` for it to
released/FINGERPRINTS. A released file never changes again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import avro.schema
from avro.compatibility import (
    ReaderWriterCompatibilityChecker,
    SchemaCompatibilityResult,
    SchemaCompatibilityType,
)

from surefoot.schemas import catalog


def check(name: str, root: Path = catalog.ROOT) -> list[str]:
    """Return what is wrong with the current schema `name` against each released one; [] if nothing.

    Reads files. Asks Apache Avro's own checker, in both directions.
    """
    now = catalog.current(root).get(name)
    problems = []
    for version, schemas in catalog.released(root).items():
        then = schemas.get(name)
        if then is None:
            continue
        if now is None:
            problems.append(f"{name} is gone, but {version} wrote such records; put it back")
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


def fingerprints(version: str, root: Path = catalog.ROOT) -> list[str]:
    """Return one line a file of a released version: file, CRC-64-AVRO, SHA-256. Reads files.

    The CRC is what records carry; it leaves out defaults and aliases, which decide how old records
    are read, so the whole file is held as well.
    """
    folder = root / "released" / version
    return [
        f"{version}/{name}.avsc {catalog.crc64(schema).hex()} "
        f"{hashlib.sha256((folder / f'{name}.avsc').read_bytes()).hexdigest()}"
        for name, schema in catalog.released(root)[version].items()
    ]


def _problems(*, reader: dict[str, Any], writer: dict[str, Any]) -> list[str]:
    checker: Any = ReaderWriterCompatibilityChecker
    result: SchemaCompatibilityResult = checker().get_compatibility(
        avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer))
    )
    if result.compatibility is SchemaCompatibilityType.compatible:
        return []
    kinds = ", ".join(sorted({kind.value for kind in result.incompatibilities}))
    return [
        f"{kinds}: {', '.join(sorted(result.messages))} at {', '.join(sorted(result.locations))}"
    ]
