"""Handles one delivery, from its raw bytes to the answer.

1. read the body, bounded; verify the signature first, over the raw bytes
2. only then decompress it, and read its id and event; the rest is parsed on demand
3. map it to runs (producers.webhooks.mapping), in one of its source's threads, with a time limit
4. write the start commands, and wait until they are durable
5. answer; and hand the outcome to the record of deliveries, which nobody waits for

Senders give up after 3 to 10 seconds, and then resend with the same id, so it is the same runs. A
2xx is returned only once every command has been acknowledged.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import structlog
from fastapi import Request, Response
from fastapi.responses import JSONResponse

from surefoot.producers.guards import (
    RETRY_AFTER_S,
    RequestRefused,
    headers_of,
    parse_body,
    read_body,
    trace_context,
)
from surefoot.producers.webhooks.mapping import MappedStart, Planned, Triggers, planned
from surefoot.producers.webhooks.mapping_threads import Hangs, MappingThreads
from surefoot.producers.webhooks.recorder import Arrival, Recorder, shown_headers
from surefoot.producers.webhooks.verification import ProviderSpec, SourceVerifier
from surefoot.schemas.payload import BadPayload
from surefoot.schemas.trace import Carried
from surefoot.state.declare.webhook_body import json_values
from surefoot.state.declare.webhooks import Webhook
from surefoot.state.errors import RecordTooLarge, Unavailable
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.deliveries import DeliveryOutcome
from surefoot.state.reading.ports import Commands
from surefoot.state.telemetry import metrics

log = structlog.get_logger(__name__)

#: recorded as source of deliveries to a source that no agent listens to
UNKNOWN = "unknown"

_GZIP = ("gzip", "x-gzip")
#: zlib's wbits for a gzip header and the largest window
_GZIP_BITS = 31


async def start_all(
    commands: Commands, starts: Iterable[MappedStart], *, trace: Carried, deadline_s: float
) -> None:
    """Write all start commands; returns once they are durable.

    All are tried, so one that fails does not affect the others.

    Raises: RecordTooLarge, Unavailable — resending the delivery starts only the missing runs.
    """
    sent = (
        commands.start(
            start.agent,
            start.run_id,
            start.payload,
            by=start.by,
            deadline_s=deadline_s,
            **trace,
        )
        for start in starts
    )
    for outcome in await asyncio.gather(*sent, return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Intake:
    """Handles the deliveries of every source."""

    doors: Mapping[str, SourceVerifier]
    triggers: Mapping[str, Triggers]
    #: by source, like the triggers
    threads: Mapping[str, MappingThreads]
    commands: Commands
    recorder: Recorder
    clock: Clock
    body_bytes: int
    #: whether a gzip body is accepted
    gzip: bool
    body_s: float
    start_s: float

    async def take(self, request: Request) -> Response:
        """Start the runs that a signed delivery asks for.

        202 {"runs": [{"agent", "run_id"}]} once Kafka has them all; 200 with "ignored" when no
        agent wants it. 422 names each agent whose mapping failed; the others' runs have been
        started, and resending the delivery starts only the missing ones.
        """
        source = request.path_params["source"]
        door = self.doors.get(source)
        arrival = Arrival(UNKNOWN) if door is None else Arrival(source, door.sender)
        record = partial(self._record, arrival)
        try:
            response = await self._taken(door, arrival, request)
        except RequestRefused as refused:
            log.warning(
                "delivery_refused",
                source=arrival.source,
                status=refused.status,
                reason=refused.why,
            )
            away = refused.status == HTTPStatus.SERVICE_UNAVAILABLE
            record("unavailable" if away else "refused", refused.status, refused.why)
            raise
        except Unavailable as error:
            record("unavailable", 503, str(error))
            raise
        except RecordTooLarge as error:
            record("failed", 413, str(error))
            raise
        record(_outcome(arrival), response.status_code)
        return response

    def _record(
        self, arrival: Arrival, outcome: DeliveryOutcome, status: int, reason: str | None = None
    ) -> None:
        metrics.WEBHOOKS.add(arrival.source, outcome)
        self.recorder.record(arrival, outcome, status, reason)

    async def _taken(
        self, door: SourceVerifier | None, arrival: Arrival, request: Request
    ) -> Response:
        if door is None:
            raise RequestRefused("SF5102", 404, "no agent listens to this webhook source")
        headers = headers_of(request)
        arrival.headers = shown_headers(headers, door.sender)
        arrival.body = await read_body(request, bytes_max=self.body_bytes, timeout_s=self.body_s)
        if door.sender.greets(headers, arrival.body):
            return Response()
        if fault := door.refuses(headers, arrival.body, self.clock.now_ms() // 1000):
            raise RequestRefused("SF5103", 401, "the signature is missing or wrong", why=fault)
        arrival.verified = True
        packed = "content-encoding" in headers
        delivery = await parse_body(
            self.body_bytes if packed else len(arrival.body),
            partial(read_webhook, bytes_max=self.body_bytes, gzip=self.gzip),
            arrival.source,
            door.sender,
            arrival.headers,
            arrival.body,
        )
        if (challenge := door.sender.answer(delivery)) is not None:
            return JSONResponse(challenge)
        arrival.delivery = delivery
        plan = arrival.plan = await self._map(delivery)
        await start_all(
            self.commands, plan.starts, trace=trace_context(request), deadline_s=self.start_s
        )
        return _answer(plan, quiet=door.sender.quiet)

    async def _map(self, delivery: Webhook) -> Planned:
        """Map the delivery.

        Raises: RequestRefused — 503, when it takes too long; a resent delivery is mapped again."""
        threads = self.threads[delivery.source]
        try:
            return await threads.run(planned, self.triggers[delivery.source], delivery)
        except Hangs:
            log.warning(
                "mapping_hangs",
                source=delivery.source,
                delivery=delivery.id,
                agents=[agent.name for agent, _ in self.triggers[delivery.source]],
                threads_hanging=threads.hanging,
                advice="a mapping must decide from the delivery alone; do the work in a step",
            )
            message = "the mappings of this source take too long; try again"
            headers = {"Retry-After": str(RETRY_AFTER_S)}
            raise RequestRefused("SF5179", 503, message, headers) from None


def read_webhook(
    source: str,
    sender: ProviderSpec,
    headers: Mapping[str, str],
    body: bytes,
    *,
    bytes_max: int,
    gzip: bool,
) -> Webhook:
    """Read a verified delivery; `headers` has no credentials.

    Args:   bytes_max: limit of the body, decompressed; gzip: whether a gzip body is accepted
    Raises: RequestRefused — the body cannot be decompressed, or there is no id
    """
    encoding = headers.get("content-encoding", "identity").strip().lower()
    if encoding != "identity":
        if not gzip or encoding not in _GZIP:
            raise RequestRefused("SF5109", 415, "send the body without a Content-Encoding")
        body = gunzip(body, bytes_max)
        headers = {name: text for name, text in headers.items() if name != "content-encoding"}
    values, unreadable = None, ""
    if sender.reads:
        try:
            values = json_values(headers.get("content-type", ""), body)
        except BadPayload as error:
            unreadable = error.reason
    id_, event = sender.name(headers, body, values)
    if not id_.strip():
        if unreadable:
            raise RequestRefused("SF5105", 400, unreadable)
        raise RequestRefused("SF5104", 400, f"{sender.id_is} is missing")
    read = {} if values is None else {"json": values}
    return Webhook(source=source, id=id_, event=event, headers=headers, body=body, **read)


def gunzip(body: bytes, bytes_max: int) -> bytes:
    """Decompress a gzip body. Never produces more than `bytes_max` + 1 bytes.

    Raises: RequestRefused
    """
    unpacking = zlib.decompressobj(wbits=_GZIP_BITS)
    try:
        made = unpacking.decompress(body, bytes_max + 1)
    except zlib.error as error:
        raise RequestRefused("SF5178", 400, f"the body cannot be decompressed: {error}") from None
    if len(made) > bytes_max:
        raise RequestRefused(
            "SF5178", 413, f"the decompressed body is longer than {bytes_max} bytes"
        )
    if not unpacking.eof or unpacking.unused_data:
        raise RequestRefused(
            "SF5178", 400, "the body cannot be decompressed: it is not one whole gzip stream"
        )
    return made


def _outcome(arrival: Arrival) -> DeliveryOutcome:
    if arrival.delivery is None:
        return "answered"
    if arrival.plan.errors:
        return "failed"
    return "started" if arrival.plan.starts else "ignored"


def _answer(plan: Planned, *, quiet: bool) -> Response:
    runs = [{"agent": start.agent, "run_id": start.run_id} for start in plan.starts]
    if plan.errors:
        told = [{"agent": name, "error": error} for name, error in plan.errors.items()]
        message = "SF5108: the delivery does not fit every agent that listens to it"
        return JSONResponse({"error": message, "runs": runs, "errors": told}, 422)
    if quiet:
        return Response()
    if not runs:
        return JSONResponse({"runs": [], "ignored": True}, 200)
    return JSONResponse({"runs": runs}, 202)
