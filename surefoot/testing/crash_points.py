"""Checks that an agent ends the same way wherever its process is killed.

The agent runs once to count its commits, and again to check that it does the same twice. Then it
runs once for every commit and moment: killed just before the commit takes effect, and just after
it, before the process knows. What lies between two commits is lost or repeated as a whole, so these
are all the places where a crash can make a difference, except for what a step does to the outside
world directly, which is what this check finds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from surefoot.infra.simulation.process import Moment
from surefoot.state.errors import Numbered
from surefoot.testing.simulation import Answering, Given, Simulation, SimulationError

_MOMENTS: tuple[Moment, Moment] = ("before", "after")

Scenario = Callable[[Simulation], object]


class CrashFound(Numbered, AssertionError):
    """A crash makes a difference; the message says where and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """What was tried. Every try ended the same way."""

    #: what each commit was about, in words
    commits: list[str]
    #: how many times the process was killed
    kills: int


def check_crashes(
    agent: Given,
    payload: Any = None,
    *,
    others: Sequence[Given] = (),
    signals: Sequence[tuple[str, Any]] = (),
    scenario: Scenario | None = None,
    setup: Callable[[], object] | None = None,
    observe: Callable[[], Any] | None = None,
    deliver: Answering | None = None,
    on_attention: Callable[..., object] | None = None,
    seed: int = 0,
    partitions: int = 2,
) -> CrashReport:
    """Kill an agent's process at each of its commits in turn, and check that it ends the same way
    as without a crash.

    The scenario is one run with `payload` and `signals`, as in Simulation.run, or what `scenario`
    does with the Simulation it is given. Compared are the status and the result of every run, the
    effects that were acted upon (by idempotency key, with their content, in order per run), and
    what `observe` returns. No committed step may begin again.

    A `ctx.once` without a probe that is cut off leaves its run in `attention`. That is correct, but
    a different end: let `on_attention(sim, run)` do what a person would, such as
    `sim.resolve("did_not")`.

    Args:    others: agents that it works with, killed together with it. setup: called before each
             simulation, to reset your fakes of the outside world. observe: returns their state
    Raises:  CrashFound, an AssertionError - a crash makes a difference
    """

    def tried(kill: _Kill | None) -> _End:
        if setup is not None:
            setup()
        with Simulation(
            agent,
            *others,
            deliver=deliver,
            seed=seed,
            partitions=partitions,
            on_attention=on_attention,
        ) as sim:
            if kill is not None:
                sim.kill_at(kill.commit, kill.moment)
            if scenario is not None:
                scenario(sim)
            else:
                sim.run(payload, signals=signals)
            observed = observe() if observe is not None else None
            return _End.of(sim, observed, commits=sim.commits if kill is None else [])

    plain = tried(None)
    _same_twice(plain, tried(None))
    kills = [_Kill(n, m) for n in range(1, len(plain.commits) + 1) for m in _MOMENTS]
    for kill in kills:
        try:
            ended = tried(kill)
        except SimulationError as error:
            raise CrashFound("SF7004", f"{_where(kill, plain)}: {error}") from error
        differences = [*ended.repeated, *_differences(plain, ended)]
        if differences:
            raise CrashFound("SF7004", f"{_where(kill, plain)}: {'; '.join(differences[:5])}")
    return CrashReport(commits=plain.commits, kills=len(kills))


class _Kill(NamedTuple):
    commit: int
    moment: Moment


class _RunEnd(NamedTuple):
    status: str
    result: Any
    #: code and kind of the failure, and its message
    failure: tuple[str, str] | None
    message: str
    effects: list[tuple[Any, ...]]


@dataclass(frozen=True, slots=True)
class _End:
    """The parts of a simulation's end that are compared."""

    runs: dict[tuple[str, str], _RunEnd]
    observed: Any
    #: only of the run without a crash
    commits: list[str]
    repeated: list[str]

    @classmethod
    def of(cls, sim: Simulation, observed: Any, *, commits: list[str]) -> _End:
        runs = {}
        for run in sim.runs():
            why = run.failure
            runs[run.agent, run.run_id] = _RunEnd(
                run.status,
                run.result,
                None if why is None else (why["code"], why["kind"]),
                "" if why is None else why["message"],
                [(e.key, e.method, e.url, sorted(e.headers.items()), e.body) for e in run.effects],
            )
        again = sim._repeated  # noqa: SLF001  (one package)
        repeated = [f"{what} ran again, though it was committed" for what in again]
        return cls(runs, observed, commits, repeated)


def _differences(plain: _End, ended: _End) -> list[str]:
    """Return the differences from the end without a crash, in words."""
    found = []
    for (agent, run_id), want in plain.runs.items():
        name = f"run {run_id!r} of {agent}"
        have = ended.runs.get((agent, run_id))
        if have is None:
            found.append(f"there is no {name}")
            continue
        if have.status != want.status:
            found.append(f"{name} is {have.status} instead of {want.status}{_because(have)}")
        elif have.failure != want.failure:
            found.append(f"{name} fails with {have.failure} instead of {want.failure}")
        elif have.result != want.result:
            found.append(f"the result of {name} is {have.result!r} instead of {want.result!r}")
        found += _different_effects(name, want.effects, have.effects)
    found += [f"there is a run {run_id!r} of {a}" for a, run_id in ended.runs.keys() - plain.runs]
    if ended.observed != plain.observed:
        found.append(
            f"`observe` returns {ended.observed!r} instead of {plain.observed!r}: an action "
            "happened more or less often than without the crash. Do it through "
            "ctx.outbox or ctx.once, or make it safe to repeat by a key"
        )
    return found


def _because(run: _RunEnd) -> str:
    if run.failure is None:
        return ""
    code, _ = run.failure
    hint = {
        "once_in_doubt": (
            ". It was interrupted in a ctx.once: give that call a probe, or do in `on_attention` "
            "what a person would do"
        ),
        "journal_mismatch": (
            ". When the step ran again it made the same call with other arguments: take what "
            "varies (time, chance, ids, external data) from its own ctx.call"
        ),
    }.get(code, "")
    return f" ({code}: {run.message}){hint}"


def _different_effects(
    name: str, want: list[tuple[Any, ...]], have: list[tuple[Any, ...]]
) -> list[str]:
    wanted, had = {e[0]: e[1:] for e in want}, {e[0]: e[1:] for e in have}
    found = [f"effect {key} of {name} never happened" for key in wanted.keys() - had]
    found += [f"{name} has another effect {key}: {had[key]!r}" for key in had.keys() - wanted]
    found += [
        f"effect {key} of {name} is {had[key]!r} instead of {wanted[key]!r}"
        for key in wanted.keys() & had
        if had[key] != wanted[key]
    ]
    if not found and list(wanted) != list(had):
        found.append(f"the effects of {name} come in the order {list(had)}, not {list(wanted)}")
    return sorted(found)


def _same_twice(first: _End, second: _End) -> None:
    """Raise CrashFound if two ends without a crash differ: a comparison would mean nothing."""
    differences = _differences(first, second)
    if not differences and first.commits == second.commits:
        return
    if not differences:
        pairs = zip([*first.commits, "nothing"], [*second.commits, "nothing"], strict=False)
        one, other = next((a, b) for a, b in pairs if a != b)
        differences = [f"it committed {other} instead of {one}"]
    raise CrashFound(
        "SF7003",
        "even without a crash, two executions of the agent differ: the second time "
        f"{'; '.join(differences[:3])}. A step must take time, chance, ids and external data "
        "from ctx.call, so that it gets the same values when it is repeated; and `setup` must "
        "make new fakes each time",
    )


def _where(kill: _Kill, plain: _End) -> str:
    what = plain.commits[kill.commit - 1]
    return (
        f"killed {kill.moment} commit {kill.commit} of {len(plain.commits)} had taken effect "
        f"({what})"
        if kill.moment == "before"
        else f"killed after commit {kill.commit} of {len(plain.commits)} had taken effect ({what})"
    )
