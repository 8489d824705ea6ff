"""What the gateway serves under /ui/, and whose pages it lets ask for a change."""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette

from surefoot.infra.runtime.crash import VARIABLE, crasher
from surefoot.producers import dashboard
from surefoot.producers.guards import guard
from tests.unit.producers.test_gateway import RUN, Gateway, gateway, run

__all__ = ["gateway"]

STATIC = Path(dashboard.__file__).parent / "static"
FILES = [path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*.*")]


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    app = Starlette()
    dashboard.mount(app)
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        yield client


@pytest.mark.parametrize("name", [*dashboard.PAGES, *FILES])
async def test_every_file_has_the_policy_and_is_not_sent_twice(
    http: httpx.AsyncClient, name: str
) -> None:
    if name == "index.html":
        return  # it is what a page is
    answer = await http.get(f"/ui/{name}")
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    again = await http.get(f"/ui/{name}", headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "path", ["nothing", "index.html", "../__init__.py", "%2e%2e/__init__.py", "pages/", "pages"]
)
async def test_nothing_else_is_served(http: httpx.AsyncClient, path: str) -> None:
    assert (await http.get(f"/ui/{path}")).status_code == 404


async def test_a_page_that_there_is_not_says_so_with_the_links_of_the_others(
    http: httpx.AsyncClient,
) -> None:
    for headers in ({}, {"If-None-Match": (await http.get("/ui/now")).headers["etag"]}):
        answer = await http.get("/ui/nope", headers=headers)
        assert answer.status_code == 404
        assert "data-nowhere" in answer.text
        assert 'href="now"' in answer.text
    assert "data-nowhere" not in (await http.get("/ui/now")).text
    for path in ("pages/nope", "nope.js"):
        assert (await http.get(f"/ui/{path}")).text == ""


async def test_the_first_page_is_where_a_person_comes_in(http: httpx.AsyncClient) -> None:
    for path in ("/", "/ui/"):
        answer = await http.get(path, follow_redirects=True)
        assert str(answer.url) == "http://gateway/ui/now"


@pytest.mark.parametrize("name", dashboard.PAGES)
def test_every_page_has_its_module(name: str) -> None:
    module = (STATIC / "pages" / f"{name}.js").read_text()
    assert "export const title" in module
    assert "export async function show" in module


async def test_a_page_is_told_what_can_be_done_to_a_run_and_when(http: httpx.AsyncClient) -> None:
    body = re.search(r'<body data-commands="([^"]*)">', (await http.get("/ui/run")).text)
    assert body is not None
    told = {row["word"]: row for row in json.loads(unescape(body[1]))}
    alive = {"pending", "running", "waiting", "paused", "attention"}
    assert {word: set(row["statuses"]) for word, row in told.items()} == {
        "pause": {"running", "waiting"},
        "resume": {"paused"},
        "cancel": alive,
        "retry": {"attention", "failed"},
    }
    assert [row["label"] for row in told.values()] == ["Pause", "Resume", "Cancel", "Retry"]
    assert all("{runs}" in row["will"][0] for row in told.values())


@pytest.mark.parametrize("name", FILES)
def test_a_file_makes_no_markup_of_text_and_asks_nobody_else(name: str) -> None:
    source = (STATIC / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b", source)
    assert not re.search(r"https?://(?!www\.w3\.org/)", source)
    if name.endswith(".html"):
        assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]*\ssrc=)", source)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Origin": "http://gateway"},
    ],
)
async def test_another_sites_page_changes_nothing(
    gateway: Gateway, headers: dict[str, str]
) -> None:
    gateway.reader.runs[RUN] = run()
    for path in ("/runs/triage", f"/runs/triage/{RUN}/cancel"):
        answer = await gateway.http.post(path, json={}, headers=headers)
        assert answer.status_code == 403
        assert answer.json()["error"].startswith("SF5033")
    assert gateway.commands.started == []


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://gateway"}, {"Sec-Fetch-Site": "same-origin"}]
)
async def test_programs_and_the_dashboard_may(gateway: Gateway, headers: dict[str, str]) -> None:
    body = {"payload": {"number": 1, "title": "x"}}
    answer = await gateway.http.post("/runs/triage", json=body, headers=headers)
    assert answer.status_code == 202


async def test_a_list_passes_its_filters_on_and_names_the_next_page(gateway: Gateway) -> None:
    gateway.reader.runs = {"a": run(run_id="a")}
    answer = await gateway.http.get(
        "/runs/triage?needs=person&version=2&step=b&prefix=ab&before=7~x&limit=3"
    )
    [query] = gateway.reader.queries
    assert (query.needs_person, query.version, query.step, query.prefix) == (True, 2, "b", "ab")
    assert (query.before, query.limit) == ((7, "x"), 3)
    assert (answer.json()["matches"], answer.json()["next"]) == (1, "7~x")
    wrong = await gateway.http.get("/runs/triage?before=yesterday")
    assert wrong.status_code == 422
    assert "SF5032" in wrong.json()["error"]


async def test_a_worker_is_crashed_in_the_demo_only_and_not_by_another_site() -> None:
    crashes: list[int] = []
    for app, wanted in ((FastAPI(), False), (FastAPI(), True)):
        dashboard.mount(app, (lambda: crashes.append(1)) if wanted else None)
        guard(app)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            assert (b"data-demo" in (await client.get("/ui/now")).content) is wanted
            for sent, told in (
                ({"content": b"{}"}, 415),
                ({"json": {}, "headers": {"Origin": "http://evil.example"}}, 403),
                ({"json": {}}, 202),
            ):
                answer = await client.post("/ui/demo/crash", **sent)
                assert answer.status_code == (told if wanted else 405)
    assert crashes == [1]


def test_only_the_parent_process_is_told_to_crash_a_worker() -> None:
    assert crasher({}) is None
    assert crasher({VARIABLE: "1000000"}) is None
    assert crasher({VARIABLE: str(os.getppid())}) is not None
