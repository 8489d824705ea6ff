"""Outgoing webhooks: events of a topic become runs of the outbox, which sign and send them.

Each subscription has a consumer group of its own on its agent's events. A chosen event becomes one
start command of the outbox, in the transaction that commits the event's offset
(consumers.topic_triggers.owner): exactly one, whatever fails. Its run_id names the event and the
subscription.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.consumers.builtin.outbox import send
from surefoot.consumers.builtin.signing import Sign, secret_variable
from surefoot.consumers.topic_triggers.mapping import (
    EventMapping,
    FramedEvent,
    Mapped,
    Schemas,
    source_header,
)
from surefoot.schemas.codec.codec import UndecodableError, decode
from surefoot.schemas.payload import Unserialisable, dump
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.retry import Retry, retry_after_s
from surefoot.state.declare.subscriptions import Subscription, WebhookMessage
from surefoot.state.declare.topics import EventTrigger
from surefoot.state.errors import RetryableError, TerminalError
from surefoot.state.machine.model import Failure
from surefoot.state.names.topics import OUTBOX
from surefoot.state.ports.clock import Clock
from surefoot.state.ports.http import Deliver, HttpRequest, HttpResponse
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.reading.runs import event_json
from surefoot.state.records.encoding import Wire, command_out
from surefoot.state.records.sizes import record_size
from surefoot.state.steps.context import Context
from surefoot.state.steps.effects import WEBHOOK
from surefoot.state.steps.results import Done
from surefoot.state.steps.webhook_effect import WebhookEffect

#: how a receiver says that it wants no more
GONE = 410


@dataclass(frozen=True, slots=True, kw_only=True)
class HookMapping(EventMapping):
    """Maps the events of an agent to webhooks, for one subscription."""

    subscription: Subscription

    def map(self, event: FramedEvent, now_ms: int) -> Mapped:
        record = event.record
        try:
            told = event_json(decode(record.value, "Event")[1])
            failure: Any = told["failure"]
            if failure is not None:  # the layout of the code is not for outsiders
                del failure["frames"]
            message = self.subscription.message(told, (record.partition, record.offset))
        except UndecodableError as error:
            return self.dead(record, Failure(code="undecodable", message=str(error)))
        except Unserialisable as error:
            return self.dead(record, Failure(code="unserialisable", message=str(error)))
        except BaseException as error:  # noqa: BLE001  (the author's; the other events go on)
            why = f"subscription {self.subscription.name}: {type(error).__name__}: {error}"
            return self.dead(record, Failure(code="mapping_raised", message=why))
        if message is None:
            return Mapped(None)
        out = self._delivery(event, message, now_ms)
        if (size := record_size(out)) > self.record_bytes:
            why = f"a webhook of {size} bytes is over the limit of {self.record_bytes}"
            return self.dead(record, Failure(code="too_large", message=why))
        return Mapped(out)

    def _delivery(self, event: FramedEvent, message: WebhookMessage, now_ms: int) -> ProducerRecord:
        hook = self.subscription
        effect = WebhookEffect(hook=hook.name, url=hook.url, id=message.id, body=message.body)
        return command_out(
            self.wire.app,
            self.wire.partitions,
            OUTBOX,
            run_id=f"{message.id}:{hook.name}",
            kind="start",
            step=WEBHOOK.step,
            payload=dump(WEBHOOK.stored, effect),
            sent_ms=now_ms,
            headers=(("sf-src", source_header(event.record)),),
        )


def hook_mapping(
    agent: Agent, subscription: Subscription, wire: Wire, record_bytes: int
) -> HookMapping:
    """Return the mapping of `agent`'s events to webhooks; `wire` has the agent's topics."""
    trigger = EventTrigger(
        topic=wire.topics.events, fn=_untyped, event_type=bytes, start=subscription.start
    )
    return HookMapping(
        agent=agent,
        trigger=trigger,
        wire=wire,
        schemas=Schemas(trigger, None),
        record_bytes=record_bytes,
        subscription=subscription,
    )


def _untyped(event: bytes) -> bytes:
    """Pass on our own events undecoded."""
    return event


@dataclass(frozen=True, slots=True)
class WebhookDelivery:
    """Sends webhooks that subscriptions have made: `signers` sign, by name of the subscription."""

    port: Deliver
    clock: Clock
    signers: Mapping[str, Sequence[Sign]]
    retry: Retry = WEBHOOK.retry
    kind = WEBHOOK

    async def deliver(self, ctx: Context, hook: WebhookEffect, /) -> Done:
        request = signed_request(hook, self.signers, self.clock.now_ms())
        response = await send(ctx, self.port, request)
        return Done({"status": judge_hook(response, self.clock.now_ms())})


def signed_request(
    hook: WebhookEffect, signers: Mapping[str, Sequence[Sign]], now_ms: int
) -> HttpRequest:
    """Return the request to send now: each attempt has its own time, and so its own signature.

    Raises: RetryableError — the relay has no secret for it.
    """
    if hook.hook not in signers:
        raise RetryableError(
            f"no secret for {hook.hook}: set {secret_variable(hook.hook)} where the relay runs"
        )
    now_s = now_ms // 1000
    signatures = [sign(hook.id, now_s, hook.body) for sign in signers[hook.hook]]
    return HttpRequest(
        method="POST",
        url=hook.url,
        headers={
            "Content-Type": "application/json",
            "User-Agent": "surefoot",
            "webhook-id": hook.id,
            "webhook-timestamp": str(now_s),
            "webhook-signature": " ".join(signatures),
        },
        body=hook.body.encode(),
    )


def judge_hook(response: HttpResponse, now_ms: int) -> int:
    """Return the status of an accepted delivery. The response is not shown: it is the receiver's.

    Raises: RetryableError — anything but 2xx, redirects included; TerminalError — 410, no more
    wanted.
    """
    status = response.status
    if 200 <= status < 300:  # noqa: PLR2004
        return status
    if status == GONE:
        raise TerminalError(
            "the receiver answered 410 and wants no more events; remove the subscription"
        )
    raise RetryableError(
        f"the receiver answered {status}", retry_after_s=retry_after_s(response.headers, now_ms)
    )
