"""An agent loop: a model that calls tools until it has an answer.

    think ──> act ──> hear ──> think ...           think asks the model; act runs its tools; hear
      │        │       ^  │                        takes in what a user has said meanwhile
      │        ├> decided │
      │        │  (a tool that a person approves)
      │        ├> acted ──┤
      │           (tools that are agents)
      └───────────────────┴──> the answer: Done, a step of yours, or (chat) wait for a message

Each of these is a step. Once a step is committed, what the model said and what tools returned is in
the thread (ctx.thread). A pause, a cancel, a crash or a message therefore comes between two steps,
or finds the step's calls journaled: no thought is lost, and nothing is paid for twice.

A message is a signal named `message`. One that arrives while the model thinks or tools run is heard
when they have ended: before the model is asked again, and before an answer counts as final. `think`
does not read messages, since its question must be the same on each attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from surefoot.agents.messages import (
    REPLY,
    Ask,
    Message,
    Model,
    Reply,
    ToolCall,
    Usage,
    answer_text,
    assistant,
    calls_of,
    heard,
    said,
    storable,
    tool_result,
    user,
)
from surefoot.agents.tools import Tool, ToolError, agent_tool, plan_tools, tool
from surefoot.schemas.payload import JsonObject
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.retry import Retry
from surefoot.state.errors import CallFailed, ConfigError, NotDone, RetryableError, TerminalError
from surefoot.state.steps.context import Context
from surefoot.state.steps.journal import Cost
from surefoot.state.steps.results import Approval, Approve, BranchResult, Done, Next, Parallel, Wait

__all__ = [
    "MESSAGE",
    "Ask",
    "Model",
    "Reply",
    "Tool",
    "ToolCall",
    "ToolError",
    "ToolLoop",
    "Usage",
    "agent_tool",
    "plan_tools",
    "tool",
    "tool_loop",
]

#: name of the signal that carries a message to the model
MESSAGE = "message"

_RETRY = Retry()


@dataclass(frozen=True, slots=True)
class Verdict:
    """A person's decision about one call."""

    call: int
    approved: bool
    #: the reason, for the model
    why: str = ""


@dataclass(frozen=True, slots=True)
class Turn:
    """The state of the loop."""

    #: number of the model's answers since the user's latest message
    number: int = 0
    #: decisions of people about the calls of this turn
    verdicts: tuple[Verdict, ...] = ()


@dataclass(frozen=True, slots=True)
class Question:
    """The question to a person: may this be done?"""

    tool: str
    arguments: JsonObject | str
    #: number of the call in its turn
    call: int
    turn: Turn


@dataclass(frozen=True, slots=True)
class Children:
    """Calls that are runs of other agents."""

    turn: Turn
    calls: tuple[ToolCall, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolLoop:
    """The loop's steps, for your own steps to continue with: `Next(loop.think, "do this")`."""

    #: takes what the user says, and starts the loop
    think: Callable[..., Any]
    act: Callable[..., Any]
    hear: Callable[..., Any]


def tool_loop(
    agent: Agent,
    *,
    model: Model,
    tools: Sequence[Tool | Callable[..., Any]] = (),
    system: str | None = None,
    max_turns: int = 25,
    chat: bool = False,
    idle: str | float | None = None,
    then: Callable[..., Any] | None = None,
    start: bool = True,
    retry: Retry = _RETRY,
    think_timeout: str | float | None = "10m",
    act_timeout: str | float | None = None,
    reserve: Cost | None = None,
    price: Callable[[Usage], float] | None = None,
) -> ToolLoop:
    """Declare the steps of a tool-calling loop on `agent`; its other steps are yours.

    The input of a run is what the user says, as text; its result is the model's answer.

    Args:    model: see messages.Model, and the adapters beside this module. tools: functions (see
             `tool`), or results of `tool` and `agent_tool`. max_turns: how often the model is asked
             about one message of the user before the run fails. chat: an answer does not end the
             run; it waits for the next message for up to `idle` (None: forever). then: a step of
             yours that gets the answer instead of ending the run. start: False if a step of yours
             comes first. retry: of the steps that ask the model and run tools; think_timeout,
             act_timeout: of each of these. reserve: the most that one question uses, for an agent
             with a budget; price: the cost of a usage, in the budget's currency
    Raises:  ConfigError - at import, when this cannot work
    """
    kit = _Kit(tools)
    if max_turns < 1:
        raise ConfigError("SF1121", f"tool_loop: max_turns must be 1 or more; got {max_turns!r}")
    if idle is not None and not chat:
        raise ConfigError("SF1121", "tool_loop: idle is for chats; it needs chat=True")

    @agent.step(start=start, retry=retry, timeout=think_timeout)
    async def think(ctx: Context, turn: str | Turn) -> Next:
        """Ask the model."""
        if isinstance(turn, str):
            ctx.thread.append(user(turn))
            turn = Turn()
        if turn.number >= max_turns:
            raise TerminalError(
                f"no answer after {max_turns} turns (max_turns); what the model did is in the "
                "run's thread. To continue, raise max_turns and `surefoot runs retry`"
            )
        reply = await _ask(ctx, model, system, kit.specs, reserve, price)
        ctx.thread.append(assistant(reply))
        onward = act if reply.tool_calls else think if reply.goes_on else hear
        return Next(onward, Turn(turn.number + 1))

    @agent.step(retry=retry, timeout=act_timeout)
    async def act(ctx: Context, turn: Turn) -> Next | Approve | Parallel:
        """Run the tools that the model calls, concurrently; ask first where a person must."""
        calls = calls_of(ctx.thread.messages[-1])
        jobs = [kit.job(call, index, turn) for index, call in enumerate(calls)]
        for job in jobs:
            if isinstance(job, _Job) and job.must_ask(turn):
                return Approve(
                    Question(job.tool.name, job.call.arguments, job.index, turn),
                    then=decided,
                    by=job.tool.by,
                    expires=job.tool.expires,
                    on_timeout=None if job.tool.expires is None else unanswered,
                )
        ctx.thread.append(*await _run(ctx, jobs, last=ctx.attempt + 1 >= retry.attempts))
        children = [job for job in jobs if isinstance(job, _Job) and job.tool.way == "child"]
        if not children:
            return Next(hear, turn)
        return Parallel(
            [(job.tool.agent or "", job.tool.read(job.call)) for job in children],
            join=acted,
            on_error="collect",
            carry=Children(turn, tuple(job.call for job in children)),
        )

    @agent.step
    async def decided(_ctx: Context, approval: Approval, question: Question) -> Next:
        """Continue after a person's answer."""
        why = f"{approval.by or 'somebody'} refused"
        verdict = Verdict(
            question.call, approval.approved, f"{why}: {approval.note}" if approval.note else why
        )
        return Next(act, _with(question.turn, verdict))

    @agent.step
    async def unanswered(_ctx: Context, question: Question) -> Next:
        """Continue after no answer in time."""
        verdict = Verdict(question.call, approved=False, why="nobody approved it in time")
        return Next(act, _with(question.turn, verdict))

    @agent.step
    async def acted(ctx: Context, results: list[BranchResult], children: Children) -> Next:
        """Continue with the results of the agents that were called."""
        for call, result in zip(children.calls, results, strict=True):
            failure = result.failure or {}
            ctx.thread.append(
                tool_result(call, kit.tools[call.name].text(result.result))
                if result.ok
                else tool_result(call, f"{failure['code']}: {failure['message']}", error=True)
            )
        return Next(hear, children.turn)

    @agent.step
    async def hear(ctx: Context, turn: Turn) -> Next | Done | Wait:
        """Take in what the user has said meanwhile; then think again, or answer."""
        last = ctx.thread.messages[-1]
        messages = [heard(signal) for signal in ctx.inbox(MESSAGE)]
        ctx.thread.append(*messages)
        if messages:
            return Next(think, Turn())
        if last["role"] == "tool":
            return Next(think, Turn(turn.number))
        text = answer_text(ctx.thread.messages)
        if chat:
            return Wait(
                MESSAGE,
                then=listen,
                timeout=idle,
                on_timeout=None if idle is None else end_chat,
                carry=None if idle is None else text,
            )
        return Next(then, text) if then is not None else Done(text)

    @agent.step
    async def listen(ctx: Context, message: Any) -> Next:
        """Continue the chat with the user's message."""
        ctx.thread.append(said(message))
        return Next(think, Turn())

    @agent.step
    async def end_chat(_ctx: Context, text: str) -> Next | Done:
        """End a chat in which the user said nothing more."""
        return Next(then, text) if then is not None else Done(text)

    return ToolLoop(think=think, act=act, hear=hear)


# Thinking -------------------------------------------------------------------------------------


class _Refused(Exception):
    """Carries a model's TerminalError out of the journaled call, so that it is not recorded: a
    retry of the run then asks again (with a valid key, for example)."""

    def __init__(self, error: TerminalError) -> None:
        super().__init__(str(error))
        self.error = error


async def _ask(
    ctx: Context,
    model: Model,
    system: str | None,
    specs: Sequence[JsonObject],
    reserve: Cost | None,
    price: Callable[[Usage], float] | None,
) -> Reply:
    """Ask one journaled question. Text that arrives in pieces is shown live, as stream `answer`."""
    stream = ctx.stream("answer")
    epoch = f"~e{ctx.epoch}" if ctx.epoch else ""

    async def ask(messages: list[Message]) -> Any:
        asked = Ask(
            key=f"{ctx.agent}:{ctx.run_id}{epoch}:{ctx.seq}",
            system=system,
            messages=messages,
            tools=specs,
            partial=stream.partial.text if stream.partial is not None else None,
        )
        try:
            made = await ctx.engine.invoke(model, (asked,))
            if not hasattr(made, "__aiter__"):
                reply: Any = made
            else:
                reply = None
                async with stream, aclosing(made) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, str):
                            await stream.write(piece)
                        else:
                            reply = piece
                reply = stream.text if reply is None else reply
            return REPLY.dump_python(storable(reply, ctx.seq), mode="json")
        except TerminalError as error:
            raise _Refused(error) from error

    def cost(recorded: Any) -> Cost:
        usage = REPLY.validate_python(recorded).usage
        if usage is None:
            return reserve or Cost()
        return Cost(tokens=usage.tokens, money=price(usage) if price is not None else 0.0)

    try:
        recorded = await ctx.call("think", ask, ctx.thread.messages, reserve=reserve, cost=cost)
    except _Refused as refused:
        error = refused.error
    else:
        return REPLY.validate_python(recorded)
    raise error


# Acting ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Job:
    """One call to execute, or to ask a person about first."""

    tool: Tool
    call: ToolCall
    index: int

    def must_ask(self, turn: Turn) -> bool:
        return self.tool.approve and all(each.call != self.index for each in turn.verdicts)

    @property
    def name(self) -> str:
        """Name of its journaled call."""
        return f"{self.tool.name}:{self.index}"


class _Kit:
    """The tools of a loop, by name."""

    def __init__(self, tools: Sequence[Tool | Callable[..., Any]]) -> None:
        self.tools: dict[str, Tool] = {}
        for given in tools:
            made = given if isinstance(given, Tool) else tool(given)
            if made.name in self.tools:
                raise ConfigError(
                    "SF1122", f"tool_loop: two tools are named {made.name!r}; rename one of them"
                )
            self.tools[made.name] = made
        self.specs = [each.spec for each in self.tools.values()]

    def job(self, call: ToolCall, index: int, turn: Turn) -> _Job | Message:
        """Return what to do about a call: a job, or a message that answers it at once."""
        made = self.tools.get(call.name)
        if made is None:
            there = ", ".join(self.tools) or "none"
            return tool_result(
                call, f"there is no tool {call.name!r}; use one of: {there}", error=True
            )
        for verdict in turn.verdicts:
            if verdict.call == index and not verdict.approved:
                return tool_result(call, f"not done: {verdict.why}", error=True)
        try:
            made.read(call)
        except ToolError as error:
            return tool_result(call, str(error), error=True)
        return _Job(made, call, index)


async def _run(ctx: Context, jobs: Sequence[_Job | Message], *, last: bool) -> list[Message]:
    """Execute a turn's jobs: first tools that run in the step itself, in order, then all others
    concurrently.

    If a call fails the step, the others first run to their end: nothing continues behind the step's
    back, and their results are journaled.

    Under cancellation: all are cancelled; what they recorded is kept
    """
    done = {index: job for index, job in enumerate(jobs) if not isinstance(job, _Job)}
    at_once = []
    for job in jobs:
        if not isinstance(job, _Job) or job.tool.way == "child":
            continue
        if job.tool.way == "step":
            done[job.index] = await _tell(ctx, job, last=last)
        else:
            at_once.append(job)
    found = await asyncio.gather(
        *(_tell(ctx, job, last=last) for job in at_once), return_exceptions=True
    )
    failures = [each for each in found if isinstance(each, BaseException)]
    if failures:
        raise min(failures, key=_gravity)
    done |= {
        job.index: message
        for job, message in zip(at_once, found, strict=True)
        if not isinstance(message, BaseException)
    }
    return [done[index] for index in sorted(done)]


async def _tell(ctx: Context, job: _Job, *, last: bool) -> Message:
    """Run one tool and return the message about it.

    A failure that another attempt may fix fails the step, unless this is the `last` attempt; with a
    `once` tool, the model is told then only if the call certainly did nothing.
    """
    tool, call = job.tool, job.call
    try:
        match tool.way:
            case "step":
                value = await tool.in_step(ctx, call)
            case "once":
                value = await ctx.once(
                    job.name, tool.body, call, probe=tool.look, permanent=(ToolError,)
                )
            case _:
                value = await ctx.call(job.name, tool.body, call, permanent=(ToolError,))
    except ToolError as error:
        return tool_result(call, str(error), error=True)
    except CallFailed as failed:
        if failed.kind != ToolError.__name__:
            raise
        return tool_result(call, str(failed), error=True)
    except RetryableError as error:
        if not last or (tool.way == "once" and not isinstance(error, NotDone)):
            raise
        return tool_result(call, f"{type(error).__name__}: {error}", error=True)
    return tool_result(call, tool.text(value))


def _gravity(error: BaseException) -> int:
    """Rank errors: the engine's own first, then those that end the run, then retryable ones."""
    if not isinstance(error, Exception):
        return 0
    return 1 if isinstance(error, TerminalError) else 2


def _with(turn: Turn, verdict: Verdict) -> Turn:
    return replace(turn, verdicts=(*turn.verdicts, verdict))
