"""The dashboard in a real browser, on a gateway with its workers."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, expect

from surefoot.infra.access.tokens import TokenBook
from surefoot.infra.kafka_client.topics import specs_for
from surefoot.infra.open_log import open_backend
from surefoot.infra.runtime.clock import SystemClock
from surefoot.infra.runtime.settings import load_settings
from surefoot.producers.dashboard import PAGES
from surefoot.state.access.accounts import AccessToken, Account, secret_digest
from tests.support.browser import barriers, chromium, press
from tests.support.eventually import until
from tests.support.hostile_dashboard import (
    HOSTILE,
    RUNS,
    desk_agent,
    served_crowd,
    served_desk,
    start,
    until_status,
)
from tests.support.servers import served_views

pytestmark = pytest.mark.asyncio(loop_scope="module")

#: as pages show HOSTILE: everything is there, and nothing of it acts
SHOWN = HOSTILE.replace("\u202e", r"\u{202e}").replace("\u200b", r"\u{200b}")
#: what a page may ask for
_ASKED = {
    "agents",
    "dead-letters",
    "deliveries",
    "runs",
    "schedules",
    "session",
    "topics",
    "ui",
    "views",
}
_PATIENCE_MS = 60_000
expect.set_options(timeout=_PATIENCE_MS)
PHONE = {"width": 360, "height": 740}
ADDRESSES = {"run": "run?agent=desk&id=failed-1"}


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as found:
        yield found


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """A served agent with runs of each kind."""
    path = tmp_path_factory.mktemp("dashboard") / "runs.db"
    settings = load_settings(log=f"sqlite:///{path}", partitions=2, gateway_port=0)
    async with served_desk(settings, desk_agent()) as client:
        await start(client, "desk", "done-1", "tea", "completed")
        await start(client, "desk", "failed-1", "fail", "failed")
        await start(client, "desk", "ask-0", "ask", "waiting")
        yield client


@asynccontextmanager
async def opened(browser: Browser, client: httpx.AsyncClient, **how: Any) -> AsyncIterator[Page]:
    """A page whose scripts reported nothing wrong when it is closed."""
    async with AsyncExitStack() as stack:
        context = await browser.new_context(base_url=f"{client.base_url}/ui/", **how)
        stack.push_async_callback(context.close)
        page = await context.new_page()
        page.set_default_timeout(_PATIENCE_MS)
        troubles: list[str] = []
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("dialog", lambda dialog: troubles.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda asked: _inside(asked.url, client, troubles))
        yield page
        assert troubles == []


def _inside(url: str, client: httpx.AsyncClient, troubles: list[str]) -> None:
    parts = httpx.URL(url)
    home = (parts.host, parts.port) == (client.base_url.host, client.base_url.port)
    if not home or parts.path.split("/")[1] not in _ASKED:
        troubles.append(f"asked for {url}")


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_has_no_barrier_and_fits_a_phone(
    browser: Browser, desk: httpx.AsyncClient, name: str
) -> None:
    """WCAG A and AA, in both colour schemes; and no sideways scrolling on a small screen."""
    async with opened(browser, desk, viewport=PHONE, bypass_csp=True) as page:
        await page.goto(ADDRESSES.get(name, name))
        await expect(page.locator("main table, main .card").first).to_be_visible()
        await page.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
        assert await barriers(page) == []
        await page.emulate_media(color_scheme="dark")
        await page.set_viewport_size({"width": 1280, "height": 800})
        assert await barriers(page) == []


async def test_what_comes_from_outside_stays_text(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("run?agent=desk&id=failed-1")
        await expect(page.get_by_text(SHOWN).first).to_be_visible()
        await page.goto("run?agent=desk&id=ask-0")
        await expect(page.locator(".plan")).to_contain_text(SHOWN)
        await page.goto("run?agent=desk&id=done-1")
        await expect(page.get_by_role("region", name="Result")).to_contain_text(
            "1152921504606846976"
        )
        assert await page.locator("main img, main script").count() == 0
        assert "owned" not in await page.title()
        for hostile in ("javascript:alert(1)", "<b>x</b>", "../../health", ".."):
            await page.goto(f"run?agent={hostile}&id={hostile}")
            await expect(page.get_by_role("alert")).to_be_visible()
            assert await page.locator("main b").count() == 0


async def test_nothing_inline_is_run_and_text_does_not_become_markup(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("runs")
        await expect(page).to_have_title(re.compile("^Runs"))  # set by the page itself
        told = await page.evaluate(
            """() => {
              const script = document.createElement("script");
              script.append("document.title = 'owned'");
              try { document.body.append(script); } catch { }
              try { document.body.innerHTML = "<p>owned</p>"; return "taken"; }
              catch (error) { return error.name; }
            }"""
        )
        assert told == "TypeError"
        assert (await page.title()).startswith("Runs")


async def test_the_filters_are_in_the_address(browser: Browser, desk: httpx.AsyncClient) -> None:
    async with opened(browser, desk) as page:
        await page.goto("runs")
        await page.get_by_role("link", name="Failed only").click()
        await expect(page.get_by_role("link", name="failed-1")).to_be_visible()
        await expect(page.get_by_role("link", name="done-1")).to_have_count(0)
        assert "status=failed" in page.url
        await page.get_by_label("Run begins with").fill("done")
        await page.get_by_label("Status").select_option("")
        await page.get_by_role("button", name="Filter").click()
        await expect(page.get_by_role("link", name="done-1")).to_be_visible()
        await expect(page.get_by_role("link", name="failed-1")).to_have_count(0)
        assert "prefix=done" in page.url


async def test_a_question_is_answered_with_the_keyboard_alone(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    await start(desk, "desk", "ask-1", "ask", "waiting")
    async with opened(browser, desk) as page:
        await page.goto("runs")
        await page.keyboard.press("Tab")
        await expect(page.get_by_text("Skip to the content")).to_be_focused()
        await _walk(page, page.get_by_role("link", name="Approvals"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("button", name="Approve run ask-1")).to_be_visible()
        await _walk(page, page.locator("section", has_text="ask-1").get_by_label("Note"))
        await page.keyboard.type("is fine")
        await _walk(page, page.get_by_role("button", name="Approve run ask-1"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("dialog")).to_contain_text("continues with step decided")
        await _walk(page, page.get_by_role("button", name="Yes, approve"))
        await page.keyboard.press("Enter")
        await expect(page.get_by_role("link", name="ask-1")).to_have_count(0)
    await until_status(desk, "desk", "ask-1", "completed")
    run = (await desk.get("/runs/desk/ask-1")).json()
    assert run["result"] == {"approved": True, "note": "is fine"}


async def _walk(page: Page, goal: Any) -> None:
    """Press Tab until the goal has the focus."""
    for _ in range(60):
        if await goal.evaluate("goal => goal === document.activeElement"):
            return
        await page.keyboard.press("Tab")
    pytest.fail("the keyboard does not get there")


async def test_runs_are_cancelled_together_once_it_is_told_what_will_happen(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    for number in range(3):
        await start(desk, "desk", f"bulk-{number}", "wait", "waiting")
    async with opened(browser, desk) as page:
        await page.goto("runs?agent=desk&prefix=bulk-")
        for number in (0, 1):
            await page.get_by_label(f"Choose run bulk-{number}").check()
        await page.get_by_role("button", name="Cancel", exact=True).click()
        dialog = page.get_by_role("dialog")
        await expect(dialog).to_contain_text("Each of 2 runs will be stopped for good")
        assert (await desk.get("/runs/desk/bulk-0")).json()["status"] == "waiting"
        await dialog.get_by_role("button", name="Yes, cancel").click()
        await expect(dialog).to_contain_text("2 of 2 done")
        await dialog.get_by_role("button", name="Close").click()
    for number, status in enumerate(("cancelled", "cancelled", "waiting")):
        await until_status(desk, "desk", f"bulk-{number}", status)


async def test_a_live_run_ticks_and_its_log_positions_are_told(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    await start(desk, "desk", "live", "wait", "waiting")
    async with opened(browser, desk) as page:
        await page.goto("run?agent=desk&id=live")
        await expect(page.get_by_text("live", exact=True).last).to_be_visible()
        events = page.locator("ol.steps > li")
        before = await events.count()
        told = await desk.post("/runs/desk/live/signal", json={"name": "tick", "payload": 7})
        assert told.status_code == 200
        await expect(events.filter(has_text="signal.received")).not_to_have_count(0)
        await expect(events.filter(has_text="ticked")).not_to_have_count(0)
        assert await events.count() > before
        await expect(events.last).to_contain_text(re.compile(r"surefoot\.desk\.commands/\d/\d+"))
        await expect(events.last).to_contain_text(re.compile(r"surefoot\.desk\.events/\d/\d+"))
        await expect(page.get_by_role("img", name="When its steps ran")).to_be_visible()


async def test_the_branches_of_a_run_have_lanes_and_links(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    await start(desk, "desk", "forks", "fork", "waiting")
    async with opened(browser, desk) as page:
        await page.goto("run?agent=desk&id=forks")
        table = page.get_by_role("table", name="Runs of desk that it has begun")
        await expect(table.get_by_role("link")).to_have_text(["forks~1~0", "forks~1~1"])
        lanes = page.get_by_role("img", name="When its steps ran")
        await expect(lanes.get_by_text("~1~1", exact=True)).to_be_visible()
        for branch in ("forks~1~0", "forks~1~1"):
            told = await desk.post(f"/runs/desk/{branch}/cancel", json={})
            assert told.status_code == 200
        await expect(page.get_by_text("over", exact=True)).to_be_visible()
        await expect(table.get_by_text("cancelled")).to_have_count(2)
        await table.get_by_role("link", name="forks~1~1").click()
        await expect(page.get_by_text("Part of")).to_be_visible()


async def test_partial_output_is_shown_as_it_comes_and_as_text(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    """What a model says, until its step has ended one way or the other."""
    pieces: list[dict[str, str | None]] = [
        {"kind": "begin", "name": "answer", "text": "void"},
        {"kind": "discard", "name": None, "text": ""},
        {"kind": "begin", "name": "answer", "text": "not "},
        {"kind": "begin", "name": "answer", "text": "It is <b>"},
        {"kind": "text", "name": "answer", "text": "so</b>"},
    ]

    async def stream(route: Route) -> None:
        frames = "".join(f"event: output\ndata: {json.dumps(each)}\n\n" for each in pieces)
        await route.fulfill(body=frames, content_type="text/event-stream")

    async with opened(browser, desk) as page:
        await page.route("**/events?**", stream)
        await page.goto("run?agent=desk&id=ask-0")
        await expect(page.get_by_role("region", name="Output answer")).to_have_text(
            "It is <b>so</b>"
        )
        assert await page.locator("main b").count() == 0


async def test_a_token_is_asked_for_and_sent_with_everything(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    """As behind a proxy that knows who may see what."""
    seen: list[str] = []

    async def proxy(route: Route) -> None:
        told = route.request.headers.get("authorization", "")
        if told != "Bearer secret":
            await route.fulfill(status=401, json={"error": "who are you?"})
            return
        seen.append(route.request.url)
        await route.continue_()

    async with opened(browser, desk) as page:
        await page.route(re.compile(r"/(runs|agents)(/|\?|$)"), proxy)
        await page.goto("run?agent=desk&id=ask-0")
        for token in ("wrong", "secret"):
            await page.get_by_role("dialog").get_by_label("Token").fill(token)
            await page.get_by_role("button", name="Go on").click()
        await expect(page.get_by_role("button", name="Approve run ask-0")).to_be_visible()
        await until(lambda: any("/events" in url for url in seen), what="the stream with its token")
        assert await page.evaluate("localStorage.length + document.cookie.length") == 0
        assert "secret" not in page.url


async def test_somebody_signs_in_with_a_token_and_out_again(
    browser: Browser, tmp_path: Path
) -> None:
    settings = load_settings(
        log=f"sqlite:///{tmp_path / 'x.db'}", partitions=2, gateway_port=0, auth="tokens"
    )
    tokens = [
        AccessToken(account=account, digest=secret_digest(secret), created_ms=0)
        for account, secret in (
            (Account(name="bob", role="operator"), "bobs"),
            (Account(name="ann", role="approver"), "s3cret"),
        )
    ]
    async with served_desk(settings, desk_agent()) as client, opened(browser, client) as page:
        async with open_backend(settings, SystemClock()) as backend:
            book = TokenBook(settings, backend)
            for token in tokens:
                await book.write(token)
            await book.stop()
        await page.goto("now")
        asked = page.get_by_role("dialog", name="Who are you?")
        await asked.get_by_label("Token").fill("wrong")
        await page.get_by_role("button", name="Go on").click()
        await expect(asked.get_by_role("alert")).to_have_text("The gateway rejects this token.")
        await asked.get_by_label("Token").fill("s3cret")
        await page.get_by_role("button", name="Go on").click()
        await expect(page.get_by_text("ann (approver)")).to_be_visible()
        await expect(page.get_by_role("heading", name="Now")).to_be_visible()
        kept = "localStorage.length + sessionStorage.length + document.cookie.length"
        assert await page.evaluate(kept) == 0
        await page.goto("runs")  # another page, and nobody is asked again
        await expect(page.get_by_text("ann (approver)")).to_be_visible()
        assert await barriers(page) == []
        # Who is signed in is not asked who they are when they approve.
        client.headers["Authorization"] = "Bearer bobs"
        await start(client, "desk", "ask-1", "ask", "waiting")
        await page.goto("run?agent=desk&id=ask-1")
        await expect(page.get_by_role("button", name="Approve run ask-1")).to_be_visible()
        await expect(page.get_by_label("You are")).to_have_count(0)
        await page.get_by_role("button", name="Approve run ask-1").click()
        await page.get_by_role("button", name="Yes, approve").click()
        await until_status(client, "desk", "ask-1", "completed")
        await page.get_by_role("button", name="Sign out").click()
        await expect(asked).to_be_visible()


async def test_of_long_lists_and_long_histories_a_page_asks_for_the_first_only(
    browser: Browser, tmp_path: Path
) -> None:
    """20,000 runs, and 20,000 events of one of them: some hundred bytes each."""
    settings = load_settings(log=f"sqlite:///{tmp_path / 'big.db'}", partitions=1, gateway_port=0)
    async with served_crowd(settings) as client:
        assert (await client.get("/runs/desk", params={"limit": 1})).json()["matches"] == RUNS
        async with opened(browser, client) as page:
            for address, row in (
                ("runs", "tbody tr"),
                ("run?agent=desk&id=run-0", "ol.steps > li"),
            ):
                await page.goto(address)
                await expect(page.locator(row)).to_have_count(100)
                assert await page.evaluate(_LARGEST) < 200_000
            await page.get_by_role("button", name="Older events").click()
            await expect(page.locator("ol.steps > li")).to_have_count(200)
            await page.goto("runs")
            await page.get_by_role("button", name="Choose the latest 5,000").click()
            await expect(page.get_by_text("5,000 chosen")).to_be_visible()
            await page.get_by_role("link", name="Older runs").click()
            await expect(page.get_by_role("link", name="Latest runs")).to_be_visible()
            assert "before=" in page.url


#: bytes of the largest of all that the page has asked for
_LARGEST = """Math.max(
    ...performance.getEntriesByType('resource').map((each) => each.decodedBodySize))"""


async def test_on_kafka_a_run_is_followed_to_its_end(
    browser: Browser, bootstrap: str, app: str, agent_name: str
) -> None:
    settings = load_settings(
        bootstrap_servers=bootstrap, app=app, partitions=2, replication_factor=1, gateway_port=0
    )
    async with served_desk(settings, desk_agent(agent_name)) as client:
        await start(client, agent_name, "kafka-1", "ask", "waiting")
        async with opened(browser, client) as page:
            await page.goto(f"run?agent={agent_name}&id=kafka-1")
            await page.get_by_role("button", name="Approve run kafka-1").click()
            await page.get_by_role("button", name="Yes, approve").click()
            await expect(page.locator("ol.steps > li").first).to_contain_text("run.completed")
            await expect(page.get_by_text("over", exact=True)).to_be_visible()
            where = re.compile(rf"{app}\.{agent_name}\.(commands|tasks)/\d/\d+")
            await expect(page.locator("ol.steps > li").last).to_contain_text(where)
            await page.goto("now")
            await expect(page.get_by_role("img", name=re.compile("completed: 1"))).to_be_visible()


async def test_what_an_agents_steps_came_to_is_told_by_views(
    browser: Browser, desk: httpx.AsyncClient, tmp_path: Path
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("agents")
        await expect(page.get_by_text("SUREFOOT_VIEWS_URL")).to_be_visible()
    settings = load_settings(
        log=f"sqlite:///{tmp_path / 'seen.db'}", partitions=2, gateway_port=0, views_port=0
    )
    async with open_backend(settings, SystemClock(), owner=True) as made, made.topics() as topics:
        await topics.apply(specs_for(["desk"], settings))
    async with (
        open_backend(settings, SystemClock()) as backend,
        served_views("desk", settings, backend) as (url, _),
        served_desk(settings.model_copy(update={"views_url": url}), desk_agent()) as client,
        opened(browser, client) as page,
    ):
        await page.goto("agents")
        table = page.get_by_role("table", name="Outcomes of the steps of desk")
        await expect(table).to_contain_text("No step has ended")
        await start(client, "desk", "one", "tea", "completed")
        await start(client, "desk", "two", "fail", "failed")
        row = table.get_by_role("row", name=re.compile("^begin"))
        await expect(row.get_by_role("cell")).to_have_text(
            ["begin", "2", "0", "1", re.compile("ms|s"), re.compile("ms|s"), "0", ""]
        )


async def test_charts_have_their_numbers_as_a_table(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("now")
        await expect(
            page.get_by_role("img", name=re.compile("Runs ended.*failed: 1"))
        ).to_be_visible()
        table = page.get_by_role("table", name="Runs ended")
        await press(page.get_by_text("Show as a table").last, table)
