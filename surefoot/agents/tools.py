"""Tools: functions and agents that a model may call, and how they are described to it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, overload

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError
from pydantic_core import to_json

from surefoot.agents.messages import ToolCall
from surefoot.schemas.payload import JsonObject, strict_json
from surefoot.schemas.text import whole
from surefoot.state.declare.agent import Agent
from surefoot.state.declare.annotations import MISSING, annotation, plain_function, why_hidden
from surefoot.state.declare.callables import is_async
from surefoot.state.declare.durations import duration_s
from surefoot.state.declare.stored_types import completed
from surefoot.state.errors import ConfigError, RetryableError, TerminalError
from surefoot.state.steps.context import Context

#: names that all providers accept
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")

_CHARS_MIN = 100

#: call: a journaled call; once: at most once; step: in the step itself; child: a run of its own
Way = Literal["call", "once", "step", "child"]

Parse = Callable[[bytes], Any]


class ToolError(Exception):
    """Raise it from a tool to tell the model what went wrong. In a `once` tool it also means that
    the outcome is known: it is recorded, and the call is not in doubt."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """A tool that a model may call. Made by `tool` and `agent_tool`."""

    name: str
    description: str
    #: JSON schema of the arguments, an object
    parameters: JsonObject
    way: Way
    fn: Callable[..., Any] | None = None
    agent: Agent | None = None
    #: says whether an earlier call happened, see Context.once
    probe: Callable[..., Any] | None = None
    #: ask a person first; `by` names who may answer, `expires` how long they have
    approve: bool = False
    by: Sequence[str] = ()
    expires: str | float | None = None
    #: how much of its result the model gets, in characters
    chars_max: int
    #: converts the model's JSON to the input of the function or the agent
    parse: Parse = field(repr=False)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function, as before it became a tool."""
        if self.fn is None:
            raise TypeError(f"tool {self.name!r} is an agent; start a run of it")
        return self.fn(*args, **kwargs)

    @property
    def spec(self) -> JsonObject:
        """The tool's description for the model."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def read(self, call: ToolCall) -> Any:
        """Return the arguments as the function takes them.

        Raises: ToolError - with words for the model
        """
        if isinstance(call.arguments, str):
            raise ToolError("the arguments are not a JSON object")
        try:
            return self.parse(strict_json(call.arguments))
        except ValidationError as error:
            raise ToolError(_in_words(error)) from error

    @cached_property
    def body(self) -> Callable[[ToolCall], Any]:
        """What ctx.call and ctx.once call. Returns text.

        It runs in a thread, unless the function is async; an awaitable result is awaited.

        Raises: ToolError for anything that the function raises, except TerminalError and
                RetryableError; in a `once` tool, only for a ToolError
        """
        errors = _definite if self.way == "once" else _any
        assert self.fn is not None
        return self._calling(self.fn, errors, self.text)

    @cached_property
    def look(self) -> Callable[[ToolCall], Any] | None:
        """The probe in the form that ctx.once takes."""
        if self.probe is None:
            return None

        def told(value: Any) -> Any:
            return value if value is None or isinstance(value, bool) else self.text(value)

        return self._calling(self.probe, nullcontext, told)

    def _calling(
        self,
        fn: Callable[..., Any],
        errors: Callable[[], AbstractContextManager[None]],
        told: Callable[[Any], Any],
    ) -> Callable[[ToolCall], Any]:
        """Return a function that calls `fn` with a call's arguments; async if `fn` is."""

        async def to_its_end(value: Any) -> Any:
            with errors():
                value = await value
            return told(value)

        def body(call: ToolCall) -> Any:
            given = self.read(call)
            with errors():
                value = fn(**given)
            return to_its_end(value) if inspect.isawaitable(value) else told(value)

        async def async_body(call: ToolCall) -> Any:
            return await body(call)

        return async_body if is_async(fn) else body

    async def in_step(self, ctx: Context, call: ToolCall) -> str:
        """Run it with the step's own context. What it asks of the context is committed with the
        step.

        Raises: as `body`
        """
        assert self.fn is not None
        given = self.read(call)
        with _any():
            return self.text(await ctx.engine.invoke(partial(self.fn, ctx, **given), ()))

    def text(self, value: Any) -> str:
        """Return what the model gets of a result: text unchanged, anything else as JSON; at most
        `chars_max` characters."""
        text = _text(value)
        if len(text) <= self.chars_max:
            return text
        note = f"\n[cut short: it has {len(text)} characters]"
        return text[: self.chars_max - len(note)] + note


@contextmanager
def _any() -> Iterator[None]:
    try:
        yield
    except (TerminalError, RetryableError):
        raise
    except ToolError as error:
        raise ToolError(str(error)) from error
    except Exception as error:
        raise ToolError(f"{type(error).__name__}: {error}") from error


@contextmanager
def _definite() -> Iterator[None]:
    try:
        yield
    except ToolError as error:
        raise ToolError(str(error)) from error


def _text(value: Any) -> str:
    if isinstance(value, str):
        return whole(value)
    if value is None:
        return "done"
    try:
        return to_json(value, bytes_mode="base64", inf_nan_mode="constants", fallback=str).decode()
    except ValueError:  # text that is not UTF-8, or a value that contains itself
        return whole(str(value))


def _in_words(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False, include_context=False)
    told = [f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in found]
    return "bad arguments: " + "; ".join(told)


# Making them ----------------------------------------------------------------------------------


@overload
def tool(fn: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = ...,
    description: str | None = ...,
    once: bool = ...,
    probe: Callable[..., Any] | None = ...,
    approve: bool = ...,
    by: Sequence[str] = ...,
    expires: str | float | None = ...,
    chars_max: int = ...,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    once: bool = False,
    probe: Callable[..., Any] | None = None,
    approve: bool = False,
    by: Sequence[str] = (),
    expires: str | float | None = None,
    chars_max: int = 50_000,
) -> Any:
    """Make a tool of a function with type hints, `async def` or `def` (which runs in a thread).

    Its name, docstring and types describe it to the model. A partial or a callable object works
    too; it needs `name`, and `description` unless it has a docstring of its own. The model cannot
    set arguments that a partial has bound.

    A tool runs as a journaled call: after a crash, a call that returned is not repeated, and one in
    progress is. A function whose first parameter is a Context runs in the step itself: what it asks
    of ctx.outbox, ctx.plan and so on is committed with the step, and it is called again if the step
    is.

    The model is told about exceptions, except for RetryableError (the step is retried; the model is
    told after the last attempt) and TerminalError (the run fails).

    Args:    once: call it at most once. probe: `probe(**arguments)` says after a crash whether the
             call happened (see Context.once). approve: ask a person first; the answer holds for
             exactly these arguments. by: who may answer; expires: how long they have. chars_max:
             how much of the result the model gets, in characters
    Raises:  ConfigError - at import, when it cannot be a tool
    """

    def make(fn: Callable[..., Any]) -> Tool:
        given: object = fn
        if not callable(given) or isinstance(given, type):
            raise ConfigError("SF1122", f"{fn!r:.80} is not a function, so it cannot be a tool")
        written = plain_function(fn)
        named = str(name or getattr(written if isinstance(fn, partial) else fn, "__name__", ""))
        where = f"tool {named!r}"
        hints, parameters = _signature(fn, where)
        in_step = bool(parameters) and hints[parameters[0].name] is Context
        if in_step and (once or probe is not None):
            raise ConfigError(
                "SF1122", f"{where} takes the Context; call ctx.once in it instead of once=True"
            )
        if probe is not None and not once:
            raise ConfigError("SF1122", f"{where}: a probe needs once=True")
        told = description or inspect.getdoc(written) or inspect.getdoc(fn)
        schema, parse = _from_signature(parameters[in_step:], hints, where)
        return _checked(
            Tool(
                name=named,
                description=told or "",
                parameters=schema,
                fn=fn,
                probe=probe,
                way="step" if in_step else "once" if once else "call",
                approve=approve,
                by=tuple(by),
                expires=expires,
                chars_max=chars_max,
                parse=parse,
            )
        )

    return make if fn is None else make(fn)


def agent_tool(
    agent: Agent,
    *,
    description: str,
    name: str | None = None,
    approve: bool = False,
    by: Sequence[str] = (),
    expires: str | float | None = None,
    chars_max: int = 50_000,
) -> Tool:
    """Make a tool of another agent. A call is a child run; its arguments are the input of the
    agent's start step, under `input` if that is not an object."""
    kind = agent.start_step.payload_type
    schema, parse = _of_type(kind)
    return _checked(
        Tool(
            name=name or agent.name,
            description=description,
            parameters=schema,
            way="child",
            agent=agent,
            approve=approve,
            by=tuple(by),
            expires=expires,
            chars_max=chars_max,
            parse=parse,
        )
    )


def _checked(made: Tool) -> Tool:
    where = f"tool {made.name!r}"
    if not _NAME.fullmatch(made.name):
        raise ConfigError(
            "SF1122", f"{where}: set name= to a letter, then up to 63 of A-Z a-z 0-9 _ -"
        )
    if not made.description:
        raise ConfigError(
            "SF1122", f"{where}: write a docstring; it describes the tool to the model"
        )
    duration_s(made.expires)
    if made.chars_max < _CHARS_MIN:
        raise ConfigError(
            "SF1122", f"{where}: chars_max must be {_CHARS_MIN} or more; got {made.chars_max!r}"
        )
    return made


def _signature(
    fn: Callable[..., Any], where: str
) -> tuple[dict[str, Any], list[inspect.Parameter]]:
    """Return (types by name, parameters)."""
    bound = fn.keywords if isinstance(fn, partial) else {}
    signature = inspect.signature(fn)
    parameters = [each for each in signature.parameters.values() if each.name not in bound]
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ConfigError(
                "SF1122",
                f"{where}: a model cannot be given {parameter}; name each argument{why_hidden(fn)}",
            )
    hints = {each.name: annotation(fn, each.name, where) for each in parameters}
    for name, hint in hints.items():
        if hint is MISSING:
            raise ConfigError("SF1122", f"{where}: annotate {name!r} with its type{why_hidden(fn)}")
    return hints, parameters


def _from_signature(
    parameters: Sequence[inspect.Parameter], hints: dict[str, Any], where: str
) -> tuple[JsonObject, Parse]:
    """Return (JSON schema, parser) of keyword arguments. The model's fields have generated names,
    because an argument may have the name of one of BaseModel's methods."""
    for each in parameters:
        completed(hints[each.name])
    fields: dict[str, Any] = {
        f"a{number}": (
            hints[each.name],
            Field(... if each.default is each.empty else each.default, alias=each.name),
        )
        for number, each in enumerate(parameters)
    }
    try:
        model = create_model("arguments", __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise ConfigError(
            "SF1122", f"{where}: its arguments cannot be read from JSON ({error})"
        ) from error
    names = [each.name for each in parameters]

    def parse(data: bytes) -> JsonObject:
        made = model.model_validate_json(data)
        return {name: getattr(made, f"a{number}") for number, name in enumerate(names)}

    return _untitled(schema), parse


def _of_type(kind: Any) -> tuple[JsonObject, Parse]:
    """Return (JSON schema, parser) of one value."""
    completed(kind)
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    schema = adapter.json_schema()
    if schema.get("type") == "object" and "properties" in schema:
        return _untitled(schema), adapter.validate_json
    wrapper = create_model("arguments", __config__=ConfigDict(extra="forbid"), input=(kind, ...))

    def parse(data: bytes) -> Any:
        return getattr(wrapper.model_validate_json(data), "input")  # noqa: B009  (made here)

    return _untitled(wrapper.model_json_schema()), parse


def _untitled(schema: JsonObject) -> JsonObject:
    """Remove the titles that pydantic generates; they only repeat the names."""
    schema = {key: value for key, value in schema.items() if key != "title"}
    for place in ("properties", "$defs"):
        if place in schema:
            schema[place] = {name: _untitled(each) for name, each in schema[place].items()}
    return schema


# The plan, as tools ---------------------------------------------------------------------------


def plan_tools() -> list[Tool]:
    """Return tools with which the model keeps the run's to-do list: `[search, *plan_tools()]`."""
    return [tool(plan_add), tool(plan_tick), tool(plan_drop)]


def plan_add(ctx: Context, items: list[str]) -> list[dict[str, str]]:
    """Add items to your plan, in the order in which you will do them. Returns the plan."""
    for item in items:
        ctx.plan.add(item)
    return _plan(ctx)


def plan_tick(ctx: Context, item_id: str) -> list[dict[str, str]]:
    """Say that an item of your plan is done. Returns the plan."""
    ctx.plan.tick(item_id)
    return _plan(ctx)


def plan_drop(ctx: Context, item_id: str) -> list[dict[str, str]]:
    """Say that an item of your plan need not be done any more. Returns the plan."""
    ctx.plan.drop(item_id)
    return _plan(ctx)


def _plan(ctx: Context) -> list[dict[str, str]]:
    return [{"id": each.id, "text": each.text, "state": each.state} for each in ctx.plan.items]
