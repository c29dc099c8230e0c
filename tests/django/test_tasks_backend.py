"""The backend for Django's own tasks: `django.tasks`, and the package django-tasks before Django 6."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

import django
from relevo import State
from relevo.django import Backend, options
from relevo.django.site_app import SiteApp
from relevo.django.tasks_api import InvalidTask, TaskResultDoesNotExist, TaskResultStatus, signals
from relevo.testing import bind
from tests.django.mails import tasks
from tests.django.shop.models import Order
from tests.eventually import eventually
from tests.working import drained, working

try:
    from django.tasks import task, task_backends
    from django.tasks.exceptions import TaskResultMismatch

    LOGGER = "django.tasks"
except ImportError:
    from django_tasks import task, task_backends
    from django_tasks.exceptions import TaskResultMismatch

    LOGGER = "django_tasks"

READY, RUNNING = TaskResultStatus.READY, TaskResultStatus.RUNNING
FAILED, SUCCESSFUL = TaskResultStatus.FAILED, TaskResultStatus.SUCCESSFUL


@pytest.fixture
def heard(shop: SiteApp) -> Iterator[list[tuple[str, str]]]:
    """Signals as they were sent: name and status."""
    found: list[tuple[str, str]] = []

    def note(name: str) -> Any:
        return lambda sender, task_result, **_: found.append((name, str(task_result.status)))

    all = {name: note(name) for name in ("task_enqueued", "task_started", "task_finished")}
    for name, receiver in all.items():
        getattr(signals, name).connect(receiver, weak=False)
    yield found
    for name, receiver in all.items():
        getattr(signals, name).disconnect(receiver)


def test_backend_has_all_capabilities() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, Backend)
    assert backend.supports_defer and backend.supports_async_task
    assert backend.supports_get_result and backend.supports_priority
    assert not list(backend.check())


class TestEnqueue:
    def test_result_of_a_new_task(self, shop: SiteApp) -> None:
        result = tasks.add.enqueue(1, b=2)
        assert (result.status, result.is_finished, result.attempts, result.backend) == (READY, False, 0, "default")
        assert (result.args, result.kwargs, result.task) == ([1], {"b": 2}, tasks.add)
        assert result.enqueued_at is not None
        assert (result.started_at, result.finished_at, result.last_attempted_at) == (None, None, None)
        with pytest.raises(ValueError, match="has not finished"):
            _ = result.return_value

    @pytest.mark.parametrize("which", [tasks.add, tasks.aadd], ids=["sync", "async"])
    def test_task_runs_and_gives_its_result(self, shop: SiteApp, which: Any) -> None:
        result = which.enqueue(1, b=2)
        drained(shop)
        result.refresh()
        assert (result.status, result.return_value, result.attempts, result.errors) == (SUCCESSFUL, 3, 1, [])
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.last_attempted_at == result.started_at
        assert timezone.is_aware(result.finished_at)

    async def test_async_twins(self, shop: SiteApp) -> None:
        result = await tasks.add.aenqueue(4, b=5)
        assert (await shop.ajob(result.id)).queue == "default"
        found = await tasks.add.aget_result(result.id)
        assert (found.status, found.args, found.kwargs) == (READY, [4], {"b": 5})
        await shop.aclose()

    def test_arguments_are_json_whatever_their_annotations(self, shop: SiteApp) -> None:
        result = tasks.echo.enqueue({"a": (1, 2), "b": b"text", "c": [None, 1.5, True]})
        drained(shop)
        result.refresh()
        assert result.return_value == {"a": [1, 2], "b": "text", "c": [None, 1.5, True]}

    def test_argument_that_is_no_json_is_refused(self, shop: SiteApp) -> None:
        with pytest.raises(TypeError, match="Unsupported type"):
            tasks.echo.enqueue(object())

    def test_priority_of_django_is_the_order_of_the_queue(self, shop: SiteApp) -> None:
        for priority in (-100, 0, 100, 1, -1):
            tasks.echo.using(priority=priority).enqueue(priority)
        assert [row.priority for row in shop.queue().jobs()] == [0, 99, 100, 101, 200]

    @pytest.mark.parametrize("priority", [-101, 101, 1.5])
    def test_priority_out_of_range_is_refused(self, shop: SiteApp, priority: float) -> None:
        with pytest.raises(InvalidTask, match="priority"):
            tasks.echo.using(priority=priority)

    def test_queue_and_priority_of_the_decorator_come_back(self, shop: SiteApp) -> None:
        result = tasks.send.get_result(tasks.send.enqueue("ana").id)
        assert (result.task.queue_name, result.task.priority) == ("mails", 7)

    def test_unknown_queue_is_refused(self, shop: SiteApp) -> None:
        with pytest.raises(InvalidTask, match="Queue 'elsewhere' is not valid"):
            tasks.add.using(queue_name="elsewhere")

    def test_any_queue_is_taken_where_none_is_listed(self, shop: SiteApp) -> None:
        result = tasks.prompt.using(queue_name="elsewhere").enqueue()
        drained(shop, queues=["elsewhere"])
        assert tasks.prompt.get_result(result.id).status == SUCCESSFUL

    def test_deferred_task_waits_for_its_time(self, shop: SiteApp) -> None:
        when = timezone.now() + timedelta(hours=1)
        result = tasks.add.using(run_after=when).enqueue(1)
        drained(shop)
        found = tasks.add.get_result(result.id)
        assert found.status == READY
        assert abs(found.task.run_after - when) < timedelta(milliseconds=2)

    def test_function_inside_a_function_is_refused(self, shop: SiteApp) -> None:
        def inner() -> None: ...

        with pytest.raises(InvalidTask, match="module level"):
            task(inner)


class TestFailure:
    @pytest.mark.parametrize("which", [tasks.fail, tasks.afail], ids=["sync", "async"])
    def test_failed_task_tells_its_error(self, shop: SiteApp, which: Any) -> None:
        result = which.enqueue("bad things")
        drained(shop)
        result.refresh()
        assert (result.status, result.attempts, len(result.errors)) == (FAILED, 1, 1)
        assert result.errors[0].exception_class is ValueError
        assert "bad things" in result.errors[0].traceback
        assert result.finished_at is not None
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value

    def test_exit_is_a_failure_of_the_task(self, shop: SiteApp) -> None:
        result = tasks.leave.enqueue(3)
        after = tasks.add.enqueue(1)
        drained(shop)
        result.refresh()
        after.refresh()
        assert (result.status, after.status) == (FAILED, SUCCESSFUL)
        assert result.errors[0].exception_class is SystemExit

    def test_result_that_is_no_json_fails_the_task(self, shop: SiteApp) -> None:
        result = tasks.unserialisable.enqueue()
        drained(shop)
        result.refresh()
        assert result.status == FAILED
        assert result.errors[0].exception_class is TypeError

    def test_cancelled_task_has_failed(self, shop: SiteApp) -> None:
        result = tasks.add.enqueue(1)
        shop.job(result.id).cancel()
        result.refresh()
        assert (result.status, result.errors[0].exception_class.__name__) == (FAILED, "JobCancelled")

    def test_wrong_arguments_fail_when_it_runs(self, shop: SiteApp) -> None:
        result = tasks.add.enqueue(1, 2, 3)
        drained(shop)
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, TypeError)

    def test_error_around_an_error_is_told_as_it_was_raised(self, shop: SiteApp) -> None:
        result = tasks.fail_inside_out.enqueue()
        drained(shop)
        result.refresh()
        assert (result.status, result.errors[0].exception_class) == (FAILED, ValueError)
        assert result.errors[0].traceback.rstrip().endswith("ValueError: no")
        assert 'ValueError(ValueError("no"))' in result.errors[0].traceback

    def test_keyboard_interrupt_in_a_task_is_a_failure_of_the_task(self, shop: SiteApp) -> None:
        result = tasks.interrupt.enqueue()
        after = tasks.add.enqueue(1)
        drained(shop)
        result.refresh()
        after.refresh()
        assert (result.status, after.status) == (FAILED, SUCCESSFUL)
        assert result.errors[0].exception_class is KeyboardInterrupt


class TestQueues:
    def test_task_waits_for_a_worker_of_its_queue(self, shop: SiteApp) -> None:
        result = tasks.send.enqueue("ana")
        drained(shop, queues=["default"])
        result.refresh()
        assert (result.status, result.attempts) == (READY, 0)
        drained(shop, queues=["mails"])
        result.refresh()
        assert result.status == SUCCESSFUL

    def test_queues_are_apart(self, shop: SiteApp) -> None:
        here, there = tasks.add.enqueue(1), tasks.add.using(queue_name="mails").enqueue(1)
        found = {name: [row.id for row in shop.queue(name).jobs()] for name in ("default", "mails")}
        assert found == {"default": [here.id], "mails": [there.id]}

    def test_time_that_has_passed_does_not_come_before_the_priority(self, shop: SiteApp) -> None:
        now = timezone.now()
        tasks.echo.using(priority=2).enqueue("low")
        tasks.echo.using(priority=20, run_after=now - timedelta(hours=2)).enqueue("old")
        tasks.echo.using(priority=10).enqueue("middle")
        tasks.echo.using(priority=100, run_after=now + timedelta(hours=2)).enqueue("later")
        names = [shop.job(row.id).info().args[0] for row in shop.queue().jobs()]
        assert names == ["old", "middle", "low"]

    def test_task_is_checked_again_when_it_is_enqueued(self, shop: SiteApp) -> None:
        elsewhere = {"default": {"BACKEND": "relevo.django.Backend", "QUEUES": ["elsewhere"]}}
        with override_settings(TASKS=elsewhere):
            made = tasks.add.using(queue_name="elsewhere")
        with pytest.raises(InvalidTask, match="Queue 'elsewhere' is not valid"):
            made.enqueue(1)

    async def test_task_is_checked_again_when_it_is_enqueued_in_async_code(self, shop: SiteApp) -> None:
        elsewhere = {"default": {"BACKEND": "relevo.django.Backend", "QUEUES": ["elsewhere"]}}
        with override_settings(TASKS=elsewhere):
            made = tasks.add.using(queue_name="elsewhere")
        with pytest.raises(InvalidTask, match="Queue 'elsewhere' is not valid"):
            await made.aenqueue(1)


class TestRetries:
    def test_options_below_the_decorator_work_on_every_django(self, shop: SiteApp) -> None:
        with bind(shop, url=shop.settings.url) as kit:
            result = tasks.stubborn.enqueue()
            kit.drain()
            result.refresh()
            assert (result.status, result.attempts, len(result.errors)) == (READY, 1, 1)
            kit.clock.move("1h")
            kit.drain()
            kit.clock.move("1h")
            kit.drain()
            result.refresh()
            assert (result.status, result.attempts) == (FAILED, 3)
            assert [one.exception_class for one in result.errors] == [ConnectionError] * 3

    def test_options_of_one_call(self, shop: SiteApp) -> None:
        with bind(shop, url=shop.settings.url) as kit:
            result = tasks.attempts.using(retries=1, backoff="1s").enqueue(1)
            kit.drain()
            kit.clock.move("1h")
            kit.drain()
            result.refresh()
            assert (result.status, result.return_value) == (SUCCESSFUL, [2, result.id, 1])
            assert (result.attempts, len(result.errors)) == (2, 1)

    def test_options_of_the_decorator(self, shop: SiteApp) -> None:
        given = {"retries": 3, "backoff": "2s", "timeout": "30s", "unique": True}
        if django.VERSION[:2] == (6, 0):  # where Django itself refuses them
            with pytest.raises(TypeError, match="retries"):
                task(**given)
            made = task(options(**given)(module_level))
        else:
            made = task(**given)(module_level)
        found = shop.tasks[made.module_path].options
        assert (found.retries, found.timeout) == (3, 30.0)
        first, second = made.enqueue(1), made.enqueue(1)
        assert first.id == second.id

    def test_wrong_option_is_refused(self, shop: SiteApp) -> None:
        with pytest.raises(InvalidTask, match="retries: a whole number"):
            tasks.add.using(retries=-1)

    def test_options_of_the_backend_are_those_of_all_its_tasks(self, shop: SiteApp) -> None:
        given = {"default": {"BACKEND": "relevo.django.Backend", "OPTIONS": {"retrys": 2}}}
        with override_settings(INSTALLED_APPS=[]):
            assert [message.id for message in task_backends["default"].check()] == ["relevo.E005"]
        with override_settings(TASKS=given):
            found = list(task_backends["default"].check())
        assert [message.id for message in found] == ["relevo.E004"]
        assert "did you mean 'retries'" in found[0].msg


def module_level(n: int) -> int:
    return n


class TestContext:
    def test_context_comes_first(self, shop: SiteApp) -> None:
        results = [tasks.attempts.enqueue(), tasks.aattempts.enqueue()]
        drained(shop)
        for result in results:
            result.refresh()
        assert results[0].return_value == [1, results[0].id, 0]
        assert results[1].return_value == 1


class TestResults:
    def test_result_that_is_fetched_equals_the_one_that_was_enqueued(self, shop: SiteApp) -> None:
        result = tasks.send.enqueue("ana")
        assert tasks.send.get_result(result.id) == result

    def test_result_changes_only_when_it_is_refreshed(self, shop: SiteApp) -> None:
        result = tasks.add.enqueue(1)
        drained(shop)
        assert (result.status, result.is_finished, result.attempts, result.started_at) == (READY, False, 0, None)
        async_to_sync(result.arefresh)()
        assert (result.status, result.is_finished, result.return_value) == (SUCCESSFUL, True, 1)

    async def test_unknown_id_in_async_code(self, shop: SiteApp) -> None:
        for id in ("123", "1b6a4c5e-2f7d-4a8e-9c3b-0d1e2f3a4b5c"):
            with pytest.raises(TaskResultDoesNotExist):
                await task_backends["default"].aget_result(id)
        await shop.aclose()

    def test_unknown_id(self, shop: SiteApp) -> None:
        for id in ("missing", "0" * 20, ""):
            with pytest.raises(TaskResultDoesNotExist):
                tasks.add.get_result(id)

    def test_result_of_another_task(self, shop: SiteApp) -> None:
        with pytest.raises(TaskResultMismatch):
            tasks.add.get_result(tasks.send.enqueue("ana").id)

    def test_job_that_is_no_task_of_django(self, shop: SiteApp) -> None:
        from tests.django.shop.tasks import pay

        with pytest.raises(TaskResultDoesNotExist):
            tasks.add.get_result(pay.enqueue(1).id)


class TestSignals:
    def test_of_a_task_that_goes_well(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        tasks.add.enqueue(1)
        drained(shop)
        assert heard == [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "SUCCESSFUL")]

    def test_of_an_async_task_that_fails(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        tasks.afail.enqueue("no")
        drained(shop)
        assert heard == [("task_enqueued", "READY"), ("task_started", "RUNNING"), ("task_finished", "FAILED")]

    def test_task_that_is_retried_has_not_finished(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        tasks.stubborn.enqueue()
        drained(shop)
        assert heard == [("task_enqueued", "READY"), ("task_started", "RUNNING")]

    @pytest.mark.parametrize("which", [tasks.too_slow, tasks.give_up], ids=["timeout", "by its own decision"])
    def test_task_that_is_ended_without_an_error_of_its_own_has_finished(
        self, heard: list[tuple[str, str]], shop: SiteApp, which: Any
    ) -> None:
        which.enqueue()
        with working(shop):
            eventually(lambda: len(heard) == 3, what="all signals")
        assert heard[1:] == [("task_started", "RUNNING"), ("task_finished", "FAILED")]

    def test_running_task_that_is_cancelled_has_finished(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        result = tasks.ahang.enqueue()
        with working(shop):
            eventually(lambda: len(heard) == 2, what="its start")
            shop.job(result.id).cancel()
            eventually(lambda: len(heard) == 3, what="its end")
        assert heard[2] == ("task_finished", "FAILED")

    def test_receiver_may_use_the_database(self, shop: SiteApp) -> None:
        def note(task_result: Any, **_: Any) -> None:
            Order.objects.create(name=f"ended {task_result.id}")

        signals.task_finished.connect(note)
        try:
            results = [tasks.too_slow.enqueue(), tasks.add.enqueue(1), tasks.aadd.enqueue(1)]
            names = {f"ended {result.id}" for result in results}
            with working(shop):
                eventually(lambda: Order.objects.filter(name__in=names).count() == 3, what="three rows")
        finally:
            signals.task_finished.disconnect(note)

    def test_django_logs_them(self, shop: SiteApp, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.DEBUG, LOGGER):
            result = tasks.fail.enqueue("no")
            drained(shop)
        lines = [record.getMessage() for record in caplog.records if record.name == LOGGER]
        assert [result.id in line for line in lines] == [True, True, True]
        assert "state=FAILED" in lines[-1]


class TestTransactions:
    def test_sent_on_commit_with_its_id_at_once(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        with transaction.atomic():
            result = tasks.add.enqueue(1)
            assert result.enqueued_at is None
            with pytest.raises(TaskResultDoesNotExist):
                tasks.add.get_result(result.id)
            assert heard == []
        assert heard == [("task_enqueued", "READY")]
        assert result.enqueued_at is not None
        assert tasks.add.get_result(result.id).status == READY

    def test_rolled_back_it_is_never_sent(self, heard: list[tuple[str, str]], shop: SiteApp) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            tasks.add.enqueue(1)
            raise ZeroDivisionError
        assert heard == []
        assert shop.queue().stats().ready == 0

    def test_option_of_the_backend_sends_at_once(self, shop: SiteApp) -> None:
        with transaction.atomic():
            assert shop.job(tasks.prompt.enqueue().id).state() is State.READY

    def test_task_uses_the_database(self, shop: SiteApp) -> None:
        with transaction.atomic():
            result = tasks.make_order.enqueue("from a task")
        drained(shop)
        result.refresh()
        assert Order.objects.get(pk=result.return_value).name == "from a task"
