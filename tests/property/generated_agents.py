"""Lives of agents that chance has made: with commands sent to them, and their processes killed.

    python -m tests.property.generated_agents --seeds 1000 --from 0

A seed makes a program (generated_program.py) and a schedule. In a calm life commands are sent only
when all is still, so that it has to come to the same end with and without kills. In a wild one they
race with the work, and what has to hold is what is promised of every life (generated_promises.py).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass, field
from random import Random
from typing import Any

from surefoot import Agent
from surefoot.infra.simulation.process import Moment
from surefoot.schemas.payload import strict_json
from surefoot.state.machine.pooled_step import decode_input
from surefoot.testing.simulation import SimulatedRun, Simulation
from tests.property.generated_program import PEOPLE, SIGNALS, World, agents, program
from tests.property.generated_promises import broken_promises, differences

#: the longest that a life is looked after, in commands
_COMMANDS_MOST = 400
_OVER = ("completed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """As it was sent."""

    id: str
    agent: str
    run_id: str
    kind: str
    fields: tuple[tuple[str, Any], ...] = ()


@dataclass(slots=True)
class Life:
    """One life of a seed: how it was lived, and how it ended."""

    seed: int
    wild: bool
    #: (commits after the process began, before or after it has an effect)
    kills: list[tuple[int, Moment]]
    world: World
    sim: Simulation
    sent: list[Command] = field(default_factory=list)
    visits: dict[str, int] = field(default_factory=dict)
    #: races so far, and how often the broker was written to
    races: int = 0
    stirred: int = 0
    wrong: list[str] = field(default_factory=list)

    def send(self, agent: str, run_id: str, kind: str, of: str | None = None, **told: Any) -> None:
        before = sum((each.run_id, each.kind) == (run_id, kind) for each in self.sent)
        identity = of or f"{kind}-{before + 1} of {run_id}"
        self.sent.append(
            Command(
                id=identity,
                agent=agent,
                run_id=run_id,
                kind=kind,
                fields=tuple(sorted(told.items())),
            )
        )
        self.sim._send(run_id, kind, agent=agent, id=identity, **told)

    def runs(self) -> list[SimulatedRun]:
        """Those of pools as well."""
        pools = [f"{agent}.gpu" for agent in self.world.program.scripts]
        ids = [(pool, run_id) for pool in pools for run_id in self.sim._view.run_ids(pool)]
        return [*self.sim.runs(), *(self.sim.look(run_id, agent=pool) for pool, run_id in ids)]

    def again(self) -> None:
        """The latest command once more."""
        last = self.sent[-1]
        self.send(last.agent, last.run_id, last.kind, last.id, **dict(last.fields))


def live(seed: int, *, wild: bool, kills: list[tuple[int, Moment]]) -> Life:
    """Live that life to its end. Close its simulation when it has been looked at."""
    world = World(seed, program(seed))
    left = list(kills)
    box: list[Simulation] = []

    def arm() -> None:
        if box and left:
            after, moment = left.pop(0)
            box[0].kill_at(len(box[0].commits) + after, moment)

    def process() -> list[Agent]:
        arm()
        return agents(world)

    sim = Simulation(process, deliver=world.deliver, seed=seed)
    world.sim = sim
    box.append(sim)
    arm()
    life = Life(seed, wild, kills, world, sim)
    if wild:
        sim._world.broker.listeners[lambda: _stir(life)] = None
    _begin(life)
    _look_after(life)
    return life


def _begin(life: Life) -> None:
    dice = Random(f"{life.seed} begin")
    for number in range(dice.choice([1, 1, 2, 4])):
        run_id = f"run-{number + 1}"
        if dice.random() < 0.3:
            name = dice.choice(SIGNALS)
            life.send("lead", run_id, "signal", name=name, payload=strict_json("early"))
            if not life.wild:  # whether the first step finds it in its inbox is else a race
                life.sim._drive(1, strict=False)
        life.sim.start({"order": number}, run_id=run_id)
        if dice.random() < 0.1:
            life.sim.start({"order": number}, run_id=run_id)


# Commands when all is still -----------------------------------------------------------------


def _look_after(life: Life) -> None:
    """Do what people do, until every run is over."""
    for _ in range(_COMMANDS_MOST):
        life.sim.settle()
        runs = sorted(life.runs(), key=lambda run: run.status != "attention")
        if not any(_attend(life, run) for run in runs):
            break
    else:
        life.wrong.append(f"after {_COMMANDS_MOST} commands it is not over")
    life.sim.settle()
    for run in life.runs():
        if run.status not in (*_OVER, "failed"):
            life.wrong.append(f"{run.agent} {run.run_id} is left {run.status}: {_about(life, run)}")


def _about(life: Life, run: SimulatedRun) -> str:
    known = life.sim._view.run(run.agent, run.run_id)
    return f"{known.wait.kind if known is not None and known.wait else None} {run.failure}"


def _attend(life: Life, run: SimulatedRun) -> bool:
    """Send one command to a run that needs one, if it does."""
    visit = life.visits.get(run.run_id, 0)
    dice = Random(f"{life.seed} {run.agent} {run.run_id} {run.status} {visit}")
    known = life.sim._view.run(run.agent, run.run_id)
    if known is None or ("." in run.agent and run.status != "attention"):
        return False
    order = _order(life, run, dice, visit, known.wait.kind if known.wait else None)
    if order is None:
        return False
    kind, told = order
    if kind == "resolve":  # not a part of every life
        life.send(run.agent, run.run_id, kind, **told)
        return True
    life.visits[run.run_id] = visit + 1
    if kind == "time":
        life.sim.advance("10h")
        return True
    life.send(run.agent, run.run_id, kind, **told)
    if dice.random() < 0.1:
        life.again()
    return True


def _order(
    life: Life, run: SimulatedRun, dice: Random, visit: int, waits: str | None
) -> tuple[str, dict[str, Any]] | None:
    chance = dice.random()
    signal = {"name": dice.choice(SIGNALS), "payload": strict_json(visit), "by": "tom"}
    match run.status:
        case "completed" | "cancelled":
            if chance < 0.04 and visit < 3:
                return dice.choice(["cancel", "pause", "retry", "resume"]), {}
        case "failed":
            if visit < 25 and chance < 0.5 and not _tried(life, run):
                if dice.random() < 0.7:
                    life.world.healed.add(run.run_id)
                return "retry", {}
        case "paused":
            if chance < 0.1:
                return "signal", signal
            return ("cancel", {}) if chance < 0.15 else ("resume", {})
        case "attention":
            return _put_right(life, run)
        case "waiting":
            if chance < 0.07:
                return "pause", {}
            if chance < 0.10:
                return "cancel", {"by": "tom"}
            if run.waits_for:
                if chance < 0.25:
                    return "time", {}
                if chance < 0.85:
                    signal["name"] = dice.choice(run.waits_for)
                return "signal", signal
            if run.question is not None:
                if chance < 0.15:
                    return "time", {}
                asked = "of-nobody" if chance < 0.2 else run.question
                said = {"approved": dice.random() < 0.8, "note": None}
                by = dice.choice(PEOPLE)
                return "approve", {"name": asked, "payload": strict_json(said), "by": by}
            if chance < 0.16 and visit < 4:
                return "signal", signal
    return None


def _tried(life: Life, run: SimulatedRun) -> bool:
    """Whether somebody has tried it again in vain."""
    refused = any(
        e["type"] == "command.refused" and e["name"] == "compensated" for e in run.history
    )
    return refused or sum(event["type"] == "run.retried" for event in run.history) > 1


def _put_right(life: Life, run: SimulatedRun) -> tuple[str, dict[str, Any]] | None:
    """What a person does who looks at the world."""
    known = life.sim._view.run(run.agent, run.run_id)
    assert known is not None
    entries = life.sim._view._store(run.agent).entries.get(run.run_id, {})
    doubt = [e for e in entries.values() if e.kind == "intent" and e.seq == known.seq]
    if known.failure is None or known.failure.code != "once_in_doubt" or not doubt:
        life.wrong.append(f"{run.run_id} of {run.agent} needs a person: {known.failure}")
        return "cancel", {}
    slot = doubt[0].slot.removeprefix("c:once-")
    home, pooled = run.agent.partition(".")[::2]
    run_id, seq = run.run_id, known.seq
    if pooled:
        given = decode_input(known.payload)
        run_id, seq = given.run_id, given.seq
    key = f"{home}:{run_id}:0:{seq}:{slot}"
    if key not in life.world.deeds:
        return "resolve", {"name": "did_not"}
    return "resolve", {"name": "happened", "payload": strict_json(life.world.deeds[key])}


# Commands that race with the work -----------------------------------------------------------


def _stir(life: Life) -> None:
    """Something was written: now and then a command follows at once."""
    life.stirred += 1
    dice = Random(f"{life.seed} stir {life.stirred}")
    if life.races >= 12 or dice.random() > 0.06:
        return
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return
    life.races += 1
    loop.call_soon(_race, life, dice)


def _race(life: Life, dice: Random) -> None:
    known = [(a, r) for a in life.sim._agents for r in life.sim._view.run_ids(a)]
    agent, run_id = dice.choice([*known, ("lead", "run-1"), ("lead", "run-1")])
    run = life.sim._view.run(agent, run_id)
    kind = dice.choice(
        ["pause", "resume", "cancel", "signal", "signal", "approve", "retry", "again"]
    )
    if kind == "again" and life.sent:
        life.again()
    elif kind == "signal":
        name = dice.choice(SIGNALS)
        life.send(agent, run_id, kind, name=name, payload=strict_json("race"))
    elif kind == "approve":
        asked = run.wait.question if run is not None and run.wait is not None else None
        said = strict_json({"approved": dice.random() < 0.8, "note": None})
        life.send(
            agent, run_id, kind, name=asked or "nothing", payload=said, by=dice.choice(PEOPLE)
        )
    elif kind != "again":
        life.send(agent, run_id, kind)


# One seed -----------------------------------------------------------------------------------


def kills_of(seed: int, commits: int) -> list[tuple[int, Moment]]:
    dice = Random(f"{seed} kills")
    moments: list[Moment] = ["before", "after"]
    number = dice.randint(1, 5)
    reach = max(1, 2 * commits // number)
    return [(dice.randint(1, reach), dice.choice(moments)) for _ in range(number)]


def trace(life: Life) -> list[str]:
    """What it did, in words."""
    return [*life.sim.commits, *map(str, life.sent), *map(repr, sorted(life.world.done.items()))]


def check(seed: int, *, twice: bool = False) -> list[str]:
    """What is wrong with that seed; [] if nothing is."""
    wild = seed % 2 == 1
    with (plain := live(seed, wild=wild, kills=[])).sim:
        wrong = [f"uncrashed: {each}" for each in broken_promises(plain)]
        kills = kills_of(seed, len(plain.sim.commits))
        with (crashed := live(seed, wild=wild, kills=kills)).sim:
            wrong += [f"crashed: {each}" for each in broken_promises(crashed)]
            if not wild:
                wrong += [f"made a difference: {each}" for each in differences(plain, crashed)]
            if twice:
                with (again := live(seed, wild=wild, kills=kills)).sim:
                    if trace(again) != trace(crashed):
                        wrong.append("the second time it does something else")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.property.generated_agents")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--from", type=int, default=0, dest="first")
    parser.add_argument("--keep-going", action="store_true")
    asked = parser.parse_args()
    began, failed = time.monotonic(), 0
    for seed in range(asked.first, asked.first + asked.seeds):
        wrong = check(seed, twice=seed % 8 < 2)
        if not wrong:
            continue
        failed += 1
        again = f"python -m tests.property.generated_agents --seeds 1 --from {seed}"
        sys.stdout.write("\n  ".join([f"seed {seed} (again: {again})", *wrong[:8]]) + "\n")
        sys.stdout.flush()
        if not asked.keep_going:
            break
    took = time.monotonic() - began
    sys.stdout.write(f"{asked.seeds} seeds asked for, {failed} failed, {took:.1f} s\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
