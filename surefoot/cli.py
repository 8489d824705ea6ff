"""The `surefoot` command.

Nothing but typer is imported before a command runs, so that help is instant and a process starts
with what it needs.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from surefoot.state.errors import ConfigError, NotAllowed, Numbered, StateError, Unavailable

EXIT_CONFIG, EXIT_UNAVAILABLE, EXIT_DENIED, EXIT_INTERRUPTED = 2, 69, 77, 130

_EPILOG = (
    "Everything else is set by SUREFOOT_... variables; SUREFOOT_BOOTSTRAP_SERVERS names the Kafka "
    "to use. Exit status: 0 done; 1 no such run, a run refused a command, or the demo found a "
    "fault; 2 wrong usage or settings, the message says what to change; 3 a command was sent and "
    "not answered in time (repeat it with the same id), or a worker gave work up at the drain "
    "deadline (it is run again); 69 Kafka cannot be reached; 70 a worker was stuck; 77 Kafka "
    "denies a right; 130 interrupted."
)


class _Front(TyperGroup):
    """Turns the errors that are for the person who typed the command into a line and a status."""

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
    typer.echo(f"surefoot: {error}", err=True)
    typer.echo(f"surefoot: `surefoot explain {error.number}` tells more", err=True)


def _typer(text: str, **options: Any) -> typer.Typer:
    return typer.Typer(
        help=text,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )


app = _typer("Agents on Kafka: every step of a run is one transaction.", cls=_Front, epilog=_EPILOG)
topics = _typer("Create and check the topics, and show what is not done yet.")
runs = _typer("List, show, start and steer runs.")
blobs = _typer("Large payloads that are kept outside of the log.")
webhooks = _typer("See what came to the webhook sources, and map it again.")
dead = _typer("Dead letters: see them, and put events of topics back.")
hooks = _typer("Webhooks that go out: list the subscriptions, and try one.")
schedules = _typer("List schedules and their next ticks, pause, resume, trigger, backfill.")
schemas = _typer("Check and register Avro schemas.")
app.add_typer(topics, name="topics")
app.add_typer(schemas, name="schemas")
app.add_typer(runs, name="runs")
app.add_typer(schedules, name="schedules")
app.add_typer(blobs, name="blobs")
app.add_typer(webhooks, name="webhooks")
app.add_typer(hooks, name="hooks")
app.add_typer(dead, name="dead")

AgentFile = Annotated[
    Path,
    typer.Argument(metavar="AGENT.py", help="File, or module, that defines one agent or several."),
]
AgentFiles = Annotated[
    list[Path],
    typer.Argument(metavar="AGENT.py...", help="Files, or modules, that define the agents."),
]
AgentName = Annotated[
    str,
    typer.Argument(
        metavar="AGENT",
        help="Name of the agent, or the file or module (shop.refunds) of a single agent.",
    ),
]
Processes = Annotated[int, typer.Option(min=1, max=64, help="How many worker processes.")]
Slot = Annotated[int | None, typer.Option(hidden=True, min=0)]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]
CommandIdOption = Annotated[
    str | None,
    typer.Option("--id", help="Of this command; repeating it with the same id is safe."),
]
By = Annotated[str | None, typer.Option(help="Who asks; kept in the history.")]
WaitOption = Annotated[
    float, typer.Option("--wait", min=0.1, max=600, help="Seconds to wait for the run's answer.")
]
EffectsOption = Annotated[
    Literal["suppress", "re-emit"],
    typer.Option(help="Effects that were asked for before: not again, or under new keys."),
]
Repeat = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="An action of ctx.once that may be done again; give it for each one.",
    ),
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
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    raise typer.Exit(service.worker(agent_file, processes, slot, pool))


@app.command()
def trigger(agent_file: AgentFile, processes: Processes = 1, slot: Slot = None) -> None:
    """Start runs from the Kafka topics, queues and folders that an agent listens to, until SIGTERM.

    Each event is one run, whatever dies in between; and each event of its own runs that a
    subscription wants is one webhook. More processes share the topics' partitions.
    """
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    raise typer.Exit(service.trigger(agent_file, processes, slot))


@app.command()
def archive(
    agent_file: AgentFile,
    once: Annotated[
        bool, typer.Option("--once", help="End when what is there is archived.")
    ] = False,
) -> None:
    """Move an agent's events and finished runs to SUREFOOT_ARCHIVE, until SIGTERM.

    As Avro files by date, each event once. `surefoot runs show` finds there what Kafka has deleted.
    """
    from surefoot.commands.services import archive as commands  # noqa: PLC0415

    raise typer.Exit(commands.archive(agent_file, once=once))


@app.command()
def relay(processes: Processes = 1, slot: Slot = None) -> None:
    """Deliver the effects that all agents' steps have committed, until SIGTERM."""
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    raise typer.Exit(service.relay(processes, slot))


@app.command()
def gateway(agent_files: AgentFiles) -> None:
    """Take webhooks and the API's requests over HTTP, until SIGTERM.

    Listens on SUREFOOT_GATEWAY_HOST and SUREFOOT_GATEWAY_PORT.
    """
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    service.gateway(agent_files)


@app.command()
def views(agent_files: AgentFiles) -> None:
    """Keep and serve views of all runs: by status and age, who is needed, rates and durations.

    On Kafka a Faust app each agent: start several, and they share the work. Listens on
    SUREFOOT_VIEWS_HOST and SUREFOOT_VIEWS_PORT, until SIGTERM.
    """
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    service.views(agent_files)


@app.command()
def top(agent_file: AgentFile, as_json: Json = False) -> None:
    """Show what the agents do: runs by status, steps a second, the oldest waits, lag and workers.

    Refreshed each second, until Ctrl-C; without a terminal, or with --json, it is shown once.
    """
    from surefoot.commands.admin import top as commands  # noqa: PLC0415

    commands.top(agent_file, as_json=as_json)


@app.command()
def serve(agent_files: AgentFiles) -> None:
    """Run gateway, workers and relay in this one process, until SIGTERM.

    On the embedded log that SUREFOOT_LOG names, or on Kafka. Missing topics are created.
    """
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    raise typer.Exit(service.serve(agent_files))


@topics.command("apply")
def topics_apply(agent_files: AgentFiles) -> None:
    """Create the topics that are missing, and check all of them. Nothing is altered."""
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    service.topics_apply(agent_files)


@topics.command("verify")
def topics_verify(agent_files: AgentFiles) -> None:
    """Check that every topic is as it must be; tells the fix for each that is not."""
    from surefoot.commands.services import supervised as service  # noqa: PLC0415

    service.topics_verify(agent_files)


@topics.command("lag")
def topics_lag(agent_files: AgentFiles, as_json: Json = False) -> None:
    """Show what is not done yet, by partition, and which worker has it. Markers do not count."""
    from surefoot.commands.admin import lag as commands  # noqa: PLC0415

    commands.show_lag(agent_files, as_json=as_json)


@blobs.command("gc")
def blobs_gc(
    keep_days: Annotated[
        int, typer.Option(min=2, max=10_000, help="Younger ones are left alone.")
    ] = 7,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many, and delete nothing.")
    ] = False,
) -> None:
    """Delete the payloads in SUREFOOT_BLOBS that no record of this app needs any more.

    Reads all of the app's records. Safe while everything runs, and to repeat.
    """
    from surefoot.commands.admin import blobs as commands  # noqa: PLC0415

    commands.gc(keep_days, dry_run=dry_run)


@runs.command("list")
def runs_list(
    agent: AgentName,
    status: Annotated[str | None, typer.Option(help="Only runs of this status.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Show the runs of an agent, the most recently updated first."""
    from surefoot.commands.runs import show as commands  # noqa: PLC0415

    commands.list_runs(agent, status, limit, as_json=as_json)


@runs.command("show")
def runs_show(
    agent: AgentName,
    run_id: RunId,
    as_json: Json = False,
) -> None:
    """Show one run, why it does not move, and what to type. Exit status 1 when there is none."""
    from surefoot.commands.runs import show as commands  # noqa: PLC0415

    raise typer.Exit(0 if commands.show_run(agent, run_id, as_json=as_json) else 1)


@runs.command("start")
def runs_start(
    agent: AgentName,
    payload: Annotated[
        str | None, typer.Argument(metavar="JSON", help="Input of the first step.")
    ] = None,
    option: Annotated[
        str | None, typer.Option("--payload", metavar="JSON", help="The same, as an option.")
    ] = None,
    run_id: Annotated[
        str | None, typer.Option(help="Name of the run; the same name is the same run.")
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Show it until it is over.")] = False,
) -> None:
    """Start a run and print its id, once Kafka has it.

    Given the agent's file or module rather than its name, the payload is checked first, and the
    run is named as the agent's flow says: by name alone, it is outside of the flow's limits, unless
    --run-id is KEY=NAME.
    """
    from surefoot.commands.runs import show as commands  # noqa: PLC0415

    given = [each for each in (payload, option) if each is not None]
    if len(given) != 1:
        raise ConfigError("SF1007", "give the input of the first step, as JSON, once")
    named = commands.start_run(agent, given[0], run_id)
    if watch:
        runs_watch(agent, named)


@runs.command("watch")
def runs_watch(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """Show what a run does until it is over. Exit status 1 when it failed or was cancelled.

    Ctrl-C ends the watching, not the run.
    """
    from surefoot.commands.runs import watch as commands  # noqa: PLC0415

    raise typer.Exit(commands.watch_run(agent, run_id, as_json=as_json))


@runs.command("count")
def runs_count(agent: AgentName, as_json: Json = False) -> None:
    """Count the runs of an agent, by its versions and by status."""
    from surefoot.commands.runs import show as commands  # noqa: PLC0415

    commands.count_runs(agent, as_json=as_json)


@runs.command("versions")
def runs_versions(agent: AgentName, run_id: RunId, as_json: Json = False) -> None:
    """List what a run can be sent back to: what it was after each of its steps."""
    from surefoot.commands.runs import show as commands  # noqa: PLC0415

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
        command_id: CommandIdOption = None,
        by: By = None,
        wait_s: WaitOption = 10.0,
        as_json: Json = False,
    ) -> None:
        _operate(verb, agent, run_id, {"by": by}, command_id, wait_s, as_json)


for _verb, _told in _PLAIN.items():
    _plain(_verb, _told)


@runs.command("retry-failed")
def runs_retry_failed(
    agent: AgentName,
    prefix: Annotated[
        str, typer.Option("--prefix", help="Only those whose id begins so: AGENT: of effects.")
    ] = "",
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Try again every run that has failed. Failed effects: `retry-failed outbox`."""
    from surefoot.commands.runs import operate  # noqa: PLC0415

    raise typer.Exit(operate.retry_failed(agent, prefix, by=by, wait_s=wait_s, as_json=as_json))


@runs.command("signal")
def runs_signal(
    agent: AgentName,
    run_id: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME")],
    payload: Annotated[str, typer.Argument(metavar="JSON", help="What the signal says.")] = "null",
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Send a signal to a run. One that comes before its run, or before its wait, is kept."""
    from surefoot.commands.readers import from_json  # noqa: PLC0415

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
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Answer a run's question. The first answer is the one that holds."""
    from surefoot.commands.runs import operate  # noqa: PLC0415

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
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Tell a run what became of a call of which nobody knows whether it happened."""
    from surefoot.commands.readers import from_json  # noqa: PLC0415

    said: dict[str, Any] = {"by": by}
    choices = {"happened": happened is not None, "did_not": did_not, "give_up": give_up}
    chosen = [choice for choice, given in choices.items() if given]
    if len(chosen) != 1:
        raise ConfigError("SF1007", "say one of --happened JSON, --did-not and --give-up")
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
    from surefoot.commands.runs import operate  # noqa: PLC0415

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
    effects: EffectsOption = "suppress",
    repeat: Repeat = None,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Send a run back to what it was after one of its steps; it goes on from there.

    What it has done with ctx.once since then is not done again: the same call, with the same
    arguments, gets the recorded outcome back. A call that is in doubt stays so. Calls of ctx.call
    are made anew. Children and pooled steps since then are runs of their own: they begin anew, and
    do again what they have done with ctx.once.
    """
    from surefoot.commands.runs import operate  # noqa: PLC0415

    raise typer.Exit(
        operate.rewind(
            agent,
            run_id,
            seq,
            emit=effects == "re-emit",
            repeat=repeat or (),
            by=by,
            command_id=command_id,
            wait_s=wait_s,
            as_json=as_json,
        )
    )


@runs.command("fork")
def runs_fork(
    agent: AgentName,
    run_id: RunId,
    seq: Annotated[int, typer.Option("--at", min=0, metavar="SEQ", help="See `runs versions`.")],
    new_id: Annotated[
        str | None, typer.Option("--run-id", help="Name of the new run; a new one by default.")
    ] = None,
    repeat: Repeat = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start another run from what this one was after one of its steps.

    What this run has done with ctx.once since then is in doubt for the new one: it asks the call's
    probe first, or waits for a person if there is none.
    """
    from surefoot.commands.runs import operate  # noqa: PLC0415

    raise typer.Exit(
        operate.fork(
            agent, run_id, seq, new_id=new_id, repeat=repeat or (), wait_s=wait_s, as_json=as_json
        )
    )


ScheduleName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the schedule.")]


@schedules.command("list")
def schedules_list(agent: AgentName, as_json: Json = False) -> None:
    """Show an agent's schedules: their state, last and next ticks, runs, and ticks skipped."""
    from surefoot.commands.admin import schedules as commands  # noqa: PLC0415

    commands.list_schedules(agent, as_json=as_json)


@schedules.command("next")
def schedules_next(
    agent: AgentName,
    name: ScheduleName,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1_000)] = 5,
    as_json: Json = False,
) -> None:
    """Show the next ticks of a schedule, in its time zone and in UTC.

    Given the agent's file or module, as it declares them; nothing has to be running.
    """
    from surefoot.commands.admin import schedules as commands  # noqa: PLC0415

    commands.show_next(agent, name, count, as_json=as_json)


_SCHEDULE_VERBS: dict[Literal["pause", "resume"], str] = {
    "pause": "Pause a schedule: its ticks pass, and what waits for its turn is dropped.",
    "resume": "Let a paused schedule tick again, from now on; try again one that has failed.",
}


def _schedule_verb(verb: Literal["pause", "resume"], told: str) -> None:
    @schedules.command(verb, help=told)
    def tell(
        agent: AgentName,
        name: ScheduleName,
        command_id: CommandIdOption = None,
        by: By = None,
        wait_s: WaitOption = 10.0,
        as_json: Json = False,
    ) -> None:
        from surefoot.commands.admin import schedules as commands  # noqa: PLC0415

        asked = commands.Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
        raise typer.Exit(commands.tell(verb, agent, name, asked))


for _schedule, _schedule_told in _SCHEDULE_VERBS.items():
    _schedule_verb(_schedule, _schedule_told)


@schedules.command("trigger")
def schedules_trigger(
    agent: AgentName,
    name: ScheduleName,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start a run of a schedule now, also of a paused one; behind what is under way."""
    from surefoot.commands.admin import schedules as commands  # noqa: PLC0415

    asked = commands.Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(commands.trigger(agent, name, asked))


@schedules.command("backfill")
def schedules_backfill(
    agent: AgentName,
    name: ScheduleName,
    start: Annotated[str, typer.Option("--from", metavar="TIME", help="Included.")],
    end: Annotated[str, typer.Option("--to", metavar="TIME", help="Excluded.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Name the runs, and write nothing.")
    ] = False,
    command_id: CommandIdOption = None,
    by: By = None,
    wait_s: WaitOption = 10.0,
    as_json: Json = False,
) -> None:
    """Start the runs of a past interval's ticks. A tick that has had its run has no other."""
    from surefoot.commands.admin import schedules as commands  # noqa: PLC0415

    asked = commands.Asked(command_id=command_id, by=by, wait_s=wait_s, as_json=as_json)
    raise typer.Exit(commands.backfill(agent, name, start, end, asked, dry_run=dry_run))


DeliveryId = Annotated[
    str, typer.Argument(metavar="ID", help="Of the record, or the sender's own; then the latest.")
]


@webhooks.command("deliveries")
def webhooks_deliveries(
    source: Annotated[str | None, typer.Option(help="Only deliveries to this source.")] = None,
    refused: Annotated[
        bool, typer.Option("--refused", help="Only those that were refused.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Show what came, the newest first: verified or why not, and which runs it became."""
    from surefoot.commands.admin import webhooks as commands  # noqa: PLC0415

    commands.list_deliveries(source, limit, refused=refused, as_json=as_json)


@webhooks.command("show")
def webhooks_show(id_: DeliveryId, as_json: Json = False) -> None:
    """Show all that is kept of one delivery. Exit status 1 when there is none."""
    from surefoot.commands.admin import webhooks as commands  # noqa: PLC0415

    raise typer.Exit(0 if commands.show_delivery(id_, as_json=as_json) else 1)


@webhooks.command("redeliver")
def webhooks_redeliver(id_: DeliveryId, agent_files: AgentFiles, as_json: Json = False) -> None:
    """Map a delivery again, with these files, and start the runs of it that are not there."""
    from surefoot.commands.admin import webhooks as commands  # noqa: PLC0415

    raise typer.Exit(commands.redeliver(id_, agent_files, as_json=as_json))


@dead.command("list")
def dead_list(
    agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
    code: Annotated[str | None, typer.Option(help="Only those with this code.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="How many at most.")] = 50,
    as_json: Json = False,
) -> None:
    """Show what could not be used and runs that are out of attempts, the newest first."""
    from surefoot.commands.admin import dead as commands  # noqa: PLC0415

    commands.list_dead(agent, code, limit, as_json=as_json)


@dead.command("show")
def dead_show(
    offset: Annotated[int, typer.Argument(min=0, help="As `surefoot dead list` shows it.")],
    as_json: Json = False,
) -> None:
    """Show all that is kept of one dead letter. Exit status 1 when there is none."""
    from surefoot.commands.admin import dead as commands  # noqa: PLC0415

    raise typer.Exit(0 if commands.show_dead(offset, as_json=as_json) else 1)


@dead.command("redrive")
def dead_redrive(
    agent_files: AgentFiles,
    offset: Annotated[
        list[int] | None, typer.Option(min=0, help="Only this one; can be given several times.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="Only those with this code.")] = None,
    topic: Annotated[str | None, typer.Option(help="Only events of this topic.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be started, and start nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Put events of topics back: make of each what these files make of it now, and start the runs
    that are not there. A run that is out of attempts is for `surefoot runs retry`. Exit status 1
    when some cannot be used still, or there was none."""
    from surefoot.commands.admin import dead as commands  # noqa: PLC0415

    chosen = commands.Chosen(offsets=frozenset(offset or ()), code=code, topic=topic)
    raise typer.Exit(commands.redrive(agent_files, chosen, dry_run=dry_run, as_json=as_json))


@hooks.command("list")
def hooks_list(agent_files: AgentFiles, as_json: Json = False) -> None:
    """List what the agents subscribe to, and whether there is a secret for it here."""
    from surefoot.commands.admin import hooks as commands  # noqa: PLC0415

    commands.list_subscriptions(agent_files, as_json=as_json)


@hooks.command("test")
def hooks_test(agent_file: AgentFile, name: Annotated[str, typer.Argument(metavar="NAME")]) -> None:
    """Send one signed `surefoot.test` event to a subscription's URL, once, and show the status.

    As the relay would from here: with the secret that is set here, and only where
    SUREFOOT_OUT_ALLOW lets it go. Exit status 1 when it was not taken.
    """
    from surefoot.commands.admin import hooks as commands  # noqa: PLC0415

    raise typer.Exit(commands.try_subscription(agent_file, name))


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
    effects: EffectsOption = "suppress",
    repeat: Repeat = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done, and write nothing.")
    ] = False,
    replay_id: Annotated[
        str | None, typer.Option("--id", help="Repeating a rerun with the same id is safe.")
    ] = None,
    wait_s: WaitOption = 30.0,
) -> None:
    """Go through a stretch of an agent's partitions again, after an incident.

    The last line says what was done. Child runs are left to their parents.
    """
    from surefoot.commands.runs.replay import Wanted  # noqa: PLC0415
    from surefoot.commands.runs.replay import replay as go_through  # noqa: PLC0415

    raise typer.Exit(
        go_through(
            Wanted(
                agent=agent,
                start=start,
                end=end,
                partition=partition,
                topic=topic,
                mode=mode,
                step=step,
                effects=effects,
                repeat=repeat or (),
                dry_run=dry_run,
                replay_id=replay_id,
                wait_s=wait_s,
            )
        )
    )


SchemaFiles = Annotated[
    list[Path] | None, typer.Argument(metavar="[SCHEMA.avsc...]", help="Of your own events.")
]
Subject = Annotated[
    str | None,
    typer.Option(help="In the registry; by default what the file is called, without .avsc."),
]


@schemas.command("check")
def schemas_check(
    files: SchemaFiles = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Released versions: files of the same names."),
    ] = None,
    registry: Annotated[
        bool, typer.Option("--registry", help="Ask the registry of SUREFOOT_REGISTRY_URL.")
    ] = False,
    subject: Subject = None,
) -> None:
    """Check that old readers and new ones can read each other's records.

    Without a file: Surefoot's own schemas against every released version. Exit status 1 when they
    cannot; 2 for what is no schema; 69 when the registry cannot be reached.
    """
    from surefoot.commands.develop import schemas as commands  # noqa: PLC0415

    if not files:
        raise typer.Exit(commands.check_own())
    raise typer.Exit(commands.check(files, against, registry=registry, subject=subject))


@schemas.command("register")
def schemas_register(files: SchemaFiles = None, subject: Subject = None) -> None:
    """Register schemas with the registry of SUREFOOT_REGISTRY_URL, and print subject and id.

    Registering one again changes nothing. Exit status 1 when the registry refuses one.
    """
    from surefoot.commands.develop import schemas as commands  # noqa: PLC0415

    raise typer.Exit(commands.register(files or [], subject))


@app.command()
def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the agent and its folder.")],
) -> None:
    """Write a folder with a first agent, its tests and a compose file."""
    from surefoot.commands.develop import new as commands  # noqa: PLC0415

    commands.new(name)


@app.command()
def dev(
    agent_file: AgentFile,
    port: Annotated[int, typer.Option(min=1, max=65_535, help="Of the gateway.")] = 8787,
    processes: Processes = 1,
) -> None:
    """Run everything for one agent: a broker, its topics, gateway, worker and relay.

    Shows what its runs do, and starts anew when AGENT.py, or what it imports, is changed. Ctrl-C
    stops it all; a broker that was started here goes with its data. Where none can be had, or
    SUREFOOT_LOG says so, everything is one process on the embedded log.
    """
    from surefoot.infra.dev.command import run_dev  # noqa: PLC0415

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
    from surefoot.infra.dev.command import run_broker  # noqa: PLC0415

    run_broker()


@app.command("explain")
def explain_error(
    number: Annotated[
        str | None, typer.Argument(metavar="[SF1203]", help="A number, or a failure's code.")
    ] = None,
) -> None:
    """Tell what an error means and what mends it, offline. Without a number: list them all."""
    from surefoot.commands.develop.explain import explain  # noqa: PLC0415

    explain(number)


@app.command()
def version() -> None:
    """Print the version."""
    from surefoot import __version__  # noqa: PLC0415

    typer.echo(__version__)


def _version_first(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


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
