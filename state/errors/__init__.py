"""Errors whose type answers "what now?", and whose number answers "what is that?".

An error that a person may see has a number, SF and four digits, as its first argument. catalogue/
says what each number means and how to fix it; `surefoot explain` shows the same.

SurefootError
├── RetryableError   may work later (transport, 429, 503)   -> the retry policy
│   └── Unavailable  the log cannot be reached just now     -> back off, readiness red
│       ├── StoreRefused  a store answers with a refusal    -> the same for a while, then a person
│       └── NotAllowed  the log denies a right              -> the same, but only briefly
│           └── KeyMissing  of an encrypted payload         -> the same; never use it as it is
├── TerminalError    will never work                        -> the run fails, dead letter
│   ├── CallFailed   a journaled call failed for good       -> the same, unless the step catches it
│   ├── ModelFailed  a model's provider refuses for good    -> the same; its code says why
│   └── RunFailed    the awaited run has no result          -> its status and failure say why
├── Refused          a command changed nothing              -> its code says why
│   └── NotFound     no such agent, run or question
├── NotDone          `ctx.once` certainly did nothing       -> its intent is withdrawn, retried
├── RecordRefused    can never be written as it is          -> the run goes to attention
│   ├── RecordTooLarge  over a topic's limit
│   ├── NoSuchTopic     of an agent that does not exist
│   └── TopicDenied     of an agent that this principal may not send to
├── FencedError      a newer owner exists                   -> drop the partition, write nothing
├── OutcomeUnknown   the commit may or may not have landed  -> new epoch, read back, decide
├── StateError       stored state cannot be trusted         -> that run goes to attention
├── ConfigError      only at start-up                       -> exit with the fix in the message
└── BadArgument      an invalid call; also a ValueError     -> fix the step

The engine's signals are BaseException, so that `except Exception` in a step cannot swallow them.
"""

from __future__ import annotations


class SurefootError(Exception):
    """Base of every error that Surefoot raises on purpose."""


class Numbered(SurefootError):
    """An error that `surefoot explain` explains. `number` is in state/errors/catalogue."""

    def __init__(self, number: str, message: str) -> None:
        Exception.__init__(self, number, message)  # the arguments that pickling needs
        self.number = number
        self.message = message

    def __str__(self) -> str:
        return f"{self.number}: {self.message}"


class RetryableError(SurefootError):
    """Worth another attempt under the step's retry policy.

    `retry_after_s` is the earliest time, in seconds from now, that the other side asked for (RFC
    9110 Retry-After); None lets the policy decide.
    """

    retry_after_s: float | None = None

    def __init__(self, message: str = "", *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Unavailable(Numbered, RetryableError):
    """The log cannot be reached, or did not answer within its deadline."""


class StoreRefused(Unavailable):
    """A store, of large payloads or the archive, answers with a refusal: waiting alone does not
    help."""


class NotAllowed(Unavailable):
    """The log denies a required right; the message names whose, which, and on what."""


class KeyMissing(NotAllowed):
    """A payload is encrypted with a key that this process does not have."""


class TerminalError(SurefootError):
    """No further attempt can help. Raise it from a step to end its retries."""


class CallFailed(TerminalError):
    """A call inside a step failed for good, now or in an earlier attempt: the failure is journaled.

    `kind` is the name of the exception's class.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class ModelFailed(TerminalError):
    """A model gives no answer, and asking again does not help. `code` becomes that of the run's
    failure (state/errors/catalogue)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class RunFailed(TerminalError):
    """A run whose result was awaited failed or was cancelled. `code` is that of its failure."""

    def __init__(self, run_id: str, status: str, code: str, message: str) -> None:
        super().__init__(f"run {run_id} was {status}" + (f": {code}: {message}" if code else ""))
        self.run_id = run_id
        self.status = status
        self.code = code


class Refused(SurefootError):
    """A command changed nothing. `code` is a stable word (docs/design.md)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NotFound(Refused):
    """There is no such agent, run or question."""


class NotDone(RetryableError):
    """It certainly did nothing. Raise it from the function of a `ctx.once`."""


class RecordRefused(SurefootError):
    """A record can never be written as it is. Nothing was written."""

    number: str
    #: of the run's failure, or of the dead letter
    code: str

    @property
    def message(self) -> str:
        return str(self)


class NoSuchTopic(RecordRefused):
    """A record is for a topic that does not exist."""

    number = "SF3004"
    code = "no_topic"


class TopicDenied(RecordRefused):
    """A record is for another agent's topic, which this principal may not write."""

    number = "SF3093"
    code = "topic_denied"


class RecordTooLarge(RecordRefused):
    """A record exceeds the limit of its topic; `size` and `limit` are in bytes."""

    number = "SF2006"
    code = "too_large"

    def __init__(self, message: str, *, size: int, limit: int) -> None:
        super().__init__(message)
        self.size = size
        self.limit = limit


class FencedError(SurefootError):
    """A newer owner of the partition exists; nothing from this one will be accepted."""


class OutcomeUnknown(SurefootError):
    """A transaction ended in any way other than a clean commit."""


class StateError(Numbered):
    """Stored state that cannot be decoded, verified or continued."""


class ConfigError(Numbered):
    """A start-up error; the message says what to change."""


class BadArgument(Numbered, ValueError):
    """An argument that cannot be valid; the message says what is."""


class OwnershipLost(BaseException):
    """Raised inside a step whose worker can no longer prove that it owns the partition."""


class BudgetSpent(BaseException):
    """Raised inside a step that asks for more than its run's budget has left."""

    def __init__(self, what: str, message: str) -> None:
        super().__init__(message)
        self.what = what


class Parked(BaseException):
    """Raised inside a step that needs a person to continue; `code` is that of the failure."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
