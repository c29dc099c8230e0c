"""What the suites import besides Django: names of their own packages, with relevo behind those that they use."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from django.db import transaction

from relevo.django import Backend
from relevo.django import app as site_app
from tests.django.upstream import tasks


class Counted:
    """A query of their table: how many jobs are in that state."""

    def __init__(self, *states: str) -> None:
        self._states = states

    def count(self) -> int:
        stats = [site_app.queue(name).stats() for name in site_app.queues()]
        return sum(getattr(one, state) for one in stats for state in self._states)


class Manager:
    """`DBTaskResult.objects`."""

    def ready(self) -> Counted:
        return Counted("ready")

    def successful(self) -> Counted:
        return Counted("done")

    def failed(self) -> Counted:
        return Counted("dead")

    def count(self) -> int:
        return Counted("living", "done", "dead").count()


class Rows:
    """`DBTaskResult`."""

    objects = Manager()


def package(name: str, **members: Any) -> ModuleType:
    """A package of that name with these members."""
    made = ModuleType(name)
    made.__path__ = []
    for member, value in members.items():
        setattr(made, member, value)
    return made


STAND_INS = {
    "tests.tasks": tasks,
    "fakeredis": package("fakeredis", FakeRedis=object, FakeStrictRedis=object),
    "django_rq": package("django_rq"),
    "rq": package("rq"),
    "rq.defaults": package("rq.defaults", UNSERIALIZABLE_RETURN_VALUE_PAYLOAD="is not JSON serializable"),
    "rq.timeouts": package("rq.timeouts", TimerDeathPenalty=object),
    "django_tasks_rq": package("django_tasks_rq", RQBackend=Backend, compat=None),
    "django_tasks_rq.backend": package("django_tasks_rq.backend", Job=object, RQBackend=Backend),
    "django_tasks_db": package("django_tasks_db", DatabaseBackend=Backend, compat=None),
    "django_tasks_db.admin": package("django_tasks_db.admin", DBTaskResultAdmin=object),
    "django_tasks_db.management": package("django_tasks_db.management"),
    "django_tasks_db.management.commands": package("django_tasks_db.management.commands"),
    "django_tasks_db.management.commands.prune_db_task_results": package(
        "django_tasks_db.management.commands.prune_db_task_results", logger=None
    ),
    "django_tasks_db.models": package("django_tasks_db.models", DBTaskResult=Rows, get_date_max=None),
    "django_tasks_db.utils": package(
        "django_tasks_db.utils", exclusive_transaction=transaction.atomic, normalize_uuid=str
    ),
}


def suite(file: Path) -> ModuleType:
    """Their file, imported among these names."""
    sys.modules.update(STAND_INS)  # for good: their settings name backends by these names, too
    spec = importlib.util.spec_from_file_location(
        "upstream_" + file.parents[1].name.partition("==")[0].replace("-", "_"), file
    )
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found
