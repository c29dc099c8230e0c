"""Tasks of `django.tasks`, or of the package django-tasks."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from relevo import Cancel, current_job
from relevo.django import options
from tests.django.shop.models import Order

try:
    from django.tasks import task
except ImportError:
    from django_tasks import task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task()
async def aadd(a: int, b: int = 0) -> int:
    await asyncio.sleep(0)
    return a + b


@task(priority=7, queue_name="mails")
def send(to: str) -> str:
    return to


@task(takes_context=True)
def attempts(context: Any, fail: int = 0) -> list[Any]:
    if context.attempt <= fail:
        raise ConnectionError(f"attempt {context.attempt}")
    return [context.attempt, context.task_result.id, len(context.task_result.errors)]


@task(takes_context=True)
async def aattempts(context: Any) -> int:
    return int(context.attempt)


@task
def fail(text: str) -> None:
    raise ValueError(text)


@task
async def afail(text: str) -> None:
    raise ValueError(text)


@task
def leave(code: int) -> None:
    raise SystemExit(code)


@task
def fail_inside_out() -> None:
    raise ValueError(ValueError("no"))


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def unserialisable() -> object:
    return object()


@task
def echo(value: Any) -> Any:
    return value


@task
@options(retries=2, backoff="10s")
def stubborn() -> None:
    raise ConnectionError("down")


@task
@options(timeout="100ms")
def too_slow() -> None:
    while True:  # until it is stopped
        time.sleep(0.001)


@task
async def ahang() -> None:
    await asyncio.Event().wait()


@task
def give_up() -> None:
    raise Cancel("not needed any more")


@task
def make_order(name: str) -> int:
    return int(Order.objects.create(name=name).pk)


@task
def kill_once(mark: str) -> int:
    """Kill the worker at the first attempt, and be gone at the second."""
    path = Path(mark)
    if not path.exists():
        path.write_text(str(os.getpid()))
        while True:  # until the test has killed it
            time.sleep(0.01)
    return current_job().attempt


@task(backend="prompt")
def prompt() -> None:
    """Sent at once."""
