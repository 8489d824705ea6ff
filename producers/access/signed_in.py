"""Who is signed in, while a request is being answered.

A context variable, so that every list of agents can leave out what the account may not see, and no
handler can forget to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

from surefoot.producers.guards import RequestRefused
from surefoot.state.access.accounts import Account

T = TypeVar("T")

_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


@contextmanager
def signed_in(account: Account) -> Iterator[None]:
    before = _ACCOUNT.set(account)
    try:
        yield
    finally:
        _ACCOUNT.reset(before)


def current_account() -> Account | None:
    """Return who is signed in; None without authentication."""
    return _ACCOUNT.get()


def sees(agent: str | None) -> bool:
    """Whether who is signed in may see this agent; None: what may belong to any agent.

    Without authentication, everybody sees everything.
    """
    account = _ACCOUNT.get()
    return account is None or account.covers(agent)


def sign(body: Any) -> Any:
    """Return a command's JSON values with the account as its `by`.

    Without authentication, `by` is what the client says.

    Raises: RequestRefused (403) — the client names somebody else.
    """
    account = _ACCOUNT.get()
    if account is None or not isinstance(body, dict):
        return body
    if body.get("by") not in (None, account.name):
        raise RequestRefused(
            "SF5083", 403, f'"by" is {account.name!r}, who is signed in; leave it out'
        )
    return {**body, "by": account.name}


class VisibleAgents(Mapping[str, T]):
    """What there is by agent, as far as who is signed in may see it, without those that are
    held."""

    def __init__(self, agents: Mapping[str, T], held: Mapping[str, str]) -> None:
        self._agents, self._held = agents, held

    def __getitem__(self, name: str) -> T:
        return {visible: self._agents[visible] for visible in self}[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._agents if name not in self._held and sees(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)
