"""What a dead letter is of, and what can be put back."""

from __future__ import annotations

import pytest

from surefoot.state.machine.model import Failure
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ConsumerRecord, Headers
from surefoot.state.reading.dead_letters import dead_letter, event_of, what_to_do
from surefoot.state.records.encoding import Wire, dead_headers

WIRE = Wire("app", AgentTopics("app", "shop"), 2)
WHOSE = (("sf-dead-agent", b"shop"),)
EVENT = ConsumerRecord("orders", 3, 44, 5, b"k", b"\xff", (("mine", b"m"), ("odd", None)))  # type: ignore[arg-type]


def buried(
    event: ConsumerRecord = EVENT, headers: Headers = WHOSE, code: str = "undecodable"
) -> ConsumerRecord:
    out = WIRE.dead_input(event, Failure(code=code, message="no"), headers)
    return ConsumerRecord(out.topic, 0, 9, 7, out.key, out.value, out.headers)


def test_an_event_is_given_back_as_it_stood() -> None:
    assert event_of(buried()) == EVENT
    assert event_of(buried(headers=())) == EVENT  # of a version before this one
    assert dead_letter(buried()).agent == "shop"
    # somebody may listen to another app's dead letters: these keep theirs
    twice = EVENT._replace(topic="other.dead", headers=(*buried().headers, ("x", b"y")))
    assert event_of(buried(twice)) == twice


@pytest.mark.parametrize("partly", [("sf-dead-bytes", b"5000000"), ("sf-dead-until", b"50")])
def test_what_was_not_kept_cannot_be_given_back(partly: tuple[str, bytes]) -> None:
    assert event_of(buried(headers=(*WHOSE, partly))) is None


def test_a_run_that_is_out_of_attempts_is_no_event() -> None:
    headers = dead_headers("step_failed", "no", 5, "run-1")
    assert event_of(ConsumerRecord("app.dead", 0, 9, 5, b"run-1", b"x", headers)) is None


@pytest.mark.parametrize(
    ("letter", "told"),
    [
        (buried(), True),
        (buried(headers=()), False),
        (buried(code="events_lost"), False),
        (buried(EVENT._replace(topic="app.shop.events")), False),
    ],
)
def test_only_what_can_be_put_back_is_said_to_be(letter: ConsumerRecord, told: bool) -> None:
    command = "surefoot dead redrive AGENT.py --offset 9"
    assert (command in what_to_do(dead_letter(letter))) is told
