"""Soft time limits: SoftTimeout is raised inside the task, wherever it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from relevo import Relevo, SoftTimeout, Task
from relevo.errors import JobError, JobFailed, OptionError
from tests.eventually import PATIENCE, eventually
from tests.system import soft_tasks
from tests.working import working


@pytest.fixture
def soft(app: Relevo) -> Iterator[Relevo]:
    """The app of the tasks, on the test's server."""
    with soft_tasks.app.engine.rebound(url=app.settings.url, env="test"):
        yield soft_tasks.app
        for queue in soft_tasks.app.queues():
            soft_tasks.app.queue(queue).clear()


EVERYWHERE = [
    soft_tasks.on_loop,
    soft_tasks.in_thread,
    soft_tasks.in_process,
    soft_tasks.loop_in_thread,
    soft_tasks.loop_in_process,
]


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_a_task_can_catch_its_soft_limit_and_finish(soft: Relevo, task: Task[[str], Any]) -> None:
    with working(soft):
        text = "the soft time limit of the job has passed, attempt 1"
        assert task.enqueue("catch").result(timeout=PATIENCE) == text


@pytest.mark.parametrize("task", EVERYWHERE, ids=lambda task: task.__name__)
def test_a_task_that_does_not_catch_its_soft_limit_has_failed(soft: Relevo, task: Task[[str], Any]) -> None:
    with working(soft):
        job = task.enqueue("raise")
        with pytest.raises(JobFailed, match=r"SoftTimeout: the soft time limit of the job has passed"):
            job.result(timeout=PATIENCE)
        (attempt,) = job.info().attempts
        assert (attempt.how, attempt.error) == ("failed", "relevo.engine.soft_timeout.SoftTimeout")
        assert "soft_tasks.py" in attempt.traceback
        if "loop_in" not in task.target:  # there, asyncio.run comes first
            assert "soft_tasks.py" in attempt.traceback.splitlines()[1]


def test_the_hard_limit_follows(soft: Relevo) -> None:
    with working(soft):
        job = soft_tasks.stubborn.enqueue()
        with pytest.raises(JobFailed):
            job.result(timeout=PATIENCE)
        assert [one.how for one in job.info().attempts] == ["timed_out"]


def test_a_task_group_stops_its_children_at_the_soft_limit(soft: Relevo) -> None:
    with working(soft):
        assert soft_tasks.in_task_group.enqueue().result(timeout=PATIENCE) == ["child", "child", "soft"]


def test_a_job_that_is_done_before_its_soft_limit_leaves_nothing_behind(soft: Relevo) -> None:
    with working(soft):
        assert soft_tasks.quick.enqueue().result(timeout=PATIENCE) == "quick"
        assert soft_tasks.quick_in_thread.enqueue().result(timeout=PATIENCE) == "quick"
        eventually(lambda: not any(isinstance(one, threading.Timer) for one in threading.enumerate()))


def test_a_cancelled_job_is_cancelled_and_not_out_of_time(soft: Relevo) -> None:
    """Both are cancellations of one asyncio task."""

    @soft.task(name="long", soft_timeout="5m")
    async def long() -> None:
        begun.set()
        await asyncio.Event().wait()

    begun = threading.Event()
    with working(soft):
        job = long.enqueue()
        assert begun.wait(PATIENCE)
        assert job.cancel()
        with pytest.raises(JobError, match="was cancelled"):
            job.result(timeout=PATIENCE)
    del soft.tasks["long"]


def test_soft_limits_that_make_no_sense_are_refused(app: Relevo) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"soft_timeout": "10m"}, "soft_timeout: it comes before the hard timeout, which is 600 s for"),
        ({"soft_timeout": "2s", "timeout": "1s"}, "which is 1 s"),
        ({"soft_timeout": 0}, "soft_timeout: more than 0 seconds is needed"),
    ]
    for options, why in refused:
        with pytest.raises(OptionError, match=why):
            _register(app, options)
    unlimited = _register(app, {"soft_timeout": "2h", "timeout": None})
    with pytest.raises(OptionError, match=r"'soft_timeout' is an option of @app\.task"):
        unlimited.using(soft_timeout="1s")
    assert issubclass(SoftTimeout, JobError)


def _register(app: Relevo, options: dict[str, Any]) -> Task[[], None]:
    @app.task(name="limited", **options)
    def limited() -> None: ...

    return limited
