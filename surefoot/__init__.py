"""Agents on Kafka that never lose their footing."""

from surefoot.state.agent import Agent, Done, Next, Webhook
from surefoot.state.context import Context
from surefoot.state.errors import (
    ConfigError,
    FencedError,
    RetryableError,
    StateError,
    SurefootError,
    TerminalError,
    Unavailable,
)
from surefoot.state.retry import Retry

__version__ = "0.1.0"

__all__ = [
    "Agent",
    "ConfigError",
    "Context",
    "Done",
    "FencedError",
    "Next",
    "Retry",
    "RetryableError",
    "StateError",
    "SurefootError",
    "TerminalError",
    "Unavailable",
    "Webhook",
]
