"""Takes the pictures of the dashboard that the documents show: python -m tests.generate.screenshots

They are of a gateway with its workers on an embedded log, and of an agent that buys things.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Any

import httpx
from playwright.async_api import Browser, expect

from surefoot import Agent, Approval, Approve, Context, Done, Next, Retry, Wait
from surefoot.infra.runtime.settings import load_settings
from tests.support.browser import chromium
from tests.support.hostile_dashboard import served_desk, start

FOLDER = Path(__file__).parents[2] / "docs" / "images"
WIDE: Any = {"width": 1200, "height": 820}
TALL: Any = {"width": 1200, "height": 1400}
PHONE: Any = {"width": 390, "height": 820}
#: name, address, colour scheme, size
PICTURES = (
    ("dashboard-now", "now", "light", WIDE),
    ("dashboard-runs", "runs", "dark", WIDE),
    ("dashboard-run", "run?agent=orders&id=order-1001", "light", TALL),
    ("dashboard-approvals", "approvals", "light", PHONE),
)

orders = Agent("orders")


@orders.step(start=True, retry=Retry(attempts=2, initial_s=0.2))
async def quote(ctx: Context, item: str) -> Next:
    for text in ("ask for a price", "have it approved", "order it"):
        ctx.plan.add(text)
    if item == "unobtainium":
        raise ValueError("nobody sells unobtainium")
    await asyncio.sleep(0.2)
    return Next(review, {"item": item, "price": 40 * len(item)})


@orders.step
async def review(ctx: Context, offer: dict[str, Any]) -> Next | Approve:
    ctx.plan.tick(ctx.plan.open[0].id)
    if offer["price"] > 500:
        return Approve(offer, then=decided, expires="8h", by=["ann", "bob"])
    return Next(order, offer)


@orders.step
async def decided(ctx: Context, answer: Approval, offer: dict[str, Any]) -> Next | Done:
    return Next(order, offer) if answer.approved else Done("refused")


@orders.step
async def order(ctx: Context, offer: dict[str, Any]) -> Wait:
    return Wait("delivered", then=shelve, timeout="3d")


@orders.step
async def shelve(ctx: Context, place: str) -> Done:
    return Done({"place": place})


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = load_settings(
            log=f"sqlite:///{folder}/runs.db", partitions=2, gateway_port=0, app="surefoot"
        )
        async with served_desk(settings, orders) as client, chromium() as browser:
            await _act(client)
            for name, address, scheme, size in PICTURES:
                await _take(browser, f"{client.base_url}/ui/{address}", name, scheme, size)


async def _act(client: httpx.AsyncClient) -> None:
    for number, (item, status) in enumerate(
        [
            ("tea", "waiting"),
            ("printer cartridges", "waiting"),
            ("a meeting table", "waiting"),
            ("unobtainium", "failed"),
            ("pens", "waiting"),
            ("paper", "waiting"),
        ],
        start=1001,
    ):
        await start(client, "orders", f"order-{number}", item, status)
    delivered = {"name": "delivered", "payload": "shelf 4"}
    for run_id in ("order-1001", "order-1005"):
        await client.post(f"/runs/orders/{run_id}/signal", json=delivered)
    await client.post("/runs/orders/order-1006/pause", json={"by": "ann"})


async def _take(browser: Browser, url: str, name: str, scheme: Any, size: Any) -> None:
    context = await browser.new_context(color_scheme=scheme, viewport=size)
    page = await context.new_page()
    await page.goto(url)
    await expect(page.locator("main table, main .card").first).to_be_visible()
    await page.evaluate("document.fonts.ready")
    await page.screenshot(path=FOLDER / f"{name}.png")
    await context.close()


if __name__ == "__main__":
    asyncio.run(main())
