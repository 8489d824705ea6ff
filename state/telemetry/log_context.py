"""Whose a log line is: the attempt that runs in this context. Pure.

One variable, which costs a step nothing; what is in it is told field by field only when there is a
line (`infra.runtime.logging`).
"""

from __future__ import annotations

from contextvars import ContextVar

from surefoot.state.machine.model import Run

#: the run, at the step and attempt that it is at, and its partition
ATTEMPT: ContextVar[tuple[Run, int] | None] = ContextVar("surefoot_attempt", default=None)


def fields() -> dict[str, str | int]:
    """Of this context; none outside of steps."""
    attempt = ATTEMPT.get()
    if attempt is None:
        return {}
    run, partition = attempt
    return {
        "agent": run.agent,
        "run_id": run.run_id,
        "step": run.step,
        "seq": run.seq,
        "attempt": run.attempt,
        "partition": partition,
    }
