"""A dead letter as a person sees it: where it came from, why it is here, and what to do. Pure.

Anybody may have written its headers: missing or non-numeric ones are shown as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict

from surefoot.schemas.codec.codec import UndecodableError
from surefoot.schemas.codec.payload_fields import is_concealed
from surefoot.state.errors.catalogue import number_of
from surefoot.state.ports.log import INPUT_KINDS, ConsumerRecord
from surefoot.state.records.encoding import decode_command

#: characters that a shell takes as part of one word without quotes
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:~=+-")


_OURS = "sf-dead-"
#: headers of a dead letter that keeps only the place of its input
_PARTLY = frozenset({"sf-dead-bytes", "sf-dead-until"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterSource:
    """Where the input that could not be used stood."""

    topic: str
    partition: int | None
    offset: int | None
    timestamp_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    offset: int
    at_ms: int
    code: str
    message: str
    attempts: int
    #: agent whose run has no attempts left, or whose trigger could not use the input
    agent: str | None
    #: of the run that has no attempts left
    run_id: str | None
    step: str | None
    #: place of an input that could not be used
    source: DeadLetterSource | None
    value_bytes: int


def dead_letter(record: ConsumerRecord) -> DeadLetter:
    """Read a dead letter from the headers of its record."""
    headers = {
        name: (value or b"").decode("utf-8", "backslashreplace") for name, value in record.headers
    }
    run_id = headers.get("sf-dead-run")
    topic = headers.get("sf-dead-topic")
    source = None
    if topic is not None:
        source = DeadLetterSource(
            topic=topic,
            partition=_number(headers.get("sf-dead-partition")),
            offset=_number(headers.get("sf-dead-offset")),
            timestamp_ms=_number(headers.get("sf-dead-timestamp")),
        )
    return DeadLetter(
        offset=record.offset,
        at_ms=record.timestamp_ms,
        code=headers.get("sf-dead-code", "unknown"),
        message=headers.get("sf-dead-message", ""),
        attempts=_number(headers.get("sf-dead-attempts")) or 0,
        agent=headers.get("sf-dead-agent") if run_id is None else _agent(headers),
        run_id=run_id,
        step=_step(record) if run_id is not None else None,
        source=source,
        value_bytes=len(record.value or b""),
    )


def event_of(record: ConsumerRecord) -> ConsumerRecord | None:
    """Return the original event of a dead letter, as it stood in its topic; None if the letter is
    not of an event, or does not keep all of it, or it is encrypted and could not be opened."""
    kept = list(record.headers)
    ours: dict[str, bytes] = {}
    while kept and kept[-1][0].startswith(_OURS):
        name, value = kept.pop()
        ours.setdefault(name, value)
    source = dead_letter(record).source
    if source is None or source.partition is None or source.offset is None or _PARTLY & ours.keys():
        return None
    if is_concealed(record.value):
        return None
    return ConsumerRecord(
        source.topic,
        source.partition,
        source.offset,
        source.timestamp_ms or 0,
        record.key,
        record.value,
        tuple(kept),
    )


def _agent(headers: Mapping[str, str]) -> str | None:
    """Return whose input it was (`APP.AGENT.tasks/PARTITION/OFFSET`); None if a timer caused it."""
    topic, *place = headers.get("sf-src", "").split("/")
    _, _, inner = topic.partition(".")
    agent, _, kind = inner.rpartition(".")
    return agent if place and kind in INPUT_KINDS and agent else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _step(record: ConsumerRecord) -> str | None:
    try:
        return decode_command(record).step
    except (UndecodableError, ValueError, KeyError):
        return None


def what_to_do(letter: DeadLetter) -> list[str]:
    """Return commands to type, and sentences where a command is not enough."""
    number = number_of(letter.code)
    told = [] if number is None else [f"surefoot explain {number}"]
    if letter.run_id is not None and _PLAIN.issuperset(letter.run_id):
        agent = letter.agent or "AGENT"
        return [
            f"surefoot runs show {agent} {letter.run_id}",
            f"surefoot runs retry {agent} {letter.run_id}",
            *told,
        ]
    if letter.code in ("commands_lost", "events_lost"):
        return [*told, "the records are lost: have their senders send them again"]
    if letter.agent is not None and not _is_own(letter):
        told.append(f"surefoot dead redrive AGENT.py --offset {letter.offset}")
    return [*told, "the record is shown as it came: have its sender correct it and send it again"]


def _is_own(letter: DeadLetter) -> bool:
    """Whether its input is one of the agent's own events, the source of outgoing webhooks."""
    return letter.source is not None and letter.source.topic.endswith(f".{letter.agent}.events")


class DeadLetterSourceJson(TypedDict):
    """The fields of DeadLetterSource."""

    topic: str
    partition: int | None
    offset: int | None
    timestamp_ms: int | None


class DeadLetterJson(TypedDict):
    """A dead letter, with the number that `surefoot explain` takes, and what to do."""

    offset: int
    at_ms: int
    code: str
    number: str | None
    message: str
    attempts: int
    agent: str | None
    run_id: str | None
    step: str | None
    source: DeadLetterSourceJson | None
    value_bytes: int
    do: list[str]


def dead_letter_json(letter: DeadLetter) -> DeadLetterJson:
    return {
        "offset": letter.offset,
        "at_ms": letter.at_ms,
        "code": letter.code,
        "number": number_of(letter.code),
        "message": letter.message,
        "attempts": letter.attempts,
        "agent": letter.agent,
        "run_id": letter.run_id,
        "step": letter.step,
        "source": None if letter.source is None else _source_json(letter.source),
        "value_bytes": letter.value_bytes,
        "do": what_to_do(letter),
    }


def _source_json(source: DeadLetterSource) -> DeadLetterSourceJson:
    return {
        "topic": source.topic,
        "partition": source.partition,
        "offset": source.offset,
        "timestamp_ms": source.timestamp_ms,
    }
