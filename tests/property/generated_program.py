"""Agents made by chance, and the world that they act on.

A program is data: what each step does, and how it ends. All that a step was given, and all that its
calls told it, goes into one number that it hands on, so that a run which was given anything else
than it should have been ends with another result. Steps lead to later steps only: every run ends.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from surefoot import (
    Agent,
    Approve,
    Budget,
    Call,
    CallFailed,
    Context,
    Cost,
    Done,
    Ended,
    Handoff,
    Next,
    NotDone,
    Parallel,
    Retry,
    Sleep,
    TerminalError,
    Wait,
    all_of,
    any_of,
    n_of,
)
from surefoot.testing import HttpRequest, Simulation

SIGNALS = ("red", "green", "blue")
PEOPLE = ("ann", "bob")
HOUR_S = 3600


class Denied(Exception):
    """A call failed, and for good."""


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that a step does."""

    kind: str
    name: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """What a step returns."""

    kind: str
    to: int = 0
    #: the step that goes on after a timeout
    late: int | None = None
    names: tuple[str, ...] = ()
    need: int = 0
    seconds: float | None = None
    #: (agent, step or None)
    branches: tuple[tuple[str, int | None], ...] = ()
    collect: bool = False
    limit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """One step."""

    number: int
    acts: tuple[Act, ...]
    ending: Ending
    #: its first attempts, so many of them, fail
    fails: int
    attempts: int
    pool: str | None = None
    #: a plain `def`
    plain: bool = False

    @property
    def name(self) -> str:
        return f"s{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The agents of one seed."""

    scripts: dict[str, tuple[Script, ...]]
    on_cancel: frozenset[str]
    on_failure: frozenset[str]
    budgets: dict[str, int]


# Making one ---------------------------------------------------------------------------------


def program(seed: int) -> Program:
    dice = Random(f"{seed} program")
    sizes = {"lead": dice.randint(2, 7), "kid": dice.randint(1, 4), "heir": dice.randint(1, 2)}
    budgets = {agent: dice.randint(1, 3) for agent in sizes if dice.random() < 0.15}
    return Program(
        scripts={
            agent: tuple(_script(dice, agent, n, size, agent in budgets) for n in range(size))
            for agent, size in sizes.items()
        },
        on_cancel=frozenset(agent for agent in sizes if dice.random() < 0.4),
        on_failure=frozenset(agent for agent in sizes if dice.random() < 0.4),
        budgets=budgets,
    )


_ACTS = (
    "call",
    "call",
    "gather",
    "denied",
    "once",
    "unprobed",
    "shaky",
    "effect",
    "effect",
    "thread",
    "plan",
    "inbox",
    "nap",
)


def _script(dice: Random, agent: str, number: int, size: int, limited: bool) -> Script:
    plain = dice.random() < 0.1
    pool = "gpu" if dice.random() < 0.15 else None
    kinds = ["effect", "thread", "plan", "inbox"] if plain else list(_ACTS)
    attempts = dice.randint(1, 3)
    fails = dice.choice([0, 0, 0, 0, 1, 2])
    if pool is not None:
        # Tried again after it has failed, the pool's part of the run begins anew, with nothing
        # recorded: what is done there once has to have attempts enough.
        kinds = [kind for kind in kinds if kind != "shaky"]
        attempts = fails + 2
        if limited:
            kinds = [kind for kind in kinds if kind not in ("once", "unprobed")]
    acts = tuple(
        Act(dice.choice(kinds), dice.choice("abc"), dice.randint(1, 3))
        for _ in range(dice.randint(0, 3))
    )
    shaky = sum(act.kind == "shaky" for act in acts)
    if shaky:  # a crash may spare an attempt that would have failed: there are enough of them
        attempts = fails + shaky + 1
    ending = _ending(dice, agent, number, size)
    return Script(
        number=number,
        acts=acts,
        ending=ending,
        fails=fails,
        attempts=attempts,
        pool=pool,
        plain=plain,
    )


def _ending(dice: Random, agent: str, number: int, size: int) -> Ending:
    if number == size - 1:
        return Ending(kind="handoff" if agent != "heir" and dice.random() < 0.15 else "done")
    later = range(number + 1, size)
    to = dice.choice(later)
    kind = dice.choice(["next", "next", "after", "sleep", "wait", "wait", "approve"])
    if agent != "heir" and dice.random() < 0.35:
        kind = dice.choice(["fork", "fork", "call"])
    if dice.random() < 0.06:
        kind = "done"
    match kind:
        case "after" | "sleep":
            return Ending(kind=kind, to=to, seconds=dice.uniform(0.5, 3) * HOUR_S)
        case "wait":
            names = tuple(dice.sample(SIGNALS, dice.randint(1, 3)))
            mode = "one" if len(names) == 1 else dice.choice(["all", "any", "count"])
            return Ending(
                kind=mode, to=to, names=names, need=dice.randint(1, 3), **_limit(dice, later)
            )
        case "approve":
            names = tuple(dice.sample(PEOPLE, dice.randint(0, 1)))
            return Ending(kind=kind, to=to, names=names, **_limit(dice, later))
        case "fork":
            branches = tuple(_branch(dice, agent, later) for _ in range(dice.randint(1, 4)))
            return Ending(
                kind=kind,
                to=to,
                branches=branches,
                collect=dice.random() < 0.5,
                limit=dice.choice([None, None, 1, 2]),
            )
        case "call":
            other = "heir" if agent == "kid" else dice.choice(["kid", "heir"])
            return Ending(kind=kind, to=to, branches=((other, None),))
    return Ending(kind=kind, to=to)


def _limit(dice: Random, later: range) -> dict[str, Any]:
    if dice.random() < 0.5:
        return {}
    late = dice.choice(later) if dice.random() < 0.6 else None
    return {"seconds": dice.uniform(1, 9) * HOUR_S, "late": late}


def _branch(dice: Random, agent: str, later: range) -> tuple[str, int | None]:
    if agent == "kid":
        return "heir", None
    return dice.choice([("kid", None), ("heir", None), (agent, later[-1]), (agent, later[-1])])


# The world ----------------------------------------------------------------------------------


@dataclass(slots=True)
class World:
    """What the agents act on. It outlives every process, and notes what must not happen."""

    seed: int
    program: Program
    sim: Simulation | None = None
    #: results of what ctx.once has done; how often it was done
    deeds: dict[str, int] = field(default_factory=dict)
    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    #: runs whose steps do not fail any more
    healed: set[str] = field(default_factory=set)
    #: step that has taken a signal out of its run's inbox
    taken: dict[tuple[str, str], int] = field(default_factory=dict)
    requests: Counter[str] = field(default_factory=Counter)

    async def deliver(self, request: HttpRequest) -> int:
        """The target of effects: some of them are turned away at first."""
        key = dict(request.headers)["Idempotency-Key"]
        self.requests[key] += 1
        await nap(mark(key) % 20)
        return 503 if mark(key, "flaky") % 5 == 0 and self.requests[key] <= 1 else 200

    def begins(self, ctx: Context) -> None:
        assert self.sim is not None
        for event in self.sim._view.history(ctx.agent, ctx.run_id):
            ended = event["type"] in ("step.completed", "run.completed")
            if ended and (event["epoch"], event["seq"]) == (ctx.epoch, ctx.seq):
                self.wrong.append(f"step {ctx.seq} of {ctx.run_id} runs though it is committed")

    def calls(self, ctx: Context, script: Script, slot: str) -> None:
        """A function is called for ctx.call: nothing may be recorded for it yet."""
        assert self.sim is not None
        if script.pool is None:
            entries = self.sim._view._store(ctx.agent).entries.get(ctx.run_id, {})
            entry = entries.get(slot)
            known = entry is not None and (entry.seq, entry.epoch) == (ctx.seq, ctx.epoch)
        else:
            store = self.sim._view._store(f"{ctx.agent}.{script.pool}")
            prefix = f"{ctx.run_id}~"
            tails = {r.removeprefix(prefix): r for r in store.live if r.startswith(prefix)}
            forks = {int(t.split("~")[0]): r for t, r in tails.items() if t.count("~") == 1}
            entry = store.entries.get(forks[max(forks)], {}).get(slot) if forks else None
            known = entry is not None
        if known and entry is not None and entry.kind == "call":
            self.wrong.append(f"{slot} of step {ctx.seq} of {ctx.run_id} is called though recorded")


def mark(*things: Any) -> int:
    """One number that tells all of it."""
    return zlib.crc32(json.dumps(things, sort_keys=True, default=str).encode())


async def nap(ms: int) -> None:
    await asyncio.sleep(ms / 1000)


_VOLATILE = frozenset({"at_ms", "question"})


def lasting(value: Any) -> Any:
    """What does not depend on the time."""
    if isinstance(value, dict):
        return {k: lasting(v) for k, v in value.items() if k not in _VOLATILE}
    if isinstance(value, list):
        return [lasting(each) for each in value]
    return value


# Agents -------------------------------------------------------------------------------------


def agents(world: World) -> list[Agent]:
    """The program as agents, as a new process has them."""
    made = {}
    for name, scripts in world.program.scripts.items():
        steps = world.program.budgets.get(name)
        budget = None if steps is None else Budget(steps=steps, tokens=steps * 20)
        agent = made[name] = Agent(name, budget=budget)
        for script in scripts:
            declare(world, agent, script)
        if name in world.program.on_cancel:
            agent.on_cancel(_compensation(world, "undo"))
        if name in world.program.on_failure:
            agent.on_failure(_compensation(world, "mourn"))
    return list(made.values())


def declare(world: World, agent: Agent, script: Script) -> None:
    retry = Retry(attempts=script.attempts, initial_s=2, jitter=0)

    async def waited(ctx: Context, given: Any, carry: Any) -> Any:
        world.begins(ctx)
        seen = [script.name, lasting(given), lasting(carry)]
        _check_join(world, agent, ctx, given, carry)
        turns: Counter[str] = Counter()
        seen += [await _act(world, ctx, script, act, turns) for act in script.acts]
        return _end(world, agent, ctx, script, seen)

    async def body(ctx: Context, given: Any) -> Any:
        return await waited(ctx, given, None)

    def plain_waited(ctx: Context, given: Any, carry: Any) -> Any:
        world.begins(ctx)
        seen = [script.name, lasting(given), lasting(carry)]
        _check_join(world, agent, ctx, given, carry)
        seen += [_quick(world, ctx, act) for act in script.acts]
        return _end(world, agent, ctx, script, seen)

    def plain_body(ctx: Context, given: Any) -> Any:
        return plain_waited(ctx, given, None)

    made: list[Callable[..., Any]] = [plain_body, plain_waited] if script.plain else [body, waited]
    for fn, name in zip(made, (script.name, f"after-{script.name}"), strict=True):
        fn.__name__ = name
        agent.step(retry=retry, pool=script.pool)(fn)


def _compensation(world: World, name: str) -> Callable[..., Any]:
    async def body(ctx: Context, ended: Ended) -> Done:
        world.begins(ctx)
        await ctx.call("undo", nap, 5)
        ctx.outbox.http("POST", f"http://world/{name}", json={"code": ended.code})
        return Done()

    body.__name__ = name
    return body


def _check_join(world: World, agent: Agent, ctx: Context, given: Any, carry: Any) -> None:
    """The results of branches have come all, and in their order."""
    if not isinstance(carry, dict) or "branches" not in carry:
        return
    results = [r["result"] if isinstance(r, dict) and "ok" in r else r for r in given]
    if len(results) != carry["branches"]:
        world.wrong.append(f"{ctx.run_id} joins {len(results)} of {len(carry['branches'])}")
    for index, result in enumerate(results):
        if isinstance(result, dict) and "value" in result:
            of, _, place = result["run"].partition(f"{carry['run_id']}~")
            if of or place.split("~")[1] != str(index):
                world.wrong.append(f"{ctx.run_id}: branch {index} has the result of {result}")


def _quick(world: World, ctx: Context, act: Act) -> Any:
    match act.kind:
        case "effect":
            return ctx.outbox.http("POST", f"http://world/{act.name}", json={"n": act.number})
        case "thread":
            ctx.thread.append({act.name: act.number, "step": ctx.step})
            return ctx.thread.messages
        case "plan":
            ctx.plan.add(act.name)
            for item in ctx.plan.open[: act.number - 1]:
                ctx.plan.tick(item.id)
            return [[item.id, item.text, item.state] for item in ctx.plan.items]
        case "inbox":
            found = ctx.inbox(SIGNALS[act.number - 1])
            for signal in found:
                if world.taken.setdefault((ctx.run_id, signal.id), ctx.seq) != ctx.seq:
                    world.wrong.append(f"signal {signal.id} is taken twice by {ctx.run_id}")
            return [[signal.id, signal.payload] for signal in found]
    raise AssertionError(act.kind)


async def _act(world: World, ctx: Context, script: Script, act: Act, turns: Counter[str]) -> Any:
    def called(name: str) -> tuple[str, int]:
        turn = turns[name]
        turns[name] += 1
        return f"c:{name}#{turn}", turn

    async def answer(slot: str, number: int) -> int:
        world.calls(ctx, script, slot)
        await nap(number * 7 % 11)
        return mark(ctx.run_id, slot, number)

    async def deny(slot: str) -> int:
        world.calls(ctx, script, slot)
        await nap(3)
        raise Denied(slot)

    def call(number: int) -> Awaitable[Any]:
        slot, _ = called(act.name)
        return ctx.call(act.name, answer, slot, number, cost=lambda _: Cost(tokens=5))

    match act.kind:
        case "nap":
            await nap(act.number * 13)
            return None
        case "call":
            return await call(act.number)
        case "gather":
            return await asyncio.gather(*(call(n) for n in range(act.number + 1)))
        case "denied":
            slot, _ = called(act.name)
            try:
                return await ctx.call(act.name, deny, slot, permanent=(Denied,))
            except CallFailed as error:
                return str(error)
        case "once" | "unprobed" | "shaky":
            return await _once(world, ctx, act, called(f"once-{act.name}")[1])
    return _quick(world, ctx, act)


async def _once(world: World, ctx: Context, act: Act, turn: int) -> int:
    key = f"{ctx.agent}:{ctx.run_id}:{ctx.epoch}:{ctx.seq}:{act.name}#{turn}"

    async def do(key: str) -> int:
        if act.kind == "once" and ctx.attempt < act.number - 2:
            raise NotDone("not this time")
        await nap(act.number * 5)
        world.done[key] += 1
        world.deeds[key] = mark(key)
        await nap(act.number * 3)
        if act.kind == "shaky":
            raise ConnectionError("the answer is lost")
        return mark(key)

    async def probe(key: str) -> int | None:
        await nap(2)
        return world.deeds.get(key)

    name = f"once-{act.name}"
    if act.kind == "unprobed":
        return int(await ctx.once(name, do, key))
    return int(await ctx.once(name, do, key, probe=probe))


def _end(world: World, agent: Agent, ctx: Context, script: Script, seen: list[Any]) -> Any:
    if ctx.attempt < script.fails and ctx.run_id not in world.healed:
        raise (TerminalError if script.fails > script.attempts else ConnectionError)("broken")
    value = {"run": ctx.run_id, "value": mark(*seen)}
    ending = script.ending

    def step(number: int | None) -> Any:
        return None if number is None else agent.steps[f"s{number}"].fn

    then: Any = agent.steps[f"after-s{ending.to}"].fn if ending.to else None
    late = step(ending.late)
    wait = {"then": then, "timeout": ending.seconds, "carry": value, "on_timeout": late}
    match ending.kind:
        case "done":
            return Done(value)
        case "handoff":
            return Handoff("heir", value)
        case "next":
            return Next(step(ending.to), value)
        case "after":
            return Next(step(ending.to), value, after=ending.seconds)
        case "sleep":
            return Sleep(ending.seconds or 1, step(ending.to), value)
        case "one":
            return Wait(ending.names[0], **wait)
        case "all":
            return Wait(all_of(*ending.names), **wait)
        case "any":
            return Wait(any_of(*ending.names), **wait)
        case "count":
            return Wait(n_of(ending.need, *ending.names), **wait)
        case "approve":
            return Approve(
                value, then=then, expires=ending.seconds, by=ending.names, on_timeout=late
            )
        case "call":
            return Call(ending.branches[0][0], value, then=then, carry=value)
        case "fork":
            return Parallel(
                [
                    (step(n) if n is not None else a, value | {"i": i})
                    for i, (a, n) in enumerate(ending.branches)
                ],
                join=then,
                on_error="collect" if ending.collect else "fail",
                limit=ending.limit,
                carry={"branches": len(ending.branches), "run_id": ctx.run_id},
            )
    raise AssertionError(ending.kind)
