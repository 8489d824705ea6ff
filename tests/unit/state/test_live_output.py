"""Partial output as a watcher is shown it, whatever order its pieces come in."""

from __future__ import annotations

from typing import Any

from surefoot.state.feeds.live_output import Shown, settled


def piece(
    kind: str,
    text: str = "",
    offset: int = 0,
    *,
    seq: int = 0,
    attempt: int = 0,
    name: str | None = "d",
) -> Any:
    return {
        "run_id": "r",
        "name": name,
        "seq": seq,
        "attempt": attempt,
        "kind": kind,
        "offset": offset,
        "text": text,
        "at_ms": 1,
    }


def event(kind: str, *, seq: int = 0, attempt: int = 0) -> Any:
    return {"type": kind, "run_id": "r", "seq": seq, "attempt": attempt, "at_ms": 2}


def kinds(told: list[Any]) -> list[str]:
    return [each["kind"] for each in told]


def test_a_piece_is_shown_once() -> None:
    shown = Shown()
    whole = [piece("begin"), piece("text", "ab"), piece("text", "c", 2)]
    assert [each for one in whole for each in shown.piece(one)] == whole
    assert shown.piece(whole[1]) == shown.piece(whole[2]) == []
    # lost on the way: shown, as its place tells
    assert shown.piece(piece("text", "z", 9)) == [piece("text", "z", 9)]


def test_a_new_attempt_empties_what_the_former_one_wrote_and_silences_it() -> None:
    shown = Shown()
    shown.piece(piece("begin"))
    shown.piece(piece("text", "ab"))
    assert kinds(shown.piece(piece("begin", attempt=1))) == ["discard", "begin"]
    assert shown.piece(piece("text", "c", 2)) == []
    # the same attempt, made again by another owner
    assert kinds(shown.piece(piece("begin", attempt=1))) == ["begin"]


def test_an_attempt_that_has_failed_is_void_before_the_next_one_writes() -> None:
    shown = Shown()
    shown.piece(piece("begin"))
    assert kinds(shown.event(event("step.retrying"))) == ["discard"]
    assert shown.piece(piece("text", "late")) == []
    assert kinds(shown.piece(piece("begin", attempt=1))) == ["begin"]


def test_output_ends_when_its_step_commits() -> None:
    shown = Shown()
    shown.piece(piece("begin"))
    assert shown.event(event("signal.received")) == []
    assert kinds(shown.event(event("step.completed"))) == ["discard"]
    assert shown.piece(piece("text", "late")) == shown.piece(piece("begin", attempt=3)) == []
    assert kinds(shown.piece(piece("begin", seq=1))) == ["begin"]


def test_a_run_that_is_sent_back_writes_again() -> None:
    shown = Shown()
    shown.event(event("step.completed", seq=4))
    shown.event(event("run.rewound", seq=2))
    assert kinds(shown.piece(piece("begin", seq=2))) == ["begin"]


def test_somebody_who_comes_late_has_the_same_in_fewer_pieces() -> None:
    pieces = [
        piece("begin"),
        piece("text", "void"),
        piece("discard", name=None),
        piece("begin", attempt=1),
        piece("text", "Once "),
        piece("begin", name="e"),
        piece("text", "upon", 5),
        piece("text", "time", 12),
    ]
    assert [(each["name"], each["kind"], each["text"]) for each in settled(pieces)] == [
        ("d", "begin", ""),
        ("d", "text", "Once upon"),
        ("d", "text", "time"),
        ("e", "begin", ""),
    ]
