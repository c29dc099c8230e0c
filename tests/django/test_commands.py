"""Commands of `manage.py`, and the functions beside them."""

from __future__ import annotations

import json
import subprocess
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from relevo import State
from relevo.cli.main import COMMANDS
from relevo.django.maintenance import RetryFailedJobs, TaskQueueCleanup
from relevo.django.site_app import SiteApp
from relevo.engine.workers import roll
from relevo.errors import OptionError
from relevo.testing import bind
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.django.worker_process import MANAGE, ROOT, environment, worker_process
from tests.eventually import eventually
from tests.working import drained, working

AWAY = {"REDIS_URL": "redis://127.0.0.1:1"}


def manage(shop: SiteApp, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `manage.py …` in a process of its own."""
    env = environment(shop, **variables)
    return subprocess.run([*MANAGE, *arguments], cwd=ROOT, env=env, capture_output=True, text=True)


def called(name: str, *arguments: str, code: int = 0, **options: Any) -> str:
    """Run a command here: what it printed."""
    out = StringIO()
    if code:
        with pytest.raises(SystemExit) as left:
            call_command(name, *arguments, stdout=out, **options)
        assert left.value.code == code
    else:
        call_command(name, *arguments, stdout=out, **options)
    return out.getvalue()


def now_ms(shop: SiteApp) -> int:
    return shop.engine.run(shop.engine.now_ms())


class TestRelevo:
    def test_commands_are_about_the_app_of_the_project(self, shop: SiteApp) -> None:
        tasks.pay.enqueue(1)
        done = manage(shop, "relevo", "status", "--json")
        report = json.loads(done.stdout)
        assert (done.returncode, report["app"], report["queues"][0]["ready"]) == (1, shop.name, 1)  # and no worker

    def test_exit_codes_are_those_of_relevo(self, shop: SiteApp) -> None:
        done = manage(shop, "relevo", "status", **AWAY)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)

    def test_help_is_that_of_relevo(self, shop: SiteApp) -> None:
        done = manage(shop, "relevo", "--help")
        assert done.returncode == 0
        assert all(name in done.stdout for name in COMMANDS)
        assert "--cached" in manage(shop, "relevo", "health", "--help").stdout

    def test_called_from_code(self, shop: SiteApp, capsys: pytest.CaptureFixture[str]) -> None:
        tasks.pay.enqueue(1)
        with pytest.raises(SystemExit) as left:
            call_command("relevo", "queue", "list", "nonsense")
        assert left.value.code == 2


class TestIfdbworker:
    def test_runs_one_task_at_a_time(self, shop: SiteApp, tmp_path: Path) -> None:
        jobs = [tasks.pay.enqueue(Order.objects.create().pk) for _ in range(3)]
        with worker_process(shop, tmp_path, command="ifdbworker") as worker:
            assert [job.result(90) for job in jobs] == [1, 1, 1]
            worker.wait_log(", 1 at once")
            assert worker.stop() == 0


class TestPeriodicTasks:
    def test_schedules_of_tasks_are_registered_once(self, shop: SiteApp) -> None:
        for _ in range(2):
            text = called("setup_periodic_tasks")
            assert "tests.django.shop.tasks.tidy: tests.django.shop.tasks.tidy, " in text
            assert "priority 75" in text
        assert [one.when for one in shop.schedules.list()] == ["*/30 * * * *"]

    def test_server_that_is_away_is_one_line_and_exit_code_2(self, shop: SiteApp) -> None:
        done = manage(shop, "setup_periodic_tasks", **AWAY)
        assert (done.returncode, "127.0.0.1:1" in done.stderr, "Traceback" in done.stderr) == (2, True, False)


class TestStatus:
    def test_fine(self, shop: SiteApp) -> None:
        with working(shop):
            eventually(lambda: shop.engine.run(roll(shop.engine.keys, now_ms(shop)))[0], what="a worker")
            assert "Workers: 1" in called("redis_queue_status")

    def test_no_worker(self, shop: SiteApp) -> None:
        for n in range(7):
            tasks.pay.using(name=f"Pay({n})", priority=50 + n).enqueue(n)
        tasks.pay.using(delay="1h", name="later").enqueue(1)
        text = called("redis_queue_status", code=1)
        assert "Redis connection: OK" in text
        assert "Tasks in queue: 8" in text
        assert [line.strip() for line in text.splitlines() if "- Pay" in line] == [
            f"- Pay({n}) (priority: {50 + n})" for n in range(5)
        ]
        assert "no worker is running" in text

    def test_queue_that_is_stuck(self, shop: SiteApp) -> None:
        tasks.pay.enqueue(1)
        shop.queue().pause(reason="too hot")
        with working(shop):
            assert "is paused" in called("redis_queue_status", code=1)

    def test_server_that_is_away(self, shop: SiteApp) -> None:
        done = manage(shop, "redis_queue_status", **AWAY)
        assert (done.returncode, "Traceback" in done.stderr) == (2, False)


class TestCleanUp:
    def test_old_records_are_removed_and_nothing_else(self, shop: SiteApp) -> None:
        with bind(shop, url=shop.settings.url) as kit:
            done = tasks.pay.using(result_ttl="30d").enqueue(Order.objects.create().pk)
            dead = tasks.pay.using(failure_ttl="30d").enqueue(0)
            waiting = tasks.pay.using(delay="30d").enqueue(1)
            drained(shop)
            kit.clock.move("8d")
            newer = tasks.pay.enqueue(0)
            ready = tasks.pay.enqueue(1)
            newer.cancel()
            assert called("cleanup_task_data", "--dry-run") == "Would clean up 2 old task records\n"
            assert done.state() is State.DONE
            assert called("cleanup_task_data", "--days", "7") == "Cleaned up 2 old task records\n"
            states = [job.state().value for job in (done, dead, waiting, newer, ready)]
            assert states == ["unknown", "unknown", "scheduled", "cancelled", "ready"]
            assert TaskQueueCleanup(days=7) == 0
            assert TaskQueueCleanup(days=0, dry_run=True) == 1

    @pytest.mark.parametrize("days", [-1, "7", None, True])
    def test_days_that_are_none(self, shop: SiteApp, days: Any) -> None:
        with pytest.raises(OptionError, match="days"):
            TaskQueueCleanup(days)

    def test_negative_days_are_one_line(self, shop: SiteApp) -> None:
        with pytest.raises(CommandError, match="days"):
            called("cleanup_task_data", "--days=-1")

    def test_failed_jobs_run_again(self, shop: SiteApp) -> None:
        failing = tasks.pay.enqueue(10**9)
        other = tasks.apay.enqueue(10**9)
        drained(shop)
        assert (failing.state(), other.state()) == (State.DEAD, State.DEAD)
        Order.objects.create(pk=10**9)
        assert RetryFailedJobs("tests.django.shop.tasks.pay") == 1
        assert RetryFailedJobs() == 1
        drained(shop)
        assert (failing.state(), other.state()) == (State.DONE, State.DONE)
        assert RetryFailedJobs() == 0
        Order.objects.filter(pk=10**9).delete()
