"""The admin in a real Chromium: what an operator does in a day, on wide and narrow, light and dark screens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from relevo.django.site_app import SiteApp
from relevo.engine.handle import Job
from relevo.engine.job import State
from tests.browser import RealBrowser, Window
from tests.django.admin.browser import login
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.eventually import PATIENCE, eventually
from tests.working import drained, working

AnyJob = Job[Any]
JOBS = "/admin/relevo/job/"


@pytest.fixture
def window(browser: RealBrowser, site: str, users: Callable[..., User]) -> Iterator[Window]:
    """A window in which an operator is logged in. Nothing on any page may fail, or come from elsewhere."""
    expect.set_options(timeout=PATIENCE * 1000)
    with browser.window(site, viewport={"width": 1280, "height": 900}) as found:
        login(found, users(all=True).username)
        yield found
        assert found.faults == []


@pytest.fixture
def dead(shop: SiteApp) -> AnyJob:
    """A dead letter."""
    job: AnyJob = tasks.pay.using(name="Pay(1)", tags=["red"]).enqueue(10**9)
    drained(shop)
    return job


def test_dead_job_is_found_looked_at_and_retried(shop: SiteApp, window: Window, dead: AnyJob) -> None:
    def act(page: Page) -> None:
        page.get_by_role("link", name="Jobs", exact=True).first.click()
        page.locator("#changelist-filter").get_by_role("link", name="Dead (1)").click()
        page.locator("#result_list").get_by_role("link", name="Pay(1)").click()
        expect(page.locator("#attempts")).to_contain_text("LookupError: no order 1000000000")
        expect(page.locator("#attempts pre")).to_be_visible()
        page.get_by_role("button", name="Retry").click()
        expect(page.locator(".messagelist")).to_have_text("1 job retried.")
        expect(page.locator(".field-state")).to_contain_text("ready")

    window.do(act)
    assert dead.state() is State.READY


def test_many_are_chosen_and_cancelled(shop: SiteApp, window: Window) -> None:
    jobs: list[AnyJob] = [tasks.pay.enqueue(n) for n in range(3)]
    window.go(JOBS)

    def choose(page: Page) -> None:
        expect(page.locator(".action-counter")).to_have_text("0 of 3 selected")
        page.locator("#action-toggle").check()
        expect(page.locator(".action-counter")).to_have_text("3 of 3 selected")
        page.locator("#result_list .action-select").first.uncheck()
        expect(page.locator(".action-counter")).to_have_text("2 of 3 selected")
        page.get_by_label("Action:").select_option("cancel")
        page.locator("button[name=index]").click()
        expect(page.locator("#content")).to_contain_text("Cancel 2 jobs?")

    window.do(choose)
    assert [job.state() for job in jobs] == [State.READY] * 3

    def confirm(page: Page) -> None:
        page.get_by_role("button", name="Yes, I’m sure").click()
        expect(page.locator(".messagelist")).to_have_text("2 jobs cancelled.")
        expect(page.locator("#result_list .relevo-cancelled")).to_have_count(2)

    window.do(confirm)
    assert [job.state() for job in jobs] == [State.READY, State.CANCELLED, State.CANCELLED]


def test_replay_behind_canaries(shop: SiteApp, window: Window, dead: AnyJob) -> None:
    Order.objects.create(pk=10**9)
    window.go("/admin/relevo/deadletter/error-groups/")

    def start(page: Page) -> None:
        page.get_by_role("link", name="Replay…").click()
        expect(page.get_by_label("Canaries first:")).to_be_checked()
        page.get_by_role("button", name="Replay").click()
        expect(page.locator("#content h1")).to_have_text("Replay")

    def is_over(page: Page) -> bool:
        page.reload()
        return page.locator(".relevo-done").is_visible()

    with working(shop):
        window.do(start)
        eventually(lambda: window.do(is_over), what="the end of the replay")
        eventually(lambda: dead.state() is State.DONE, what="the end of the job")
    Order.objects.filter(pk=10**9).delete()


def test_schedule_is_edited_and_queue_paused(shop: SiteApp, window: Window) -> None:
    shop.schedule("feeds", tasks.tidy, cron="*/30 * * * *")
    tasks.pay.enqueue(1)

    def act(page: Page) -> None:
        page.get_by_role("link", name="Schedules", exact=True).first.click()
        page.get_by_role("link", name="feeds").click()
        page.get_by_role("link", name="Change when it fires").click()
        page.get_by_label("Cron:").fill("0 6 * * *")
        page.get_by_role("button", name="Save").click()
        expect(page.locator(".messagelist")).to_have_text("Feeds now fires: at 06:00 every day, UTC.")
        page.get_by_role("link", name="Queues", exact=True).first.click()
        page.locator("#result_list").get_by_role("link", name="default").click()
        page.get_by_role("button", name="Pause…").click()
        page.get_by_label("Reason:").fill("too hot")
        page.get_by_role("button", name="Pause").click()
        expect(page.locator("#pauses")).to_contain_text("too hot")
        page.locator("#pauses").get_by_role("button", name="Resume").click()
        expect(page.locator("#pauses")).to_contain_text("Nothing is paused.")

    window.do(act)
    assert shop.schedules.get("feeds").info().when == "0 6 * * *"


def addresses(dead: AnyJob) -> list[str]:
    every = [JOBS, "/admin/relevo/deadletter/", "/admin/relevo/schedule/", "/admin/relevo/queue/"]
    letters = every[1]
    return [
        "/admin/",
        *every,
        f"{JOBS}{dead.id}/change/",
        f"{JOBS}clean-up/",
        f"{letters}{dead.id}/change/",
        f"{letters}error-groups/",
        f"{letters}every/replay/",
        f"{letters}replays/",
        "/admin/relevo/schedule/feeds/change/",
        "/admin/relevo/schedule/feeds/edit/",
        "/admin/relevo/queue/default/change/",
    ]


@pytest.mark.parametrize("width", [420, 1280])
def test_no_page_is_wider_than_the_screen(shop: SiteApp, window: Window, dead: AnyJob, width: int) -> None:
    shop.schedule("feeds", tasks.tidy, cron="*/30 * * * *")
    window.do(lambda page: page.set_viewport_size({"width": width, "height": 800}))
    for address in addresses(dead):
        window.go(address)
        wide: int = window.do(lambda page: page.evaluate("document.documentElement.scrollWidth"))
        assert wide <= width, address


def test_text_is_light_on_dark_where_the_browser_is_dark(
    browser: RealBrowser, site: str, users: Callable[..., User], dead: AnyJob
) -> None:
    brightness = """element => {
        const [r, g, b] = getComputedStyle(element)[element.dataset.of].match(/[0-9.]+/g).map(Number)
        return (r + g + b) / 3
    }"""

    def of(page: Page, selector: str, what: str) -> float:
        element = page.locator(selector).first
        element.evaluate("(element, what) => { element.dataset.of = what }", what)
        return float(element.evaluate(brightness))

    with browser.window(site, color_scheme="dark") as window:
        login(window, users(all=True).username)
        window.go(f"{JOBS}{dead.id}/change/")
        for selector in (".relevo-text", ".field-state .readonly"):
            assert window.do(partial(of, selector=selector, what="color")) > 150
        assert window.do(partial(of, selector=".relevo-text", what="backgroundColor")) < 80
        assert window.do(partial(of, selector="body", what="backgroundColor")) < 80
