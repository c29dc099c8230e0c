"""Queues in the admin: pauses, limits, clear."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from relevo.django.site_app import SiteApp
from tests.django.admin.conftest import Login
from tests.django.admin.pages import following, messages_of, rows_of, text_of
from tests.django.shop import tasks

LIST = "/admin/relevo/queue/"
PAGE = f"{LIST}mails/change/"
PAY = "tests.django.shop.tasks.pay"


@pytest.fixture(autouse=True)
def mails(shop: SiteApp) -> None:
    """Two queues with jobs."""
    tasks.pay.using(queue="mails").enqueue_many([((n,), {}) for n in range(3)])
    tasks.pay.using(delay="1h").enqueue(1)


def act(client: Client, action: str, address: str = LIST, **given: Any) -> Any:
    return client.post(address, {"action": action, "_selected_action": "mails", "post": "yes", **given}, follow=True)


def control(client: Client, verb: str, **given: Any) -> Any:
    return client.post(PAGE, {"control": verb, **given}, follow=True)


def test_list(shop: SiteApp, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    page = client.get(LIST)
    assert rows_of(page) == ["default", "mails"]
    assert "default Jobs active 0 0 1 0 0 0 0 mails Jobs active 3 0 0 0 0 0 0" in text_of(page)
    assert rows_of(client.get(f"{LIST}?q=MAIL")) == ["mails"]
    monkeypatch.setattr("relevo.django.admin.queues.PER_PAGE", 1)
    assert following(client, LIST) == [["default"], ["mails"]]


def test_pause_and_resume(shop: SiteApp, client: Client) -> None:
    assert messages_of(act(client, "pause", reason="provider is down", until="2h")) == ["1 queue paused."]
    (pause,) = shop.queue("mails").pauses()
    assert (pause.reason, pause.by[:4], pause.until_ms is not None) == ("provider is down", "ana-", True)
    assert rows_of(client.get(f"{LIST}?state=paused")) == ["mails"]
    assert "provider is down" in text_of(client.get(PAGE))
    assert messages_of(act(client, "resume", PAGE)) == ["1 queue resumed."]
    assert not shop.queue("mails").stats().paused


def test_clear_asks_first(shop: SiteApp, client: Client) -> None:
    page = client.post(LIST, {"action": "clear", "_selected_action": "mails"})
    assert "Clear 1 queue?" in text_of(page)
    assert shop.queue("mails").stats().ready == 3
    assert messages_of(act(client, "clear")) == ["1 queue cleared."]
    assert (shop.queue("mails").stats().ready, shop.queue().stats().scheduled) == (0, 1)
    entry = shop.audit.list(limit=1, app=shop.name)[0]
    assert (entry.what, entry.about["queue"]) == ("queue.clear", "mails")


class TestLimits:
    def test_of_the_queue(self, shop: SiteApp, client: Client) -> None:
        page = control(client, "limit", of="queue", concurrency=5, rate="100/m")
        assert messages_of(page) == ["Limited the queue."]
        (limit,) = shop.queue("mails").limits()
        assert (limit.kind, limit.concurrency, limit.rate) == ("queue", 5, "100/m")
        assert "queue 5 100/m" in text_of(page)
        assert messages_of(control(client, "unlimit", of="queue")) == ["Removed the limit of the queue."]
        assert shop.queue("mails").limits() == []
        names = [(one.what, one.about["queue"]) for one in shop.audit.list(app=shop.name)]
        assert names == [("queue.unlimit", "mails"), ("queue.limit", "mails")]

    def test_of_a_tenant_and_a_task(self, shop: SiteApp, client: Client) -> None:
        control(client, "limit", of="tenant", name="acme", concurrency=2)
        control(client, "limit", of="task", name=PAY, rate="10/s")
        assert [(one.tenant, one.task) for one in shop.queue("mails").limits()] == [("", PAY), ("acme", "")]
        control(client, "unlimit", of="task", name=PAY)
        assert [one.tenant for one in shop.queue("mails").limits()] == ["acme"]
        control(client, "unlimit", of="tenant", name="acme")

    @pytest.mark.parametrize(
        "given",
        [
            {"of": "queue"},
            {"of": "tenant", "concurrency": 1},
            {"of": "queue", "rate": "fast"},
            {"of": "x", "rate": "1/s"},
        ],
    )
    def test_that_are_none(self, shop: SiteApp, client: Client, given: dict[str, Any]) -> None:
        assert "Please correct the error" in text_of(control(client, "limit", **given))
        assert shop.queue("mails").limits() == []


def test_pause_of_a_tenant(shop: SiteApp, client: Client) -> None:
    assert messages_of(control(client, "pause", of="tenant", name="acme", reason="unpaid")) == ["Paused acme."]
    (pause,) = shop.queue("mails").pauses()
    assert (pause.kind, pause.name, pause.reason) == ("tenant", "acme", "unpaid")
    assert "tenant acme" in text_of(client.get(PAGE))
    assert messages_of(control(client, "resume", of="tenant", name="acme")) == ["Resumed acme."]
    assert [one.what for one in shop.audit.list(app=shop.name)] == ["tenant.resume", "tenant.pause"]


def test_queue_that_is_none(shop: SiteApp, client: Client) -> None:
    page = client.get(f"{LIST}none/change/", follow=True)
    assert (page.redirect_chain, messages_of(page)) == ([(LIST, 302)], ["No queue 'none' is in use"])


@pytest.mark.parametrize(("action", "permission"), [("pause", "change"), ("resume", "change"), ("clear", "delete")])
def test_every_action_needs_its_permission(shop: SiteApp, login: Login, action: str, permission: str) -> None:
    every = {"view_queue", "change_queue", "delete_queue"}
    assert act(login(*(every - {f"{permission}_queue"})), action).status_code == 403
    assert act(login("view_queue", f"{permission}_queue"), action).status_code == 200


def test_limits_and_pauses_need_their_permission(shop: SiteApp, login: Login) -> None:
    client = login("view_queue", "delete_queue")
    assert "Set a limit" not in text_of(client.get(PAGE))
    for verb in ("limit", "unlimit", "pause", "resume", "explode"):
        assert control(client, verb, of="queue", concurrency=1).status_code == 403
    assert control(login("view_queue", "change_queue"), "explode").status_code == 403
    assert shop.queue("mails").limits() == []
