"""A real browser for tests, and what looks for barriers in a page."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import cache
from importlib import resources
from typing import Any

import pytest
from playwright.async_api import Browser, Locator, Page, async_playwright
from playwright.async_api import TimeoutError as TooSlow

from tests.support.eventually import until

#: where a missing browser is a failure instead of a reason to skip
REQUIRED = bool(os.environ.get("SUREFOOT_TEST_REQUIRE_BROWSER"))
#: what WCAG 2.2 asks for at levels A and AA
_RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
_TRY_MS = 5_000
_LAUNCH_MS = 180_000
#: for so long a page is looked at again that may have drawn itself anew while it was looked at
_LOOKS_S = 60.0


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """Chromium as the system has it, without a window."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        if REQUIRED:
            pytest.fail("there is no chromium")
        pytest.skip("there is no chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=path,
            args=["--no-sandbox", "--force-prefers-reduced-motion"],
            timeout=_LAUNCH_MS,
        )
        try:
            yield browser
        finally:
            await browser.close()


async def press(button: Locator, wanted: Locator) -> None:
    """Click until it has come to what is wanted: a list that draws itself anew now and then may
    take a button away between its being pressed and let go."""

    async def pressed() -> bool:
        if await wanted.is_visible():
            return True
        with suppress(TooSlow):
            await button.click(timeout=_TRY_MS)
            await wanted.wait_for(timeout=_TRY_MS)
        return await wanted.is_visible()

    await until(pressed, what=f"{button} to come to {wanted}")


@cache
def axe() -> str:
    """axe-core's source."""
    return (resources.files("axe_playwright_python") / "axe.min.js").read_text("utf-8")


async def barriers(page: Page) -> list[str]:
    """What keeps people out of the page, as axe-core tells it."""
    await page.evaluate(axe())
    until_s = time.monotonic() + _LOOKS_S
    while True:
        found: dict[str, Any] = await page.evaluate(
            "rules => axe.run(document, {runOnly: {type: 'tag', values: rules}})", _RULES
        )
        told = [
            f"{violation['id']}: {node['html']} {node['failureSummary']}"
            for violation in found["violations"]
            for node in violation["nodes"]
        ]
        if not told or time.monotonic() > until_s:
            return told
