"""Errors whose type answers "what now?".

SurefootError
├── RetryableError   may work later (transport, 429, 503)   -> the retry policy
│   └── Unavailable  the log cannot be reached just now     -> back off, readiness red
├── TerminalError    will never work                        -> the run fails, dead letter
├── RecordTooLarge   over a topic's limit                   -> the run goes to attention
├── FencedError      a newer owner exists                   -> drop the partition, write nothing
├── OutcomeUnknown   the commit may or may not have landed  -> new epoch, read back, decide
├── StateError       stored state cannot be trusted         -> that run goes to attention
└── ConfigError      only at start-up                       -> exit with the fix in the message

Signals of the engine are BaseException, so that `except Exception` in a step cannot eat them.
"""

from __future__ import annotations


class SurefootError(Exception):
    """Base of every error that Surefoot raises on purpose."""


class RetryableError(SurefootError):
    """Worth another attempt under the step's retry policy.

    `retry_after_s` is the earliest time in seconds that the other side asked for (RFC 9110
    Retry-After); None lets the policy decide.
    """

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(RetryableError):
    """The log cannot be reached, or did not answer within its deadline."""


class TerminalError(SurefootError):
    """Raise it from a step to say that no further attempt can help."""


class RecordTooLarge(SurefootError):
    """A record is over the limit of its topic; `size` and `limit` are in bytes."""

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class FencedError(SurefootError):
    """A newer owner of the partition exists; nothing of this one will be accepted."""


class OutcomeUnknown(SurefootError):
    """A transaction ended in any way but a clean commit."""


class StateError(SurefootError):
    """Stored state that cannot be decoded, verified or continued."""


class ConfigError(SurefootError):
    """A start-up error; the message says what to change."""


class OwnershipLost(BaseException):
    """Raised inside a step whose worker can no longer prove that it owns the partition."""
