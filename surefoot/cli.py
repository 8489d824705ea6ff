"""The `surefoot` command.

A command's module is imported when the command is asked for, so that the list of commands is there
at once and a process starts with what it needs.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import typer

from surefoot import __version__
from surefoot.commands.groups import LazyGroup, commands
from surefoot.infra.runtime.exits import (
    EXIT_CONFIG,
    EXIT_DENIED,
    EXIT_INTERRUPTED,
    EXIT_UNAVAILABLE,
)
from surefoot.infra.runtime.terminal import printable_lines
from surefoot.state.errors import ConfigError, NotAllowed, Numbered, StateError, Unavailable

_EPILOG = (
    "SUREFOOT_... variables set everything else; SUREFOOT_BOOTSTRAP_SERVERS names the Kafka "
    "to use. Exit status: 0 done; 1 no such run, a run refused a command, or the demo or the "
    "doctor found a fault; 2 wrong usage or settings, and the message says what to change, or the "
    "doctor could not look; 3 a command was not answered in time (repeat it with the same id), or "
    "a worker gave up steps at the drain deadline (they run again); 69 Kafka cannot be "
    "reached; 70 a worker was stuck; 77 Kafka denies a right, or an encryption key is missing; "
    "130 interrupted."
)


class _Front(LazyGroup):
    """Turns the errors that are for the person who typed the command into a line and a status."""

    table: ClassVar = {
        "services.worker": "Run an agent's steps, until SIGTERM.",
        "services.trigger": "Start runs from topics, queues and folders, until SIGTERM.",
        "services.archive": "Archive an agent's events and finished runs, until SIGTERM.",
        "services.relay": "Deliver committed effects of all agents, until SIGTERM.",
        "services.gateway": "Serve webhooks, the HTTP API and the dashboard, until SIGTERM.",
        "services.views": "Serve views: runs by status and age, approvals, rates.",
        "admin.top": "Show what agents do: runs, steps per second, waits, lag.",
        "admin.doctor": "Look for what is wrong, and name the command for it.",
        "services.serve": "Run gateway, workers and relay in one process, until SIGTERM.",
        "runs.replay": "Replay a range of an agent's log after an incident.",
        "develop.new": "Write a first agent with its tests and a compose file.",
        "develop.dev": "Run everything for one agent: broker, gateway, worker, relay.",
        "develop.demo": "Kill workers under a load of webhooks, then audit every step.",
        "develop.broker": "Run a local Kafka broker and print its address.",
        "develop.explain": "Explain an error and its fix, offline.",
        "develop.version": "Print the version.",
        "admin.topics": "Create and check topics, and show their lag.",
        "admin.acls": "Print the rights in Kafka that each kind of process needs.",
        "develop.schemas": "Check and register Avro schemas.",
        "runs.runs": "List, show, start and steer runs.",
        "admin.schedules": "List, pause, resume, trigger and backfill schedules.",
        "admin.blobs": "Manage large payloads outside of the log.",
        "admin.webhooks": "Show deliveries to webhook sources, and map them again.",
        "admin.hooks": "Outgoing webhooks: list subscriptions, and test one.",
        "admin.keys": "Make, list and rotate the keys that encrypt payloads.",
        "accounts.login": "Sign in to a gateway: keep its token for the client.",
        "accounts.logout": "Forget the token of a gateway.",
        "accounts.tokens": "Create, list and revoke tokens that sign in to the gateway.",
        "accounts.audit": "Show what accounts did, and what they were refused.",
        "admin.dead": "Show dead letters, and redrive events of topics.",
    }

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            _tell(error)
            raise typer.Exit(EXIT_CONFIG) from None
        except StateError as error:
            _tell(error)
            raise typer.Exit(1) from None
        except Unavailable as error:
            _tell(error)
            denied = isinstance(error, NotAllowed)
            raise typer.Exit(EXIT_DENIED if denied else EXIT_UNAVAILABLE) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _tell(error: Numbered) -> None:
    typer.echo(f"surefoot: {printable_lines(str(error))}", err=True)
    typer.echo(f"surefoot: `surefoot explain {error.number}` tells more", err=True)


def _version_first(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
        raise typer.Exit


app = commands(cls=_Front, epilog=_EPILOG)


@app.callback()
def front(
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_version_first, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Agents on Kafka: every step of a run is one transaction."""
