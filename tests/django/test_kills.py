"""Workers of a project that are killed."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from relevo.django.site_app import SiteApp
from relevo.django.tasks_api import TaskResultStatus
from tests.clock import let_time_pass
from tests.django.mails import tasks
from tests.django.shop.models import Order
from tests.django.worker_process import worker_process
from tests.eventually import eventually
from tests.servers import Server
from tests.working import drained

RUNNING, SUCCESSFUL = TaskResultStatus.RUNNING, TaskResultStatus.SUCCESSFUL


def test_task_of_a_killed_worker_process_runs_again(shop: SiteApp, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    result = tasks.kill_once.enqueue(str(mark))
    with worker_process(shop, tmp_path):
        eventually(lambda: mark.exists() and mark.read_text(), what="the first attempt")
        pid = int(mark.read_text())
        result.refresh()
        assert (result.status, result.attempts) == (RUNNING, 1)
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: result.refresh() or result.is_finished, what="the second attempt")
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 2, 2)


def test_task_does_not_stay_running_when_all_processes_of_its_worker_are_killed(
    shop: SiteApp, server: Server, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    result = tasks.kill_once.enqueue(str(mark))
    with worker_process(shop, tmp_path):
        eventually(lambda: mark.exists() and mark.read_text(), what="the first attempt")
    # All of it was killed (-9) here.
    key = f"clock-{shop.name}"
    with shop.engine.rebound(clock_key=key):
        let_time_pass(server, key, 120_000)
        drained(shop)
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (SUCCESSFUL, 2, 2)


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_worker_stops_and_runs_what_it_found_in_tasks_py(shop: SiteApp, tmp_path: Path, stop: signal.Signals) -> None:
    result = tasks.make_order.enqueue("in another process")
    with worker_process(shop, tmp_path) as worker:
        eventually(lambda: result.refresh() or result.is_finished, what="the result")
        worker.was_ended = True
        worker.signal(stop)
        assert worker.process.wait(90) == 0
    assert result.status == SUCCESSFUL


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_second_signal_hands_a_long_task_back(shop: SiteApp, tmp_path: Path, stop: signal.Signals) -> None:
    mark = tmp_path / "mark"
    result = tasks.kill_once.enqueue(str(mark))
    with worker_process(shop, tmp_path) as worker:
        eventually(lambda: mark.exists() and mark.read_text(), what="the first attempt")
        worker.was_ended = True
        worker.signal(stop)
        worker.wait_log("stopping: 1 jobs")
        worker.signal(stop)
        worker.process.wait(90)
    result.refresh()
    assert not result.is_finished
    assert result.status != RUNNING
    drained(shop)
    result.refresh()
    assert result.status == SUCCESSFUL


def test_many_workers_run_each_task_once(shop: SiteApp, tmp_path: Path) -> None:
    results = [tasks.make_order.enqueue(f"one of many {shop.name}") for _ in range(30)]
    with ExitStack() as stack:
        for n in range(3):
            (tmp_path / str(n)).mkdir()
            stack.enter_context(worker_process(shop, tmp_path / str(n)))
        eventually(lambda: all(result.refresh() or result.is_finished for result in results), what="all results")
    assert {result.status for result in results} == {SUCCESSFUL}
    assert Order.objects.filter(name=f"one of many {shop.name}").count() == 30
