"""What the adapters of providers' SDKs have in common."""

from __future__ import annotations

from typing import Any

from surefoot.infra.clock import SystemClock
from surefoot.schemas.payload import BadPayload, parse_json
from surefoot.state.errors import ConfigError, RetryableError, TerminalError
from surefoot.state.retry import retry_after_s

#: beside 5xx: too early, too many, in conflict with another request, or too slow
_WORTH_RETRYING = frozenset({408, 409, 425, 429})
_SERVER_ERROR = 500
_ERROR = 400


def missing(extra: str) -> ConfigError:
    """For an SDK that is not installed."""
    return ConfigError(
        "SF1123",
        f"the {extra} package is not installed; install surefoot with it: "
        f"pip install 'surefoot[{extra}]'",
    )


def what_now(error: Exception) -> RetryableError | TerminalError:
    """What an exception of an SDK means: no connection, 429, 5xx and the like may work later, with
    the provider's Retry-After; so may what broke in the middle of an answer that had begun well (a
    status below 400). All else never will."""
    response: Any = getattr(error, "response", None)
    status = getattr(error, "status_code", None)
    message = f"{type(error).__name__}: {error}"
    if response is None or status is None:
        lost = getattr(error, "request", None) is not None
        return RetryableError(message) if lost else TerminalError(message)
    if status < _ERROR or status in _WORTH_RETRYING or status >= _SERVER_ERROR:
        return RetryableError(
            message, retry_after_s=retry_after_s(response.headers, SystemClock().now_ms())
        )
    return TerminalError(message)


def cut_off(what: str) -> TerminalError:
    """For an answer that the provider did not finish."""
    return TerminalError(
        f"the model's answer was cut off ({what}): give the adapter a higher limit of tokens, and "
        "`surefoot runs retry`"
    )


def parsed(arguments: str) -> dict[str, Any] | str:
    """A call's arguments, when they are a JSON object; else the text as it is."""
    try:
        value = parse_json(arguments.encode("utf-8", "replace"))
    except BadPayload:
        return arguments
    return value if isinstance(value, dict) else arguments
