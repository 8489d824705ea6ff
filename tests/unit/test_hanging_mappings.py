"""A mapping of a queue or a folder that hangs costs the message or the file it was asked about."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from surefoot import Agent, Context, Done
from surefoot.infra import sources
from surefoot.infra.sources import BadEvent, payload_of


@pytest.fixture
def held() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def taker() -> Agent:
    agent = Agent("taker")

    @agent.step
    async def take(ctx: Context, number: int) -> Done:
        return Done()

    return agent


async def test_one_that_hangs_is_given_up_and_named(
    held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(event: str) -> int:
        held.wait()
        return 1

    monkeypatch.setattr(sources, "MAPPING_S", 0.01)
    with pytest.raises(BadEvent, match=r"hangs.* has not ended within 0\.01 s"):
        await payload_of(taker(), hangs, "event")


async def test_a_timeout_of_its_own_is_an_error_of_its_own() -> None:
    def late(event: str) -> int:
        raise TimeoutError("the catalogue does not answer")

    with pytest.raises(BadEvent, match="raised TimeoutError"):
        await payload_of(taker(), late, "event")
