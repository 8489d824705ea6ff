"""What may be asked of many runs, or of a long history, and what is answered: a page at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import Status

_PLACE = re.compile(r"([0-9]{1,18})~(.{1,256})", re.ASCII)


class PageCursor(NamedTuple):
    """Where a run stands in a list that has the latest first."""

    updated_ms: int
    run_id: str

    def __str__(self) -> str:
        return f"{self.updated_ms}~{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> PageCursor:
        """Raises BadArgument for what no page has named."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadArgument(
                "SF5032", '"before" has to be the "next" of a page; leave it out to begin anew'
            )
        return cls(int(found[1]), found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Which runs of an agent; every field that is given has to fit."""

    status: Status | None = None
    #: only those that wait for a person: an answer to a question, or somebody to look
    needs_person: bool = False
    version: int | None = None
    step: str | None = None
    prefix: str = ""
    #: those after this place
    before: PageCursor | None = None
    limit: int = 50


class Bucket(NamedTuple):
    """A stretch of time."""

    at_ms: int
    #: runs that began in it
    started: int
    #: runs that ended in it, and have not gone on since
    completed: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The run that has stood in a status for the longest time."""

    run_id: str
    step: str
    since_ms: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What an agent has been doing lately."""

    bucket_ms: int
    #: the oldest first; the last one is not over yet
    buckets: Sequence[Bucket]
    #: by status; runs that are over are left out
    oldest: dict[Status, Waiting]
    needs_person: int


class HistoryEntry(NamedTuple):
    """An event and where it stands."""

    partition: int
    offset: int
    #: what it answers: topic/partition/offset of a command or task, or the timer
    source: str | None
    event: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Part of a run's history, the latest event first."""

    topic: str
    events: Sequence[HistoryEntry]
    #: offset before which the next page begins; None: this was the first event
    before: int | None
