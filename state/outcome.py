"""A step on its way to its pool and back: what the pool's worker needs, and what came of it.

A pooled step is a child run of the pool's agent. Its input holds the run's own identity, so that
the keys of effects are those of the run, wherever the step is run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from surefoot.state.model import Entries, Memory, Overspent, Returned, Run, Work


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTask:
    """Input of a pool's run. Payloads are JSON in text."""

    run_id: str
    version: int
    seq: int
    epoch: int
    emit: int
    payload: bytes
    carry: bytes | None
    memory: Memory | None
    messages: tuple[bytes, ...]


_TASK: TypeAdapter[PoolTask] = TypeAdapter(PoolTask)
_OUTCOME: TypeAdapter[Returned | Overspent] = TypeAdapter(Returned | Overspent)


def encode_task(run: Run, entries: Entries) -> bytes:
    """What the pool's worker needs to run the step that the run names."""
    count = run.memory.thread if run.memory is not None else 0
    return _TASK.dump_json(
        PoolTask(
            run_id=run.run_id,
            version=run.version,
            seq=run.seq,
            epoch=run.epoch,
            emit=run.emit,
            payload=run.payload,
            carry=run.carry,
            memory=run.memory,
            messages=tuple(entries[f"m:{n}"].value or b"null" for n in range(count)),
        )
    )


def decode_task(payload: bytes) -> PoolTask:
    """Raises ValueError for what is no such input."""
    return _TASK.validate_json(payload)


def encode_outcome(outcome: Returned | Overspent) -> bytes:
    """The result of a pool's run."""
    return _OUTCOME.dump_json(outcome)


def decode_outcome(result: bytes, work: Work) -> Returned | Overspent:
    """What came of the step, as of the attempt that the run itself is at."""
    return replace(_OUTCOME.validate_json(result), work=work)
