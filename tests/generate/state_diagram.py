"""`python -m tests.generate.state_diagram` writes docs/state-machine.md from its table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from surefoot.state.machine import decide as machine
from surefoot.state.machine import model
from surefoot.state.machine.commands import COMMANDS
from surefoot.state.machine.decide import TABLE
from surefoot.state.machine.model import Input, Operation, Status

PAGE = Path(__file__).parents[2] / "docs" / "state-machine.md"
STATUSES: tuple[Status | None, ...] = (None, *get_args(Status))
INPUTS: tuple[type[Input], ...] = tuple(machine.WORDS)

#: what people say for an input of the machine
WORDS: dict[type[Input], str] = {
    model.StartRun: "start",
    model.Defer: "queue",
    model.CarryForward: "carry forward",
    model.StepReturned: "step returned",
    model.StepFailed: "step failed",
    model.BudgetExceeded: "budget spent",
    model.EntryRecorded: "call recorded",
    model.Park: "needs a person",
    model.TimedOut: "time over",
    model.ChildDone: "child over",
    **{row.input: row.word for row in COMMANDS.values()},
}

HEAD = """\
# The state machine of a run

Generated from the table in `state/machine/decide.py` by `python -m tests.generate.state_diagram`; a
test holds that this page is up to date, and another that every arrow is taken and no other one is.

Each arrow is one decision and one commit. What has no arrow is refused, and moves nothing; a
command is answered all the same, by one event with its id. A command that was taken before, or asks
for what is already so, is answered as repeated. `none` is a run that there is not (yet): signals
for it are kept.
"""


def words(event: type[Input]) -> str:
    return WORDS[event]


def arrows() -> dict[tuple[Status | None, Status | None], list[str]]:
    """From status to status: the inputs that can lead there, commands last."""
    made: dict[tuple[Status | None, Status | None], list[str]] = {}
    for status in STATUSES:
        for event in INPUTS:
            for after in STATUSES:
                if after in TABLE.get((status, event), ()):
                    made.setdefault((status, after), []).append(words(event))
    return made


def diagram() -> Iterator[str]:
    """What moves a run from one status to another; what leaves it there is in the table only."""
    yield "```mermaid"
    yield "stateDiagram-v2"
    for (status, after), labels in arrows().items():
        if after is not None and status != after:
            yield f"    {status or '[*]'} --> {after}: {', '.join(labels)}"
    for status in ("completed", "failed", "cancelled"):
        yield f"    {status} --> [*]"
    yield "```"


def table() -> Iterator[str]:
    yield "| input | " + " | ".join(str(status or "none") for status in STATUSES) + " |"
    yield "|---" * (len(STATUSES) + 1) + "|"
    for event in INPUTS:
        cells = (_cell(status, event) for status in STATUSES)
        name = f"**{words(event)}**" if issubclass(event, Operation) else words(event)
        yield f"| {name} | " + " | ".join(cells) + " |"


def _cell(status: Status | None, event: type[Input]) -> str:
    after = TABLE.get((status, event), frozenset())
    return ", ".join(str(each or "none") for each in STATUSES if each in after)


def page() -> str:
    legend = "Input by status, and what the status can be then; commands are bold."
    return "\n".join([HEAD, *diagram(), "", legend, "", *table(), ""])


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
