"""A step on its way to its pool and back: what the pool's worker needs, and what came of it.

A pooled step is a child run of the pool's agent. Its input holds the run's own identity, so that
the keys of effects are those of the run, wherever the step is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from surefoot.state.machine.model import (
    BudgetExceeded,
    Entries,
    Entry,
    Memory,
    Run,
    StepReturned,
    Work,
)
from surefoot.state.machine.wait_rules import signals


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInput:
    """What it takes to run the step that a run names, wherever that is."""

    run_id: str
    version: int
    seq: int
    epoch: int
    emit: int
    #: whether the step is what a cancelled or failed run still does
    compensation: bool
    payload: bytes
    carry: bytes | None
    memory: Memory | None
    messages: tuple[bytes, ...]
    #: what nobody has taken out of the run's inbox
    signals: tuple[Entry, ...]


def step_input(run: Run, messages: Sequence[bytes], inbox: Sequence[Entry]) -> StepInput:
    """Of the run's next step."""
    return StepInput(
        run_id=run.run_id,
        version=run.version,
        seq=run.seq,
        epoch=run.epoch,
        emit=run.emit,
        compensation=run.ending is not None,
        payload=run.payload,
        carry=run.carry,
        memory=run.memory,
        messages=tuple(messages),
        signals=tuple(inbox),
    )


_INPUT: TypeAdapter[StepInput] = TypeAdapter(StepInput)
_OUTCOME: TypeAdapter[StepReturned | BudgetExceeded] = TypeAdapter(StepReturned | BudgetExceeded)


def encode_input(run: Run, entries: Entries) -> bytes:
    """The input of the pool's run that runs the next step of this one: JSON, payloads in text."""
    count = run.memory.thread if run.memory is not None else 0
    messages = [_text(entries[f"m:{n}"].value or b"null") for n in range(count)]
    inbox = [replace(each, value=_text(each.value or b"null")) for each in signals(entries)]
    given = step_input(run, messages, inbox)
    carry = None if run.carry is None else _text(run.carry)
    return encode_step_input(replace(given, payload=_text(run.payload), carry=carry))


def encode_step_input(given: StepInput) -> bytes:
    """All payloads in it have to be text."""
    return _INPUT.dump_json(given)


def _text(payload: bytes) -> bytes:
    """The same; what is not even text stays what no step can take."""
    return payload.decode("utf-8", "backslashreplace").encode()


def decode_input(payload: bytes) -> StepInput:
    """Raises ValueError for what is no such input."""
    return _INPUT.validate_json(payload)


def encode_outcome(outcome: StepReturned | BudgetExceeded) -> bytes:
    """The result of a pool's run."""
    return _OUTCOME.dump_json(outcome)


def decode_outcome(result: bytes, work: Work) -> StepReturned | BudgetExceeded:
    """What came of the step, as of the attempt that the run itself is at."""
    return replace(_OUTCOME.validate_json(result), work=work)
