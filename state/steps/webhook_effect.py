"""A webhook that goes out, as an effect."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookEffect:
    """One webhook that the outbox sends. The secret is not in it: the relay knows that by name."""

    hook: str
    url: str
    id: str
    body: str
