"""The dashboard's session: a cookie with the token, which scripts of a page cannot read.

    POST /session       begin: the request has the token, as any other does
    GET  /session       who is signed in
    POST /session/end   forget the cookie

The cookie has the token itself, so every gateway of the app knows the session, and it ends when the
token does. A browser sends it to no other site, nor with a request that another site's page makes
(SameSite=Strict); in addition the gate refuses such requests. A site beside this one
(other.example.com) can add a cookie of this name with a token of its own; two are refused. The
cookie goes to every port of the host, as all cookies do.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypedDict

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from surefoot.producers.access.signed_in import current_account
from surefoot.producers.guards import RequestRefused, check_json, check_origin
from surefoot.state.names.roles import Role

COOKIE: Final = "surefoot-session"


class SessionJson(TypedDict):
    name: str
    role: Role
    agents: list[str]
    expires_ms: int | None


def credential_of(asked: HTTPConnection) -> tuple[str | None, bool]:
    """Return the credential of a request, if it has one, and whether it came in the cookie, which a
    browser adds by itself. A bearer's comes first.

    Raises: RequestRefused (401) — there are two: a site beside this one, or a proxy, has added its
    own, and which of them is meant would be a guess.
    """
    bearer = bearer_of(asked)
    if bearer is not None:
        return bearer, False
    return _only(
        value.strip().removeprefix('"').removesuffix('"')
        for header in asked.headers.getlist("cookie")
        for name, _, value in (part.strip(" \t").partition("=") for part in header.split(";"))
        if name == COOKIE
    ), True


def bearer_of(asked: HTTPConnection) -> str | None:
    """Return the bearer's credential of a request, if it has one. Raises as `credential_of`."""
    told = (header.partition(" ") for header in asked.headers.getlist("authorization"))
    return _only(credential.strip() for kind, _, credential in told if kind.lower() == "bearer")


def _only(credentials: Iterable[str]) -> str | None:
    found = {each for each in credentials if each}
    if len(found) > 1:
        raise RequestRefused("SF5081", 401, "the request has two credentials; send one")
    return found.pop() if found else None


def serve_sessions(app: Starlette) -> None:
    """Serve the session's routes. They answer who has passed the gate."""

    async def begin(request: Request) -> Response:
        check_json(request)
        check_origin(request)
        answer = JSONResponse(_session())
        credential = bearer_of(request)
        if credential is not None:
            answer.set_cookie(
                COOKIE,
                credential,
                httponly=True,
                samesite="strict",
                secure=request.url.scheme == "https",
            )
        return answer

    async def show(_: Request) -> Response:
        return JSONResponse(_session())

    async def end(request: Request) -> Response:
        check_json(request)
        check_origin(request)
        answer = JSONResponse({"signed_in": False})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    app.add_route("/session", begin, methods=["POST"], include_in_schema=False)
    app.add_route("/session", show, methods=["GET"], include_in_schema=False)
    app.add_route("/session/end", end, methods=["POST"], include_in_schema=False)


def _session() -> SessionJson:
    account = current_account()
    assert account is not None
    return {
        "name": account.name,
        "role": account.role,
        "agents": list(account.agents),
        "expires_ms": account.expires_ms,
    }
