"""Queries over many runs or a long history, and their answers, one page at a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from surefoot.schemas.codec.records import AvroEvent
from surefoot.state.errors import BadArgument
from surefoot.state.machine.model import Status

_PLACE = re.compile(r"([0-9]{1,18})~(.{1,256})", re.ASCII)


class PageCursor(NamedTuple):
    """The place of a run in a list that is ordered latest first."""

    updated_ms: int
    run_id: str

    def __str__(self) -> str:
        return f"{self.updated_ms}~{self.run_id}"

    @classmethod
    def parse(cls, text: str) -> PageCursor:
        """Parse the cursor of a page. Raises BadArgument for any other text."""
        found = _PLACE.fullmatch(text)
        if found is None:
            raise BadArgument(
                "SF5032", '"before" must be the "next" of a page; leave it out to start over'
            )
        return cls(int(found[1]), found[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuery:
    """Selects runs of an agent; every given field has to match."""

    status: Status | None = None
    #: only runs that wait for a person: for an answer, or with status `attention`
    needs_person: bool = False
    version: int | None = None
    step: str | None = None
    prefix: str = ""
    #: only runs after this place
    before: PageCursor | None = None
    limit: int = 50


class Bucket(NamedTuple):
    """A period of time."""

    at_ms: int
    #: runs that began in it
    started: int
    #: runs that ended in it and have not continued since
    completed: int
    failed: int
    cancelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """The run that has been in a status for longest, and how many runs share that status."""

    run_id: str
    step: str
    since_ms: int
    runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What an agent has been doing recently."""

    bucket_ms: int
    #: oldest first; the last one is still in progress
    buckets: Sequence[Bucket]
    #: by status, for unfinished runs
    oldest: dict[Status, Waiting]
    needs_person: int


class HistoryEntry(NamedTuple):
    """An event and its place."""

    partition: int
    offset: int
    #: what caused it: topic/partition/offset of a command or task, or the timer
    source: str | None
    event: AvroEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryPage:
    """Part of a run's history, latest event first."""

    topic: str
    events: Sequence[HistoryEntry]
    #: pass as `before` for the next page; None: this page has the first event
    before: int | None
