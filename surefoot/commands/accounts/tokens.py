"""`surefoot tokens`: accounts that sign in to the gateway with a token."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from getpass import getuser
from typing import Annotated, TypedDict

import typer

from surefoot.commands.groups import group
from surefoot.commands.options import Json, NameArgument
from surefoot.commands.output import print_each
from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.access.audit import AuditWriter
from surefoot.infra.access.tokens import TokenBook, new_token_secret
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime import logging
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import Settings, load_settings
from surefoot.state.access.accounts import (
    EVERYTHING,
    AccessToken,
    Account,
    check_account,
    secret_digest,
)
from surefoot.state.access.audit import AuditEntry
from surefoot.state.declare.durations import duration_s
from surefoot.state.errors import BadArgument, ConfigError
from surefoot.state.names.roles import Role
from surefoot.state.names.topics import access_specs
from surefoot.state.reading.explain import clock_time

app = group("Create, list and revoke tokens that sign in to the gateway.")


class TokenJson(TypedDict):
    name: str
    role: Role
    agents: list[str]
    created_ms: int
    expires_ms: int | None
    expired: bool


@app.command()
def create(
    name: NameArgument,
    role: Annotated[
        Role,
        typer.Option(
            help="viewer reads; approver also answers questions; operator also starts and steers "
            "runs; admin may do all."
        ),
    ],
    agents: Annotated[
        str, typer.Option(help="Patterns of the agents it may see, comma-separated: 'bill-*,a'.")
    ] = EVERYTHING,
    expires: Annotated[str | None, typer.Option(help="After how long: 90d, 12h.")] = None,
) -> None:
    """Create a token, and print its secret once."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    now_ms, settings, secret = SystemClock().now_ms(), load_settings(), new_token_secret()
    lasts_s = duration_s(expires)
    account = Account(
        name=name,
        role=role,
        agents=tuple(dict.fromkeys(pattern.strip() for pattern in agents.split(","))),
        expires_ms=None if lasts_s is None else now_ms + int(lasts_s * 1000),
    )
    try:
        check_account(account)
    except BadArgument as error:
        raise ConfigError(error.number, error.message) from None

    async def write() -> None:
        async with _opened(settings) as (book, audit):
            if any(token.account.name == name for token in await book.tokens()):
                raise ConfigError(
                    "SF1083",
                    f"there is a token {name} already; choose another name, or revoke it first: "
                    f"`surefoot tokens revoke {name}`",
                )
            token = AccessToken(account=account, digest=secret_digest(secret), created_ms=now_ms)
            await book.write(token)
            note = f"{name}: {role} of {', '.join(account.agents)}"
            await audit.record(_entry("tokens create", note, settings))

    asyncio.run(write())
    typer.echo(secret)
    typer.echo(
        f"the secret of {name} ({role}) is shown only here; send it as a bearer token, or set "
        "SUREFOOT_TOKEN",
        err=True,
    )


@app.command("list")
def list_tokens(as_json: Json = False) -> None:
    """List tokens, without their secrets."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    settings, now_ms = load_settings(), SystemClock().now_ms()

    async def read() -> Sequence[AccessToken]:
        async with _opened(settings) as (book, _):
            return await book.tokens()

    def fields(token: AccessToken) -> TokenJson:
        account = token.account
        return {
            "name": account.name,
            "role": account.role,
            "agents": list(account.agents),
            "created_ms": token.created_ms,
            "expires_ms": account.expires_ms,
            "expired": account.expired(now_ms),
        }

    def cells(token: AccessToken) -> tuple[str, ...]:
        account = token.account
        ends = "never" if account.expires_ms is None else clock_time(account.expires_ms)
        expires = f"{ends} (expired)" if account.expired(now_ms) else ends
        created = clock_time(token.created_ms)
        return (account.name, account.role, ", ".join(account.agents), created, expires)

    titles = ("NAME", "ROLE", "AGENTS", "CREATED", "EXPIRES")
    print_each(asyncio.run(read()), fields, titles, cells, wraps="AGENTS", as_json=as_json)


@app.command()
def revoke(name: NameArgument) -> None:
    """Revoke a token: gateways refuse it, and end its open streams, within seconds."""
    logging.configure(level="CRITICAL")  # failures are raised, not logged
    settings = load_settings()

    async def end() -> None:
        async with _opened(settings) as (book, audit):
            if not any(token.account.name == name for token in await book.tokens()):
                raise ConfigError(
                    "SF1084", f"there is no token {name[:128]!r}; see `surefoot tokens list`"
                )
            await book.revoke(name)
            await audit.record(_entry("tokens revoke", name, settings))

    asyncio.run(end())
    typer.echo(f"revoked {name}")


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[tuple[TokenBook, AuditWriter]]:
    """Yield what reads and writes tokens; creates their topics if they are missing."""
    specs = access_specs(settings.app, settings.partitions, settings.record_max_bytes)
    async with open_backend(settings, SystemClock(), access="make") as backend:
        async with backend.topics() as topics:
            await topics.apply(specs)
        book = TokenBook(settings, backend)
        audit = AuditWriter(settings, backend.appender())
        try:
            yield book, audit
        finally:
            await stop_all(book, audit)


def _user() -> str:
    """Return the user's name, or number: in a container few have a name."""
    try:
        return getuser()
    except (KeyError, OSError):
        return f"user {os.getuid()}"


def _entry(action: str, note: str, settings: Settings) -> AuditEntry:
    """Describe what was done here, by the user of this machine: whoever may write to the log."""
    clock = SystemClock()
    return AuditEntry(
        id=clock.unique(),
        at_ms=clock.now_ms(),
        who=f"{_user()} (command line)",
        action=action,
        status=200,
        origin=settings.instance,
        note=note,
    )
