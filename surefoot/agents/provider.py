"""Shared parts of the adapters of providers' SDKs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, get_args

from surefoot.infra.runtime.clock import SystemClock
from surefoot.schemas.payload import BadPayload, JsonObject, parse_json
from surefoot.state.declare.retry import retry_after_s
from surefoot.state.errors import (
    ConfigError,
    ModelFailed,
    Parked,
    RetryableError,
    TerminalError,
)

#: statuses besides 5xx: too early, too many, in conflict with another request, or too slow
_WORTH_RETRYING = frozenset({408, 409, 425, 429})
_SERVER_ERROR = 500
_ERROR = 400
#: final errors in the middle of a stream, whose status is 200
_NEVER = frozenset(
    {"invalid_request_error", "authentication_error", "permission_error", "not_found_error"}
)

#: signs of an exhausted account: a status, codes and types, words
_PAYMENT_REQUIRED = 402
_QUOTA = frozenset(
    {"insufficient_quota", "billing_error", "billing_hard_limit_reached", "billing_not_active"}
)
_QUOTA_WORDS = ("credit balance is too low", "insufficient balance")
#: signs of a question that is too large; waiting does not help, though some answer 429
_TOO_LARGE = 413
_LARGE = frozenset({"request_too_large", "context_length_exceeded", "exceed_context_size_error"})
_LARGE_WORDS = (
    "request too large",
    "prompt is too long",
    "maximum context length",
    "input token count (",
)

#: how much of a provider's text a failure shows, in characters
_SHOWN = 500


def missing(extra: str) -> ConfigError:
    """Return the error for an SDK that is not installed."""
    return ConfigError(
        "SF1123",
        f"the {extra} package is not installed; install surefoot with it: "
        f"pip install 'surefoot[{extra}]'",
    )


# The question ---------------------------------------------------------------------------------

#: Changes a request before it is sent
Adjust = Callable[[JsonObject], JsonObject]


def request(
    ours: Mapping[str, Any], options: Mapping[str, Any], key: str, adjust: Adjust | None
) -> JsonObject:
    """Return the request to send: `ours` overridden by `options`, where None leaves a field out.

    Tools and headers of `options` are added to ours instead. `adjust` may change anything at last.
    """
    made = {**ours, **options}
    if made.get("tools") and "tools" in ours:
        made["tools"] = [*(options.get("tools") or ()), *ours["tools"]]
    if made.get("extra_headers", {}) is not None:
        headers = {"Idempotency-Key": key, **made.get("extra_headers", {})}
        made["extra_headers"] = {
            name: value for name, value in headers.items() if value is not None
        }
    made = {name: value for name, value in made.items() if value is not None}
    return made if adjust is None else adjust(made)


# The answer -----------------------------------------------------------------------------------

#: Meaning of a provider's stop reason: the answer is complete; it has calls; the model is to be
#: asked to continue; the limit of tokens was reached; the model refused; a filter refused; the
#: server failed
StopKind = Literal["done", "calls", "goes_on", "cut_off", "refused", "filtered", "again"]


def ends_of(
    known: Mapping[str, StopKind], more: Mapping[str, StopKind] | None
) -> Mapping[str, StopKind]:
    """Return an adapter's table, extended by its user for a server with other words.

    Raises: ConfigError - not a StopKind
    """
    words = get_args(StopKind)
    for reason, end in (more or {}).items():
        if end not in words:
            raise ConfigError(
                "SF1186", f"ends: {reason!r} must be one of {', '.join(words)}; got {end!r}"
            )
    return {**known, **{reason.lower(): end for reason, end in (more or {}).items()}}


def judge_stop(
    reason: str | None, known: Mapping[str, StopKind], *, said: str, calls: bool
) -> bool:
    """Return whether a complete answer is to be continued.

    Args:   reason: the stop reason; None: none was given. said: the text of a refusal. calls:
            whether the answer has any
    Raises: RetryableError, ModelFailed, Parked - the answer is not complete
    """
    if reason is None:
        raise RetryableError("the model's answer ended without a stop reason")
    # Gemini's endpoint appends its own word: "content_filter: RECITATION".
    word = reason.lower()
    end = known.get(word, known.get(word.partition(":")[0].strip()))
    told = f": {said[:_SHOWN]}" if said else ""
    match end:
        case "cut_off":
            raise ModelFailed(
                "model_cut_off",
                f"the model's answer was cut off ({reason}): raise the adapter's token limit, "
                "then `surefoot runs retry`",
            )
        case "refused":
            raise ModelFailed("model_refused", f"the model refused to answer ({reason}){told}")
        case "filtered":
            raise ModelFailed("model_filtered", f"a filter blocked the answer ({reason}){told}")
        case "again":
            raise RetryableError(f"the model could not finish its answer ({reason})")
        case "calls" if not calls:
            raise Parked(
                "model_stop_unknown",
                f"the model stopped to call tools ({reason}), but called none: its server may have "
                "misread it. `surefoot runs retry` asks again",
            )
        case None:
            raise Parked(
                "model_stop_unknown",
                f"the model stopped for an unknown reason ({reason!r}), so its answer may be "
                f"incomplete. `surefoot runs retry` asks again. If that reason is a normal end, "
                f'give the adapter ends={{{reason!r}: "done"}}',
            )
    return end == "goes_on"


def adapter_extra(message: Mapping[str, Any], adapter: str) -> Any:
    """Return what that adapter kept in the message; None: nothing."""
    extra = message.get("extra")
    return extra.get(adapter) if isinstance(extra, dict) else None


def parse_arguments(arguments: str) -> JsonObject | str:
    """Return a call's arguments if they are a JSON object, else the text unchanged."""
    try:
        value = parse_json(arguments.encode("utf-8", "replace"))
    except BadPayload:
        return arguments
    return value if isinstance(value, dict) else arguments


def as_object(arguments: JsonObject | str) -> JsonObject:
    """Return a call's arguments for sending back: always an object, even if the model wrote none.
    Servers parse them, and otherwise refuse the whole thread."""
    return {"text": arguments} if isinstance(arguments, str) else arguments


# No answer ------------------------------------------------------------------------------------


def what_now(error: Exception) -> RetryableError | TerminalError:
    """Return the error that an SDK's exception means.

    No connection, 429, 5xx and the like may work later, with the provider's hint when; so may an
    answer that began well (a status below 400) and broke off. An exhausted account, a question that
    is too large, and everything else are final.
    """
    told = list(_objects(getattr(error, "body", None)))
    codes = [each.get(name) for each in told for name in ("code", "type")]
    words = {code for code in codes if isinstance(code, str)}
    status = _status(error, codes)
    message = f"{type(error).__name__}: {error}"
    if status == _PAYMENT_REQUIRED or words & _QUOTA or _says(message, _QUOTA_WORDS):
        return ModelFailed(
            "model_quota_spent",
            "the provider's account has no credit left; add credit or raise its limit, then "
            f"`surefoot runs retry`. {message}",
        )
    if status == _TOO_LARGE or words & _LARGE or _says(message, _LARGE_WORDS):
        return ModelFailed(
            "model_request_too_large",
            "the request is larger than the model accepts; lower chars_max of the tools or use "
            f"another model, then `surefoot runs retry`. {message}",
        )
    if "content_filter" in words:
        return ModelFailed("model_filtered", f"a filter blocked the request. {message}")
    if status is None:  # no answer, or an interrupted one
        begun = getattr(error, "request", None) is not None
    else:
        begun = status < _ERROR or status >= _SERVER_ERROR or status in _WORTH_RETRYING
    if not begun or words & _NEVER:
        return TerminalError(message)
    headers = getattr(getattr(error, "response", None), "headers", {})
    return RetryableError(message, retry_after_s=_asked_s(headers, told))


def _status(error: Exception, codes: Iterable[object]) -> int | None:
    """Return the answer's status; in the middle of a stream, the status that the error's body has
    as a code."""
    status: int | None = getattr(error, "status_code", None)
    if status is not None and status >= _ERROR:
        return status
    return next((code for code in codes if type(code) is int and _ERROR <= code < 600), status)  # noqa: PLR2004


def _objects(body: Any) -> Iterator[Mapping[str, Any]]:
    """Yield each object of an error's body that may have details; Gemini's body is a list."""
    if isinstance(body, list):
        for each in body:
            yield from _objects(each)
    elif isinstance(body, dict):
        yield body
        yield from _objects(body.get("error"))
        yield from _objects(body.get("details"))


def _says(message: str, words: Iterable[str]) -> bool:
    return any(each in message.lower() for each in words)


def _asked_s(headers: Mapping[str, str], told: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the wait that the provider asks for: in headers, or Gemini's `retryDelay` ("26s")."""
    delays = [str(each["retryDelay"]).removesuffix("s") for each in told if "retryDelay" in each]
    asked = [headers, *({"retry-after": delay} for delay in delays)]
    now_ms = SystemClock().now_ms()
    return next((s for each in asked if (s := retry_after_s(each, now_ms)) is not None), None)
