"""Runs the suites; `./dev django` puts them into `.upstream`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

from relevo.django.site_app import SiteApp
from tests.django.upstream.stand_ins import suite
from tests.working import drained

FOLDER = Path(__file__).parents[3] / ".upstream"
TASKS = {"default": {"BACKEND": "relevo.django.Backend", "QUEUES": ["default", "queue-1"]}}

ROWS = "it looks into their table"
COMMAND = "it is about options of their command"
QUEUES = "it is about the queues of RQ, which are settings of their own"
NOT_OURS: Mapping[str, str] = {
    "test_invalid_task_path": ROWS,
    "test_missing_task_path": ROWS,
    "test_task_import_string": ROWS,
    "test_exception_classes_pop_empty_list_bug": "it takes apart what they store",
    "test_task_name": ROWS,
    "test_run_after": ROWS,
    "test_run_after_priority": ROWS,
    "test_run_after_tz": ROWS,
    "test_run_after_null_0016_migration": ROWS,
    "test_index_scan_for_ready": ROWS,
    "test_priority_range_check": ROWS,
    "test_doesnt_wait_until_transaction_commit": "their backend stores the task in the transaction, ours after it",
    "test_custom_id_function": "it is about an option of theirs",
    "test_unknown_id_function": "it is about an option of theirs",
    "test_postgres_db_id_function": "it is about an option of theirs",
    "test_postgres_id_function_expression": "it is about an option of theirs",
    "test_worker_with_locked_rows": ROWS,
    "test_verbose_logging": COMMAND,
    "test_max_tasks": COMMAND,
    "test_no_tasks": COMMAND,
    "test_doesnt_process_different_backend": COMMAND,
    "test_unknown_backend": COMMAND,
    "test_incorrect_backend": COMMAND,
    "test_negative_interval": COMMAND,
    "test_infinite_interval": COMMAND,
    "test_fractional_interval": COMMAND,
    "test_zero_interval": COMMAND,
    "test_negative_max_tasks": COMMAND,
    "test_zero_max_tasks": COMMAND,
    "test_too_long_worker_id": COMMAND,
    "test_empty_worker_id": COMMAND,
    "test_exclude_queues_requires_processing_all_queues": COMMAND,
    "test_rq_app_missing": "its hint names their package",
    "test_database_backend_app_missing": "its hint names their package",
    "test_queue_isolation": QUEUES,
    "test_uses_rq_queues_for_queue_names": QUEUES,
    "test_unknown_queue_name": QUEUES,
    "test_complex_return_value": "it compares the words of their own serialisation",
}
NOT_OF_DB: Mapping[str, str] = {
    "test_enqueue_task": "ids are UUIDs in their table",
    "test_enqueue_task_async": "ids are UUIDs in their table",
    "test_refresh_result": ROWS,
    "test_refresh_result_async": ROWS,
}


class OnRelevo:
    """Before their classes: the site's app instead of their storage, and its worker instead of theirs."""

    not_here: Mapping[str, str] = {}

    @pytest.fixture(autouse=True)
    def _app(self, shop: SiteApp, request: Any) -> Iterator[None]:
        if why := NOT_OURS.get(request.node.name) or self.not_here.get(request.node.name):
            pytest.skip(why)
        self._site = shop
        with override_settings(TASKS=TASKS):
            yield

    def setUp(self) -> None:
        """Not theirs, which connects to a stand-in of Redis."""

    def tearDown(self) -> None:
        """Not theirs, which resets the loggers of their command."""

    def run_worker(self, queue_name: str = "default", exclude_queues: str = "", **_: Any) -> None:
        queues = ["default", "queue-1"] if queue_name == "*" else queue_name.split(",")
        drained(self._site, queues=[one for one in queues if one != exclude_queues])

    def assertNumQueries(self, *_: Any, **__: Any) -> Any:
        return nullcontext()


_rq = suite(FOLDER / "django-tasks-rq==0.12.0" / "tests" / "tests.py")
_db = suite(FOLDER / "django-tasks-db==0.13.0" / "tests" / "tests.py")


class TestDjangoTasksRq(OnRelevo, _rq.RQBackendTestCase):  # type: ignore[name-defined]
    def run_worker(self, queue_name: str = "*", exclude_queues: str = "", **_: Any) -> None:
        super().run_worker(queue_name, exclude_queues)


class TestDjangoTasksDbBackend(OnRelevo, _db.DatabaseBackendTestCase):  # type: ignore[name-defined]
    not_here = NOT_OF_DB


class TestDjangoTasksDbWorker(OnRelevo, _db.DatabaseBackendWorkerTestCase): ...  # type: ignore[name-defined]
