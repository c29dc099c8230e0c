"""Test cases for Django's test runner: the app on a real server with its own names, and `drain` to run the jobs.

class SignupTests(RelevoTestCase):
    def test_signup_welcomes(self):
        self.client.post("/signup/", {"email": "ana@example.com"})
        self.relevo.assert_enqueued(send_welcome, "ana@example.com")
        self.relevo.drain()
        self.assertEqual(len(mail.outbox), 1)
"""

from __future__ import annotations

import unittest
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.test import TestCase, TransactionTestCase

from relevo.django import connections as site_connections
from relevo.django.commit import AfterCommit
from relevo.django.discovery import discover
from relevo.django.site_app import app
from relevo.engine.handle import JobInfo
from relevo.engine.task import Task
from relevo.testing import bind, looking
from relevo.testing.kit import Drained, TestKit


class SiteTestKit(TestKit):
    """`relevo.testing.TestKit` for a test that runs in a transaction which is rolled back at its end.

    What the test enqueued counts as committed, and its jobs use the connections of the test, one after the other.
    """

    def drain(self, max_jobs: int | None = None) -> Drained:
        """Run all jobs that are ready or due, with a real worker, until none is left."""
        send_held()
        with self._sharing():
            return super().drain(max_jobs)

    async def adrain(self, max_jobs: int | None = None) -> Drained:
        """`drain` on the running event loop."""
        if site_connections.shared:  # called by drain
            return await super().adrain(max_jobs)
        await sync_to_async(send_held)()
        return await super().adrain(max_jobs)

    def enqueued(self, task: looking.Which = None) -> list[JobInfo]:
        """Jobs that are ready, scheduled, or waiting for other jobs; of one task or all."""
        send_held()
        return super().enqueued(task)

    def assert_enqueued(self, task: Task[..., Any] | Callable[..., Any] | str, *args: Any, **kwargs: Any) -> JobInfo:
        """A job of this task with these arguments (and any others) waits; returns the first such job."""
        send_held()
        return super().assert_enqueued(task, *args, **kwargs)

    def assert_not_enqueued(self, task: Task[..., Any] | Callable[..., Any] | str, *args: Any, **kwargs: Any) -> None:
        """No job of this task with these arguments waits."""
        send_held()
        super().assert_not_enqueued(task, *args, **kwargs)

    @contextmanager
    def _sharing(self) -> Iterator[None]:
        found = {one.alias: one for one in connections.all(initialized_only=True) if _is_of_test(one)}
        for connection in found.values():
            connection.inc_thread_sharing()
        site_connections.shared.update(found)
        self.at_once = 1 if found else None
        try:
            yield
        finally:
            site_connections.shared.clear()
            for connection in found.values():
                connection.dec_thread_sharing()


def _is_of_test(connection: Any) -> bool:
    """Whether another connection would not see what the test has written."""
    return connection.in_atomic_block or (connection.vendor == "sqlite" and connection.is_in_memory_db())


def send_held() -> None:
    """Send what waits for the transaction around the test, which never commits."""
    for connection in connections.all(initialized_only=True):
        held = [row[1] for row in connection.run_on_commit if isinstance(row[1], AfterCommit)]
        connection.run_on_commit = [row for row in connection.run_on_commit if not isinstance(row[1], AfterCommit)]
        for send in held:
            send()


class RelevoTestMixin(unittest.TestCase):
    """For test cases of Django: `self.relevo` is a test kit bound to a test server."""

    relevo: SiteTestKit

    def setUp(self) -> None:
        """Bind the app; a test case with a `setUp` of its own calls this one."""
        super().setUp()
        discover()
        kit = self.enterContext(bind(app))
        self.relevo = SiteTestKit(app, kit.clock, kit.leaks)


class RelevoTestCase(RelevoTestMixin, TestCase):
    """`django.test.TestCase` with `self.relevo`."""


class RelevoTransactionTestCase(RelevoTestMixin, TransactionTestCase):
    """`django.test.TransactionTestCase` with `self.relevo`: real commits, and jobs with connections of their own."""
