"""The demo's output: a live panel on a terminal, else a line every few seconds, and the verdict.

Lines also replace the panel where CI is set. The verdict goes to stdout, all else to stderr.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from rich.live import Live
from rich.table import Table

from surefoot.infra.demo.auditor import Report
from surefoot.infra.demo.deliveries import SentOutcome
from surefoot.infra.demo.progress import Progress
from surefoot.infra.runtime.terminal import plain_console, printable

_LINE_EVERY_S = 5.0
_FRAMES_PER_S = 4
#: findings that are printed; the rest is counted
_FINDINGS_SHOWN = 20


class Display:
    """`async with Display(...).shown()`: shows the progress while the block runs."""

    def __init__(
        self,
        progress: Progress,
        outcome: SentOutcome,
        *,
        deliveries: int,
        monotonic_s: Callable[[], float],
    ) -> None:
        self._progress = progress
        self._outcome = outcome
        self._deliveries = deliveries
        self._monotonic_s = monotonic_s
        self._began_s = monotonic_s()
        self._console = plain_console(stderr=True)

    def say(self, line: str) -> None:
        self._console.print(f"[{self._elapsed_s():5.1f} s] {printable(line)}", soft_wrap=True)

    @asynccontextmanager
    async def shown(self) -> AsyncIterator[None]:
        live = self._console.is_terminal and not os.environ.get("CI")
        showing = asyncio.create_task(self._live() if live else self._lines())
        try:
            yield
        finally:
            showing.cancel()
            with suppress(asyncio.CancelledError):
                await showing

    async def _lines(self) -> None:
        while True:
            await asyncio.sleep(_LINE_EVERY_S)
            self.say("  ".join(f"{name}: {value}" for name, value in self._rows()))

    async def _live(self) -> None:
        with Live(self._table(), console=self._console, auto_refresh=False) as live:
            try:
                while True:
                    live.update(self._table(), refresh=True)
                    await asyncio.sleep(1 / _FRAMES_PER_S)
            finally:
                live.update(self._table(), refresh=True)

    def _table(self) -> Table:
        table = Table(box=None, show_header=False)
        table.add_column(style="bold")
        table.add_column()
        table.add_row("elapsed", f"{self._elapsed_s():.0f} s")
        for name, value in self._rows():
            table.add_row(name, value)
        return table

    def _rows(self) -> list[tuple[str, str]]:
        progress, outcome = self._progress, self._outcome
        statuses = ", ".join(f"{n} {name}" for name, n in sorted(progress.by_status().items()))
        back = [kill for kill in progress.kills if kill.recovered_s is not None]
        took = ", ".join(f"{kill.recovered_s:.1f} s" for kill in back)
        return [
            ("deliveries", f"{len(outcome.accepted)}/{self._deliveries} accepted"),
            ("runs", statuses or "none yet"),
            ("steps", f"{progress.steps} committed, {progress.steps_per_s:.0f}/s (paced)"),
            ("effects", f"{len(progress.delivered)}/{len(progress.effects)} delivered"),
            ("kills", f"{len(progress.kills)}"),
            ("recoveries", f"{len(back)}" + (f" ({took})" if took else "")),
        ]

    def _elapsed_s(self) -> float:
        return self._monotonic_s() - self._began_s


def print_report(figures: Mapping[str, Any], report: Report, faults: Sequence[str]) -> None:
    """Print the table, and everything that is wrong."""
    console = plain_console()
    console.print(
        "audit of the topics and of the tracker's requests; the demo's pace limits steps_per_s"
    )
    table = Table()
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in figures.items():
        table.add_row(name, printable(str(value)))
    console.print(table)
    for finding in report.findings[:_FINDINGS_SHOWN]:
        console.print(f"{finding.kind}: {printable(finding.what)}", soft_wrap=True)
    if len(report.findings) > _FINDINGS_SHOWN:
        console.print(f"... and {len(report.findings) - _FINDINGS_SHOWN} more findings")
    for fault in faults:
        console.print(f"fault: {printable(fault)}", soft_wrap=True)
    console.print("nothing lost, nothing doubled" if not faults else "the demo has FAILED")
