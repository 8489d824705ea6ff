"""The runs of one partition, as its state topic tells them. Pure; one owner, no locks.

`live` has the runs that are not over. A run that is over shrinks to a receipt, which answers a
repeated start until the dedup window has passed and is then tombstoned. A checkpoint that cannot be
decoded costs that one run, never the partition: its id stands in `broken` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice, takewhile

from surefoot.schemas.codec import UndecodableError
from surefoot.state.model import Run, Status
from surefoot.state.ports import In
from surefoot.state.topics import APPLIED_KEY
from surefoot.state.wire import decode_applied, decode_checkpoint


@dataclass(frozen=True, slots=True)
class Receipt:
    """What is kept of a run that is over."""

    status: Status
    seq: int
    input_digest: bytes
    updated_ms: int


class RunStore:
    """Fold of one state partition; `apply` on restore, `put` after each commit."""

    def __init__(self) -> None:
        self.live: dict[str, Run] = {}
        self.receipts: dict[str, Receipt] = {}
        self.broken: dict[str, str] = {}
        #: input offsets (next to read) that the state includes
        self.applied: dict[str, int | None] = {}

    def apply(self, records: Iterable[In]) -> None:
        """Take in committed records of the state topic, in the order of their offsets."""
        for record in records:
            if record.key == APPLIED_KEY:
                self.applied = decode_applied(record.value)
            elif record.key is not None and not record.key.startswith(b"@"):
                self._apply_run(record.key.decode("utf-8", "backslashreplace"), record.value)

    def _apply_run(self, run_id: str, value: bytes | None) -> None:
        self.forget(run_id)
        if value is None:
            return
        try:
            run = decode_checkpoint(value)
        except UndecodableError as error:
            self.broken[run_id] = str(error)
            return
        self.put(run)

    def put(self, run: Run) -> None:
        """The run's newest committed state."""
        self.broken.pop(run.run_id, None)
        if run.terminal:
            self.live.pop(run.run_id, None)
            self.receipts[run.run_id] = Receipt(
                run.status, run.seq, run.input_digest, run.updated_ms
            )
        else:
            self.live[run.run_id] = run

    def forget(self, run_id: str) -> None:
        """The run has been tombstoned."""
        self.live.pop(run_id, None)
        self.receipts.pop(run_id, None)
        self.broken.pop(run_id, None)

    def expired(self, before_ms: int, most: int = 256) -> list[str]:
        """Receipts last touched before that time, at most so many. They stand in the order in which
        runs ended, so this stops at the first one that is still needed."""
        old = takewhile(lambda item: item[1].updated_ms < before_ms, self.receipts.items())
        return [run_id for run_id, _ in islice(old, most)]
