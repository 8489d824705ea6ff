"""The dashboard: files for a browser, served under /ui/. It needs no build and no network.

It is a client of the gateway's own API and knows nothing else; whatever a browser shows was asked
for with the person's own token or session.

To add a page: write `static/pages/NAME.js`, which exports `title` and `show(main, params, signal)`,
and add NAME to PAGES, with the text of its link. `show` fills the element `main`; `params` are
those of the URL, where filters belong; `signal` is aborted when the page is left. A page asks the
API through `api.js` only (`get`, `post`, `follow`) and makes elements with `h` of `dom.js` only,
which takes whatever comes from outside as text. Tables, badges, times and dialogs are in `ui.js`,
charts in `charts.js`, and what can be done to runs in `bulk.js`, which has it from the table in
`state.machine.commands`. tests/integration/dashboard/test_dashboard.py walks through every page in
PAGES.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from html import escape
from http import HTTPStatus
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from surefoot.producers.guards import check_json, check_origin
from surefoot.state.machine.commands import COMMANDS

#: pages by the last part of their address, and the text of their link; None: it has no link
PAGES: Mapping[str, str | None] = {
    "now": "Now",
    "runs": "Runs",
    "run": None,
    "approvals": "Approvals",
    "agents": "Agents",
    "triggers": "Triggers",
    "dead": "Dead letters",
    "topics": "Topics",
}

#: nothing inline, nothing from elsewhere, no frame around it, and no text that becomes markup
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)

#: what could be a page's; the links of what lies deeper would lead elsewhere
_PAGE = re.compile(r"[\w-]+")
_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    etag: str


def mount(
    app: Starlette, crash: Callable[[], None] | None = None, *, accounts: bool = False
) -> None:
    """Serve the dashboard from this application; with `crash`, which crashes a worker, the page Now
    has a button for it; with `accounts`, each page shows who is signed in."""
    files = _files(demo=crash is not None, accounts=accounts)
    shell = files.pop("index.html")
    nowhere = replace(shell, content=shell.content.replace(b"<body", b"<body data-nowhere", 1))

    async def page(request: Request) -> Response:
        return _answer(request, shell)

    async def asset(request: Request) -> Response:
        path = request.path_params["path"]
        if path in files:
            return _answer(request, files[path])
        if _PAGE.fullmatch(path):
            return _answer(request, nowhere, 404)
        return Response(status_code=404)

    async def home(_: Request) -> Response:
        return RedirectResponse(f"ui/{next(iter(PAGES))}")

    async def first(_: Request) -> Response:
        return RedirectResponse(next(iter(PAGES)))

    async def demo(request: Request) -> Response:
        check_json(request)
        check_origin(request)
        assert crash is not None
        crash()
        return JSONResponse({"asked": True}, 202)

    def serve(path: str, handler: Callable[[Request], Awaitable[Response]], method: str) -> None:
        app.add_route(path, handler, methods=[method], include_in_schema=False)

    if crash is not None:
        serve("/ui/demo/crash", demo, "POST")
    serve("/", home, "GET")
    serve("/ui/", first, "GET")
    for name in PAGES:
        serve(f"/ui/{name}", page, "GET")
    serve("/ui/{path:path}", asset, "GET")


def _files(*, demo: bool, accounts: bool) -> dict[str, _File]:
    """Every file by its path below /ui/."""
    found = {}
    for path in sorted(_STATIC.rglob("*.*")):
        content = path.read_bytes()
        if path.name == "index.html":
            content = content.replace(b"<!-- links -->", _links().encode())
            told = f'data-commands="{escape(_commands())}"' + " data-demo" * demo
            told += " data-accounts" * accounts
            content = content.replace(b"<body>", f"<body {told}>".encode())
        name = path.relative_to(_STATIC).as_posix()
        etag = f'"{hashlib.sha256(content).hexdigest()[:32]}"'
        found[name] = _File(content, _TYPES[path.suffix], etag)
    return found


def _links() -> str:
    return "".join(
        f'<li><a href="{escape(name)}">{escape(text)}</a></li>'
        for name, text in PAGES.items()
        if text is not None
    )


def _commands() -> str:
    """What can be done to a run by a button: JSON for the pages."""
    return json.dumps(
        [
            {
                "word": row.word,
                "label": row.button.label,
                "statuses": list(row.legal),
                "will": row.button.will.split("\n"),
            }
            for row in COMMANDS.values()
            if row.button is not None
        ]
    )


def _answer(request: Request, file: _File, status: int = HTTPStatus.OK) -> Response:
    """A browser keeps it and asks each time whether it is still the same."""
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",
        "Content-Security-Policy": POLICY,
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    known = request.headers.get("if-none-match", "") if status == HTTPStatus.OK else ""
    if file.etag in (each.strip().removeprefix("W/") for each in known.split(",")):
        return Response(status_code=304, headers=headers)
    return Response(file.content, status, headers, media_type=file.media_type)
