"""Runs made by chance: what each does is in its payload, and what must come out can be told from
that alone.

A run goes through stages. Each does some things (calls, actions that happen once, effects) and ends
in one way (the next stage, later, after a signal, after branches). All that a stage was told
goes into a chain of hashes that is the run's result: one stage lost, doubled, swapped or given
something else, and the result is another.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from surefoot import (
    Agent,
    Context,
    Done,
    Next,
    NotDone,
    Parallel,
    Retry,
    RetryableError,
    Sleep,
    Wait,
)

AGENT = "walk"
SINK = "http://sink/"


class Outside(Protocol):
    """What steps act upon."""

    def step(self) -> int:
        """A body begins; returns what `call` is to be told."""

    def call(self, run_id: str, seq: int, name: str, token: int) -> Awaitable[str]: ...

    def once(self, run_id: str, seq: int, name: str) -> Awaitable[str]: ...

    def happened(self, run_id: str, seq: int, name: str) -> str | None: ...

    async def pause(self) -> None:
        """Take as long as this attempt takes; or fail."""


def chained(*parts: Any) -> str:
    """A short hash of all of them."""
    return hashlib.blake2b("|".join(map(str, parts)).encode(), digest_size=6).hexdigest()


def told(kind: str, run_id: str, seq: int, name: str) -> str:
    """What the outside world answers."""
    return chained(kind, run_id, seq, name)


# Plans --------------------------------------------------------------------------------------

Stage = dict[str, Any]
_ACTS = ("call", "both", "once", "unsure", "unsure", "effect", "effect")


def plan(random: Random, *, depth: int = 0) -> list[Stage]:
    stages: list[Stage] = []
    for _ in range(random.randint(1, 4 if depth == 0 else 2)):
        acts = [
            [random.choice(_ACTS), random.choice("ab")] for _ in range(random.choice((0, 1, 1, 2)))
        ]
        kind = random.choice(("next", "next", "next", "after", "sleep", "wait", "timed", "fork"))
        if depth and kind in ("wait", "timed", "fork"):
            kind = "next"
        stage: Stage = {"acts": acts, "end": kind, "seconds": round(random.uniform(0.2, 20), 1)}
        if kind == "fork":
            stage["branches"] = [plan(random, depth=1) for _ in range(random.randint(1, 3))]
        stages.append(stage)
    stages.append({"acts": [], "end": "done", "seconds": 0.0})
    return stages


def begin(stages: list[Stage]) -> dict[str, Any]:
    """The payload that a run is started with."""
    return {"plan": stages, "n": 0, "h": "", "seq": 0}


def seqs(stages: list[Stage]) -> list[int]:
    """The step that each stage is: those that go on after a wait or a join are steps too."""
    found, seq = [], 0
    for stage in stages:
        found.append(seq)
        seq += 2 if stage["end"] in ("wait", "timed", "fork") else 1
    return found


def signals(stages: list[Stage]) -> list[str]:
    """Names of the signals that a run of the plan waits for."""
    return [f"s{n}" for n, stage in enumerate(stages) if stage["end"] in ("wait", "timed")]


def said(run_id: str, name: str) -> str:
    """The payload of that signal."""
    return chained("signal", run_id, name)


def expected(stages: list[Stage], run_id: str, late: frozenset[int], ran: list[str]) -> str:
    """The result of a run, by where it waited too long (`late`: numbers of stages). Effects that it
    must have had are added to `ran`: their keys."""
    h = ""
    for n, (stage, seq) in enumerate(zip(stages, seqs(stages), strict=True)):
        values = []
        for index, (kind, name) in enumerate(stage["acts"]):
            slot = f"{name}{index}"
            if kind == "both":
                values += [told("call", run_id, seq, slot), told("call", run_id, seq, slot + "x")]
            elif kind == "effect":
                count = sum(act[0] == "effect" for act in stage["acts"][:index])
                ran.append(f"{AGENT}:{run_id}:{seq}:{count}")
            else:
                values.append(told("call" if kind == "call" else "once", run_id, seq, slot))
        h = chained(h, run_id, n, *values)
        match stage["end"]:
            case "timed" if n in late:
                h = chained(h, "late")
            case "wait" | "timed":
                h = chained(h, "said", said(run_id, f"s{n}"))
            case "fork":
                fork = sum(each["end"] == "fork" for each in stages[: n + 1])
                results = [
                    expected(branch, f"{run_id}~{fork}~{index}", frozenset(), ran)
                    for index, branch in enumerate(stage["branches"])
                ]
                h = chained(h, "join", *results)
    return h


# The agent ----------------------------------------------------------------------------------


def walker(outside: Outside) -> Agent:
    """The agent that goes through plans."""
    agent = Agent(AGENT)
    retry = Retry(attempts=60, initial_s=0.2, max_s=2.0, jitter=0)

    async def work(ctx: Context, s: dict[str, Any]) -> Any:
        token = outside.step()

        async def call(run_id: str, seq: int, name: str) -> str:
            return await outside.call(run_id, seq, name, token)

        await outside.pause()
        stage, n = s["plan"][s["n"]], s["n"]
        values: list[str] = []
        for index, (kind, name) in enumerate(stage["acts"]):
            slot, run_id, seq = f"{name}{index}", ctx.run_id, ctx.seq
            match kind:
                case "call":
                    values.append(await ctx.call(slot, call, run_id, seq, slot))
                case "both":
                    pair = (slot, slot + "x")
                    values += await asyncio.gather(
                        *(ctx.call(each, call, run_id, seq, each) for each in pair)
                    )
                case "once":
                    values.append(
                        await ctx.once(
                            slot, outside.once, run_id, seq, slot, probe=outside.happened
                        )
                    )
                case "unsure":
                    values.append(await ctx.once(slot, outside.once, run_id, seq, slot))
                case "effect":
                    body = {"run": run_id, "seq": seq, "slot": slot}
                    ctx.outbox.http("POST", f"{SINK}{slot}", json=body)
        h = chained(s["h"], ctx.run_id, n, *values)
        then = {**s, "n": n + 1, "h": h}
        match stage["end"]:
            case "next":
                return Next(work, then)
            case "after":
                return Next(work, then, after=stage["seconds"])
            case "sleep":
                return Sleep(stage["seconds"], then=work, payload=then)
            case "wait":
                return Wait(f"s{n}", then=heard, carry=then)
            case "timed":
                return Wait(
                    f"s{n}", then=heard, timeout=stage["seconds"], on_timeout=late, carry=then
                )
            case "fork":
                branches = [(work, begin(branch)) for branch in stage["branches"]]
                return Parallel(branches, join=joined, carry=then)
        return Done(h)

    async def heard(ctx: Context, what: str, s: dict[str, Any]) -> Next:
        return Next(work, {**s, "h": chained(s["h"], "said", what)})

    async def late(ctx: Context, s: dict[str, Any]) -> Next:
        return Next(work, {**s, "h": chained(s["h"], "late")})

    async def joined(ctx: Context, results: list[str], s: dict[str, Any]) -> Next:
        return Next(work, {**s, "h": chained(s["h"], "join", *results)})

    agent.step(start=True, retry=retry, timeout=20.0)(work)
    for fn in (heard, late, joined):
        agent.step(retry=retry)(fn)
    return agent


# The outside world --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Call:
    """A call that was made, and when the body that made it had begun."""

    at_ms: int
    run_id: str
    seq: int
    slot: str
    began_ms: int


@dataclass(slots=True)
class World:
    """What steps act upon in a simulation: truthful, and never forgets."""

    random: Random
    now_ms: Callable[[], int]
    #: of each act that must happen once: how often it did
    done: dict[tuple[str, int, str], int] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    #: chance that an attempt is slow, hangs, or fails
    slow: float = 0.0
    hang: float = 0.0
    fail: float = 0.0

    def step(self) -> int:
        return self.now_ms()

    async def call(self, run_id: str, seq: int, name: str, token: int) -> str:
        self.calls.append(Call(self.now_ms(), run_id, seq, name, began_ms=token))
        await asyncio.sleep(self.random.random() * 0.05)
        return told("call", run_id, seq, name)

    async def once(self, run_id: str, seq: int, name: str) -> str:
        if self.random.random() < self.fail:
            raise NotDone("not now")
        key = (run_id, seq, name)
        self.done[key] = self.done.get(key, 0) + 1
        await asyncio.sleep(self.random.random() * 0.05)
        return told("once", run_id, seq, name)

    def happened(self, run_id: str, seq: int, name: str) -> str | None:
        done = (run_id, seq, name) in self.done
        return told("once", run_id, seq, name) if done else None

    async def pause(self) -> None:
        chance = self.random.random()
        if chance < self.hang:
            await asyncio.sleep(1_000)
        elif chance < self.hang + self.slow:
            await asyncio.sleep(self.random.random() * 8)
        elif chance < self.hang + self.slow + self.fail:
            raise RetryableError("not now")
        else:
            await asyncio.sleep(self.random.random() * 0.05)
