"""A backend of `TASKS`: Django's own tasks, kept and run by relevo.

    TASKS = {"default": {"BACKEND": "relevo.django.Backend", "OPTIONS": {"retries": 3}}}

One class for `django.tasks` (Django 6.0 and later) and for the package django-tasks (Django 5.2).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.utils import timezone

from relevo.django.commit import transaction_of
from relevo.django.running import runner_of
from relevo.django.settings import checked_alias
from relevo.django.site_app import app
from relevo.django.site_task import SiteTask
from relevo.django.task_result import new_result, result_of, time_of
from relevo.django.tasks_api import BaseTaskBackend, DjangoTask, InvalidTask, TaskResultDoesNotExist, signals
from relevo.django.tasks_options import OF_TASK, RelevoTask, options_of
from relevo.engine.handle import Job
from relevo.engine.ids import made_ms
from relevo.engine.options import Options, changed
from relevo.errors import OptionError, UnknownJob

#: Keys of `OPTIONS` that are not options of jobs.
OWN = ("ENQUEUE_ON_COMMIT",)
#: What differs from other jobs of relevo. As with Django's own backends a task that fails has failed, and its result
#: can be fetched for a while: it is all that a caller has.
DEFAULTS: Mapping[str, Any] = {"retries": 0, "result_ttl": "1d"}
#: Django's 0 is relevo's 100, and Django's 100 (first) relevo's 0.
MIDDLE = 100


class Backend(BaseTaskBackend):
    """Puts Django's tasks on relevo's queues.

    `OPTIONS` takes options of relevo for all of its tasks (`retries`, `backoff`, `timeout`, `result_ttl`, …) and
    `ENQUEUE_ON_COMMIT`: True, False, or the alias of a database; by default what `RELEVO["on_commit"]` says.
    """

    task_class = RelevoTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        own = {name: value for name, value in self.options.items() if name not in OWN}
        self._defaults = {**DEFAULTS, **own}

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot be run. Called for every task that is made, and so the place where workers learn of it."""
        super().validate_task(task)
        try:
            options = options_of(task)
            changed(Options(), options)
            self.site_task(task)
        except OptionError as error:
            raise InvalidTask(f"{task.module_path}: {error}") from error

    def site_task(self, task: Any) -> SiteTask[..., Any]:
        """The task of relevo that runs it, registered when first asked for."""
        known = app.tasks.get(task.module_path)
        if known is None:
            given = {**self._defaults, **options_of(task), "queue": task.queue_name}
            known = app.task(name=task.module_path, **given)(runner_of(task))
            assert isinstance(known, SiteTask)
            known.of_django = task
        assert isinstance(known, SiteTask)
        return known

    # enqueue
    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Put it on its queue: when the open transaction commits if there is one, and its id is known at once."""
        self.validate_task(task)
        result = new_result(task, self.alias, args, kwargs)
        ready = self._ready(task)
        connection = transaction_of(self._on_commit)

        def sent(job: Job[Any]) -> None:
            _mark_sent(result, job)
            signals.task_enqueued.send(type(self), task_result=result)

        if connection is None:
            sent(ready.using(on_commit=False).enqueue(*result.args, **result.kwargs))
        else:
            jobs = ready.held(connection, [(result.args, result.kwargs)], sent)
            object.__setattr__(result, "id", jobs[0].id)
        return result

    async def aenqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """`enqueue` for async code, where no transaction is open."""
        self.validate_task(task)
        result = new_result(task, self.alias, args, kwargs)
        _mark_sent(result, await self._ready(task).aenqueue(*result.args, **result.kwargs))
        await signals.task_enqueued.asend(type(self), task_result=result)
        return result

    @property
    def _on_commit(self) -> Any:
        return self.options.get("ENQUEUE_ON_COMMIT")

    def _ready(self, task: Any) -> SiteTask[..., Any]:
        """The task of relevo with what this one says about the job."""
        options = {name: value for name, value in options_of(task).items() if name not in OF_TASK}
        if task.run_after is not None:
            options["eta"] = task.run_after if timezone.is_aware(task.run_after) else task.run_after.astimezone()
        return self.site_task(task).using(queue=task.queue_name, priority=MIDDLE - task.priority, **options)

    # results
    def get_result(self, result_id: str) -> Any:
        """What is known of a task; TaskResultDoesNotExist if there is none."""
        try:
            return result_of(app.job(result_id).info(), self.alias)
        except (UnknownJob, LookupError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    async def aget_result(self, result_id: str) -> Any:
        """`get_result` for async code."""
        try:
            return result_of(await (await app.ajob(result_id)).ainfo(), self.alias)
        except (UnknownJob, LookupError) as error:
            raise TaskResultDoesNotExist(result_id) from error

    def check(self, **_: Any) -> Iterable[CheckMessage]:
        """What is wrong with `OPTIONS`, and with the project."""
        if not apps.is_installed("relevo.django"):
            hint = 'Add "relevo.django" to INSTALLED_APPS.'
            return [Error(f"TASKS[{self.alias!r}]: relevo is not installed.", hint=hint, id="relevo.E005")]
        try:
            changed(Options(), self._defaults)
            if self._on_commit not in (None, True, False):
                checked_alias("ENQUEUE_ON_COMMIT", self._on_commit)
        except OptionError as error:
            hint = "OPTIONS takes options of tasks, such as retries, backoff and timeout, and ENQUEUE_ON_COMMIT."
            return [Error(f"TASKS[{self.alias!r}]: {error}", hint=hint, id="relevo.E004")]
        return []


def _mark_sent(result: Any, job: Job[Any]) -> None:
    object.__setattr__(result, "id", job.id)
    object.__setattr__(result, "enqueued_at", time_of(made_ms(job.id)))


def register_tasks_of(module: Any) -> None:
    """Make all tasks of a module known to the worker: one made for another backend may be enqueued with ours."""
    backend = _any_backend()
    if backend is not None:
        for value in list(vars(module).values()):
            if isinstance(value, DjangoTask):
                backend.site_task(value)


def _any_backend() -> Backend | None:
    try:
        from django.tasks import task_backends
    except ImportError:
        from django_tasks import task_backends
    return next((one for one in task_backends.all() if isinstance(one, Backend)), None)
