"""`manage.py import_celery_beat`, with the models of the real django-celery-beat."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from relevo.django.site_app import SiteApp
from relevo.testing import bind
from tests.django.conftest import HAS_BEAT, site
from tests.django.worker_process import MANAGE, ROOT, environment
from tests.servers import Server

if not HAS_BEAT:
    pytest.skip("django-celery-beat does not know this Django", allow_module_level=True)

from django_celery_beat.models import ClockedSchedule, CrontabSchedule, IntervalSchedule, PeriodicTask, SolarSchedule

PAY = "tests.django.shop.tasks.pay"


@pytest.fixture
def beat(server: Server) -> Iterator[SiteApp]:
    """The site on the test server, without periodic tasks."""
    for app in site(server):
        PeriodicTask.objects.all().delete()
        yield app
        for schedule in app.schedules.list():
            app.schedules.get(schedule.name).remove()
        for queue in app.queues():
            app.queue(queue).clear()
        PeriodicTask.objects.all().delete()


def periodic(name: str = "pay", **columns: Any) -> PeriodicTask:
    """A periodic task: every ten minutes if nothing else is given."""
    if not columns.keys() & {"crontab", "clocked", "solar", "interval"}:
        columns["interval"] = IntervalSchedule.objects.get_or_create(every=10, period="minutes")[0]
    return PeriodicTask.objects.create(name=name, **{"task": PAY, "args": "[1]", **columns})


def crontab(*fields: str, tz: str = "UTC") -> CrontabSchedule:
    names = ("minute", "hour", "day_of_month", "month_of_year", "day_of_week")
    return CrontabSchedule.objects.create(**dict(zip(names, fields, strict=True)), timezone=tz)


def imported(*arguments: str, code: int = 0) -> dict[str, Any]:
    """Run the command here: its report."""
    out = StringIO()
    if code:
        with pytest.raises(SystemExit) as left:
            call_command("import_celery_beat", "--json", *arguments, stdout=out)
        assert left.value.code == code
    else:
        call_command("import_celery_beat", "--json", *arguments, stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def reason(*arguments: str) -> str:
    (left,) = imported(*arguments, code=1)["left"]
    return str(left["reason"])


def test_interval_becomes_a_schedule(beat: SiteApp) -> None:
    periodic("pay every ten minutes", kwargs='{"id": 5}', args="[]", queue="money", expire_seconds=60)
    assert imported()["imported"] == {"interval": 1}
    (one,) = beat.schedules.list()
    assert (one.name, one.task, one.when, one.queue) == ("pay-every-ten-minutes", PAY, "600s", "money")
    assert (one.args, one.kwargs) == ([], {"id": 5})


def test_crontab_keeps_its_zone(beat: SiteApp) -> None:
    periodic(crontab=crontab("30", "2", "*", "*", "1-5", tz="Europe/Madrid"))
    assert imported()["imported"] == {"crontab": 1}
    (one,) = beat.schedules.list()
    assert (one.when, one.tz) == ("30 2 * * 1-5", "Europe/Madrid")


@pytest.mark.parametrize(
    "fields",
    [
        ("*/7", "*", "*", "*", "*"),
        ("0", "8,20", "*/2", "1-6", "*"),
        ("15,45", "*/3", "*", "*", "mon,fri"),
        ("5", "4", "*", "feb", "0,6"),
    ],
)
def test_crontab_fires_when_celery_would(beat: SiteApp, fields: tuple[str, ...]) -> None:
    """Each of the next ticks, as Celery itself computes them."""
    one = periodic(crontab=crontab(*fields, tz="America/New_York"))
    imported()
    at = timezone.now()
    with bind(beat, url=beat.settings.url):
        imported()
        (found,) = beat.schedules.list()
        remaining = one.schedule.remaining_estimate(at)
    assert found.next_ms is not None
    assert abs(found.next_ms - (at + remaining).timestamp() * 1000) < 90_000


def test_clocked_task_becomes_a_job_that_is_due_then(beat: SiteApp) -> None:
    at = timezone.now() + timedelta(hours=3)
    periodic(clocked=ClockedSchedule.objects.create(clocked_time=at), one_off=True)
    assert imported()["imported"] == {"clocked": 1}
    (job,) = beat.queue().jobs("scheduled")
    assert job.due_ms == int(at.timestamp() * 1000)
    assert beat.schedules.list() == []


def test_task_that_runs_once_is_one_job_at_its_next_tick(beat: SiteApp) -> None:
    periodic(crontab=crontab("0", "8", "*", "*", "*"), one_off=True)
    assert imported()["imported"] == {"crontab": 1}
    assert (beat.queue().stats().scheduled, beat.schedules.list()) == (1, [])


def test_import_is_repeated_without_effect(beat: SiteApp) -> None:
    with bind(beat, url=beat.settings.url) as kit:
        periodic()
        periodic("daily", crontab=crontab("0", "8", "*", "*", "*"))
        periodic("then", clocked=ClockedSchedule.objects.create(clocked_time=timezone.now()), one_off=True, args="[0]")
        assert sum(imported()["imported"].values()) == 3
        before = [(one.name, one.next_ms) for one in beat.schedules.list()]
        kit.drain()
        report = imported()
        assert (report["imported"], report["unchanged"]) == ({}, 3)
        assert [(one.name, one.next_ms) for one in beat.schedules.list() if one.origin == "call"] == before
        assert beat.queue().stats().ready == 0


def test_task_that_is_not_enabled_is_paused(beat: SiteApp) -> None:
    periodic(enabled=False)
    assert imported()["paused"] == 1
    (one,) = beat.schedules.list()
    assert one.paused_ms is not None


def test_task_that_starts_later_is_paused_until_then(beat: SiteApp) -> None:
    start = timezone.now() + timedelta(days=2)
    periodic(start_time=start)
    imported()
    (one,) = beat.schedules.list()
    assert one.until_ms is not None
    assert one.next_ms is not None and one.next_ms >= int(start.timestamp() * 1000)


def test_names_of_tasks_are_mapped(beat: SiteApp) -> None:
    periodic(task="shop.old.pay")
    assert "no task of this project is called 'shop.old.pay'" in reason()
    assert imported("--map", f"shop.old.pay={PAY}")["imported"] == {"interval": 1}
    with pytest.raises(CommandError, match="OLD=NEW"):
        imported("--map", "nonsense")


def test_two_names_that_become_one_are_told_apart(beat: SiteApp) -> None:
    periodic("pay now")
    second = periodic("pay-now")
    imported()
    assert [one.name for one in beat.schedules.list()] == ["pay-now", f"pay-now-{second.pk}"]


def test_dry_run_changes_nothing(beat: SiteApp) -> None:
    periodic()
    periodic("then", clocked=ClockedSchedule.objects.create(clocked_time=timezone.now()), one_off=True)
    report = imported("--dry-run")
    assert report["imported"] == {"interval": 1, "clocked": 1}
    assert (beat.schedules.list(), beat.queues()) == ([], [])


@pytest.mark.parametrize(
    ("columns", "why"),
    [
        ({"task": "celery.backend_cleanup"}, "end by themselves"),
        ({"args": "not json"}, "not JSON"),
        ({"args": "{}"}, "not JSON of the right kind"),
        ({"args": "[1, 2, 3, 4]"}, "argument"),
        ({"one_off": True, "total_run_count": 1}, "has run"),
        ({"one_off": True, "enabled": False}, "not enabled"),
    ],
)
def test_what_cannot_be_imported_is_reported(beat: SiteApp, columns: dict[str, Any], why: str) -> None:
    periodic(**columns)
    assert why in reason()
    assert beat.schedules.list() == []


def test_the_sun_short_intervals_double_days_and_ends_are_refused(beat: SiteApp) -> None:
    periodic("sun", solar=SolarSchedule.objects.create(event="sunrise", latitude=40, longitude=-3))
    periodic("short", interval=IntervalSchedule.objects.create(every=10, period="microseconds"))
    periodic("both", crontab=crontab("0", "0", "13", "*", "5"))
    periodic("ends", expires=timezone.now() + timedelta(days=9))
    periodic("ended", expires=timezone.now() - timedelta(days=9))
    left = {one["name"]: one["reason"] for one in imported(code=1)["left"]}
    for name, words in {
        "sun": "by the sun",
        "short": "intervals",
        "both": "both",
        "ends": "ends on",
        "ended": "has expired",
    }.items():
        assert words in left[name]


def test_what_is_left_out_is_noted(beat: SiteApp) -> None:
    periodic(priority=3, headers='{"a": 1}')
    notes = [one["note"] for one in imported()["notes"]]
    assert notes == ["priority is not taken over", "headers is not taken over"]


def test_report_for_people(beat: SiteApp) -> None:
    periodic()
    out = StringIO()
    call_command("import_celery_beat", stdout=out)
    assert out.getvalue() == "1 imported (1 interval)\n"


def test_without_the_package_one_line_says_so(beat: SiteApp) -> None:

    done = subprocess.run(
        [*MANAGE, "import_celery_beat"], cwd=ROOT, env=environment(beat), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "INSTALLED_APPS" in done.stderr
