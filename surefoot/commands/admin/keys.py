"""`surefoot keys`: the file with the keys that encrypt payloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, TypedDict

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import Json
from surefoot.commands.output import print_each
from surefoot.infra.encryption.keyring import KeyJson, new_key, read_keys, write_keys
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.errors import ConfigError

app = group("Make, list and rotate the keys that encrypt payloads.")

KeyFile = Annotated[
    Path, typer.Argument(metavar="FILE", help="File that SUREFOOT_ENCRYPTION names.")
]
KeyId = Annotated[str, typer.Argument(metavar="ID", help="Of the key: 2026-11, say.")]


class KeyLineJson(TypedDict):
    id: str
    encrypts: bool
    provider: str
    name: str | None


@app.command()
def add(
    file: KeyFile,
    key_id: KeyId,
    wrap: Annotated[
        str,
        typer.Option(
            metavar="PROVIDER:KEY",
            help="Wrap it with a provider's key: aws-kms:alias/surefoot, vault:surefoot.",
        ),
    ] = "file:",
) -> None:
    """Add a key that decrypts. The first one of a file also encrypts.

    Give the file to every process before `surefoot keys use`.
    """
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    keys = read_keys(file) if file.exists() else []
    if any(key["id"] == key_id for key in keys):
        raise ConfigError("SF1092", f"{file} has a key {key_id} already; choose another id")
    by, _, name = wrap.partition(":")
    made = asyncio.run(new_key(key_id, by, name, load_settings()))
    write_keys(file, [*keys[:-1], made, *keys[-1:]])
    typer.echo(f"{key_id} {'decrypts' if keys else 'encrypts and decrypts'}")


@app.command()
def use(file: KeyFile, key_id: KeyId) -> None:
    """Encrypt with this key from now on, once the processes are restarted; the others decrypt."""
    keys = read_keys(file)
    chosen = [key for key in keys if key["id"] == key_id]
    if not chosen:
        raise ConfigError("SF1092", f"{file} has no key {key_id!r}; see `surefoot keys list`")
    write_keys(file, [*(key for key in keys if key["id"] != key_id), *chosen])
    typer.echo(f"{key_id} encrypts and decrypts")


@app.command("list")
def list_keys(file: KeyFile, as_json: Json = False) -> None:
    """List the keys, without their secrets."""
    keys = read_keys(file)

    def fields(key: KeyJson) -> KeyLineJson:
        return {
            "id": key["id"],
            "encrypts": key is keys[-1],
            "provider": key["provider"],
            "name": key.get("name"),
        }

    def cells(key: KeyJson) -> tuple[str, ...]:
        by = " ".join(part for part in (key["provider"], key.get("name")) if part)
        return (key["id"], "encrypts, decrypts" if key is keys[-1] else "decrypts", by)

    print_each(keys, fields, ("ID", "DOES", "WRAPPED BY"), cells, wraps="ID", as_json=as_json)
