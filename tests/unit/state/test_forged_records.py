"""What who may write to a state topic can do to a run, and what not even they can."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from surefoot import Agent, Context, Done, Wait
from surefoot.state.machine.model import Run
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.topics import AgentTopics
from surefoot.state.ports.log import ProducerRecord
from surefoot.state.records.encoding import Wire
from surefoot.testing import Simulation

PARTITIONS = 1
#: as ways to name code are written in places that make code of data
CODE = ["os.system", "antigravity:main", "!!python/object/apply:os.system", "this", "../pay"]


def payer() -> Agent:
    agent = Agent("payer")

    @agent.step(start=True)
    async def ask(ctx: Context, amount: int) -> Wait:
        return Wait("go", then=pay, carry=amount)

    @agent.step
    async def pay(ctx: Context, signal: None, amount: int) -> Done:
        return Done(amount)

    return agent


@pytest.fixture
def sim() -> Iterator[Simulation]:
    with Simulation(payer, partitions=PARTITIONS) as one:
        for run_id in ("forged", "good"):
            one.start(7, run_id=run_id)
        yield one


def forge(sim: Simulation, as_of: str = "forged", **fields: object) -> None:
    """Write what a run's owner could have written, under the key of the run `forged`."""
    run = sim._view.run("payer", as_of)
    assert run is not None
    changed: Run = run._replace(**fields)  # type: ignore[arg-type]
    made = Wire("surefoot", AgentTopics("surefoot", "payer"), PARTITIONS).checkpoint(
        changed, 1, (), partition_of("forged", PARTITIONS)
    )
    sim._world.broker.write([ProducerRecord(made.topic, made.partition, b"forged", made.value)])


def test_the_owner_of_a_partition_reads_no_state_that_somebody_else_writes(sim: Simulation) -> None:
    forge(sim, status="completed", step="pay", payload=b"1000000", wait=None)
    run = sim.signal("go", run_id="forged")
    assert (run.status, run.result) == ("completed", 7)
    sim.crash()
    run = sim.look("forged")
    assert (run.status, run.result) == ("completed", 7)  # its commit has replaced the forged one


@pytest.mark.parametrize("step", CODE)
def test_a_forged_checkpoint_names_no_code_but_steps_of_the_agent(
    sim: Simulation, step: str
) -> None:
    forge(sim, status="running", step=step, wait=None, payload=b'"id"')
    before = set(sys.modules)
    sim.crash()
    run = sim.look("forged")
    assert run.failure is not None
    assert (run.status, run.failure["code"]) == ("attention", "unknown_step")
    assert {"antigravity", "this"} & (set(sys.modules) - before) == set()
    assert sim.signal("go", run_id="good").result == 7


def test_a_checkpoint_under_the_key_of_another_run_counts_for_neither(sim: Simulation) -> None:
    forge(sim, as_of="good", status="running", step="pay")
    with capture_logs() as logs:
        sim.crash()
    [told] = [line for line in logs if line["event"] == "checkpoint_unreadable"]
    assert (told["run_id"], told["error"]) == ("forged", "its checkpoint belongs to run good")
    assert sim.signal("go", run_id="good").result == 7
