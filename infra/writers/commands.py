"""Writes commands for runs to the log: how producers of every kind start and control runs."""

from __future__ import annotations

import asyncio
from typing import Any

from surefoot.infra.blobs.stores import open_claims
from surefoot.infra.log.ports import Appender
from surefoot.infra.runtime.settings import Settings
from surefoot.state.errors import Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.log import Position
from surefoot.state.records.encoding import command_out


class LogCommands:
    """Implements state.reading.ports.Commands."""

    def __init__(self, settings: Settings, appender: Appender, clock: Clock) -> None:
        """Open the store of large payloads.

        Raises: ConfigError — the configured store cannot be used.
        """
        self._settings = settings
        self._appender = appender
        self._clock = clock
        self._claims = open_claims(settings, clock)

    async def start(
        self,
        agent: str,
        run_id: str,
        payload: bytes,
        *,
        traceparent: str | None = None,
        tracestate: str | None = None,
        baggage: str | None = None,
        by: str | None = None,
        deadline_s: float,
    ) -> Position:
        """Start a run; see `send`. The same run_id again is the same run."""
        return await self.send(
            agent,
            run_id,
            "start",
            payload=payload,
            traceparent=traceparent,
            tracestate=tracestate,
            baggage=baggage,
            by=by,
            deadline_s=deadline_s,
        )

    async def send(
        self,
        agent: str,
        run_id: str,
        kind: str,
        *,
        payload: bytes = b"null",
        stored: bool = False,
        deadline_s: float,
        **fields: Any,
    ) -> Position:
        """Write a command, and wait until it is durable (on Kafka: on all in-sync replicas).

        Args: payload: as it came from outside, or, with `stored`, as it already is in the log;
            deadline_s: bounds the storing of a large payload and the write, each.
        Raises: RecordTooLarge — nothing was written; Unavailable — it may or may not have been
            written, or may still be once the log is back: repeat it with the same `id`.
        Under cancellation: as for Unavailable.
        """
        if not stored:
            payload = await self._stowed(payload, deadline_s)
        out = command_out(
            self._settings.app,
            self._settings.partitions,
            agent,
            run_id=run_id,
            kind=kind,
            payload=payload,
            sent_ms=self._clock.now_ms(),
            **fields,
        )
        what = f"the {kind} command of {run_id}"
        return await self._appender.append(out, what, deadline_s=deadline_s)

    async def _stowed(self, payload: bytes, deadline_s: float) -> bytes:
        try:
            async with asyncio.timeout(deadline_s):
                return await self._claims.stow(payload)
        except TimeoutError as error:
            raise Unavailable(
                "SF3014", f"a large payload was not stored in {deadline_s:g} s"
            ) from error

    async def stop(self) -> None:
        """Close the appender. Safe to call twice."""
        await self._appender.stop()
