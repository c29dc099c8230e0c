"""What can be done to jobs in the admin, and what is written down of it."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin.models import LogEntry
from django.test import Client

from relevo.django.site_app import SiteApp
from relevo.engine.handle import Job
from relevo.engine.job import State
from relevo.testing import bind
from tests.django.admin.conftest import Login
from tests.django.admin.pages import messages_of, text_of
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.working import drained

LIST = "/admin/relevo/job/"
AnyJob = Job[Any]


def value(job: AnyJob) -> str:
    return f"{job.id}:{job.queue}"


def act(client: Client, action: str, *jobs: AnyJob, sure: bool = True, **given: Any) -> Any:
    """Choose some jobs in the list and do that to them."""
    asked = {"action": action, "_selected_action": [value(job) for job in jobs], **given}
    return client.post(LIST, {**asked, "post": "yes"} if sure else asked, follow=True)


def dead_job(shop: SiteApp) -> AnyJob:
    job: AnyJob = tasks.pay.enqueue(10**9)
    drained(shop)
    return job


def test_retry(shop: SiteApp, client: Client) -> None:
    dead, ready = dead_job(shop), tasks.pay.enqueue(1)
    page = act(client, "retry", dead, ready, sure=False)
    assert dead.state() is State.READY
    assert messages_of(page) == [
        "1 job retried.",
        f"Not retried: {ready.id}: only a dead, cancelled or expired job can run again.",
    ]


def test_cancel_asks_first(shop: SiteApp, client: Client) -> None:
    jobs: list[AnyJob] = [tasks.pay.enqueue(n) for n in range(3)]
    page = act(client, "cancel", *jobs[:2], sure=False)
    assert "Cancel 2 jobs? What has not started will not run" in text_of(page)
    assert [job.state() for job in jobs] == [State.READY] * 3
    assert messages_of(act(client, "cancel", *jobs[:2])) == ["2 jobs cancelled."]
    assert [job.state() for job in jobs] == [State.CANCELLED, State.CANCELLED, State.READY]


def test_discard_asks_first_and_leaves_what_has_not_ended(shop: SiteApp, client: Client) -> None:
    dead = dead_job(shop)
    done: AnyJob = tasks.pay.using(result_ttl="1h").enqueue(Order.objects.create().pk)
    drained(shop)
    ready: AnyJob = tasks.pay.enqueue(1)
    assert "Discard 3 jobs?" in text_of(act(client, "discard", dead, done, ready, sure=False))
    page = act(client, "discard", dead, done, ready)
    assert [job.state() for job in (dead, done, ready)] == [State.UNKNOWN, State.UNKNOWN, State.READY]
    assert messages_of(page) == ["2 jobs discarded.", f"Not discarded: {ready.id}: it is ready: cancel it first."]
    assert shop.dead.restore([dead.id]) == 1


def test_priority(shop: SiteApp, client: Client) -> None:
    job: AnyJob = tasks.pay.enqueue(1)
    assert 'name="priority"' in act(client, "priority", job, sure=False).content.decode()
    assert "less than or equal to 1023" in text_of(act(client, "priority", job, priority=5000))
    assert job.info().priority == 100
    assert messages_of(act(client, "priority", job, priority=7)) == ["1 job changed."]
    assert job.info().priority == 7


def test_time(shop: SiteApp, client: Client) -> None:
    job: AnyJob = tasks.pay.enqueue(1)
    now_ms: int = shop.engine.run(shop.engine.now_ms())
    assert "Say in how long, or at what time." in text_of(act(client, "time", job))
    assert "delay" in text_of(act(client, "time", job, delay="soon"))
    act(client, "time", job, delay="2h")
    due_ms = job.info().due_ms
    assert job.state() is State.SCHEDULED and due_ms is not None and due_ms >= now_ms + 7_200_000
    at = datetime.fromtimestamp(now_ms / 1000).astimezone() + timedelta(days=3)
    act(client, "time", job, at=at.strftime("%Y-%m-%dT%H:%M"))
    due_ms = job.info().due_ms
    assert due_ms is not None and due_ms > now_ms + 2 * 86_400_000


def test_run_now(shop: SiteApp, client: Client) -> None:
    job: AnyJob = tasks.pay.using(delay="1h").enqueue(1)
    assert messages_of(act(client, "run_now", job)) == ["1 job made ready."]
    assert job.state() is State.READY
    assert "it is ready to run" in messages_of(act(client, "run_now", job))[0]


def test_from_the_page_of_a_job(shop: SiteApp, client: Client) -> None:
    dead = dead_job(shop)
    address = f"{LIST}{dead.id}/change/?queue=default"
    page = client.post(address, {"action": "retry", "_selected_action": value(dead)}, follow=True)
    assert (page.redirect_chain, messages_of(page)) == ([(address, 302)], ["1 job retried."])


def test_discarded_job_leads_from_its_page_to_the_list(shop: SiteApp, client: Client) -> None:
    dead = dead_job(shop)
    address = f"{LIST}{dead.id}/change/"
    asked = {"action": "discard", "_selected_action": value(dead), "post": "yes"}
    page = client.post(address, asked, follow=True)
    assert page.redirect_chain[-1] == (LIST, 302)
    assert messages_of(page)[0] == "1 job discarded."


def test_everything_is_in_the_audit_trail_with_the_user(shop: SiteApp, login: Login) -> None:
    client = login("view_job", "retry_job", "change_job")
    name = client.session["_auth_user_id"]
    dead, ready = dead_job(shop), tasks.pay.enqueue(1)
    act(client, "retry", dead, ready)
    act(client, "priority", ready, priority=7)
    changed, retried = shop.audit.list(limit=2, app=shop.name)
    entry = LogEntry.objects.filter(user_id=name).earliest("pk")
    assert (retried.what, retried.count, retried.via, retried.who) == (
        "job.retry",
        1,
        "django-admin",
        entry.user.username,
    )
    assert (retried.about["ids"], retried.about["queue"]) == ([dead.id], "default")
    assert (changed.what, changed.about["priority"]) == ("job.change", "7")
    assert [(one.object_id, one.change_message) for one in LogEntry.objects.filter(user_id=name).order_by("pk")] == [
        (dead.id, "Retried."),
        (ready.id, "Changed: priority 7."),
    ]
    assert "Retried." in text_of(client.get(f"{LIST}{dead.id}/history/"))


def test_nothing_that_was_not_done_is_written_down(shop: SiteApp, client: Client) -> None:
    ready: AnyJob = tasks.pay.enqueue(1)
    act(client, "retry", ready)
    assert shop.audit.list(app=shop.name) == []
    assert not LogEntry.objects.filter(object_id=ready.id).exists()


def test_forged_request_is_refused(shop: SiteApp, login: Login) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.cookies = login(all=True).cookies
    job: AnyJob = tasks.pay.enqueue(1)
    asked = {"action": "cancel", "_selected_action": value(job), "post": "yes"}
    assert browser.post(LIST, asked).status_code == 403
    assert browser.get(LIST, asked).status_code == 200
    assert job.state() is State.READY


def test_nonsense_does_nothing(shop: SiteApp, client: Client) -> None:
    job: AnyJob = tasks.pay.enqueue(1)
    for chosen in ("", "x", "x:default", f"{job.id}", f"{job.id}:a{{b}}:c", f"{job.id}:other"):
        page = client.post(LIST, {"action": "cancel", "_selected_action": chosen, "post": "yes"}, follow=True)
        assert page.status_code == 200 and len(messages_of(page)) == 1
    assert "No action selected." in messages_of(client.post(LIST, {"action": "explode"}, follow=True))
    assert job.state() is State.READY


class TestCleanUp:
    def test_old_records_are_removed_and_nothing_else(self, shop: SiteApp, client: Client) -> None:
        with bind(shop, url=shop.settings.url) as kit:
            done = tasks.pay.using(result_ttl="30d").enqueue(Order.objects.create().pk)
            dead = tasks.pay.using(failure_ttl="30d").enqueue(0)
            drained(shop)
            kit.clock.move("8d")
            ready = tasks.pay.enqueue(1)
            page = client.post(f"{LIST}clean-up/", {"days": 7})
            assert "Remove the records of 2 jobs that ended more than 7 days ago?" in text_of(page)
            assert done.state() is State.DONE
            page = client.post(f"{LIST}clean-up/", {"days": 7, "post": "yes"}, follow=True)
            assert messages_of(page) == ["2 records of ended jobs removed."]
            assert [one.state() for one in (done, dead, ready)] == [State.UNKNOWN, State.UNKNOWN, State.READY]
            entry = shop.audit.list(limit=1, app=shop.name)[0]
            assert (entry.what, entry.count, entry.who[:4]) == ("queue.clean_up", 2, "ana-")

    def test_days_that_are_none(self, shop: SiteApp, client: Client) -> None:
        assert "greater than or equal to 0" in text_of(client.post(f"{LIST}clean-up/", {"days": -1, "post": "yes"}))

    def test_needs_its_permission(self, shop: SiteApp, login: Login) -> None:
        assert login("view_job", "change_job").get(f"{LIST}clean-up/").status_code == 403
        assert "Clean up" not in text_of(login("view_job").get(LIST))
