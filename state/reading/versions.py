"""Earlier versions of a run, from its history. Pure, except for the port.

Version N of a run is its state right after step N-1 was committed; version 0 is its start. A rewind
to version N begins a new line of history there: what came after N on the old line is no longer a
version of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.machine.again import number_in
from surefoot.state.machine.model import Entry, Memory, WaitState
from surefoot.state.reading.runs import RunSummary
from surefoot.state.records.encoding import memory_of, wait_of

#: (seq, step) -> whether to keep that version
Keep = Callable[[int, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A run right after a commit: step number `seq` is next."""

    seq: int
    step: str
    payload: bytes
    carry: bytes | None
    memory: Memory | None
    wait: WaitState | None
    due_ms: int | None
    #: when it was committed
    at_ms: int
    #: number of rewinds of the run until then
    epoch: int
    #: how often it had started children by then, as far as the history tells: at least
    forks: int = 0


class Line:
    """The current line of history of one run. Feed it the run's events in order."""

    def __init__(self, keep: Keep = lambda _seq, _step: True) -> None:
        self._keep = keep
        self._compensating = False
        self._forks = 0
        self.versions: dict[int, Version] = {}
        #: ids of the rewinds that led to it
        self.rewinds: set[str | None] = set()

    def apply(self, event: AvroEvent) -> None:
        """Apply one decoded event."""
        self._forks = max(self._forks, _fork_in(event))
        match event["type"]:
            case "run.started":  # also when a forgotten run's id is used again
                self._compensating = False
                self._forks = 0
                self.versions.clear()
                self.rewinds.clear()
                self._add(event, 0)
            case "step.completed" if not self._compensating:
                self._add(event, event["seq"] + 1)
            case "run.rewound":
                self._compensating = False
                self.rewinds.add(event["id"])
                self._forget_from(event["seq"])
                self._add(event, event["seq"])
            case "run.cancelling" | "run.failing":
                self._compensating = True  # nobody can rewind into the middle of a compensation

    def _forget_from(self, seq: int) -> None:
        for later in [number for number in self.versions if number >= seq]:
            del self.versions[later]

    def _add(self, event: AvroEvent, seq: int) -> None:
        step = event["next_step"]
        if step is None or not self._keep(seq, step):
            return
        self.versions[seq] = Version(
            seq=seq,
            step=step,
            payload=event["payload"] or b"null",
            carry=event["carry"],
            memory=memory_of(event["memory"]),
            wait=wait_of(event["wait"]),
            due_ms=event["due_ms"],
            at_ms=event["at_ms"],
            epoch=event["epoch"],
            forks=self._forks,
        )


def _fork_in(event: AvroEvent) -> int:
    """Number of the fork that an event is about; 0: of none. The child that is over may be the heir
    of an heir of a branch, and have their numbers too in its name."""
    if event["wait"] is not None:
        return event["wait"]["fork"]
    if event["type"] != "child.finished":
        return 0
    child, mine = event["name"] or "", f"{event['run_id']}~"
    return number_in(child.removeprefix(mine).split("~")[0]) if child.startswith(mine) else 0


class Versions(Protocol):
    """Reads earlier versions of runs."""

    async def summaries(self, agent: str, run_ids: Collection[str]) -> Mapping[str, RunSummary]:
        """Return the summaries of those runs that exist, as of everything committed so far.

        Raises: Unavailable - the log cannot be read
        """

    async def lines(self, agent: str, run_ids: Collection[str], keep: Keep) -> Mapping[str, Line]:
        """Return the lines of history of those runs that exist, with the versions that `keep`
        selects, as far as the history has not expired.

        Raises: Unavailable - the log cannot be read
        """

    async def messages(self, agent: str, run_id: str, count: int) -> tuple[bytes, ...]:
        """Return the first `count` messages of a run's thread.

        Raises: StateError - some are missing; Unavailable - the log cannot be read
        """

    async def calls(self, agent: str, run_id: str) -> tuple[Entry, ...]:
        """Return the recorded calls and actions of a run, of every step and epoch.

        Raises: Unavailable - the log cannot be read
        """
