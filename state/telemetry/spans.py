"""Reports steps and runs to a trace. Pure.

As with logging, each process decides once where spans go (`infra.telemetry.tracing`). Before that
a step only passes on the trace context of its run. No decision depends on a span.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from surefoot.schemas import trace
from surefoot.state.machine.model import Run


class Span(Protocol):
    """One attempt of a step."""

    #: trace context for whatever the step asks of others; None: its run belongs to no trace
    traceparent: str | None

    def outcome(self, word: str) -> None:
        """How the attempt has ended."""


class Spans(Protocol):
    """Called from any thread; must not block or raise."""

    def begin(self, agent: str, run_id: str) -> str | None:
        """Trace context of a run that was started without one; None: it needs none."""

    def step(self, run: Run, partition: int) -> AbstractContextManager[Span]:
        """The attempt that the run is at, for as long as it runs."""

    def ended(self, run: Run) -> None:
        """The run is over, and its end is committed."""


class _HandedOn:
    """Implements Span: W3C has who takes no part pass the context on as it came."""

    __slots__ = ("traceparent",)

    def __init__(self, traceparent: str | None) -> None:
        self.traceparent = traceparent

    def outcome(self, word: str) -> None: ...

    def __enter__(self) -> Span:
        return self

    def __exit__(self, *_: object) -> None: ...


class Untold:
    """Implements Spans: nothing is traced."""

    def begin(self, agent: str, run_id: str) -> str | None:  # noqa: ARG002  (as Spans has it)
        return None

    def step(
        self,
        run: Run,
        partition: int,  # noqa: ARG002  (as Spans has it)
    ) -> AbstractContextManager[Span]:
        return _HandedOn(trace.valid(run.traceparent))

    def ended(self, run: Run) -> None: ...


_spans: Spans = Untold()


def use_spans(spans: Spans) -> Spans:
    """Tell everything there from now on. Returns where it was told so far."""
    global _spans
    before, _spans = _spans, spans
    return before


def begin(agent: str, run_id: str) -> str | None:
    """See Spans."""
    return _spans.begin(agent, run_id)


def step(run: Run, partition: int) -> AbstractContextManager[Span]:
    """See Spans."""
    return _spans.step(run, partition)


def ended(run: Run) -> None:
    """See Spans."""
    _spans.ended(run)
