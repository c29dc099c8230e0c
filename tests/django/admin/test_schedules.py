"""Schedules in the admin."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from relevo.django.site_app import SiteApp
from relevo.engine.job import State
from tests.django.admin.conftest import Login
from tests.django.admin.pages import messages_of, rows_of, text_of
from tests.django.shop import tasks

LIST = "/admin/relevo/schedule/"
NAME = "feeds"
PAGE = f"{LIST}{NAME}/change/"
EDIT = f"{LIST}{NAME}/edit/"
TIMES = {"overlap": "skip", "missed": "once"}


@pytest.fixture(autouse=True)
def feeds(shop: SiteApp) -> None:
    """A schedule."""
    shop.schedule(NAME, tasks.speak.s("de"), cron="*/30 * * * *", tz="Europe/Madrid")


def act(client: Client, action: str, address: str = LIST, **given: Any) -> Any:
    asked = {"action": action, "_selected_action": NAME, "post": "yes", **given}
    return client.post(address, asked, follow=True)


def test_list(shop: SiteApp, client: Client) -> None:
    shop.schedule("import", tasks.tidy, every="6h", queue="imports")
    page = client.get(LIST)
    assert rows_of(page) == ["feeds", "import"]
    assert "feeds tests.django.shop.tasks.speak on default active */30 * * * * every 30 minutes" in text_of(page)
    for query, names in {
        "?state=paused": [],
        "?queue=imports": ["import"],
        "?q=TIDY": ["import"],
        "?q=feed&state=active": ["feeds"],
    }.items():
        assert rows_of(client.get(LIST + query)) == names


def test_pause_and_resume(shop: SiteApp, client: Client) -> None:
    assert messages_of(act(client, "pause", reason="moving", until="2h")) == ["1 schedule paused."]
    assert rows_of(client.get(LIST + "?state=paused")) == [NAME]
    text = text_of(client.get(PAGE))
    assert "by ana-" in text and ": moving" in text
    assert 'such as "90s"' in text_of(act(client, "pause", until="soon"))
    assert messages_of(act(client, "resume", PAGE)) == ["1 schedule resumed."]
    assert messages_of(act(client, "resume")) == ["Not resumed: feeds: it is not paused."]
    names = [(one.what, one.about["name"]) for one in shop.audit.list(app=shop.name)]
    assert names == [("schedule.resume", NAME), ("schedule.pause", NAME)]


def test_run_now(shop: SiteApp, client: Client) -> None:
    assert messages_of(act(client, "run_now")) == ["1 schedule queued a job."]
    (row,) = shop.queue().jobs("ready")
    page = client.get(PAGE)
    assert "on request fired" in text_of(page) and f"/job/{row.id}/change/" in page.content.decode()


def test_remove_asks_first(shop: SiteApp, client: Client) -> None:
    asked = {"action": "remove", "_selected_action": NAME}
    assert "Remove 1 schedule?" in text_of(client.post(LIST, asked))
    assert len(shop.schedules.list()) == 1
    page = act(client, "remove", PAGE)
    assert (page.redirect_chain[-1][0], shop.schedules.list()) == (LIST, [])


class TestEdit:
    def test_cron(self, shop: SiteApp, client: Client) -> None:
        assert 'value="*/30 * * * *"' in client.get(EDIT).content.decode()
        page = client.post(EDIT, {**TIMES, "cron": "0 6 * * *", "tz": "UTC", "overlap": "queue"}, follow=True)
        assert messages_of(page) == ["Feeds now fires: at 06:00 every day, UTC."]
        info = shop.schedules.get(NAME).info()
        assert (info.when, info.tz, info.overlap) == ("0 6 * * *", "UTC", "queue")
        assert info.args == ["de"], "its arguments stay"
        entry = shop.audit.list(limit=1, app=shop.name)[0]
        assert (entry.what, entry.about["cron"], entry.via) == ("schedule.edit", "0 6 * * *", "django-admin")
        assert LogEntry.objects.filter(object_id=NAME, change_message__contains="06:00").exists()

    def test_from_cron_to_every_and_back(self, shop: SiteApp, client: Client) -> None:
        client.post(EDIT, {**TIMES, "every": "15m", "jitter": "5s"})
        info = shop.schedules.get(NAME).info()
        assert (info.when, info.tz, info.jitter) == ("900s", "", 5.0)
        assert 'value="900s"' in client.get(EDIT).content.decode()
        client.post(EDIT, {**TIMES, "cron": "@daily"})
        assert shop.schedules.get(NAME).info().when == "@daily"

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"cron": "61 * * * *"}, "cron"),
            ({"cron": "* * * * *", "tz": "Europe/Atlantis"}, "Europe/Atlantis"),
            ({"every": "often"}, "often"),
            ({}, "Give a cron, or how often it fires."),
            ({"cron": "* * * * *", "every": "1h"}, "Give a cron, or how often it fires."),
        ],
    )
    def test_what_cannot_be(self, shop: SiteApp, client: Client, given: dict[str, str], words: str) -> None:
        page = client.post(EDIT, {**TIMES, **given})
        assert "Please correct the error below." in text_of(page) and words in text_of(page)
        assert shop.schedules.get(NAME).info().when == "*/30 * * * *"


def test_schedule_that_is_none(shop: SiteApp, client: Client) -> None:
    page = client.get(f"{LIST}none/change/", follow=True)
    assert (page.redirect_chain, "No schedule 'none'" in messages_of(page)[0]) == ([(LIST, 302)], True)


@pytest.mark.parametrize(
    ("action", "permission"),
    [("pause", "change"), ("resume", "change"), ("run_now", "run"), ("remove", "delete")],
)
def test_every_action_needs_its_permission(shop: SiteApp, login: Login, action: str, permission: str) -> None:
    every = {f"{verb}_schedule" for verb in ("view", "change", "delete", "run")}
    assert act(login(*(every - {f"{permission}_schedule"})), action).status_code == 403
    assert act(login("view_schedule", f"{permission}_schedule"), action).status_code == 200


def test_pages_need_their_permissions(shop: SiteApp, login: Login) -> None:
    client = login("run_schedule", "delete_schedule")
    assert [client.get(one).status_code for one in (LIST, PAGE, EDIT)] == [403, 403, 403]
    client = login("view_schedule")
    assert [client.get(one).status_code for one in (LIST, PAGE, EDIT)] == [200, 200, 403]
    assert shop.schedules.get(NAME).info().paused_ms is None
    assert State.READY not in {row.state for row in shop.queue().jobs()}
