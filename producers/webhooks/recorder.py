"""Records each delivery, so that operators can see what came and why it was refused.

The record is offered to the log without waiting: it neither delays nor endangers the answer.
Anybody can send a delivery without a valid signature: little of it is kept, and only a few per
minute, so that strangers cannot fill a disk.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from surefoot.producers.guards import Allowance
from surefoot.producers.webhooks.mapping import Planned
from surefoot.producers.webhooks.verification import ProviderSpec
from surefoot.state.declare.webhooks import Webhook
from surefoot.state.ports.clock import Clock
from surefoot.state.reading.deliveries import Delivery, DeliveryLog, DeliveryOutcome

#: names of headers that neither mappings nor records may see
_CREDENTIALS = re.compile(
    r"authorization|cookie|signature|secret|token|password|credential|api-?key", re.IGNORECASE
)
#: headers kept of unverified deliveries, and how much of each
_OF_STRANGERS = ("content-type", "user-agent")
_CHARACTERS_MAX = 200
#: refused deliveries that are recorded: a burst of so many, then one per so many seconds
REFUSED_BURST = 30
REFUSED_EVERY_S = 10.0


def shown_headers(headers: Mapping[str, str], sender: ProviderSpec) -> dict[str, str]:
    """Return the headers without credentials.

    Removes signatures, and headers whose names look like credentials, except those that name the
    delivery."""
    return {
        name: value
        for name, value in headers.items()
        if name not in sender.signature_headers
        and (name in sender.naming_headers or not _CREDENTIALS.search(name))
    }


@dataclass(slots=True)
class Arrival:
    """What is known of one delivery so far."""

    source: str
    #: None: no agent listens there
    sender: ProviderSpec | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    #: whether its signature has been verified
    verified: bool = False
    #: set once it has been read
    delivery: Webhook | None = None
    plan: Planned = field(default_factory=Planned)


@dataclass(slots=True)
class Recorder:
    """Makes the records of one gateway."""

    log: DeliveryLog
    clock: Clock
    _strangers: Allowance = field(init=False)

    def __post_init__(self) -> None:
        self._strangers = Allowance(self.clock, REFUSED_BURST, REFUSED_EVERY_S)

    def record(
        self, arrival: Arrival, outcome: DeliveryOutcome, status: int, reason: str | None = None
    ) -> None:
        """Offer the record of a delivery once its outcome is known. Never waits, never raises."""
        if not arrival.verified and not self._strangers.take():
            return
        delivery = arrival.delivery
        headers = arrival.headers
        if not arrival.verified:
            headers = _of_a_stranger(arrival)
        made = Delivery(
            id=self.clock.unique(),
            source=arrival.source,
            at_ms=self.clock.now_ms(),
            outcome=outcome,
            status=status,
            reason=reason,
            verified=arrival.verified,
            delivery=delivery.id if delivery is not None else None,
            event=delivery.event if delivery is not None else None,
            headers=tuple(headers.items()),
            body=arrival.body if arrival.verified else None,
            body_bytes=len(arrival.body),
            runs=tuple((start.agent, start.run_id) for start in arrival.plan.starts),
            errors=tuple(f"{agent}: {error}" for agent, error in arrival.plan.errors.items()),
            unrecorded=self._strangers.left_out(),
        )
        self.log.offer(made)


def _of_a_stranger(arrival: Arrival) -> dict[str, str]:
    names = arrival.sender.naming_headers if arrival.sender is not None else frozenset()
    return {
        name: value[:_CHARACTERS_MAX]
        for name, value in arrival.headers.items()
        if name in names or name in _OF_STRANGERS
    }
