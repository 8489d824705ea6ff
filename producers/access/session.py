"""The dashboard's session: a cookie with the token, which scripts of a page cannot read.

    POST /session       begin: the request has the token, as any other does
    GET  /session       who is signed in
    POST /session/end   forget the cookie

The cookie has the token itself, so every gateway of the app knows the session, and it ends when the
token does. A browser sends it to no other site, nor with a request that another site's page makes
(SameSite=Strict); in addition the gate refuses such requests. It goes to every port of the host,
as all cookies do.
"""

from __future__ import annotations

from typing import Final, TypedDict

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response

from surefoot.producers.access.signed_in import current_account
from surefoot.producers.guards import check_json, check_origin
from surefoot.state.names.roles import Role

COOKIE: Final = "surefoot-session"


class SessionJson(TypedDict):
    name: str
    role: Role
    agents: list[str]
    expires_ms: int | None


def bearer_of(asked: HTTPConnection) -> str | None:
    """Return the bearer's credential of a request, if it has one."""
    kind, _, credential = asked.headers.get("authorization", "").partition(" ")
    return credential.strip() or None if kind.lower() == "bearer" else None


def cookie_of(asked: HTTPConnection) -> str | None:
    """Return the credential of a request's cookie, if it has one."""
    return asked.cookies.get(COOKIE) or None


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
