"""Judges the work: who reads the inputs, what cannot be used, which runs and effects need somebody,
who is refused. Pure.

Ages and times are epoch ms, UTC.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

from surefoot.state.access.audit import AuditEntry
from surefoot.state.diagnosis.findings import Diagnosis
from surefoot.state.errors.catalogue import numbered
from surefoot.state.machine.model import TERMINAL
from surefoot.state.names.topics import OUTBOX, AgentTopics
from surefoot.state.ports.log import ConsumerRecord
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.explain import clock_time
from surefoot.state.reading.lag import AgentStanding, PartitionStanding
from surefoot.state.reading.runs import RunSummary

#: by when a command is decided
DECIDED_MS = 30_000
#: a task that is not done after so long is looked into
DONE_MS = 300_000
#: attempts of an effect after which its target is down, rather than slow once
RETRIED_MIN = 3
#: requests without a valid token that are no longer somebody's mistake
STRANGERS_MIN = 20
#: partitions, reasons or addresses that a finding names
_NAMED = 5


@dataclass(frozen=True, slots=True)
class StartCommands:
    """What starts the processes that do the work."""

    worker: str = "surefoot worker AGENT.py"
    relay: str = "surefoot relay"
    trigger: str = "surefoot trigger AGENT.py"
    #: names of pools that have workers of their own, by their agent
    pools: Mapping[str, str] = field(default_factory=dict)

    def of(self, agent: str) -> str:
        if agent == OUTBOX:
            return self.relay
        pool = self.pools.get(agent)
        return self.worker if pool is None else f"{self.worker} --pool {pool}"


#: of a log that one process serves
ONE_PROCESS = StartCommands(*3 * ("surefoot serve AGENT.py",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A group that reads one topic for an agent: to start runs, or to make webhooks."""

    agent: str
    topic: str
    members: int
    #: offsets that the group has not read; markers of transactions are among them
    unread: int


def judge_topics(faults: Sequence[str]) -> list[Diagnosis]:
    """Find topics that are missing or not as required. Args: faults: each with its fix"""
    if not faults:
        return []
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    return [
        Diagnosis(
            code="topics_wrong", what=f"{faults[0]}{more}", do=("surefoot topics verify AGENT.py",)
        )
    ]


def judge_workers(standings: Iterable[AgentStanding], start: StartCommands) -> list[Diagnosis]:
    """Find inputs that nobody reads."""
    found = []
    for each in standings:
        left = [place for place in each.partitions if place.lag and place.owner is None]
        if left:
            found.append(
                Diagnosis(
                    code="nobody_works",
                    what=f"nobody owns partitions {_partitions(left)} of {each.agent}, where "
                    f"{sum(place.lag or 0 for place in left)} inputs wait",
                    do=(start.of(each.agent), "surefoot topics lag AGENT.py"),
                )
            )
    return found


def judge_listeners(listeners: Iterable[Listener], start: StartCommands) -> list[Diagnosis]:
    """Find topics whose events nobody takes, because no trigger runs."""
    return [
        Diagnosis(
            code="nobody_listens",
            what=f"nobody reads {each.topic} for {each.agent}, where {each.unread} offsets wait",
            do=(start.trigger,),
        )
        for each in listeners
        if each.unread and not each.members
    ]


def judge_offsets(
    app: str, standings: Iterable[AgentStanding], start: StartCommands
) -> list[Diagnosis]:
    """Find partitions that were served and whose group has no offset of either input.

    The first commit of a partition writes an event and an offset together."""
    found = []
    for each in standings:
        topics = AgentTopics(app, each.agent)
        of = {(place.topic, place.partition): place for place in each.partitions}
        lost = [
            events
            for (topic, partition), events in of.items()
            if topic == topics.events and events.end > 0
            if of[topics.commands, partition].end > 0
            if of[topics.commands, partition].committed is None
            if of[topics.tasks, partition].committed is None
        ]
        if lost:
            found.append(
                Diagnosis(
                    code="offsets_lost",
                    what=f"group {each.group} has no offsets of partitions {_partitions(lost)}, "
                    "which it has served",
                    do=(start.of(each.agent),),
                )
            )
    return found


def judge_commands(
    agent: str, commands: Iterable[ConsumerRecord], now_ms: int, start: StartCommands
) -> list[Diagnosis]:
    """Find the agent's commands, the oldest of each partition, that nobody decides, although each
    owner does so at once."""
    late = [each for each in commands if now_ms - each.timestamp_ms > DECIDED_MS]
    if not late:
        return []
    oldest = min(late, key=_time)
    return [
        Diagnosis(
            code="commands_wait",
            what=f"a command to run {_run_id(oldest)} of {agent} was sent "
            f"{_ago(oldest.timestamp_ms, now_ms)} and is not decided: no worker lives long enough, "
            "or none can commit",
            do=("surefoot topics lag AGENT.py", start.of(agent)),
        )
    ]


def judge_tasks(agent: str, tasks: Iterable[ConsumerRecord], now_ms: int) -> list[Diagnosis]:
    """Find the agent's tasks, the oldest of each partition, that are not done for long."""
    late = [each for each in tasks if now_ms - each.timestamp_ms > DONE_MS]
    if not late:
        return []
    oldest = min(late, key=_time)
    return [
        Diagnosis(
            code="steps_wait",
            what=f"a step of {agent}, run {_run_id(oldest)}, was asked for "
            f"{_ago(oldest.timestamp_ms, now_ms)} and has not committed: it takes long, hangs, or "
            "takes its worker down",
            do=(shlex.join(("surefoot", "runs", "show", agent, _run_id(oldest))),),
        )
    ]


def judge_dead_letters(letters: Iterable[DeadLetter]) -> list[Diagnosis]:
    """Find inputs that could not be used. Runs out of attempts are judged as runs."""
    causes = Counter((each.agent, each.code) for each in letters if each.run_id is None)
    return [
        Diagnosis(
            code="inputs_dead",
            what=f"{count} inputs{f' of {agent}' if agent else ''} could not be used "
            f"({numbered(code)})",
            do=(
                f"surefoot dead list --code {code}",
                *((f"surefoot dead redrive AGENT.py --code {code}",) if agent else ()),
            ),
        )
        for (agent, code), count in causes.most_common()
    ]


def judge_runs(
    agent: str, version: int | None, runs: Collection[RunSummary], since_ms: int
) -> list[Diagnosis]:
    """Find runs that wait for a person or for newer code, and those that failed since that time.

    Args: version: of the agent's code here; None: unknown
    """
    parked = [run for run in runs if run.status == "attention"]
    failed = [run for run in runs if run.status == "failed" and run.updated_ms >= since_ms]
    held = [
        run
        for run in runs
        if version is not None and run.version > version
        if run.status not in TERMINAL and run.status != "attention"
    ]
    found = []
    if parked:
        found.append(
            Diagnosis(
                code="runs_parked",
                what=f"{len(parked)} runs of {agent} wait for a person ({_reasons(parked)})",
                do=(
                    f"surefoot runs list {agent} --status attention",
                    shlex.join(("surefoot", "runs", "show", agent, parked[0].run_id)),
                ),
            )
        )
    if failed:
        found.append(
            Diagnosis(
                code="runs_fail",
                what=f"{len(failed)} runs of {agent} have failed ({_reasons(failed)})",
                do=(
                    f"surefoot runs list {agent} --status failed",
                    f"surefoot runs retry-failed {agent}",
                ),
            )
        )
    if held:
        newest = max(run.version for run in held)
        found.append(
            Diagnosis(
                code="runs_held",
                what=f"{len(held)} runs of {agent} were written by version {newest}, and older "
                f"code cannot continue them; this is version {version}",
                do=(f"start workers of version {newest} of {agent}",),
            )
        )
    return found


def judge_effects(
    effects: Collection[RunSummary], hosts: Mapping[str, str], now_ms: int
) -> list[Diagnosis]:
    """Find effects that are given up, and those that are tried again and again.

    Args: hosts: where some of them go, by run_id
    """
    failed = [run for run in effects if run.status == "failed"]
    retried = [run for run in effects if run.status == "waiting" and run.attempt >= RETRIED_MIN]
    found = []
    if failed:
        found.append(
            Diagnosis(
                code="effects_failed",
                what=f"{len(failed)} effects{_targets(failed, hosts)} were given up, the first "
                f"{_ago(min(run.updated_ms for run in failed), now_ms)}",
                do=(
                    f"surefoot runs list {OUTBOX} --status failed",
                    f"surefoot runs retry-failed {OUTBOX}",
                ),
            )
        )
    if retried:
        found.append(
            Diagnosis(
                code="effects_retried",
                what=f"{len(retried)} effects{_targets(retried, hosts)} are tried again, the first "
                f"asked for {_ago(min(run.created_ms for run in retried), now_ms)}",
                do=(f"surefoot runs list {OUTBOX} --status waiting",),
            )
        )
    return found


def judge_access(entries: Iterable[AuditEntry]) -> list[Diagnosis]:
    """Find many requests without a valid token, as of one that was revoked and is still in use."""
    origins: Counter[str] = Counter()
    for each in entries:
        if each.status == HTTPStatus.UNAUTHORIZED:
            origins[each.origin or "somewhere"] += 1 + each.unrecorded
    if origins.total() < STRANGERS_MIN:
        return []
    named = ", ".join(origin for origin, _ in origins.most_common(_NAMED))
    return [
        Diagnosis(
            code="strangers",
            what=f"{origins.total()} requests had no valid token, from {named}",
            do=("surefoot audit --refused --since 1h", "surefoot tokens list"),
        )
    ]


def _time(record: ConsumerRecord) -> int:
    return record.timestamp_ms


def _run_id(record: ConsumerRecord) -> str:
    return (record.key or b"").decode("utf-8", "backslashreplace")


def _partitions(places: Iterable[PartitionStanding]) -> str:
    return ", ".join(map(str, sorted({place.partition for place in places})))


def _reasons(runs: Iterable[RunSummary]) -> str:
    causes = Counter(run.failure or "unknown" for run in runs)
    return ", ".join(f"{count} x {numbered(code)}" for code, count in causes.most_common(_NAMED))


def _targets(effects: Sequence[RunSummary], hosts: Mapping[str, str]) -> str:
    named = sorted({hosts[run.run_id] for run in effects if run.run_id in hosts})
    return f" for {', '.join(named[:_NAMED])}" if named else ""


def _ago(then_ms: int, now_ms: int) -> str:
    return f"{max(now_ms - then_ms, 0) // 1000} s ago ({clock_time(then_ms)})"
