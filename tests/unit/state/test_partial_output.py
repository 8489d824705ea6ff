"""Partial output: pieces for those who watch, and a text to go on from for the next attempt."""

from __future__ import annotations

import asyncio

import pytest

from surefoot import Partial
from surefoot.schemas.payload import Unserialisable
from surefoot.state.errors import OwnershipLost
from surefoot.state.machine.model import Work
from surefoot.state.steps import partial_output as stream_module
from tests.support.fake_engine import FakeEngine, a_run


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(a_run(seq=3, attempt=1))


@pytest.fixture
def keep_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "KEEP_EVERY_S", 0.0)


def told(engine: FakeEngine) -> list[tuple[str, int, str]]:
    return [(piece.kind, piece.offset, piece.text) for piece in engine.pieces]


async def test_pieces_say_whose_they_are_and_where_they_belong(engine: FakeEngine) -> None:
    async with engine.attempt().stream("draft") as draft:
        assert draft.partial is None
        for text in ("once ", "", "upon 🐦", "!"):
            await draft.write(text)
        assert draft.text == "once upon 🐦!"
    assert told(engine) == [
        ("begin", 0, ""),
        ("text", 0, "once "),
        ("text", 5, "upon 🐦"),
        ("text", 11, "!"),
        ("end", 12, ""),
    ]
    assert {(p.run_id, p.name, p.seq, p.attempt) for p in engine.pieces} == {("r", "draft", 3, 1)}
    assert engine.notes == []  # it took less than a second


async def test_what_was_kept_is_given_to_the_next_attempt(
    engine: FakeEngine, keep_at_once: None
) -> None:
    async with engine.attempt().stream("draft") as draft:
        await draft.write("half ")
        await draft.write("of it")
        ((slot, kind),) = engine.kinds()
        assert (slot, kind) == ("p:draft", "partial")
        next_one = engine.attempt().stream("draft")
        assert next_one.partial == Partial("half of it", complete=False)
        assert engine.attempt().stream("other").partial is None
    assert engine.notes[0].work == Work(seq=3, attempt=1)


async def test_an_attempt_can_go_on_from_there(engine: FakeEngine, keep_at_once: None) -> None:
    async with engine.attempt().stream("draft") as draft:
        await draft.write("half")
    engine.pieces.clear()
    async with engine.attempt().stream("draft") as draft:
        assert await draft.go_on() == "half"
        await draft.write(" and half")
        assert draft.text == "half and half"
    assert told(engine)[1:] == [("text", 0, "half"), ("text", 4, " and half"), ("end", 13, "")]
    assert engine.attempt().stream("draft").partial == Partial("half and half")


async def test_there_may_be_nothing_to_go_on_from(engine: FakeEngine) -> None:
    async with engine.attempt().stream("draft") as draft:
        assert await draft.go_on() == ""
    assert told(engine) == [("begin", 0, ""), ("end", 0, "")]


async def test_an_attempt_that_begins_anew_replaces_what_was_there(
    engine: FakeEngine, keep_at_once: None
) -> None:
    for text in ("the first, long", "second"):
        async with engine.attempt().stream("draft") as draft:
            await draft.write(text)
    assert engine.attempt().stream("draft").partial == Partial("second")


async def cut_off(engine: FakeEngine, error: BaseException) -> None:
    async with engine.attempt().stream("draft") as draft:
        await draft.write("so far")
        raise error


async def test_an_exception_keeps_what_was_written_since(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="cut off"):
        await cut_off(engine, ValueError("cut off"))
    assert engine.attempt().stream("draft").partial == Partial("so far")
    assert told(engine)[-1][0] == "text"  # it has not ended


async def test_an_exception_before_anything_was_written_keeps_nothing(engine: FakeEngine) -> None:
    with pytest.raises(ValueError, match="at once"):
        async with engine.attempt().stream("draft"):
            raise ValueError("at once")
    assert engine.notes == []


@pytest.mark.parametrize("error", [OwnershipLost(), asyncio.CancelledError()])
async def test_an_attempt_that_is_given_up_records_nothing_more(
    engine: FakeEngine, error: BaseException
) -> None:
    with pytest.raises(type(error)):
        await cut_off(engine, error)
    assert engine.notes == []


async def test_text_that_is_no_text_is_refused_and_not_sent(engine: FakeEngine) -> None:
    with pytest.raises(Unserialisable):
        async with engine.attempt().stream("draft") as draft:
            await draft.write(b"raw")  # type: ignore[arg-type]
    assert told(engine) == [("begin", 0, "")]
    with pytest.raises(Unserialisable):
        engine.attempt().stream(5)  # type: ignore[arg-type]
