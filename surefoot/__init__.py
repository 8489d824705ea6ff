"""Agents on Kafka that never lose their footing."""

from surefoot.state.agent import Agent, Budget, Ended, Resuming, Webhook
from surefoot.state.context import Context
from surefoot.state.errors import (
    CallFailed,
    ConfigError,
    FencedError,
    NotDone,
    RetryableError,
    StateError,
    SurefootError,
    TerminalError,
    Unavailable,
)
from surefoot.state.journal import Cost
from surefoot.state.retry import Retry
from surefoot.state.returns import (
    Approval,
    Approve,
    BranchResult,
    Call,
    Done,
    Fork,
    Handoff,
    Next,
    Signal,
    Sleep,
    Wait,
    all_of,
    any_of,
    n_of,
)
from surefoot.state.stream import Partial

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Approval",
    "Approve",
    "BranchResult",
    "Budget",
    "Call",
    "CallFailed",
    "ConfigError",
    "Context",
    "Cost",
    "Done",
    "Ended",
    "FencedError",
    "Fork",
    "Handoff",
    "Next",
    "NotDone",
    "Partial",
    "Resuming",
    "Retry",
    "RetryableError",
    "Signal",
    "Sleep",
    "StateError",
    "SurefootError",
    "TerminalError",
    "Unavailable",
    "Wait",
    "Webhook",
    "all_of",
    "any_of",
    "n_of",
]
