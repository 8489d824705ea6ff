"""A step's way to its pool and back: the input of the pool's worker, and the outcome.

A pooled step is a child run of the pool's agent. Its input holds the original run's identity, so
that the keys of effects are those of the original run, wherever the step runs.
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


@dataclass(slots=True, kw_only=True)
class StepInput:
    """All that is needed to run a run's next step, wherever it runs."""

    run_id: str
    version: int
    seq: int
    epoch: int
    emit: int
    #: whether the step is the compensation of a cancelled or failed run
    compensation: bool
    payload: bytes
    carry: bytes | None
    memory: Memory | None
    messages: tuple[bytes, ...]
    #: signals in the run's inbox that nothing has taken yet
    signals: tuple[Entry, ...]


def step_input(run: Run, messages: Sequence[bytes], inbox: Sequence[Entry]) -> StepInput:
    """Return the input of the run's next step."""
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
    """Return the input of the pool's run that runs this run's next step: JSON, payloads as text."""
    count = run.memory.thread if run.memory is not None else 0
    messages = [_text(entries[f"m:{n}"].value or b"null") for n in range(count)]
    inbox = [replace(each, value=_text(each.value or b"null")) for each in signals(entries)]
    given = step_input(run, messages, inbox)
    carry = None if run.carry is None else _text(run.carry)
    return encode_step_input(replace(given, payload=_text(run.payload), carry=carry))


def encode_step_input(given: StepInput) -> bytes:
    """Encode a step's input as JSON. All payloads in it must be text."""
    return _INPUT.dump_json(given)


def _text(payload: bytes) -> bytes:
    """Return the payload as valid UTF-8. Bytes that are not stay a payload that no step accepts."""
    return payload.decode("utf-8", "backslashreplace").encode()


def decode_input(payload: bytes) -> StepInput:
    """Decode a step's input.

    Raises: ValueError — the payload is not a step's input.
    """
    return _INPUT.validate_json(payload)


def encode_outcome(outcome: StepReturned | BudgetExceeded) -> bytes:
    """Return the result of a pool's run."""
    return _OUTCOME.dump_json(outcome)


def decode_outcome(result: bytes, work: Work) -> StepReturned | BudgetExceeded:
    """Return the step's outcome, as of the attempt that the original run is at.

    Raises: ValueError — the result is not an outcome.
    """
    return replace(_OUTCOME.validate_json(result), work=work)
