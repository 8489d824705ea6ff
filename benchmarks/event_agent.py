"""The agent whose runs are started from events; its steps are not run here."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot import Agent, Context, Done
from surefoot.infra.runtime.settings import load_settings


def topic_of(app: str, kind: str) -> str:
    """The topic with events of that encoding."""
    return f"{app}-events-{kind}"


APP = load_settings().app
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "total", "type": "int"},
        {"name": "items", "type": {"type": "array", "items": "string"}},
        {"name": "note", "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True)
class Order:
    id: str
    total: int
    items: list[str]
    note: str


agent = Agent("bench")


@agent.step
async def ship(ctx: Context, order: Order) -> Done:  # noqa: ARG001  (a step takes both)
    return Done()


@agent.on_event(topic=topic_of(APP, "json"), start="earliest", where=lambda order: order.total >= 0)
def on_json(order: Order) -> Order:
    return order


@agent.on_event(
    topic=topic_of(APP, "avro"),
    schema=SCHEMA,
    start="earliest",
    where=lambda order: order.total >= 0,
)
def on_avro(order: Order) -> Order:
    return order
