"""A real browser.

Playwright's blocking interface runs an event loop of its own in the thread that uses it, where neither Django's models
nor tests with `await` can work: so it has a thread of its own, to which tests hand what is to be done.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.eventually import PATIENCE

T = TypeVar("T")

#: Nothing that calls home, and nothing that a container cannot do.
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def found_chromium() -> str | None:
    """The path of the browser."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Window:
    """One window of the browser; what it does is done in the browser's thread."""

    def __init__(self, thread: ThreadPoolExecutor, page: Page, base: str, faults: list[str]) -> None:
        self._thread = thread
        self._page = page
        self.base = base
        #: Errors of scripts, failed requests, and requests to other hosts.
        self.faults = faults

    def do(self, act: Callable[[Page], T]) -> T:
        """Do something with the page."""
        return self._thread.submit(act, self._page).result()

    def go(self, address: str) -> None:
        """Open a page of the site."""
        self.do(lambda page: page.goto(self.base + address))


def _is_fault(message: ConsoleMessage) -> bool:
    """Whether a page failed; browsers ask every site for its icon."""
    return message.type == "error" and not message.location["url"].endswith("/favicon.ico")


class RealBrowser:
    """A running browser."""

    def __init__(self, thread: ThreadPoolExecutor, browser: Browser) -> None:
        self._thread = thread
        self._browser = browser

    @contextmanager
    def window(self, base: str, **options: Any) -> Iterator[Window]:
        """A window with a session of its own."""
        faults: list[str] = []

        def begin() -> Page:
            context = self._browser.new_context(**options)
            context.set_default_timeout(PATIENCE * 1000)
            page = context.new_page()
            page.on("pageerror", lambda error: faults.append(str(error)))
            page.on("console", lambda one: faults.append(one.text) if _is_fault(one) else None)
            page.on("request", lambda one: None if one.url.startswith((base, "data:")) else faults.append(one.url))
            return page

        page = self._thread.submit(begin).result()
        try:
            yield Window(self._thread, page, base, faults)
        finally:
            self._thread.submit(page.context.close).result()


@contextmanager
def running_browser(path: str) -> Iterator[RealBrowser]:
    """A browser in a thread of its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="browser") as thread:
        playwright = thread.submit(sync_playwright().start).result()
        browser = thread.submit(
            lambda: playwright.chromium.launch(executable_path=path, args=[*ARGUMENTS], timeout=PATIENCE * 1000)
        ).result()
        try:
            yield RealBrowser(thread, browser)
        finally:
            thread.submit(browser.close).result()
            thread.submit(playwright.stop).result()
