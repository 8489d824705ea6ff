"""The `surefoot` command.

Nothing but typer is imported before a command runs, so that help is instant and a process starts
with what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from surefoot.state.errors import ConfigError, Unavailable

EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_INTERRUPTED = 2, 69, 130

_EPILOG = (
    "Everything else is set by SUREFOOT_... variables; SUREFOOT_BOOTSTRAP_SERVERS names the Kafka "
    "to use. Exit status: 0 done; 1 no such run, a run refused a command, or the demo found a "
    "fault; 2 wrong usage or settings, the message says what to change; 3 a command was sent and "
    "not answered in time (repeat it with the same id), or a worker gave work up at the drain "
    "deadline (it is run again); 69 Kafka cannot be reached; 70 a worker was stuck; 130 "
    "interrupted."
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
runs = _typer("List, show, start and steer runs.")
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
RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]
CommandId = Annotated[
    str | None,
    typer.Option("--id", help="Of this command; repeating it with the same id is safe."),
]
By = Annotated[str | None, typer.Option(help="Who asks; kept in the history.")]
Wait = Annotated[
    float, typer.Option("--wait", min=0.1, max=600, help="Seconds to wait for the run's answer.")
]
Effects = Annotated[
    Literal["suppress", "re-emit"],
    typer.Option(help="Effects that were asked for before: not again, or under new keys."),
]


@app.command()
def worker(
    agent_file: AgentFile,
    processes: Processes = 1,
    slot: Slot = None,
    pool: Annotated[
        str | None, typer.Option(help="Run the steps of this pool instead of the agent's own.")
    ] = None,
) -> None:
    """Run an agent's steps, until SIGTERM; then finish what is running.

    Each process is watched over and started again when it dies. A second SIGTERM gives up what is
    running; it is run again by whoever comes next.
    """
    from surefoot.commands import service  # noqa: PLC0415

    raise typer.Exit(service.worker(agent_file, processes, slot, pool))


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


@app.command()
def serve(agent_files: AgentFiles) -> None:
    """Run gateway, workers and relay in this one process, until SIGTERM.

    On the embedded log that SUREFOOT_LOG names, or on Kafka. Missing topics are created.
    """
    from surefoot.commands import service  # noqa: PLC0415

    raise typer.Exit(service.serve(agent_files))


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
    run_id: RunId,
    as_json: Json = False,
) -> None:
    """Show one run, why it does not move, and what to type. Exit status 1 when there is none."""
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


@runs.command("count")
def runs_count(agent: AgentName, as_json: Json = False) -> None:
    """Count the runs of an agent, by its versions and by status."""
    from surefoot.commands import runs as commands  # noqa: PLC0415

    commands.count_runs(agent, as_json=as_json)


@runs.command("versions")
def runs_versions(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """List what a run can be sent back to: what it was after each of its steps."""
    from surefoot.commands import runs as commands  # noqa: PLC0415

    raise typer.Exit(0 if commands.list_versions(agent, run_id, as_json=as_json) else 1)


#: commands that say nothing but themselves
_PLAIN: dict[Literal["pause", "resume", "cancel", "retry"], str] = {
    "pause": "Pause a run: what is running ends, and nothing is run after it until it is resumed.",
    "resume": "Let a paused run go on.",
    "cancel": "Cancel a run and its children, also in the middle of a step; its compensation is "
    "run.",
    "retry": "Try again what failed or needed attention; its attempts are counted anew.",
}


def _plain(verb: Literal["pause", "resume", "cancel", "retry"], told: str) -> None:
    @runs.command(verb, help=told)
    def operate(
        agent: AgentName,
        run_id: RunId,
        command_id: CommandId = None,
        by: By = None,
        wait_s: Wait = 10.0,
        as_json: Json = False,
    ) -> None:
        _operate(verb, agent, run_id, {"by": by}, command_id, wait_s, as_json)


for _verb, _told in _PLAIN.items():
    _plain(_verb, _told)


@runs.command("signal")
def runs_signal(
    agent: AgentName,
    run_id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="What the signal says.")] = "null",
    command_id: CommandId = None,
    by: By = None,
    wait_s: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Send a signal to a run. One that comes before its run, or before its wait, is kept."""
    from surefoot.commands.common import from_json  # noqa: PLC0415

    said = {"name": name, "payload": from_json("JSON", payload), "by": by}
    _operate("signal", agent, run_id, said, command_id, wait_s, as_json)


@runs.command("approve")
def runs_approve(
    agent: AgentName,
    run_id: RunId,
    approved: Annotated[bool, typer.Option("--yes/--no", help="The answer.")],
    question: Annotated[
        str | None, typer.Option(help="Which one is answered; else what the run asks now.")
    ] = None,
    note: Annotated[str | None, typer.Option(help="For whoever reads the answer.")] = None,
    command_id: CommandId = None,
    by: By = None,
    wait_s: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Answer a run's question. The first answer is the one that holds."""
    from surefoot.commands import operate  # noqa: PLC0415

    said = {"question": question, "approved": approved, "note": note, "by": by}
    raise typer.Exit(
        operate.approve(agent, run_id, said, command_id=command_id, wait_s=wait_s, as_json=as_json)
    )


@runs.command("resolve")
def runs_resolve(
    agent: AgentName,
    run_id: RunId,
    happened: Annotated[
        str | None, typer.Option(metavar="JSON", help="It happened, and this came of it.")
    ] = None,
    did_not: Annotated[bool, typer.Option("--did-not", help="It did not: do it.")] = False,
    give_up: Annotated[bool, typer.Option("--give-up", help="Let the run fail.")] = False,
    command_id: CommandId = None,
    by: By = None,
    wait_s: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Tell a run what became of a call of which nobody knows whether it happened."""
    from surefoot.commands.common import from_json  # noqa: PLC0415

    said: dict[str, Any] = {"by": by}
    choices = {"happened": happened is not None, "did_not": did_not, "give_up": give_up}
    chosen = [choice for choice, given in choices.items() if given]
    if len(chosen) != 1:
        raise ConfigError("say one of --happened JSON, --did-not and --give-up")
    said["choice"] = chosen[0]
    if happened is not None:
        said["result"] = from_json("--happened", happened)
    _operate("resolve", agent, run_id, said, command_id, wait_s, as_json)


def _operate(
    verb: Literal["pause", "resume", "cancel", "retry", "signal", "resolve"],
    agent: str,
    run_id: str,
    said: dict[str, Any],
    command_id: str | None,
    wait_s: float,
    as_json: bool,
) -> None:
    from surefoot.commands import operate  # noqa: PLC0415

    raise typer.Exit(
        operate.operate(
            verb, agent, run_id, said, command_id=command_id, wait_s=wait_s, as_json=as_json
        )
    )


@runs.command("rewind")
def runs_rewind(
    agent: AgentName,
    run_id: RunId,
    seq: Annotated[int, typer.Option("--to", min=0, metavar="SEQ", help="See `runs versions`.")],
    effects: Effects = "suppress",
    command_id: CommandId = None,
    by: By = None,
    wait_s: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Send a run back to what it was after one of its steps; it goes on from there."""
    from surefoot.commands import operate  # noqa: PLC0415

    raise typer.Exit(
        operate.rewind(
            agent, run_id, seq, emit=effects == "re-emit", by=by, command_id=command_id,
            wait_s=wait_s, as_json=as_json,
        )
    )  # fmt: skip


@runs.command("fork")
def runs_fork(
    agent: AgentName,
    run_id: RunId,
    seq: Annotated[int, typer.Option("--at", min=0, metavar="SEQ", help="See `runs versions`.")],
    new_id: Annotated[
        str | None, typer.Option("--run-id", help="Name of the new run; a new one by default.")
    ] = None,
    wait_s: Wait = 10.0,
    as_json: Json = False,
) -> None:
    """Start another run from what this one was after one of its steps."""
    from surefoot.commands import operate  # noqa: PLC0415

    raise typer.Exit(
        operate.fork(agent, run_id, seq, new_id=new_id, wait_s=wait_s, as_json=as_json)
    )


@app.command()
def replay(
    agent: AgentName,
    start: Annotated[
        str, typer.Option("--from", metavar="TIME|OFFSET", help="Included. 2026-01-31T12:00:00Z.")
    ],
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME|OFFSET", help="Excluded. Default: now.")
    ] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Default: all, by time.")] = None,
    topic: Annotated[
        Literal["commands", "tasks"], typer.Option(help="Whose offsets --from and --to are.")
    ] = "tasks",
    mode: Annotated[
        Literal["skip-completed", "rerun"],
        typer.Option(help="Do what was lost, or send every run of the stretch back."),
    ] = "skip-completed",
    step: Annotated[
        str | None, typer.Option(help="rerun: go back to before this step; default: the start.")
    ] = None,
    effects: Effects = "suppress",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")
    ] = False,
    replay_id: Annotated[
        str | None, typer.Option("--id", help="Repeating a rerun with the same id is safe.")
    ] = None,
    wait_s: Wait = 30.0,
) -> None:
    """Go through a stretch of an agent's partitions again, after an incident.

    The last line says what was done. Child runs are left to their parents.
    """
    from surefoot.commands.replay import Wanted  # noqa: PLC0415
    from surefoot.commands.replay import replay as go_through  # noqa: PLC0415

    raise typer.Exit(
        go_through(
            Wanted(
                agent=agent, start=start, end=end, partition=partition, topic=topic, mode=mode,
                step=step, effects=effects, dry_run=dry_run, replay_id=replay_id, wait_s=wait_s,
            )
        )
    )  # fmt: skip


@app.command()
def dev(
    agent_file: AgentFile,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Of the gateway.")] = 8787,
    processes: Processes = 1,
) -> None:
    """Run everything for one agent: a broker, its topics, gateway, worker and relay.

    Shows what its runs do. Ctrl-C stops it all; a broker that was started here goes with its data.
    Where none can be had, or SUREFOOT_LOG says so, everything is one process on the embedded log.
    """
    from surefoot.infra.dev import run_dev  # noqa: PLC0415

    raise typer.Exit(run_dev(agent_file, port=port, processes=processes))


@app.command()
def demo(
    agent_file: Annotated[
        Path | None, typer.Argument(metavar="[AGENT.py]", help="By default one that is built in.")
    ] = None,
    deliveries: Annotated[int, typer.Option(min=10, max=100_000, help="How many.")] = 200,
    kills: Annotated[int, typer.Option(min=0, max=100, help="How many workers to kill.")] = 2,
    seed: Annotated[
        int | None, typer.Option(help="Of deliveries, kills and faults; random by default.")
    ] = None,
) -> None:
    """Kill workers under a load of webhooks, then audit every step and every effect.

    On Kafka if it can be had (started here if need be), else on the embedded log. The agent must
    take GitHub's `issues` event. The last line of the output is one JSON object; the exit status
    is 0 only if nothing was lost, doubled or left unfinished.
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
