"""Agents on Kafka that never lose their footing."""

from typing import TYPE_CHECKING, Any

from surefoot.state.declare.agent import Agent, Budget, Ended, Resuming
from surefoot.state.declare.flow_control import Flow, Rate
from surefoot.state.declare.retry import Retry
from surefoot.state.declare.sources import EventBridgeEvent, QueueMessage, S3Object, WatchedFile
from surefoot.state.declare.subscriptions import RunEvent
from surefoot.state.declare.webhooks import Bearer, Hmac, Start, Webhook
from surefoot.state.errors import (
    CallFailed,
    ConfigError,
    FencedError,
    NotDone,
    NotFound,
    Refused,
    RetryableError,
    RunFailed,
    StateError,
    SurefootError,
    TerminalError,
    Unavailable,
)
from surefoot.state.ports.sources import Received
from surefoot.state.scheduling.book import Tick
from surefoot.state.steps.context import Context
from surefoot.state.steps.journal import Cost
from surefoot.state.steps.partial_output import Partial
from surefoot.state.steps.results import (
    Approval,
    Approve,
    BranchResult,
    Call,
    Done,
    Handoff,
    Next,
    Parallel,
    Signal,
    Sleep,
    Wait,
    all_of,
    any_of,
    n_of,
)

if TYPE_CHECKING:
    from surefoot.client import Client

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "Approval",
    "Approve",
    "Bearer",
    "BranchResult",
    "Budget",
    "Call",
    "CallFailed",
    "Client",
    "ConfigError",
    "Context",
    "Cost",
    "Done",
    "Ended",
    "EventBridgeEvent",
    "FencedError",
    "Flow",
    "Handoff",
    "Hmac",
    "Next",
    "NotDone",
    "NotFound",
    "Parallel",
    "Partial",
    "QueueMessage",
    "Rate",
    "Received",
    "Refused",
    "Resuming",
    "Retry",
    "RetryableError",
    "RunEvent",
    "RunFailed",
    "S3Object",
    "Signal",
    "Sleep",
    "Start",
    "StateError",
    "SurefootError",
    "TerminalError",
    "Tick",
    "Unavailable",
    "Wait",
    "WatchedFile",
    "Webhook",
    "all_of",
    "any_of",
    "n_of",
]


def __getattr__(name: str) -> Any:
    """The client brings an HTTP client along, which nobody else should wait for."""
    if name == "Client":
        from surefoot.client import Client  # noqa: PLC0415

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
