"""Accounts and their API tokens: see schemas/avro/AccessToken.avsc.

A token's secret is 256 random bits, so nobody can guess one, and a stored hash need not be slow to
compute to protect it, unlike that of a password. One SHA-256 also costs each request a microsecond.
The record has the hash alone: whoever reads the topic cannot sign in.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Protocol

from surefoot.schemas.codec.codec import UndecodableError, decode, encode
from surefoot.state.errors import BadArgument
from surefoot.state.names.partitioner import partition_of
from surefoot.state.names.roles import ROLES, Role
from surefoot.state.names.topics import access_topic
from surefoot.state.ports.log import ProducerRecord

#: pattern that covers every agent, the outbox, and what belongs to no agent
EVERYTHING = "*"
#: how each secret begins, so that scanners of repositories can recognise one
SECRET_PREFIX = "sft_"  # noqa: S105  (not a secret)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,127}")
_PATTERN = re.compile(r"[A-Za-z0-9_*?-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """Who is signed in, and what they may do."""

    name: str
    role: Role
    #: patterns of agents, with `*` and `?`; what matches none is as good as not there
    agents: tuple[str, ...] = (EVERYTHING,)
    #: epoch ms; None: never
    expires_ms: int | None = None
    #: the identity provider that vouches for it; None: a token of ours
    issuer: str | None = None

    def covers(self, agent: str | None) -> bool:
        """Whether the account may see this agent; None: what may belong to any agent."""
        if agent is None:
            return EVERYTHING in self.agents
        return any(fnmatchcase(agent, pattern) for pattern in self.agents)

    def expired(self, now_ms: int) -> bool:
        return self.expires_ms is not None and now_ms >= self.expires_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessToken:
    """An account that signs in with a secret."""

    account: Account
    #: of the secret
    digest: bytes
    created_ms: int


class Accounts(Protocol):
    """Who can sign in at present."""

    async def sign_in(self, credential: str) -> Account | None:
        """Return the account of a bearer's credential; None: it is nobody's, or not any more.

        Raises: Unavailable — the accounts are not known yet.
        """

    async def ended(self, account: Account) -> None:
        """Wait until this account can no longer sign in as it is: revoked, changed or expired."""


def secret_digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def check_account(account: Account) -> Account:
    """Return the account.

    Raises: BadArgument — its name or a pattern cannot be one.
    """
    if not _NAME.fullmatch(account.name):
        raise BadArgument(
            "SF1082",
            "an account's name must be 1 to 128 characters of A-Z a-z 0-9 . _ @ + - and begin "
            f"with a letter or a digit; got {account.name[:80]!r}",
        )
    for pattern in account.agents or ("",):
        if not _PATTERN.fullmatch(pattern):
            raise BadArgument(
                "SF1082",
                "a pattern of agents consists of their letters, digits, _ and -, with * and ? for "
                f"any; got {pattern[:80]!r}",
            )
    return account


def token_out(app: str, partitions: int, token: AccessToken) -> ProducerRecord:
    """Return the record to write."""
    account = token.account
    fields = {
        "name": account.name,
        "role": account.role,
        "agents": list(account.agents),
        "digest": token.digest,
        "created_ms": token.created_ms,
        "expires_ms": account.expires_ms,
    }
    return _out(app, partitions, account.name, encode("AccessToken", fields))


def revocation_out(app: str, partitions: int, name: str) -> ProducerRecord:
    """Return the record that revokes a token."""
    return _out(app, partitions, name, None)


def _out(app: str, partitions: int, name: str, value: bytes | None) -> ProducerRecord:
    return ProducerRecord(access_topic(app), partition_of(name, partitions), name.encode(), value)


def read_token(value: bytes) -> AccessToken:
    """Decode a token. Raises UndecodableError."""
    fields = decode(value, "AccessToken")[1]
    role = next((role for role in ROLES if role == fields["role"]), None)
    if role is None:
        raise UndecodableError(f"AccessToken.role is {fields['role']!r}")
    account = Account(
        name=fields["name"],
        role=role,
        agents=tuple(fields["agents"]),
        expires_ms=fields["expires_ms"],
    )
    return AccessToken(account=account, digest=fields["digest"], created_ms=fields["created_ms"])
