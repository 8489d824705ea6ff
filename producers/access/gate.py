"""ASGI middleware that lets through what an account may do, before anything of a body is read.

In order: sign in (401), the agent in the account's scope (404, as if it were not there), the role
(403), how many streams the account has open (429). What changes something, and what was refused,
goes to the audit trail before it is answered. Tries of strangers are recorded only now and then, so
that nobody can fill a disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from surefoot.producers.access.rules import READ, Rule, rule_for
from surefoot.producers.access.session import credential_of
from surefoot.producers.access.signed_in import signed_in
from surefoot.producers.access.withholding import Withholding
from surefoot.producers.guards import (
    RETRY_AFTER_S,
    Allowance,
    RequestRefused,
    check_agent,
    check_origin,
    refusal,
    unavailability,
)
from surefoot.state.access.accounts import Account, Accounts
from surefoot.state.access.audit import AuditEntry, AuditLog
from surefoot.state.access.proxied import TrustedProxy
from surefoot.state.errors import BadArgument, Unavailable
from surefoot.state.names.roles import ROLES, Role, includes
from surefoot.state.ports.clock import Clock
from surefoot.state.telemetry import metrics

#: tries of strangers that are recorded: a burst of so many, then one per so many seconds
STRANGERS_BURST = 30
STRANGERS_EVERY_S = 10.0
#: RFC 6455: the endpoint ends the connection because of its policy
_POLICY = 1008
_SIGN_IN = {"WWW-Authenticate": 'Bearer realm="surefoot"'}
#: longest name of an agent or a run that a record keeps of a refused request
_KEPT = 256
#: in a request's scope: the address that has made the connection, whatever its headers say
PEER: Final = "surefoot.peer"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessControl:
    """Who can sign in, and where is recorded what they do."""

    accounts: Accounts
    audit: AuditLog
    #: who else says who sends a request
    proxy: TrustedProxy | None = None
    #: who sees payloads, besides admins
    payload_roles: Collection[Role] = ROLES

    def shows_payloads(self, role: Role) -> bool:
        return role == "admin" or role in self.payload_roles


@dataclass(slots=True, kw_only=True)
class GateKeeping:
    """What the gate needs."""

    access: AccessControl
    clock: Clock
    #: the agents that who is signed in may see
    agents: Collection[str]
    #: event streams that one account may have open at a time
    streams_each: int = 0
    strangers: Allowance = field(init=False)

    def __post_init__(self) -> None:
        self.strangers = Allowance(self.clock, STRANGERS_BURST, STRANGERS_EVERY_S)


@dataclass(slots=True)
class _Asked:
    """One request, and who sent it once that is known."""

    rule: Rule
    params: dict[str, str]
    account: Account | None = None


class Gate:
    def __init__(self, app: ASGIApp, routes: Sequence[BaseRoute], keeping: GateKeeping) -> None:
        self._app, self._routes, self._keeping = app, routes, keeping
        #: open event streams by account
        self._streams = Counter[tuple[str | None, str]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        asked = self._asked(scope)
        if asked.rule.role is None:
            await self._app(scope, receive, send)
            return
        try:
            account = await self._admit(scope, asked)
        except RequestRefused as error:
            metrics.REQUESTS_REFUSED.add(str(error.status))
            await self._record(scope, asked, error.status, error.message)
            await refusal(error)(scope, receive, send)
        except Unavailable as error:
            await unavailability(scope, error)(scope, receive, send)
        else:
            with signed_in(account):
                await self._pass_on(account, asked, scope, receive, send)

    def _asked(self, scope: Scope) -> _Asked:
        method = "WS" if scope["type"] == "websocket" else scope["method"].replace("HEAD", "GET")
        for route in self._routes:
            match, found = route.matches(scope)
            if match is Match.FULL:
                params = {key: str(value) for key, value in found["path_params"].items()}
                return _Asked(rule_for(f"{method} {getattr(route, 'path', '')}", params), params)
        # no such request; only who is signed in is told so
        return _Asked(Rule(role="viewer"), {})

    async def _admit(self, scope: Scope, asked: _Asked) -> Account:
        """Return the account. Raises RequestRefused; Unavailable — nobody can sign in now."""
        keeping, needed = self._keeping, asked.rule.role
        assert needed is not None
        account = self._proxied(scope)
        if account is None:
            account = await self._with_token(scope)
        asked.account = account
        agent = asked.params.get("agent")
        if agent is not None and not account.covers(agent):
            with signed_in(account):
                check_agent(agent, keeping.agents)
        if not includes(account.role, needed):
            message = f"this needs the role {needed}; {account.name} is {account.role}"
            raise RequestRefused("SF5082", 403, message)
        if asked.rule.streams and self._streams[_name(account)] >= keeping.streams_each:
            message = f"{account.name} has {keeping.streams_each} event streams open; close some"
            retry = {"Retry-After": str(RETRY_AFTER_S)}
            raise RequestRefused("SF5005", 429, message, retry)
        return account

    def _proxied(self, scope: Scope) -> Account | None:
        """Return the account that a proxy vouches for; None: none does.

        A browser signs in to the proxy by itself, so what changes something must come from our own
        page, as with a cookie.

        Raises: RequestRefused (403).
        """
        proxy, headers = self._keeping.access.proxy, scope["headers"]
        if proxy is None or not proxy.vouches(scope.get(PEER), headers):
            return None
        _check_page(scope)
        try:
            return proxy.account(headers, self._keeping.clock.now_ms())
        except BadArgument as error:
            raise RequestRefused(error.number, 403, error.message) from None

    async def _with_token(self, scope: Scope) -> Account:
        """Return the account of a request's token. Raises as `_admit`."""
        credential = _credential(scope)
        if credential is None:
            message = "sign in: send a token of `surefoot tokens create` as a bearer token"
            raise RequestRefused("SF5081", 401, message, _SIGN_IN)
        account = await self._keeping.access.accounts.sign_in(credential)
        if account is None:
            message = "the token is not known, has expired or was revoked"
            raise RequestRefused("SF5081", 401, message, _SIGN_IN)
        return account

    async def _pass_on(
        self, account: Account, asked: _Asked, scope: Scope, receive: Receive, send: Send
    ) -> None:
        if not asked.rule.plain and not self._keeping.access.shows_payloads(account.role):
            send = Withholding(send)
        if asked.rule.streams:
            with self._counted(account):
                await self._stream(account, scope, receive, send)
        elif asked.rule.action == READ:
            await self._app(scope, receive, send)
        else:
            answered = False

            async def recorded(message: Message) -> None:
                nonlocal answered
                if message["type"] == "http.response.start" and not answered:
                    answered = True
                    await self._record(scope, asked, message["status"])
                await send(message)

            try:
                await self._app(scope, receive, recorded)
            finally:
                if not answered:  # it failed, or its client has gone: what it did is not known
                    await self._record(scope, asked, 500)

    @contextmanager
    def _counted(self, account: Account) -> Iterator[None]:
        name = _name(account)
        self._streams[name] += 1
        try:
            yield
        finally:
            self._streams[name] -= 1
            if not self._streams[name]:
                del self._streams[name]

    async def _stream(self, account: Account, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a stream on until it ends, or the account does."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        serving = asyncio.ensure_future(self._app(scope, receive, watched))
        ending = asyncio.ensure_future(self._keeping.access.accounts.ended(account))
        try:
            await asyncio.wait({serving, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            cut = not serving.done()
            for task in (serving, ending):
                task.cancel()
            await asyncio.wait({serving, ending})
        if not cut:
            serving.result()
        elif not begun:
            message = "the token has expired or was revoked"
            error = RequestRefused("SF5081", 401, message, _SIGN_IN)
            await refusal(error)(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": _POLICY, "reason": "signed out"})
        else:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _record(
        self, scope: Scope, asked: _Asked, status: int, note: str | None = None
    ) -> None:
        keeping, account, params = self._keeping, asked.account, asked.params
        if account is None and not keeping.strangers.take():
            return
        client = scope.get("client")
        run_id = params.get("run_id") or scope.get("state", {}).get("run_id")
        await keeping.access.audit.record(
            AuditEntry(
                id=keeping.clock.unique(),
                at_ms=keeping.clock.now_ms(),
                who=None if account is None else account.name,
                action=asked.rule.action.format_map(params)[:_KEPT],
                status=status,
                agent=_short(params.get("agent")),
                run_id=_short(run_id),
                origin=_short(client[0]) if client else None,
                note=note,
                unrecorded=keeping.strangers.left_out() if account is None else 0,
            )
        )


def _credential(scope: Scope) -> str | None:
    """Return the credential of a request, if it has one.

    A browser adds the cookie by itself, so what changes something must come from our own page.

    Raises: RequestRefused (401, 403).
    """
    credential, in_cookie = credential_of(HTTPConnection(scope))
    if credential is not None and in_cookie:
        _check_page(scope)
    return credential


def _check_page(scope: Scope) -> None:
    """Check that what changes something comes from our own page. Raises: RequestRefused (403)."""
    if scope.get("method", "GET") not in ("GET", "HEAD"):
        check_origin(HTTPConnection(scope))


def _name(account: Account) -> tuple[str | None, str]:
    """Return what tells an account from all others."""
    return account.issuer, account.name


def _short(text: str | None) -> str | None:
    return None if text is None else text[:_KEPT].encode("utf-8", "replace").decode()
