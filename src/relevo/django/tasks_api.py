"""Django's tasks: `django.tasks` from Django 6.0 on, and the package django-tasks before."""

from __future__ import annotations

try:
    from django.tasks import signals
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task as DjangoTask
    from django.tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django.tasks.exceptions import InvalidTask, TaskResultDoesNotExist
    from django.utils.json import normalize_json
except ImportError:
    from django_tasks import signals
    from django_tasks.backends.base import BaseTaskBackend
    from django_tasks.base import Task as DjangoTask
    from django_tasks.base import TaskContext, TaskError, TaskResult, TaskResultStatus
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist
    from django_tasks.utils import normalize_json

__all__ = [
    "BaseTaskBackend",
    "DjangoTask",
    "InvalidTask",
    "TaskContext",
    "TaskError",
    "TaskResult",
    "TaskResultDoesNotExist",
    "TaskResultStatus",
    "normalize_json",
    "signals",
]
