"""The account that an identity provider's token, or another voucher, speaks of. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from surefoot.state.access.accounts import EVERYTHING, Account
from surefoot.state.names.roles import ROLES, Role

#: longest name of an account that is vouched for, in characters
_NAME_MAX = 128
#: the end of the year 9999; who says that a token lasts longer means the same
_LATEST_S = 253_402_300_799


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimNames:
    """Which claims have what."""

    name: str
    role: str
    #: None: every account sees every agent
    agents: str | None


def account_of(claims: Mapping[str, Any], names: ClaimNames) -> Account | None:
    """Return the account of validated claims; None if they give no name or no role.

    The role's claim is one of ROLES, or a list with exactly one of them: which of two holds would
    be a guess. The claim of agents is a list of patterns, or a text with spaces between them;
    without it, the account sees none.
    """
    agents = [EVERYTHING] if names.agents is None else _texts(claims.get(names.agents))
    return vouched_account(
        claims.get(names.name),
        [role for role in ROLES if role in _texts(claims.get(names.role))],
        agents,
        expires_ms=int(min(claims["exp"], _LATEST_S) * 1000),
        issuer=str(claims["iss"]),
    )


def vouched_account(
    name: Any, roles: Collection[Role], agents: Sequence[str], *, expires_ms: int, issuer: str
) -> Account | None:
    """Return the account that somebody else vouches for.

    None: the name is no word of at most 128 characters, or it is not exactly one role.
    """
    if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or not _is_one_word(name):
        return None
    if len(roles) != 1:
        return None
    [role] = roles
    return Account(name=name, role=role, agents=tuple(agents), expires_ms=expires_ms, issuer=issuer)


def _is_one_word(name: str) -> bool:
    return name.isprintable() and not any(map(str.isspace, name))


def _texts(claim: Any) -> list[str]:
    if isinstance(claim, str):
        return claim.split()
    return [each for each in claim if isinstance(each, str)] if isinstance(claim, list) else []
