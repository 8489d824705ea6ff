"""Roles of accounts: what each may do besides reading."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

#: viewer: read; approver: also answer questions; operator: also start and steer runs; admin: all
Role = Literal["viewer", "approver", "operator", "admin"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)

#: the roles that each includes. An operator does not approve: who asks is not who answers
_INCLUDES: Final[Mapping[Role, frozenset[Role]]] = {
    "viewer": frozenset({"viewer"}),
    "approver": frozenset({"viewer", "approver"}),
    "operator": frozenset({"viewer", "operator"}),
    "admin": frozenset(ROLES),
}


def includes(role: Role, needed: Role) -> bool:
    """Whether somebody with `role` may do what needs `needed`."""
    return needed in _INCLUDES[role]
