"""Tasks of a Django project: found, run with its database, sent when the transaction commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from django.db import connections, transaction
from django.test import Client, override_settings

from relevo import State, chain, group
from relevo.django.site_app import SiteApp
from relevo.errors import OptionError
from relevo.middleware import Call, Middleware
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.eventually import PATIENCE, eventually
from tests.working import drained, working


def order() -> Order:
    return Order.objects.create()


def paid(one: Order) -> int:
    one.refresh_from_db()
    return one.paid


def open_files(name: str) -> int:
    """How often this process has a file open: once for each connection to a database of SQLite."""
    count = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            count += descriptor.readlink().name == name
    return count


def test_tasks_of_installed_apps_are_found(shop: SiteApp) -> None:
    assert "tests.django.shop.tasks.pay" in shop.tasks


@pytest.mark.parametrize("task", [tasks.pay, tasks.apay, tasks.pay_apart], ids=["thread", "loop", "process"])
def test_task_uses_the_database_in_every_executor(shop: SiteApp, task: tasks.SiteTask[..., int]) -> None:
    made = order()
    job = task.enqueue(made.pk)
    drained(shop)
    assert job.result() == paid(made) == 1


def test_called_directly_it_is_the_plain_function(shop: SiteApp) -> None:
    made = order()
    with transaction.atomic():
        assert tasks.pay(made.pk) == 1  # and keeps the connection of the caller


class TestTransactions:
    def test_job_is_sent_on_commit_and_its_id_is_known_at_once(self, shop: SiteApp) -> None:
        with transaction.atomic():
            job = tasks.pay.enqueue(order().pk)
            assert job.state() is State.UNKNOWN
        assert shop.job(job.id).state() is State.READY

    def test_middleware_is_around_the_enqueue_and_not_around_the_commit(self, shop: SiteApp) -> None:
        happened: list[str] = []

        class Note(Middleware):
            def enqueue(self, call: Call) -> Iterator[None]:
                call.headers["request_id"] = "r7"
                happened.append("enqueue")
                yield
                happened.append("enqueued")

        shop.middleware(Note())
        try:
            with transaction.atomic():
                job = tasks.pay.enqueue(order().pk)
                happened.append("commit")
        finally:
            shop.engine.middleware.clear()
        assert happened == ["enqueue", "enqueued", "commit"]
        assert job.info().headers == {"request_id": "r7"}

    def test_rolled_back_job_is_never_sent(self, shop: SiteApp) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            job = tasks.pay.enqueue(1)
            raise ZeroDivisionError
        assert job.state() is State.UNKNOWN

    def test_savepoint_that_is_rolled_back_takes_its_jobs_along(self, shop: SiteApp) -> None:
        with transaction.atomic():
            kept = tasks.pay.enqueue(1)
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                lost = tasks.pay.enqueue(2)
                raise ZeroDivisionError
        assert (kept.state(), lost.state()) == (State.READY, State.UNKNOWN)

    def test_many_jobs_are_sent_on_commit(self, shop: SiteApp) -> None:
        with transaction.atomic():
            jobs = tasks.pay.enqueue_many([((n,), {}) for n in range(1000)])
            assert shop.queue().stats().ready == 0
        assert shop.queue().stats().ready == 1000
        assert jobs[999].state() is State.READY

    def test_job_with_options_is_sent_on_commit(self, shop: SiteApp) -> None:
        with transaction.atomic():
            job = tasks.pay.using(delay="1h", priority=7, tags=["a"]).enqueue(1)
        info = job.info()
        assert (info.state, info.priority, info.tags) == (State.SCHEDULED, 7, ("a",))

    def test_workflow_is_sent_on_commit(self, shop: SiteApp) -> None:
        orders = [order(), order()]
        with transaction.atomic():
            sent = chain(tasks.pay.si(orders[0].pk), tasks.pay.si(orders[1].pk)).enqueue()
            at_once = chain(tasks.at_once.si(), tasks.at_once.si()).enqueue()
            assert sent.state() == "unknown"
            assert at_once.state() == "running"
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                lost = group(tasks.pay.si(1)).enqueue()
                raise ZeroDivisionError
        drained(shop)
        assert sent.result() == 1
        assert [paid(one) for one in orders] == [1, 1]
        assert lost.state() == "unknown"

    def test_name_that_is_held_gives_the_job_that_holds_it(self, shop: SiteApp) -> None:
        first = tasks.pay.using(name="one").enqueue(1)
        with transaction.atomic():
            second = tasks.pay.using(name="one").enqueue(1)
            assert second.id != first.id
        assert (second.id, second.created) == (first.id, False)

    def test_opted_out_it_is_sent_at_once(self, shop: SiteApp) -> None:
        with transaction.atomic():
            assert tasks.pay.using(on_commit=False).enqueue(1).state() is State.READY
            assert tasks.at_once.enqueue().state() is State.READY

    def test_setting_switches_it_off_for_all(self, shop: SiteApp) -> None:
        given = {"name": shop.name, "env": "test", "on_commit": False}
        with override_settings(RELEVO=given), transaction.atomic():
            assert tasks.pay.enqueue(1).state() is State.READY

    def test_it_waits_for_the_transaction_of_the_database_that_is_named(self, shop: SiteApp) -> None:
        filed = tasks.file_away.using(on_commit="archive")
        with transaction.atomic():
            assert filed.enqueue("now").state() is State.READY
        with transaction.atomic(using="archive"):
            job = filed.enqueue("later")
            with transaction.atomic():
                pass
            assert job.state() is State.UNKNOWN
        assert job.state() is State.READY

    def test_wrong_arguments_are_refused_where_they_are_given(self, shop: SiteApp) -> None:
        with transaction.atomic(), pytest.raises(Exception, match="id"):
            tasks.pay.enqueue("not a number")  # type: ignore[arg-type]

    def test_unknown_database_is_refused(self, shop: SiteApp) -> None:
        with pytest.raises(OptionError, match=r"default, archive.*'elsewhere'"):
            tasks.pay.using(on_commit="elsewhere")


class TestConnections:
    def test_a_hundred_threads_leave_no_connection_behind(self, shop: SiteApp) -> None:
        tasks.meeting = threading.Barrier(100)
        jobs = [tasks.meet.enqueue() for _ in range(100)]
        connections.close_all()
        with working(shop, threads=140, concurrency=140):
            assert [job.result(PATIENCE) for job in jobs] == [1] * 100
            # and not only when the worker stops
            eventually(lambda: open_files("default.sqlite3") == 0, what="no connection")

    def test_a_hundred_async_jobs_leave_no_connection_behind(self, shop: SiteApp) -> None:
        made = order()
        jobs = [tasks.apay.enqueue(made.pk) for _ in range(100)]
        connections.close_all()
        with working(shop, concurrency=100):
            assert sorted(job.result(PATIENCE) for job in jobs)
            eventually(lambda: open_files("default.sqlite3") == 0, what="no connection")
        assert paid(made) == 100

    def test_transaction_that_a_task_left_open_is_not_that_of_the_next(self, shop: SiteApp) -> None:
        tasks.left_in_transaction.enqueue()
        after = tasks.is_in_transaction.enqueue()
        drained(shop, threads=1)
        assert after.result() is False
        assert not Order.objects.filter(name="never committed").exists()

    def test_language_of_a_task_is_not_that_of_the_next(self, shop: SiteApp) -> None:
        jobs = [tasks.speak.enqueue("de"), tasks.speak.enqueue(None)]
        drained(shop, threads=1)
        assert [job.result() for job in jobs] == ["en-us", "en-us"]


class TestRequests:
    @pytest.mark.parametrize("path", ["/order/", "/aorder/"])
    def test_view_enqueues(self, shop: SiteApp, path: str) -> None:
        id = Client().get(path).content.decode()
        drained(shop)
        assert shop.job(id).result() == 1
        connections.close_all()
