"""Partial output of a run for a watcher: only what belongs to the current attempt. Pure.

Pieces come over a topic of their own, outside transactions: late, twice, or from an attempt that
has ended. A watcher appends what it receives and clears it at two marks: `discard` (everything: the
attempt is over or its step is committed) and `begin` (the output of that name starts again).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypedDict

from surefoot.schemas.codec.records import AvroEvent, AvroStream


class Discard(TypedDict):
    """Says that all output shown so far is void."""

    run_id: str
    name: None
    seq: int
    attempt: int
    kind: Literal["discard"]
    offset: int
    text: str
    at_ms: int


#: what a watcher is shown
StreamRecord = AvroStream | Discard


class Shown:
    """What one watcher has been shown. Feed it the run's pieces and events as they arrive."""

    def __init__(self) -> None:
        #: (seq, attempt) of the oldest attempt whose output still matters
        self._least = (0, 0)
        self._work = (0, 0)
        #: characters shown, by name
        self._length: dict[str, int] = {}

    def piece(self, piece: AvroStream) -> list[StreamRecord]:
        """Return what to show for a piece of output: nothing if its attempt is over, or if it has
        been shown."""
        work, name, length = (piece["seq"], piece["attempt"]), piece["name"], len(piece["text"])
        if work < self._least or work < self._work:
            return []
        told: list[StreamRecord] = []
        if work > self._work:
            told = self._discard(piece)
            self._work = work
        if piece["kind"] == "begin":
            self._length[name] = 0
        elif piece["offset"] < self._length.get(name, 0):
            return told
        self._length[name] = piece["offset"] + length
        return [*told, piece]

    def event(self, event: AvroEvent) -> list[StreamRecord]:
        """Return what to show before an event: a `discard`, if the event makes output void."""
        kind, seq, attempt = event["type"], event["seq"], event["attempt"]
        if kind == "run.rewound":
            self._least = self._work = (0, 0)
        elif kind == "step.retrying":
            self._least = max(self._least, (seq, attempt + 1))
        elif kind in _STEP_OVER:
            self._least = max(self._least, (seq + 1, 0))
        else:
            return []
        return self._discard(event)

    def _discard(self, cause: AvroEvent | AvroStream) -> list[StreamRecord]:
        if not self._length:
            return []
        self._length.clear()
        return [
            {
                "run_id": cause["run_id"],
                "name": None,
                "seq": self._work[0],
                "attempt": self._work[1],
                "kind": "discard",
                "offset": 0,
                "text": "",
                "at_ms": cause["at_ms"],
            }
        ]


_STEP_OVER = frozenset({"step.completed", "run.completed", "run.failed", "run.cancelled"})


def settled(pieces: Iterable[StreamRecord]) -> list[AvroStream]:
    """Return the same output in fewer pieces, for a watcher who has seen none of it."""
    kept: dict[str, list[AvroStream]] = {}
    for piece in pieces:
        if piece["name"] is None:  # a `discard`
            kept.clear()
            continue
        mine = kept.setdefault(piece["name"], [])
        if piece["kind"] == "begin":
            mine.clear()
        if mine and _follows(mine[-1], piece):
            mine[-1]["text"] += piece["text"]
        else:
            mine.append(piece.copy())
    return [piece for mine in kept.values() for piece in mine]


def _follows(last: AvroStream, piece: AvroStream) -> bool:
    """Whether the two are adjacent pieces of text."""
    end = last["offset"] + len(last["text"])
    return (last["kind"], piece["kind"], piece["offset"]) == ("text", "text", end)
