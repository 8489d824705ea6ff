"""The `surefoot` command.

Nothing but typer is imported before a command runs, so that help is instant and a process starts
with what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from surefoot.state.errors import ConfigError, Unavailable

EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 2, 69, 130

_EPILOG = (
    "Everything else is set by SUREFOOT_... variables; SUREFOOT_BOOTSTRAP_SERVERS names the Kafka "
    "to use. Exit status: 0 done; 1 no such run, or the demo found a fault; 2 wrong usage or "
    "settings, the message says what to change; 3 a worker gave work up at the drain deadline (it "
    "is run again); 69 Kafka cannot be reached; 70 a worker was stuck; 130 interrupted."
)


class _Front(TyperGroup):
    """Turns the errors that are for the person who typed the command into a line and a status."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as error:
            typer.echo(f"surefoot: {error}", err=True)
            raise typer.Exit(EXIT_CONFIG) from None
        except Unavailable as error:
            typer.echo(f"surefoot: {error}", err=True)
            raise typer.Exit(EXIT_UNAVAILABLE) from None
        except KeyboardInterrupt:
            raise typer.Exit(EXIT_INTERRUPTED) from None


def _typer(text: str, **options: Any) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        **options,
    )


app = _typer("Agents on Kafka: every step of a run is one transaction.", cls=_Front, epilog=_EPILOG)
topics = _typer("Create and check the topics.")
runs = _typer("List, show and start runs.")
app.add_typer(topics, name="topics")
app.add_typer(runs, name="runs")

AgentFile = Annotated[
    Path, typer.Argument(metavar="AGENT.py", help="File that defines one agent or several.")
]
AgentFiles = Annotated[
    list[Path], typer.Argument(metavar="AGENT.py...", help="Files that define the agents.")
]
AgentName = Annotated[
    str, typer.Argument(metavar="AGENT", help="Name of the agent, or the file of a single agent.")
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")]
Slot = Annotated[int | None, typer.Option(hidden=True, min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command()
def worker(agent_file: AgentFile, processes: Processes = 1, slot: Slot = None) -> None:
    """Run an agent's steps, until SIGTERM; then finish what is running.

    Each process is watched over and started again when it dies. A second SIGTERM gives up what is
    running; it is run again by whoever comes next.
    """
    from surefoot.commands import service  # noqa: PLC0415

    raise typer.Exit(service.worker(agent_file, processes, slot))


@app.command()
def relay(processes: Processes = 1, slot: Slot = None) -> None:
    """Deliver the effects that all agents' steps have committed, until SIGTERM."""
    from surefoot.commands import service  # noqa: PLC0415

    raise typer.Exit(service.relay(processes, slot))


@app.command()
def gateway(agent_files: AgentFiles) -> None:
    """Take webhooks and the API's requests over HTTP, until SIGTERM.

    Listens on SUREFOOT_GATEWAY_HOST and SUREFOOT_GATEWAY_PORT.
    """
    from surefoot.commands import service  # noqa: PLC0415

    service.gateway(agent_files)


@topics.command("apply")
def topics_apply(agent_files: AgentFiles) -> None:
    """Create the topics that are missing, and check all of them. Nothing is altered."""
    from surefoot.commands import service  # noqa: PLC0415

    service.topics_apply(agent_files)


@topics.command("verify")
def topics_verify(agent_files: AgentFiles) -> None:
    """Check that every topic is as it must be; tells the fix for each that is not."""
    from surefoot.commands import service  # noqa: PLC0415

    service.topics_verify(agent_files)


@runs.command("list")
def runs_list(
    agent: AgentName,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the runs of an agent, the most recently updated first."""
    from surefoot.commands import runs as commands  # noqa: PLC0415

    commands.list_runs(agent, status, limit, as_json=as_json)


@runs.command("show")
def runs_show(
    agent: AgentName,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID")],
    as_json: Json = False,
) -> None:
    """Show one run as of its latest commit. Exit status 1 when there is none."""
    from surefoot.commands import runs as commands  # noqa: PLC0415

    raise typer.Exit(0 if commands.show_run(agent, run_id, as_json=as_json) else 1)


@runs.command("start")
def runs_start(
    agent: AgentName,
    payload: Annotated[str, typer.Option(help="Input of the first step, as JSON.")],
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; the same name is the same run.")
    ] = None,
) -> None:
    """Start a run and print its id, once Kafka has it.

    Given the agent's file rather than its name, the payload is checked first.
    """
    from surefoot.commands import runs as commands  # noqa: PLC0415

    commands.start_run(agent, payload, run_id)


@app.command()
def dev(
    agent_file: AgentFile,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Of the gateway.")] = 8787,
    processes: Processes = 1,
) -> None:
    """Run everything for one agent: a broker, its topics, gateway, worker and relay.

    Shows what its runs do. Ctrl-C stops it all; a broker that was started here goes with its data.
    """
    from surefoot.infra.dev import run_dev  # noqa: PLC0415

    raise typer.Exit(run_dev(agent_file, port=port, processes=processes))


@app.command()
def demo(
    agent_file: AgentFile,
    deliveries: Annotated[int, typer.Option(min=10, max=100_000, help="How many.")] = 200,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How many workers to kill.")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="Of deliveries, kills and faults; random by default.")
    ] = None,
) -> None:
    """Kill workers under a load of webhooks, then audit every step and every effect.

    The agent must take GitHub's `issues` event. The last line of the output is one JSON object;
    the exit status is 0 only if nothing was lost, doubled or left unfinished.
    """
    from surefoot.infra.demo.demo import run_demo  # noqa: PLC0415

    raise typer.Exit(run_demo(agent_file, deliveries=deliveries, kills=kills, seed=seed))


@app.command()
def broker() -> None:
    """Run a local Kafka broker in the foreground and print its address. Its data goes with it."""
    from surefoot.infra.dev import run_broker  # noqa: PLC0415

    run_broker()


@app.command()
def version() -> None:
    """Print the version."""
    from surefoot import __version__  # noqa: PLC0415

    typer.echo(__version__)
