"""Test cases for Django's test runner."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from asgiref.sync import sync_to_async
from django.test import override_settings

from relevo import State
from relevo.django import RelevoTestCase, RelevoTransactionTestCase
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.servers import Server


@pytest.fixture(autouse=True, scope="module")
def test_server(server: Server) -> Iterator[None]:
    """`bind` takes the server of this variable."""
    before = os.environ.get("RELEVO_TEST_URL")
    os.environ["RELEVO_TEST_URL"] = server.url
    yield
    del os.environ["RELEVO_TEST_URL"]
    if before is not None:
        os.environ["RELEVO_TEST_URL"] = before


class InATransaction(RelevoTestCase):
    """`TestCase`: nothing commits, and jobs see what the test wrote."""

    def test_drain_runs_jobs_with_the_connection_of_the_test(self) -> None:
        order = Order.objects.create()
        jobs = [tasks.pay.enqueue(order.pk), tasks.apay.enqueue(order.pk)]
        assert self.relevo.drain().done == 2
        order.refresh_from_db()
        assert order.paid == 2
        assert sorted(job.result() for job in jobs) == [1, 2]

    def test_what_the_test_enqueued_counts_as_committed(self) -> None:
        tasks.pay.enqueue(7)
        self.relevo.assert_enqueued(tasks.pay, 7)
        self.relevo.assert_not_enqueued(tasks.apay)

    def test_django_runs_callbacks_of_a_commit_too(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            job = tasks.pay.enqueue(7)
        assert job.state() is State.READY

    def test_task_that_fails_is_counted(self) -> None:
        tasks.pay.enqueue(0)
        with override_settings(LANGUAGE_CODE="de"):
            assert self.relevo.drain().failed == 1

    async def test_async_test(self) -> None:
        order = await Order.objects.acreate()
        await tasks.apay.aenqueue(order.pk)
        assert len(await sync_to_async(self.relevo.enqueued)(tasks.apay)) == 1


class WithCommits(RelevoTransactionTestCase):
    """`TransactionTestCase`: jobs have connections of their own."""

    def test_drain_runs_jobs(self) -> None:
        order = Order.objects.create()
        tasks.pay.enqueue(order.pk)
        self.relevo.drain()
        order.refresh_from_db()
        assert order.paid == 1
