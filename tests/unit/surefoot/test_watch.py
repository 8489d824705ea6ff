"""`surefoot runs watch`: what is shown, on a terminal and without one, and when it ends."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from surefoot.commands.runs.watch import ending, follow, line, lines
from tests.unit.producers.test_gateway import RUN, FakeReader, event, run


def told(kind: str, status: str = "running", **fields: Any) -> Any:
    return event(kind, status, **({"next_step": None, "attempt": 0, "by": None} | fields))


class CutOff(FakeReader):
    """A stream that ends after one event each time."""

    async def events(self, agent, run_id, after):
        async for item in super().events(agent, run_id, after):
            yield item
            return


async def test_a_stream_that_ends_early_is_gone_on_with_until_the_run_is_over() -> None:
    reader = CutOff()
    reader.history[RUN] = [(2, told("run.started")), (5, told("run.completed", "completed"))]
    reader.runs[RUN] = run()
    seen: list[str] = []

    def show(shown: Any) -> None:
        seen.append(shown["type"])
        if shown["type"] == "run.completed":
            reader.runs[RUN] = run(status="completed")

    assert (await follow(reader, "triage", RUN, show)).status == "completed"
    assert seen == ["run.started", "run.completed"]
    assert reader.asked == [None, 2]


@pytest.mark.parametrize(
    ("shown", "wanted"),
    [
        (
            told("step.completed", next_step="notify", result=3),
            "step.completed    classify -> notify 3",
        ),
        (
            told("step.retrying", attempt=2, failure={"code": "step_failed", "message": "no"}),
            "step.retrying     classify (attempt 2) step_failed: no",
        ),
        (
            told("step.completed", "waiting", wait={"kind": "approval"}),
            "step.completed    classify waits for approval",
        ),
        (told("run.paused", by="ann\x1b[2J"), "run.paused        classify by ann\\x1b[2J"),
        (told("run.completed", result="x" * 500), "x" * 100),
    ],
)
def test_an_event_is_one_line_that_a_terminal_does_not_act_upon(shown: Any, wanted: str) -> None:
    text = line(shown)
    assert wanted in text
    assert text.isprintable()
    assert len(text) < 250


@pytest.mark.parametrize("terminal", [True, False])
def test_every_event_is_shown_and_only_a_terminal_is_drawn_upon(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, markup=False, highlight=False)
    with lines(console) as show:
        show(told("run.started", result="[red]"))
        show(told("step.completed", next_step="notify"))
    assert ("\x1b[" in out.getvalue()) is terminal
    assert "run.started" in out.getvalue()
    assert "[red]" in out.getvalue()
    assert "-> notify" in out.getvalue()
    assert ("running at notify" in out.getvalue()) is terminal


def test_the_last_line_says_what_came_of_it() -> None:
    assert ending(run(status="completed", result=b'{"a": 1}')) == f'{RUN} is completed: {{"a": 1}}'
    failure = {"code": "step_failed", "message": "no"}
    assert ending(run(status="failed", failure=failure)) == f"{RUN} is failed: step_failed: no"
    assert ending(run(status="cancelled")) == f"{RUN} is cancelled"
