"""`manage.py migrate_taskqueue`: from the table of IFDB into relevo and back, none lost and none doubled."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from relevo.compat import Enqueue, EnqueueOrGet, configure
from relevo.django.site_app import SiteApp
from relevo.testing import bind
from tests.django.conftest import site
from tests.django.oldqueue import tasks
from tests.django.oldqueue.models import Ran, TaskQueueElement
from tests.django.shop import tasks as shop
from tests.django.worker_process import MANAGE, ROOT, environment
from tests.eventually import eventually
from tests.servers import Server
from tests.working import drained, working

MODULE = "tests.django.oldqueue.tasks"


@pytest.fixture
def old(server: Server) -> Iterator[SiteApp]:
    """The site on the test server, with an empty table."""
    for app in site(server, allow=["tests.django.oldqueue"]):
        configure(app)
        TaskQueueElement.objects.all().delete()
        Ran.objects.all().delete()
        yield app
        for schedule in app.schedules.list():
            app.schedules.get(schedule.name).remove()
        for queue in app.queues():
            app.queue(queue).clear()


def row(function: str = "clone_file", *argv: Any, **columns: Any) -> TaskQueueElement:
    """A row as the old `Enqueue` writes it."""
    kwarg = columns.pop("kwarg", {})
    command = {"module": MODULE, "function": function, "argv": list(argv), "kwarg": kwarg}
    columns.setdefault("name", f"{function}({', '.join(map(str, argv))})")
    columns.setdefault("enqueue_time", timezone.now() - timedelta(days=1))
    return TaskQueueElement.objects.create(command_json=json.dumps(command), **columns)


def move(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Run the command here: its report."""
    out = StringIO()
    if code:
        with pytest.raises(SystemExit) as left:
            call_command("migrate_taskqueue", "--json", *arguments, stdout=out)
        assert left.value.code == code
    else:
        call_command("migrate_taskqueue", "--json", *arguments, stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def ran() -> Counter[str]:
    return Counter(Ran.objects.values_list("what", flat=True))


class TestForward:
    def test_pending_row_becomes_a_job_with_its_options(self, old: SiteApp) -> None:
        one = row("recode_game", 7, kwarg={"into": "x"}, name="RecodeGame(7)", priority=50, retries_left=2)
        assert move()["moved"] == {"pending": 1}
        (job,) = old.queue().jobs()
        info = old.job(job.id).info()
        assert (info.name, info.priority, info.args, info.kwargs) == ("RecodeGame(7)", 50, [7], {"into": "x"})
        assert info.enqueued_ms == int(one.enqueue_time.timestamp() * 1000)
        one.refresh_from_db()
        assert (one.pending, one.success, one.fail) == (False, False, False)
        assert job.id in one.log
        drained(old)
        assert ran() == {"recode 7 x": 1}

    def test_name_is_found_by_enqueue_or_get(self, old: SiteApp) -> None:
        row("recode_game", 7, name="RecodeGame(7)")
        move()
        task = EnqueueOrGet(tasks.recode_game, 7, name="RecodeGame(7)")
        assert task.id == old.queue().jobs()[0].id

    def test_two_rows_of_one_name_are_two_jobs(self, old: SiteApp) -> None:
        row("clone_file", 1, name="same")
        row("clone_file", 2, name="same")
        assert move()["count"] == 2
        drained(old)
        assert ran() == {"clone 1": 1, "clone 2": 1}

    def test_rows_keep_their_order(self, old: SiteApp) -> None:
        now = timezone.now()
        for n, (priority, age) in enumerate([(100, 1), (50, 1), (100, 3), (5000, 9), (-1, 1)]):
            row("clone_file", n, priority=priority, enqueue_time=now - timedelta(days=age))
        move()
        assert [old.job(job.id).info().args[0] for job in old.queue().jobs()] == [4, 1, 2, 0, 3]

    def test_delayed_row_waits_for_its_time(self, old: SiteApp) -> None:
        at = timezone.now() + timedelta(hours=5)
        row("clone_file", 1, scheduled_time=at)
        row("clone_file", 2, scheduled_time=timezone.now() - timedelta(hours=5))
        assert move()["moved"] == {"delayed": 1, "pending": 1}
        (job,) = old.queue().jobs("scheduled")
        assert job.due_ms == int(at.timestamp() * 1000)
        drained(old)
        assert ran() == {"clone 2": 1}

    def test_retrying_row_keeps_its_retries_and_its_handler(self, old: SiteApp) -> None:
        handler = json.dumps({"module": MODULE, "function": "mark_broken"})
        row("broken", 3, start_time=timezone.now(), retries_left=1, onfail_json=handler)
        with bind(old, url=old.settings.url) as kit:
            assert move()["moved"] == {"retrying": 1}
            for _ in range(4):
                kit.drain()
                kit.clock.move("2d")
            assert ran() == {"broken [3]": 1}
            (dead,) = old.queue().jobs("dead")
            assert len(old.job(dead.id).info().attempts) == 2

    def test_dependents_wait_for_the_job_of_their_row(self, old: SiteApp) -> None:
        first = row("clone_file", 1)
        second = row("recode_game", 1, dependency=first)
        row("recode_game", 2, dependency=second)
        done = row("clone_file", 9, pending=False, success=True)
        row("recode_game", 3, dependency=done)
        assert move()["count"] == 4
        stats = old.queue().stats()
        assert (stats.ready, stats.waiting) == (2, 2)
        drained(old)
        assert ran() == {"clone 1": 1, "recode 1": 1, "recode 2": 1, "recode 3": 1}

    def test_dependent_that_is_older_than_what_it_waits_for(self, old: SiteApp) -> None:
        first = row("recode_game", 1, enqueue_time=timezone.now() - timedelta(days=9))
        second = row("clone_file", 1)
        first.dependency = second
        first.save()
        assert move()["count"] == 2
        drained(old)
        assert list(Ran.objects.order_by("pk").values_list("what", flat=True)) == ["clone 1", "recode 1"]

    def test_cron_row_becomes_a_schedule(self, old: SiteApp) -> None:
        later = timezone.now() + timedelta(hours=2)
        row("import_games", name="ImportGames", cron="0 */6 * * *", priority=50, scheduled_time=later)
        assert move()["moved"] == {"cron": 1}
        (one,) = old.schedules.list()
        assert (one.name, one.when, one.priority, one.tz) == ("ImportGames", "0 */6 * * *", 50, "UTC")
        assert old.queue().stats().ready == 0

    def test_overdue_cron_row_runs_at_once(self, old: SiteApp) -> None:
        row("import_games", name="ImportGames", cron="0 */6 * * *", scheduled_time=timezone.now() - timedelta(hours=2))
        move()
        drained(old)
        assert ran() == {"import False": 1}

    def test_cron_rows_of_one_call_are_one_schedule(self, old: SiteApp) -> None:
        later = timezone.now() + timedelta(hours=2)
        for kwarg in ({}, {}, {"append_urls": True}):
            row("import_games", name="ImportGames", cron="0 */6 * * *", kwarg=kwarg, scheduled_time=later)
        assert move()["moved"] == {"cron": 3}
        last = TaskQueueElement.objects.order_by("pk").last()
        assert last is not None
        assert [one.name for one in old.schedules.list()] == ["ImportGames", f"ImportGames-{last.pk}"]

    def test_dry_run_changes_nothing(self, old: SiteApp) -> None:
        parent = row("clone_file", 1)
        row("recode_game", 1, dependency=parent)
        row("import_games", name="ImportGames", cron="0 */6 * * *")
        report = move("--dry-run")
        assert (report["dry_run"], report["moved"]) == (True, {"pending": 2, "cron": 1})
        assert TaskQueueElement.objects.filter(pending=True, log="").count() == 3
        assert (old.queues(), old.schedules.list()) == ([], [])

    @pytest.mark.parametrize(
        ("columns", "reason"),
        [
            ({"command_json": '{"module": "os", "function": "system", "argv": ["ls"]}'}, "allowed modules only"),
            ({"command_json": '{"module": "tests.django.oldqueue.tasks", "function": "gone"}'}, "cannot be imported"),
            ({"command_json": '{"module": "tests.djan'}, "not the JSON of a call"),
            ({"command_json": ""}, "is empty"),
            ({"command_json": '{"module": 7, "function": "x"}'}, "names no function"),
            ({"cron": "every day"}, "cron"),
            ({"onfail_json": '{"module": "os", "function": "system"}'}, "allowed modules only"),
        ],
    )
    def test_row_that_cannot_be_moved_stays_and_is_reported(
        self, old: SiteApp, columns: dict[str, Any], reason: str
    ) -> None:
        bad, good = row("clone_file", 1), row("clone_file", 2)
        TaskQueueElement.objects.filter(pk=bad.pk).update(**columns)
        report = move(code=1)
        assert (report["count"], report["left_count"]) == (1, 1)
        assert reason in report["left"][0]["reason"]
        bad.refresh_from_db()
        good.refresh_from_db()
        assert (bad.pending, bad.log, good.pending) == (True, "", False)

    def test_row_behind_one_that_failed_or_stays_is_left(self, old: SiteApp) -> None:
        failed = row("clone_file", 1, pending=False, fail=True)
        row("recode_game", 1, dependency=failed)
        stays = row("clone_file", 2, cron="nonsense")
        row("recode_game", 2, dependency=stays)
        report = move(code=1)
        reasons = " | ".join(one["reason"] for one in report["left"])
        assert report["left_count"] == 3
        assert f"row {failed.pk}, which failed" in reasons
        assert f"row {stays.pk}, which was left" in reasons

    def test_rows_in_a_circle_are_left(self, old: SiteApp) -> None:
        one = row("clone_file", 1)
        two = row("clone_file", 2, dependency=one)
        one.dependency = two
        one.save()
        assert move(code=1)["left_count"] == 2

    def test_second_run_moves_what_is_new(self, old: SiteApp) -> None:
        row("clone_file", 1)
        move()
        row("clone_file", 2)
        report = move()
        assert (report["count"], report["moved_before"]) == (1, 1)
        drained(old)
        assert ran() == {"clone 1": 1, "clone 2": 1}

    def test_report_for_people(self, old: SiteApp) -> None:
        row("clone_file", 1)
        row("clone_file", 2, scheduled_time=timezone.now() + timedelta(hours=1))
        out = StringIO()
        call_command("migrate_taskqueue", stdout=out)
        assert out.getvalue() == "2 moved into relevo (1 delayed, 1 pending)\n"

    def test_table_that_is_another_one(self, old: SiteApp) -> None:
        with pytest.raises(CommandError, match="another table"):
            call_command("migrate_taskqueue", "--model", "oldqueue.Ran")
        with pytest.raises(CommandError, match="--model"):
            call_command("migrate_taskqueue", "--model", "nothing")

    def test_queue_that_goes_elsewhere_is_refused(self, old: SiteApp) -> None:
        configure()
        try:
            with pytest.raises(CommandError, match="configure"):
                call_command("migrate_taskqueue")
        finally:
            configure(old)


class TestBack:
    def test_what_waits_comes_back_into_its_row(self, old: SiteApp) -> None:
        at = timezone.now() + timedelta(hours=5)
        rows = [row("clone_file", 1), row("clone_file", 2, scheduled_time=at, priority=7)]
        child = row("recode_game", 1, dependency=rows[0])
        before = list(TaskQueueElement.objects.order_by("pk").values("name", "command_json", "priority", "dependency"))
        move()
        assert move("--back")["moved"] == {"pending": 2, "delayed": 1}
        after = list(TaskQueueElement.objects.order_by("pk").values("name", "command_json", "priority", "dependency"))
        assert after == before
        assert TaskQueueElement.objects.filter(pending=True).count() == 3
        rows[1].refresh_from_db()
        assert rows[1].scheduled_time is not None
        assert abs(rows[1].scheduled_time - at) < timedelta(milliseconds=2)
        stats = old.queue().stats()
        assert (stats.living, stats.cancelled) == (0, 0)
        assert move()["count"] == 3  # and into relevo again
        drained(old)
        assert ran() == {"clone 1": 1, "recode 1": 1}
        assert child.dependency_id == rows[0].pk

    def test_new_tasks_get_new_rows(self, old: SiteApp) -> None:
        first = Enqueue(tasks.clone_file, 1, name="CloneUrl(1)", onfail=tasks.mark_broken, priority=50, retries=5)
        Enqueue(tasks.recode_game, 1, dependency=first)
        Enqueue(tasks.import_games, name="ImportGames", cron="0 */6 * * *", priority=50)
        assert move("--back")["moved"] == {"pending": 2, "cron": 1}
        one, two, cron = TaskQueueElement.objects.order_by("pk")
        assert json.loads(one.command_json) == {"module": MODULE, "function": "clone_file", "argv": [1], "kwarg": {}}
        assert (one.name, one.priority, one.retries_left) == ("CloneUrl(1)", 50, 5)
        assert json.loads(one.onfail_json or "") == {"module": MODULE, "function": "mark_broken"}
        assert two.dependency == one
        assert (cron.name, cron.cron, cron.priority) == ("ImportGames", "0 */6 * * *", 50)
        assert cron.scheduled_time is not None
        assert (old.queue().stats().living, old.schedules.list()) == (0, [])

    def test_retrying_job_takes_its_spent_retries_along(self, old: SiteApp) -> None:
        one = row("broken", 1, retries_left=3)
        move()
        drained(old)
        assert move("--back", code=1)["moved"] == {"retrying": 1}  # and schedules of code, which the worker made known
        one.refresh_from_db()
        assert (one.retries_left, one.pending) == (2, True)
        assert one.scheduled_time is not None

    def test_schedule_goes_back_into_its_row(self, old: SiteApp) -> None:
        later = timezone.now() + timedelta(hours=2)
        one = row("import_games", name="ImportGames", cron="0 */6 * * *", scheduled_time=later, retries_left=5)
        move()
        move("--back")
        one.refresh_from_db()
        assert (one.pending, one.cron, one.retries_left) == (True, "0 */6 * * *", 5)
        assert TaskQueueElement.objects.count() == 1

    def test_what_a_row_cannot_say_is_left(self, old: SiteApp) -> None:
        Enqueue(tasks.recode_game, 1, into="x" * 600)
        old.schedule("feeds", shop.pay.s(1), every="30m")
        report = move("--back", code=1)
        reasons = " | ".join(one["reason"] for one in report["left"])
        assert "command_json takes fewer" in reasons
        assert "interval" in reasons
        assert (old.queue().stats().ready, len(old.schedules.list())) == (1, 1)

    def test_dry_run_changes_nothing(self, old: SiteApp) -> None:
        row("clone_file", 1)
        move()
        assert move("--back", "--dry-run")["moved"] == {"pending": 1}
        assert TaskQueueElement.objects.filter(pending=True).count() == 0
        assert old.queue().stats().ready == 1

    def test_workers_that_run_are_refused(self, old: SiteApp) -> None:
        with working(old):
            eventually(lambda: _refused(), what="a worker that is known")


def _refused() -> bool:
    try:
        call_command("migrate_taskqueue", "--back", stdout=StringIO())
    except CommandError as error:
        return "stop them first" in str(error)
    return False


def dies_at(app: SiteApp, point: str, *arguments: str) -> None:
    """Run the command in a process that is killed (-9) there."""
    variables = environment(app, RELEVO_FAULT=point, RELEVO_ALLOW="tests.django.oldqueue")
    command = [*MANAGE, "migrate_taskqueue", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr


FORWARD = ("rows_locked", "rows_pushed", "rows_marked", "rows_committed")


class TestKills:
    @pytest.mark.parametrize("meanwhile_they_run", [False, True], ids=["still queued", "run already"])
    @pytest.mark.parametrize("point", FORWARD)
    def test_into_relevo(self, old: SiteApp, point: str, meanwhile_they_run: bool) -> None:
        parent = row("clone_file", 1, name="same")
        row("clone_file", 2, name="same")
        row("recode_game", 1, dependency=parent)
        row("import_games", name="ImportGames", cron="0 */6 * * *")
        dies_at(old, point)
        if meanwhile_they_run:
            drained(old)
        move()
        drained(old)
        assert ran() == {"clone 1": 1, "clone 2": 1, "recode 1": 1, "import False": 1}
        assert [one.name for one in old.schedules.list() if one.origin == "call"] == ["ImportGames"]

    @pytest.mark.parametrize("point", ["jobs_written", "jobs_removed"])
    def test_back_into_the_table(self, old: SiteApp, point: str) -> None:
        parent = row("clone_file", 1)
        row("recode_game", 1, dependency=parent)
        move()
        Enqueue(tasks.clone_file, 2)
        dies_at(old, point, "--back")
        move("--back")
        assert sorted(TaskQueueElement.objects.filter(pending=True).values_list("name", flat=True)) == [
            "clone_file(1)",
            "recode_game(1)",
            f"{MODULE}.clone_file",
        ]
        assert old.queue().stats().living == 0


def test_ten_thousand_mixed_rows_none_lost_and_none_doubled(old: SiteApp) -> None:
    now, expected = timezone.now(), Counter[str]()
    rows = []
    for n in range(10_000):
        columns: dict[str, Any] = {"enqueue_time": now - timedelta(seconds=20_000 - n), "priority": n % 7 * 50}
        function = ("clone_file", "recode_game")[n % 2]
        if n % 10 == 3:
            columns["scheduled_time"] = now + timedelta(days=1)
        if n % 10 == 5:
            columns |= {"start_time": now, "scheduled_time": now - timedelta(minutes=1), "retries_left": 1}
        if n % 1000 == 7:
            function, columns["cron"], columns["scheduled_time"] = (
                "import_games",
                "0 */6 * * *",
                now + timedelta(days=1),
            )
        command = {"module": MODULE, "function": function, "argv": [] if "cron" in columns else [n], "kwarg": {}}
        rows.append(TaskQueueElement(name=f"task {n}", command_json=json.dumps(command), **columns))
        if "cron" not in columns:
            expected[f"{'clone' if function == 'clone_file' else 'recode'} {n}"] = 1
    made = TaskQueueElement.objects.bulk_create(rows, batch_size=500)
    for n in range(20, 10_000, 20):  # behind rows of all kinds
        made[n].dependency = made[n - 17]
    TaskQueueElement.objects.bulk_update(made[20::20], ["dependency"], batch_size=200)
    for kill in ("rows_pushed:5", "rows_marked:9", "rows_committed:13"):
        dies_at(old, kill)
    report = move()
    left = TaskQueueElement.objects.filter(pending=True).count()
    assert (left, report["left_count"], report["count"] + report["moved_before"]) == (0, 0, 10_000)
    stats = old.queue().stats()
    assert (stats.living, len(old.schedules.list())) == (9990, 10)
    assert (stats.scheduled, stats.waiting) == (1000, 499)
    jobs = Counter(name for state in ("ready", "scheduled", "waiting") for name in _args(old, state))
    assert jobs == {name.rsplit(" ", 1)[1]: 1 for name in expected}
    assert move("--back")["count"] == 10_000
    assert (TaskQueueElement.objects.count(), TaskQueueElement.objects.filter(pending=True).count()) == (10_000, 10_000)
    assert (old.queue().stats().living, old.schedules.list()) == (0, [])


def _args(app: SiteApp, state: str) -> Iterator[str]:
    offset = 0
    while page := app.queue().jobs(state, offset=offset, limit=1000):
        yield from (str(one.name).rsplit(" ", 1)[1] for one in page)
        offset += len(page)
