"""What runs a delivery becomes: one, several, none; always the same ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import structlog

from surefoot import Agent, Context, Done, Flow, Start, Webhook
from surefoot.producers.webhooks.mapping import Planned, by_source, planned
from surefoot.state.declare.webhooks import STARTS_MAX
from surefoot.state.names.partitioner import affinity

DELIVERY = Webhook(
    source="github",
    id="d-1",
    event="issues",
    headers={},
    body=b'{"numbers": [1, 2, 3]}',
    json={"numbers": [1, 2, 3]},
)


@dataclass
class Item:
    number: int


def agent_with(fn: Callable[[Webhook], Any], name: str = "a", **options: Any) -> Agent:
    agent = Agent(name)

    @agent.step
    async def first(ctx: Context, item: Item) -> Done:
        return Done()

    agent.webhook("github", **options)(fn)
    return agent


def plan(*agents: Agent, delivery: Webhook = DELIVERY) -> Planned:
    return planned(by_source(agents)["github"], delivery)


def runs(made: Planned) -> dict[str, Any]:
    assert made.errors == {}
    return {start.run_id: json.loads(start.payload) for start in made.starts}


def test_a_payload_is_one_run_called_after_the_delivery() -> None:
    assert runs(plan(agent_with(lambda _: Item(1)))) == {"github-d-1": {"number": 1}}


def test_a_list_of_starts_is_a_run_each_called_after_the_delivery_and_the_place_in_it() -> None:
    agent = agent_with(lambda delivery: [Start(Item(n)) for n in delivery.json["numbers"]])
    assert runs(plan(agent)) == {
        "github-d-1.0": {"number": 1},
        "github-d-1.1": {"number": 2},
        "github-d-1.2": {"number": 3},
    }
    assert plan(agent) == plan(agent)


def test_a_start_may_have_an_id_of_its_own() -> None:
    agent = agent_with(lambda _: [Start(Item(7), id="order-7"), Start(Item(8))])
    assert runs(plan(agent)) == {"github-order-7": {"number": 7}, "github-d-1.1": {"number": 8}}
    alone = agent_with(lambda _: Start(Item(7), id="order-7"))
    assert runs(plan(alone)) == {"github-order-7": {"number": 7}}
    assert runs(plan(agent_with(lambda _: Start(Item(7))))) == {"github-d-1": {"number": 7}}


def test_a_start_may_have_any_id_and_it_is_kept() -> None:
    agent = agent_with(lambda _: [Start(Item(7), id="a/b"), Start(Item(8), id="a b")])
    made = plan(agent)
    assert [start.by for start in made.starts] == ["github-a/b", "github-a b"]
    assert [start.run_id[:11] for start in made.starts] == ["github-a-b-"] * 2
    assert len(runs(made)) == 2
    assert plan(agent) == made


def test_an_id_as_long_as_may_be_still_names_the_runs_of_a_batch_and_of_a_flow() -> None:
    longest = "d" * (256 - len("github-"))
    delivery = Webhook(
        source="github", id=longest, event="", headers={}, body=b"", json={"numbers": [1]}
    )
    made = plan(agent_with(lambda _: Item(1)), delivery=delivery)
    assert [(start.run_id, start.by) for start in made.starts] == [(f"github-{longest}", None)]
    made = plan(agent_with(lambda _: [Start(Item(1))]), delivery=delivery)
    assert [start.by for start in made.starts] == [f"github-{longest}.0"]
    keyed = agent_with(lambda _: Item(1))
    keyed.flow = Flow(key=lambda item: f"k{item.number}", concurrency=1)
    [start] = plan(keyed, delivery=delivery).starts
    assert start.run_id.startswith("k1=github-ddd")
    assert affinity(start.run_id) == "k1"


@pytest.mark.parametrize("nothing", [None, []])
def test_none_and_an_empty_list_start_nothing_and_leave_it_to_the_next_mapping(
    nothing: Any,
) -> None:
    agent = agent_with(lambda _: nothing)
    assert runs(plan(agent)) == {}
    agent.webhook("github")(lambda _: Item(2))
    agent.webhook("github")(lambda _: Item(3))
    assert runs(plan(agent)) == {"github-d-1": {"number": 2}}


def test_a_list_without_a_start_is_a_payload() -> None:
    agent = Agent("lists")

    @agent.step
    async def first(ctx: Context, numbers: list[int]) -> Done:
        return Done()

    agent.webhook("github")(lambda delivery: delivery.json["numbers"])
    assert runs(plan(agent)) == {"github-d-1": [1, 2, 3]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ([Start(Item(1)), Item(2)], "nothing else"),
        ([Start(Item(1), id="x"), Start(Item(2), id="x")], "the same id"),
        ([Start(Item(1))] * (STARTS_MAX + 1), "1001 runs"),
        (Start(Item(1), id=""), "run_id must be"),
        ([Start(Item(1)), Start(Item("2"))], r"$.number"),  # type: ignore[arg-type]
        (Item("1"), r"payload of first: $.number"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_started_is_told_and_starts_nothing(value: Any, told: str) -> None:
    made = plan(agent_with(lambda _: value))
    assert made.starts == []
    assert told in made.errors["a"]


def test_filters_are_asked_before_the_mapping() -> None:
    def mapped(_: Webhook) -> Item:
        raise AssertionError("not wanted")

    assert runs(plan(agent_with(mapped, event="push"))) == {}
    assert runs(plan(agent_with(mapped, event=("push", "ping")))) == {}
    assert runs(plan(agent_with(mapped, where=lambda delivery: "action" in delivery.json))) == {}
    wanted = agent_with(
        lambda _: Item(1),
        event=("push", "issues"),
        where=lambda delivery: len(delivery.json["numbers"]) == 3,
    )
    assert len(runs(plan(wanted))) == 1


def test_a_mapping_or_filter_that_raises_costs_its_own_agent_only() -> None:
    agents = [
        agent_with(lambda delivery: delivery.json["missing"], "maps"),
        agent_with(lambda _: Item(1), "filters", where=lambda delivery: delivery.json["missing"]),
        agent_with(lambda _: Item(1), "fine"),
    ]
    agents[0].webhook("github")(lambda _: Item(2))
    with structlog.testing.capture_logs() as logs:
        made = plan(*agents)
    assert [line["agent"] for line in logs] == ["maps", "filters"]
    assert set(made.errors.values()) == {"the webhook mapping raised KeyError"}
    assert [start.agent for start in made.starts] == ["fine"]


def test_a_mapping_that_would_end_the_process_costs_its_own_agent_only() -> None:
    made = plan(agent_with(lambda _: sys.exit(3), "ends"), agent_with(lambda _: Item(1), "fine"))
    assert made.errors == {"ends": "the webhook mapping raised SystemExit"}
    assert [start.agent for start in made.starts] == ["fine"]
