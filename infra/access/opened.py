"""Access to one server, by the settings: opened with its log, and closed after it."""

from __future__ import annotations

from dataclasses import dataclass

from surefoot.consumers.partition.ending import stop_all
from surefoot.infra.access.audit import AuditWriter
from surefoot.infra.access.oidc import OidcAccounts, TokensOrOidc
from surefoot.infra.access.tokens import FollowedAccounts
from surefoot.infra.log.ports import Backend
from surefoot.infra.runtime.settings import Settings
from surefoot.producers.access.gate import AccessControl
from surefoot.state.access.proxied import TrustedProxy, parse_networks, parse_roles
from surefoot.state.access.withheld import parse_payload_roles
from surefoot.state.ports.clock import Clock


@dataclass(frozen=True, slots=True)
class OpenedAccess:
    """Access control with what it needs running, between `start` and `stop`."""

    access: AccessControl
    _accounts: FollowedAccounts | TokensOrOidc
    _audit: AuditWriter

    def start(self) -> None:
        """Start following the accounts in the background. Safe to call twice."""
        self._accounts.start()

    async def stop(self) -> None:
        """Close every client. Safe to call twice."""
        await stop_all(self._accounts, self._audit)


def access_for(settings: Settings, backend: Backend, clock: Clock) -> OpenedAccess | None:
    """Return who can sign in, by these settings; None: nobody has to.

    Raises: ConfigError — a library for it is not installed.
    """
    if settings.auth == "off":
        return None
    tokens = FollowedAccounts(settings, backend, clock)
    oidc = OidcAccounts(settings, clock) if settings.auth == "oidc" else None
    accounts = tokens if oidc is None else TokensOrOidc(tokens, oidc)
    audit = AuditWriter(settings, backend.appender())
    access = AccessControl(
        accounts=accounts,
        audit=audit,
        proxy=_proxy(settings),
        payload_roles=parse_payload_roles(settings.payload_roles),
    )
    return OpenedAccess(access, accounts, audit)


def _proxy(settings: Settings) -> TrustedProxy | None:
    if settings.auth != "proxy":
        return None
    agents = settings.proxy_agents_header
    return TrustedProxy(
        networks=parse_networks(settings.proxy_networks),
        name_header=settings.proxy_name_header.lower(),
        groups_header=settings.proxy_groups_header.lower(),
        agents_header=None if agents is None else agents.lower(),
        roles=parse_roles(settings.proxy_roles),
    )
