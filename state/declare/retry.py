"""When a failed step is tried again. Pure: time and randomness are arguments."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

from surefoot.state.errors import BadArgument, ConfigError, RetryableError, TerminalError

#: errors that no further attempt can fix
FINAL: tuple[type[BaseException], ...] = (TerminalError, BadArgument)
#: upper bound on a Retry-After that is obeyed, in seconds
RETRY_AFTER_MAX_S = 24 * 3600.0
#: a number in a header: ASCII digits with an optional fraction; no sign, "inf", "nan" or "1e9"
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Retry:
    """A step's retry policy: exponential backoff, capped, with jitter."""

    #: attempts in total, the first one included
    attempts: int = 5
    #: wait after the first failed attempt
    initial_s: float = 1.0
    #: longest wait that the backoff itself produces
    max_s: float = 300.0
    #: factor from each wait to the next
    multiplier: float = 2.0
    #: random share of each wait: 0 waits exactly, 1 waits anything from nothing to the full time
    jitter: float = 0.5
    #: retry only these exceptions, and those that ask for a retry themselves (RetryableError, a
    #: timeout); None: all that do not rule it out
    on: tuple[type[BaseException], ...] | None = None
    #: never retry these
    give_up_on: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise ConfigError(
                "SF1112",
                "Retry: attempts must be a whole number from 1 (1 = no second attempt); "
                f"got {self.attempts!r}",
            )
        for name in ("initial_s", "max_s", "multiplier", "jitter"):
            value: float = getattr(self, name)
            if type(value) not in (int, float) or not math.isfinite(value):
                raise ConfigError("SF1112", f"Retry: {name} must be a finite number; got {value!r}")
        if self.initial_s <= 0:
            raise ConfigError(
                "SF1112", f"Retry: initial_s must be above 0 seconds; got {self.initial_s}"
            )
        if self.max_s < self.initial_s:
            raise ConfigError(
                "SF1112",
                f"Retry: max_s must be at least initial_s ({self.initial_s}); got {self.max_s}",
            )
        if self.multiplier < 1:
            raise ConfigError(
                "SF1112",
                f"Retry: multiplier must be 1 or more (1 = equal waits); got {self.multiplier}",
            )
        for name in ("on", "give_up_on"):
            kinds = getattr(self, name)
            if kinds is not None and not (
                isinstance(kinds, tuple)
                and all(
                    isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
                )
            ):
                raise ConfigError(
                    "SF1112", f"Retry: {name} must be a tuple of exception classes; got {kinds!r}"
                )
        if not 0 <= self.jitter <= 1:
            raise ConfigError("SF1112", f"Retry: jitter must be from 0 to 1; got {self.jitter}")


def worth_retrying(policy: Retry, error: BaseException) -> bool:
    """Whether another attempt may succeed after that exception. Pure."""
    if isinstance(error, (*FINAL, *policy.give_up_on)):
        return False
    return policy.on is None or isinstance(error, (RetryableError, *policy.on))


def delay_ms(policy: Retry, attempt: int, rand: float, retry_after_s: float | None = None) -> int:
    """Return the wait in milliseconds, at least 1, before the attempt after `attempt`. Pure.

    Args:    attempt: the one that failed, counted from 0; rand: random, from 0 to 1;
             retry_after_s: what the other side asked for, obeyed up to 24 hours; an invalid value
             (negative, not a finite number) is ignored
    Returns: without retry_after_s, at most the policy's max_s. With it, never less than asked, and
             up to jitter * max_s more, so that clients given the same time do not return together
    """
    wait_s = _backoff_s(policy, attempt)
    spread_s = wait_s * policy.jitter * rand
    wait_s -= spread_s
    if retry_after_s is not None and 0 < retry_after_s < math.inf:  # also false for NaN
        wait_s = max(wait_s, min(retry_after_s, RETRY_AFTER_MAX_S) + spread_s)
    return max(1, math.ceil(wait_s * 1000))


def retry_after_s(headers: Mapping[str, str], now_ms: int) -> float | None:
    """Return the seconds from now that the other side asks to wait, from 0 to RETRY_AFTER_MAX_S;
    None when it sends no usable value. Pure.

    Args: headers: of its answer. Reads `retry-after-ms`, which model providers send, and
          `Retry-After`: seconds, or a date (RFC 9110, section 10.2.3)
    """
    told = {name.lower(): value.strip() for name, value in headers.items()}
    for name, unit_s in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        if _NUMBER.fullmatch(told.get(name, "")):
            return min(float(told[name]) * unit_s, RETRY_AFTER_MAX_S)
    try:
        when = parsedate_to_datetime(told.get("retry-after", ""))
        at_s = when.replace(tzinfo=when.tzinfo or UTC).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return min(max(0.0, at_s - now_ms / 1000), RETRY_AFTER_MAX_S)


def _backoff_s(policy: Retry, attempt: int) -> float:
    try:
        return min(policy.max_s, policy.initial_s * float(policy.multiplier) ** attempt)
    except OverflowError:  # too large for a float, so above max_s
        return policy.max_s
