"""Chromium, driven by Playwright: what a person sees of our pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from tests.eventually import PATIENCE

_QUIET = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
          "--disable-sync")  # fmt: skip


@contextmanager
def chromium() -> Iterator[Browser]:
    """The browser of this machine, for as long as the block lasts."""
    path = shutil.which("chromium")
    if path is None:
        pytest.fail("no Chromium on this machine; to get it: apt install chromium", pytrace=False)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_QUIET)
        try:
            yield browser
        finally:
            browser.close()


def page_of(browser: Browser, errors: list[str]) -> Page:
    """A page that waits patiently, and notes the errors of its scripts and of what it loads."""
    page = browser.new_page(viewport={"width": 900, "height": 700})
    page.set_default_timeout(PATIENCE * 1000)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    return page
