"""Errors whose type answers "what now?", and whose number answers "what is that?".

What a person can come to see has a number, SF and four digits, which is the first argument of the
error; catalogue/ tells what each means and what mends it, as does `surefoot explain`.

SurefootError
├── RetryableError   may work later (transport, 429, 503)   -> the retry policy
│   └── Unavailable  the log cannot be reached just now     -> back off, readiness red
│       ├── StoreRefused  a store answers that it will not  -> the same for a while, then a person
│       └── NotAllowed  the log denies a right              -> the same, and not for long
├── TerminalError    will never work                        -> the run fails, dead letter
│   ├── CallFailed   a journaled call failed for good       -> the same, unless the step catches it
│   ├── ModelFailed  a model's provider says no for good    -> the same; its code says why
│   └── RunFailed    a run that was waited for has no result -> its status and failure say why
├── Refused          a command moved nothing                -> its code says why
│   └── NotFound     no such agent, run or question
├── NotDone          `ctx.once` certainly did nothing       -> its intent is withdrawn, retried
├── RecordRefused    can never be written as it is          -> the run goes to attention
│   ├── RecordTooLarge  over a topic's limit
│   └── NoSuchTopic     of an agent that there is not
├── FencedError      a newer owner exists                   -> drop the partition, write nothing
├── OutcomeUnknown   the commit may or may not have landed  -> new epoch, read back, decide
├── StateError       stored state cannot be trusted         -> that run goes to attention
├── ConfigError      only at start-up                       -> exit with the fix in the message
└── BadArgument      a call that cannot be meant; a ValueError, too -> mend the step

Signals of the engine are BaseException, so that `except Exception` in a step cannot eat them.
"""

from __future__ import annotations


class SurefootError(Exception):
    """Base of every error that Surefoot raises on purpose."""


class Numbered(SurefootError):
    """An error of which `surefoot explain` tells more. `number` is in state/errors/catalogue."""

    def __init__(self, number: str, message: str) -> None:
        Exception.__init__(self, number, message)  # what it is pickled by
        self.number = number
        self.message = message

    def __str__(self) -> str:
        return f"{self.number}: {self.message}"


class RetryableError(SurefootError):
    """Worth another attempt under the step's retry policy.

    `retry_after_s` is the earliest time in seconds that the other side asked for (RFC 9110
    Retry-After); None lets the policy decide.
    """

    retry_after_s: float | None = None

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(Numbered, RetryableError):
    """The log cannot be reached, or did not answer within its deadline."""


class StoreRefused(Unavailable):
    """A store, of large payloads or the archive, answers that it will not: waiting alone does not
    help."""


class NotAllowed(Unavailable):
    """The log denies a right that is needed; the message names whose, which, and on what."""


class TerminalError(SurefootError):
    """Raise it from a step to say that no further attempt can help."""


class CallFailed(TerminalError):
    """A call inside a step failed for good, now or in an earlier attempt: the failure is journaled.

    `kind` is the name of the exception's class.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class ModelFailed(TerminalError):
    """A model gives no answer, and asking again does not help. `code` is that of the run's failure
    (state/errors/catalogue)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RunFailed(TerminalError):
    """A run whose result was asked for was failed or cancelled. `code` is that of its failure."""

    def __init__(self, run_id: str, status: str, code: str, message: str) -> None:
        super().__init__(f"run {run_id} was {status}" + (f": {code}: {message}" if code else ""))
        self.run_id = run_id
        self.status = status
        self.code = code


class Refused(SurefootError):
    """A command moved nothing. `code` is a stable word (docs/design.md)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NotFound(Refused):
    """There is no such agent, run or question."""


class NotDone(RetryableError):
    """Raise it from the function of a `ctx.once` to say that it certainly did nothing."""


class RecordRefused(SurefootError):
    """A record can never be written as it is. Nothing was written."""

    number: str

    @property
    def message(self) -> str:
        return str(self)


class NoSuchTopic(RecordRefused):
    """A record is for a topic that does not exist."""

    number = "SF3004"


class RecordTooLarge(RecordRefused):
    """A record is over the limit of its topic; `size` and `limit` are in bytes."""

    number = "SF2006"

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class FencedError(SurefootError):
    """A newer owner of the partition exists; nothing of this one will be accepted."""


class OutcomeUnknown(SurefootError):
    """A transaction ended in any way but a clean commit."""


class StateError(Numbered):
    """Stored state that cannot be decoded, verified or continued."""


class ConfigError(Numbered):
    """A start-up error; the message says what to change."""


class BadArgument(Numbered, ValueError):
    """What was asked for cannot be meant; the message says what can."""


class OwnershipLost(BaseException):
    """Raised inside a step whose worker can no longer prove that it owns the partition."""


class BudgetSpent(BaseException):
    """Raised inside a step that asks for more than its run's budget has left."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class Parked(BaseException):
    """Raised inside a step that cannot go on without a person; `code` is that of the failure."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
