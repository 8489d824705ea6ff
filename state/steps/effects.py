"""The kinds of side effects: what is stored of one until its step has committed, which step of the
outbox then delivers it, and its retry policy.

A new kind is a type here, and what delivers it: a consumers.builtin.outbox.EffectDelivery.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from surefoot.state.declare.retry import Retry
from surefoot.state.steps.http_effect import HttpEffect
from surefoot.state.steps.webhook_effect import WebhookEffect

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectKind(Generic[T]):
    #: of the outbox; stored with each effect, so it is never renamed
    step: str
    stored: TypeAdapter[T]
    retry: Retry


#: what `ctx.outbox.http` asks for
HTTP = EffectKind(
    step="deliver_effect",
    stored=TypeAdapter(HttpEffect),
    retry=Retry(attempts=15, initial_s=0.5, max_s=300.0),
)
#: what a subscription to an agent's events makes
WEBHOOK = EffectKind(
    step="deliver_hook",
    stored=TypeAdapter(WebhookEffect),
    # over two days and a half: 1 s, 5 s, ... 4.3 h, then every 12 hours
    retry=Retry(attempts=13, initial_s=1.0, multiplier=5.0, max_s=12 * 3600.0),
)
#: the first is that of an effect which names no step
EFFECT_KINDS = (HTTP, WEBHOOK)
