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
    """One page, newest first."""

    letters: Sequence[DeadLetter]
    #: offset to ask for the next, older page with; None: this is the last one
    older: int | None


class Overview(Protocol):
    """Read-only. Every method raises Unavailable while the log cannot be read."""

    async def standings(self) -> Sequence[AgentStanding]:
        """Return the standing of every agent, its pools, its schedules, and the outbox."""

    async def deliveries(
        self, *, source: str | None, outcome: DeliveryOutcome | None, limit: int
    ) -> Sequence[Delivery]:
        """Return the newest deliveries, newest first."""

    async def dead_letters(self, *, before: int | None, limit: int) -> DeadLetters:
        """Return the dead letters with an offset below `before`; None: the newest ones."""

    async def schedules(self, agent: str) -> Mapping[str, State]:
        """Return the schedules of an agent by name, as of everything committed so far."""
