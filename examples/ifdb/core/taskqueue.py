"""The task queue of the site."""

from django.conf import settings
from relevo import Backoff
from relevo.compat.ifdb import (
    Enqueue,
    EnqueueOrGet,
    Worker,
    configure,
    execute_task,
    get_next_task,
    task_queue,
)
from relevo.django import app

configure(app, tz=settings.TIME_ZONE, backoff=Backoff.exponential(settings.RETRY_AFTER))

__all__ = ["Enqueue", "EnqueueOrGet", "Worker", "execute_task", "get_next_task", "task_queue"]
