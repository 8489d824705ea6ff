"""Maps a delivery to runs, through the authors' mappings.

The result depends only on the delivery, as do the mappings: the same delivery, resent or mapped
again, names the same runs. The mappings are user code and may be slow; call this in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog

from surefoot.schemas.payload import BadPayload, Unserialisable, dump
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.callables import finished
from surefoot.state.declare.webhooks import STARTS_MAX, Start, Webhook, WebhookTrigger
from surefoot.state.names.ids import run_id_for, told_by

log = structlog.get_logger(__name__)

Triggers = Sequence[tuple[Agent, WebhookTrigger]]


@dataclass(frozen=True, slots=True)
class MappedStart:
    """One run to start."""

    agent: str
    run_id: str
    payload: bytes
    #: the sender's name for it, where the run_id differs
    by: str | None = None


@dataclass(frozen=True, slots=True)
class Planned:
    """The runs that a delivery asks for, and errors by agent."""

    starts: list[MappedStart] = field(default_factory=list)
    errors: dict[str, str] = field(default_factory=dict)


class _Misfit(ValueError):
    """A mapping returned something invalid; the message is for the author."""


def by_source(agents: Iterable[Agent]) -> dict[str, list[tuple[Agent, WebhookTrigger]]]:
    """Return the agents' triggers by source, in the order of declaration."""
    found: dict[str, list[tuple[Agent, WebhookTrigger]]] = {}
    for agent in agents:
        for trigger in agent.webhooks:
            found.setdefault(trigger.source, []).append((agent, trigger))
    return found


def planned(triggers: Triggers, delivery: Webhook) -> Planned:
    """Map the delivery.

    Of an agent's triggers, the first one that wants the delivery decides; a mapping that fails
    affects only its own agent's runs."""
    plan = Planned()
    decided: set[str] = set()
    for agent, trigger in triggers:
        if agent.name in decided:
            continue
        try:
            starts = _mapped(agent, trigger, delivery)
        except (_Misfit, Unserialisable) as error:
            decided.add(agent.name)
            plan.errors[agent.name] = str(error)
        except BadPayload as error:
            decided.add(agent.name)
            plan.errors[agent.name] = (
                f"the webhook mapping cannot read the delivery: {error.reason}"
            )
        except BaseException as error:
            decided.add(agent.name)
            plan.errors[agent.name] = f"the webhook mapping raised {type(error).__name__}"
            log.exception("mapping_failed", agent=agent.name, delivery=delivery.id)
        else:
            if starts:
                decided.add(agent.name)
                plan.starts.extend(starts)
    return plan


def _mapped(agent: Agent, trigger: WebhookTrigger, delivery: Webhook) -> list[MappedStart]:
    if trigger.events is not None and delivery.event not in trigger.events:
        return []
    if trigger.where is not None and not finished(trigger.where(delivery)):
        return []
    value = finished(trigger.fn(delivery))
    if value is None:
        return []
    starts = value if _is_batch(value) else [value]
    if len(starts) > STARTS_MAX:
        raise _Misfit(f"the delivery starts {len(starts)} runs; at most {STARTS_MAX} are allowed")
    made = [
        _started(agent, delivery, start, number if starts is value else None)
        for number, start in enumerate(starts)
    ]
    if len({start.run_id for start in made}) != len(made):
        raise _Misfit("two runs of one delivery have the same id")
    return made


def _is_batch(value: Any) -> bool:
    """Whether a list is a batch: it is empty or contains Starts. Any other list is a payload."""
    if not isinstance(value, list) or not value:
        return isinstance(value, list)
    starts = sum(isinstance(each, Start) for each in value)
    if 0 < starts < len(value):
        raise _Misfit("a list that contains a Start must contain nothing else")
    return starts > 0


def _started(agent: Agent, delivery: Webhook, value: Any, number: int | None) -> MappedStart:
    start = value if isinstance(value, Start) else Start(value)
    if start.id is not None:
        name = start.id
    else:
        name = delivery.id if number is None else f"{delivery.id}.{number}"
    step = agent.start_step
    told = f"{delivery.source}-{name}" if name else ""
    try:
        run_id = run_id_for(told)
    except ValueError as error:
        raise _Misfit(str(error)) from None
    try:
        payload = dump(step.adapter, start.payload)
    except Unserialisable as error:
        raise _Misfit(f"payload of {step.name}: {error}") from None
    try:
        return MappedStart(
            agent.name, agent.name_run(run_id, payload), payload, told_by(told, run_id)
        )
    except ValueError as error:
        raise _Misfit(str(error)) from None
