"""The pages Agents, Triggers, Dead letters and Topics in a real browser."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from playwright.async_api import Browser, expect

from surefoot import Agent, Webhook
from surefoot.infra.runtime.settings import load_settings
from surefoot.state.scheduling.book import Tick
from tests.integration.dashboard.test_dashboard import SHOWN, browser, opened
from tests.support.browser import barriers, press
from tests.support.eventually import until
from tests.support.hostile_dashboard import HOSTILE, desk_agent, served_desk, start

__all__ = ["browser"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

SECRET = "0123456789abcdef0123456789abcdef"
EVENT = "<b>pushed</b><img src=x onerror=alert(1)>"
PAGES = ("agents", "triggers", "dead", "topics")


def triggered_agent() -> Agent:
    agent = desk_agent()

    @agent.schedule("0 0 1 1 *", tz="Europe/Berlin", name="yearly")
    def yearly(tick: Tick) -> str:
        return "tea"

    @agent.webhook("github")
    def on_delivery(delivery: Webhook) -> str:
        raise ValueError(HOSTILE)

    return agent


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def desk(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[httpx.AsyncClient]:
    """With a schedule, deliveries that were refused and not mapped, and a dead letter."""
    path = tmp_path_factory.mktemp("desk") / "runs.db"
    settings = load_settings(log=f"sqlite:///{path}", partitions=2, gateway_port=0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SUREFOOT_WEBHOOK_GITHUB_SECRET", SECRET)
        async with served_desk(settings, triggered_agent()) as client:
            await start(client, "desk", "failed-1", "fail", "failed")
            await deliver(client, SECRET)
            await deliver(client, "another secret that nobody has")
            await until(lambda: told(client, "/dead-letters", "dead_letters"), what="a dead letter")
            await until(lambda: begun(client), what="the schedule to begin")
            yield client


async def deliver(client: httpx.AsyncClient, secret: str) -> None:
    raw = json.dumps({"n": 1}).encode()
    signature = hmac.new(secret.encode(), raw, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": EVENT,
        "X-GitHub-Delivery": f"id-{secret[:7]}",
        "X-Hub-Signature-256": f"sha256={signature}",
        "Content-Type": "application/json",
    }
    answer = await client.post("/webhooks/github", content=raw, headers=headers)
    assert answer.is_client_error, answer.text


async def told(client: httpx.AsyncClient, path: str, name: str) -> Any:
    """None, while the log is too slow to tell."""
    return (await client.get(path)).json().get(name)


async def begun(client: httpx.AsyncClient) -> bool:
    schedules = await told(client, "/schedules", "schedules") or []
    return [schedule["state"] for schedule in schedules] == ["active"]


@pytest.mark.parametrize("name", PAGES)
async def test_what_comes_from_outside_stays_text_and_is_no_barrier(
    browser: Browser, desk: httpx.AsyncClient, name: str
) -> None:
    async with opened(browser, desk, bypass_csp=True) as page:
        await page.goto(name)
        await expect(page.locator("main table tbody tr").first).to_be_visible()
        if name == "dead":
            await expect(page.get_by_text(SHOWN).first).to_be_visible()
        if name == "triggers":
            await expect(page.get_by_text(EVENT)).to_be_visible()
        assert await page.locator("main img, main script, main b").count() == 0
        assert "owned" not in await page.title()
        assert await barriers(page) == []


async def test_an_agent_is_drawn_with_its_steps_and_told_as_a_table(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("agents?agent=desk")
        drawn = page.locator("svg.graph")
        for step in ("begin", "ticked", "decided", "end"):
            await expect(drawn.locator("text.name", has_text=step)).to_have_count(1)
        await page.get_by_text("Show as a table").click()
        row = page.get_by_role("row", name="begin after an answer decided")
        await expect(row).to_be_visible()
        failed = page.get_by_role("link", name="1", exact=True).first
        await press(failed, page.get_by_role("link", name="failed-1"))
        assert "status=failed" in page.url


async def test_deliveries_are_filtered_by_the_address(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("triggers")
        await page.get_by_role("link", name="Refused only").click()
        rows = page.locator("table", has=page.locator("caption", has_text="Deliveries")).locator(
            "tbody tr"
        )
        await expect(rows).to_have_count(1)
        await expect(rows).to_contain_text("does not match this body and secret")
        assert "outcome=refused" in page.url


async def test_a_schedule_is_paused_resumed_and_run_now_by_hand(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("triggers?agent=desk")
        row = page.locator("tr", has_text="yearly").first
        dialog = page.get_by_role("dialog")
        for button, state in (("Pause", "paused"), ("Resume", "active")):
            await press(row.get_by_role("button", name=button), dialog)
            await dialog.get_by_role("button", name=button).click()
            await expect(row).to_contain_text(state)
        await press(row.get_by_role("button", name="Run now"), dialog)
        await dialog.get_by_role("button", name="Run now").click()
        await expect(row.locator("td[data-label=Runs]")).to_have_text("1")


async def test_a_dead_letter_tells_what_to_type_and_leads_to_its_run(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("dead")
        await expect(page.get_by_text("surefoot runs retry desk failed-1")).to_be_visible()
        heading = page.get_by_role("heading", name="failed-1")
        await press(page.get_by_role("link", name="failed-1"), heading)


async def test_partitions_tell_their_worker_and_that_nothing_is_left_to_do(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk) as page:
        await page.goto("topics?agent=desk")
        card = page.locator("section.card").first
        await expect(card.get_by_role("row", name="0 serve 0 0")).to_be_visible()
        offsets = card.get_by_text("surefoot.desk.events").first
        await press(card.get_by_text("Offsets of every topic"), offsets)
        await page.get_by_role("link", name="Behind only").click()
        await expect(page.get_by_text("No pending records.").first).to_be_visible()
        assert "behind=some" in page.url


async def test_everything_that_failed_is_tried_again_after_a_question(
    browser: Browser, desk: httpx.AsyncClient
) -> None:
    async with opened(browser, desk, bypass_csp=True) as page:
        await page.goto("dead")
        dialog = page.get_by_role("dialog")
        button = page.get_by_role("button", name="Retry all failed")
        await page.get_by_label("Id begins with").fill("failed-")
        await press(button, dialog)
        await expect(dialog).to_contain_text("Every run of desk that has failed")
        assert await barriers(page) == []
        await dialog.get_by_role("button", name="Yes, retry all").click()
        await expect(dialog).to_contain_text("1 of 1 retried")
        await dialog.get_by_role("button", name="Close").click()
        await page.get_by_role("combobox").select_option("outbox")
        await press(button, dialog)
        await dialog.get_by_role("button", name="Yes, retry all").click()
        await expect(dialog).to_contain_text("0 of 0 retried")
