"""Checks Avro schemas before they are released, and registers them. Made for CI."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from surefoot.commands.groups import group
from surefoot.infra.registry.confluent import open_registry
from surefoot.infra.runtime.settings import load_settings
from surefoot.infra.runtime.terminal import printable
from surefoot.schemas.codec.compatibility import between, check_all, parse_avro_schema
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.errors import ConfigError, Refused

EXIT_FITS, EXIT_DOES_NOT = 0, 1


SchemaFiles = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[SCHEMA.avsc...]", help="Schemas of your own events."),
]
Subject = Annotated[
    str | None,
    typer.Option(help="Subject in the registry; default: the file's name without .avsc."),
]

app = group("Check and register Avro schemas.")


@app.command()
def check(
    files: SchemaFiles = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Released versions, as files of the same names."),
    ] = None,
    registry: Annotated[
        bool, typer.Option("--registry", help="Ask the registry of SUREFOOT_REGISTRY_URL.")
    ] = False,
    subject: Subject = None,
) -> None:
    """Check that old and new readers can read each other's records.

    Without a file: Surefoot's own schemas against every released version. Exit status 1 when they
    cannot; 2 for what is not a schema; 69 when the registry cannot be reached.
    """
    if not files:
        fine = "every released version and this build read each other's records"
        raise typer.Exit(_tell(check_all(), fine))
    named = _named(files, subject)
    if against is None and not registry:
        raise ConfigError("SF1024", "give --against FOLDER, --registry, or both")
    schemas = [(path, name, _read(path)) for path, name in named]
    problems = []
    for path, _, schema in schemas if against is not None else ():
        for old in _released(against or Path(), path):
            problems += between(schema, _read(old), new=str(path), old=str(old))
    if registry:
        problems += asyncio.run(_asked([(name, schema) for _, name, schema in schemas]))
    raise typer.Exit(_tell(problems, f"{len(schemas)} schemas can be released"))


@app.command()
def register(files: SchemaFiles = None, subject: Subject = None) -> None:
    """Register schemas with the registry of SUREFOOT_REGISTRY_URL, and print subject and id.

    Registering one again changes nothing. Exit status 1 when the registry refuses one.
    """
    if not files:
        raise ConfigError("SF1024", "name the schema files to register")
    schemas = [(name, _read(path)) for path, name in _named(files, subject)]

    async def go() -> None:
        async with open_registry(load_settings()) as registry:
            for name, schema in schemas:
                typer.echo(f"{printable(name)} {await registry.register(name, schema)}")

    try:
        asyncio.run(go())
    except Refused as refused:
        raise typer.Exit(_tell([str(refused)], "")) from None


async def _asked(schemas: Sequence[tuple[str, Any]]) -> list[str]:
    problems = []
    async with open_registry(load_settings()) as registry:
        for name, schema in schemas:
            try:
                found = await registry.problems(name, schema)
            except Refused as refused:
                found = [str(refused)]
            problems += [f"{name}: {why}" for why in found]
    return problems


def _tell(problems: Sequence[str], fine: str) -> int:
    for problem in problems:
        typer.echo(f"surefoot: {printable(problem)}", err=True)
    if not problems:
        typer.echo(fine)
    return EXIT_DOES_NOT if problems else EXIT_FITS


def _named(files: Sequence[Path], subject: str | None) -> list[tuple[Path, str]]:
    if subject is not None and len(files) > 1:
        raise ConfigError("SF1024", "--subject goes with one file")
    return [(path, subject or path.stem) for path in files]


def _released(folder: Path, path: Path) -> Iterator[Path]:
    """Yield files of that name in the folder and below it: one per version, or the only one."""
    if not folder.is_dir():
        raise ConfigError("SF1022", f"no such folder: {folder}")
    yield from sorted(each for each in folder.rglob(path.name) if not _same(each, path))


def _same(one: Path, other: Path) -> bool:
    return one.resolve() == other.resolve()


def _read(path: Path) -> Any:
    try:
        schema = parse_json(path.read_bytes())
        parse_avro_schema(schema)
    except OSError as error:
        raise ConfigError("SF1024", f"{path}: {error.strerror}") from None
    except (BadPayload, ValueError) as error:
        raise ConfigError("SF1024", f"{path}: {error}") from None
    return schema
