"""The outbox: a built-in agent whose run is one effect.

The run_id is the effect's idempotency key, so deduplication, retries with backoff, takeover and
dead letters are those of every run. It guarantees: each committed effect is requested at least
once, always with the same Idempotency-Key and body, never before its step has committed, in the
order in which its run asked for it. A target that honours the key acts once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from surefoot.schemas.trace import carried_on
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.flow_control import Flow
from surefoot.state.declare.retry import Retry, retry_after_s
from surefoot.state.errors import OwnershipLost, RetryableError, TerminalError
from surefoot.state.names.topics import OUTBOX
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.http import Deliver, HttpRequest, HttpResponse
from surefoot.state.steps.context import Context
from surefoot.state.steps.effects import EFFECT_KINDS, HTTP, EffectKind
from surefoot.state.steps.http_effect import FRAMING, KEY_HEADER, HttpEffect, worth_another
from surefoot.state.steps.results import Done

#: characters shown of a redirect's location
_PLACE_MAX = 200
_OWN_HEADERS = FRAMING | {KEY_HEADER.lower()}

P = TypeVar("P")
A = TypeVar("A")


class EffectDelivery(Protocol):
    """What delivers the effects of one kind, through a port."""

    @property
    def kind(self) -> EffectKind[Any]: ...

    @property
    def retry(self) -> Retry:
        """That of its kind, unless somebody is in a hurry."""

    async def deliver(self, ctx: Context, effect: Any, /) -> Done:
        """The receipt. Raises: RetryableError, TerminalError — it was not taken."""


def outbox_agent(*deliveries: EffectDelivery) -> Agent:
    """The agent that delivers effects of these kinds."""
    agent = Agent(OUTBOX, flow=Flow(concurrency=1))
    for each in deliveries:
        step, start = each.kind.step, each.kind is EFFECT_KINDS[0]
        agent.step(name=step, start=start, retry=each.retry)(each.deliver)
    return agent


async def send(ctx: Context, port: Callable[[P], Awaitable[A]], request: P) -> A:
    """A frozen process that wakes up may have lost the partition long ago: without a valid lease
    nothing is sent. What is left is the time from here to the socket."""
    if ctx.lease_left_s() <= 0:
        raise OwnershipLost
    return await port(request)


@dataclass(frozen=True, slots=True)
class HttpDelivery:
    """Sends HTTP requests that steps have asked for."""

    port: Deliver
    clock: Clock
    retry: Retry = HTTP.retry
    kind = HTTP

    async def deliver(self, ctx: Context, effect: HttpEffect, /) -> Done:
        headers = {n: v for n, v in effect.headers.items() if n.lower() not in _OWN_HEADERS}
        headers[KEY_HEADER] = ctx.run_id
        headers |= _carried(ctx, {name.lower() for name in headers})
        request = HttpRequest(
            method=effect.method, url=effect.url, headers=headers, body=effect.body.encode()
        )
        response = await send(ctx, self.port, request)
        return Done(judge_response(effect, response, ctx.attempt, self.clock.now_ms()))


def _carried(ctx: Context, own: Collection[str]) -> dict[str, str]:
    """Return trace context and baggage, except what the step has set itself."""
    traceparent = None if "traceparent" in own else ctx.traceparent
    found: Mapping[str, Any] = carried_on(traceparent, ctx.tracestate, ctx.baggage)
    return {name: text for name, text in found.items() if name not in own}


def judge_response(
    effect: HttpEffect, response: HttpResponse, attempt: int, now_ms: int
) -> dict[str, int]:
    """Return the receipt of an accepted delivery.

    Raises: RetryableError, TerminalError — it was not accepted."""
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004
        return {"status": status}
    message = f"the target answered {status}"
    if status < 400 and (where := _header(response, "location")):  # noqa: PLR2004
        message += f", a redirect to {_place(where)}; redirects are not followed, so use that URL"
    if effect.keep_body and response.body:
        message += f": {response.body.decode('utf-8', 'replace')}"
    if worth_another(effect, status, attempt):
        raise RetryableError(message, retry_after_s=retry_after_s(response.headers, now_ms))
    raise TerminalError(message)


def _place(location: str) -> str:
    """Return the location without query and fragment, which may contain a session or a login."""
    shown = location.partition("?")[0].partition("#")[0]
    return shown if len(shown) <= _PLACE_MAX else f"{shown[:_PLACE_MAX]}…"


def _header(response: HttpResponse, name: str) -> str | None:
    return next((v for k, v in response.headers.items() if k.lower() == name), None)
