"""What an operator looks at besides runs: implemented in infra, shown by the gateway, the terminal
and the dashboard."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from surefoot.state.machine.model import State
from surefoot.state.reading.dead_letters import DeadLetter
from surefoot.state.reading.deliveries import Delivery, DeliveryOutcome
from surefoot.state.reading.lag import AgentStanding


class DeadLetters(NamedTuple):
    """One page, the newest first."""

    letters: Sequence[DeadLetter]
    #: offset to ask for what is older than this page; None: there is nothing older
    older: int | None


class Overview(Protocol):
    """Reads only. Every method raises Unavailable when the log cannot be read just now."""

    async def standings(self) -> Sequence[AgentStanding]:
        """Of every agent, its pools, its schedules, and the outbox."""

    async def deliveries(
        self, *, source: str | None, outcome: DeliveryOutcome | None, limit: int
    ) -> Sequence[Delivery]:
        """The newest first."""

    async def dead_letters(self, *, before: int | None, limit: int) -> DeadLetters:
        """Those with an offset below `before`; None: from the newest on."""

    async def schedules(self, agent: str) -> Mapping[str, State]:
        """Those of one agent by name, as of everything that is committed by now."""
