"""A job's context without a job: for direct calls of tasks that use `current_job()`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from relevo.checkpoints.keeping import Home, Keeping
from relevo.checkpoints.store import Kind
from relevo.engine.context import JobContext, running
from relevo.engine.job import Attempt
from relevo.engine.message import Headers
from relevo.engine.task import Task
from relevo.errors import OptionError
from relevo.settings import Settings
from relevo.text.nearest import did_you_mean

#: The names of `current_job().message` that differ from those of its headers.
_HEADERS = {"conversation_id": "conversation", "correlation_id": "correlation", "causation_id": "causation"}


class TestedJob(JobContext):
    """The context that `job_context()` gives: as a task sees it, and with what the task did to it."""

    __test__ = False  # pytest: not a class of tests

    #: What steps and loops stored, by kind and name.
    checkpoints: dict[tuple[Kind, str], bytes] = msgspec.field(default_factory=dict)
    _state: Any = None

    @property
    def state(self) -> Any:
        """What `job_context(state=…)` was given."""
        return self._state

    @property
    def reported(self) -> tuple[float, str] | None:
        """The last progress that was reported: the share, and the message."""
        return self._progress


class _InMemory(Keeping):
    """The checkpoints of a tested job."""

    def __init__(self, job: TestedJob) -> None:
        nowhere = Home(cast(Any, None), cast(Any, None), Settings().max_payload)
        super().__init__(nowhere, job.id, job.fence, job._must_stop)
        self._kept = job.checkpoints

    def read(self, kind: Kind, name: str) -> bytes | None:
        return self._kept.get((kind, name))

    async def aread(self, kind: Kind, name: str) -> bytes | None:
        return self.read(kind, name)

    def write(self, kind: Kind, name: str, value: bytes, *, patience: float = 0) -> None:  # noqa: ARG002
        self._kept[kind, name] = value

    async def awrite(self, kind: Kind, name: str, value: bytes, *, patience: float = 0) -> None:  # noqa: ARG002
        self.write(kind, name, value)


@contextmanager
def job_context(
    task: Task[..., Any] | str = "",
    *,
    id: str = "test-job",
    attempt: int = 1,
    retries_left: int = 3,
    queue: str = "default",
    name: str = "",
    tenant: str = "",
    tags: tuple[str, ...] = (),
    worker: str = "test-worker",
    history: tuple[Attempt, ...] = (),
    message: Mapping[str, Any] | None = None,
    after: TestedJob | None = None,
    state: Any = None,
    headers: Mapping[str, str] | None = None,
) -> Iterator[TestedJob]:
    """Call tasks directly inside: `current_job()` is the job that these facts describe. No server is needed.

    `message`: what an action finds in `current_job().message`, such as {"source": "web", "session": "s1"}. `after`: the
    job of an earlier `job_context()`, whose steps and positions of loops this one continues, as a retry does. `state`:
    what the task finds in `current_job().state`; no lifespan is entered. `headers`: what travelled with the job.

    >>> with job_context(attempt=2) as job:                              # doctest: +SKIP
    ...     import_orders(7)
    >>> job.reported                                                     # doctest: +SKIP
    (1.0, 'all orders')
    """
    job = TestedJob(
        id=id,
        queue=queue,
        target=task if isinstance(task, str) else task.target,
        attempt=attempt,
        history=history,
        worker=worker,
        name=name,
        tenant=tenant,
        tags=tags,
        retries_left=retries_left,
        message_headers=None if message is None else _headers(message),
        _headers=dict(headers or {}),
        _token=attempt,
        checkpoints={} if after is None else after.checkpoints,
        _state=state,
    )
    job._keeping = _InMemory(job)
    token = running.set(job)
    try:
        yield job
    finally:
        running.reset(token)


def _headers(message: Mapping[str, Any]) -> Headers:
    known = {_HEADERS.get(name, name): value for name, value in message.items()}
    for name in known:
        if name not in Headers.__struct_fields__:
            raise OptionError(f"message: unknown name {name!r:.80}{did_you_mean(name, Headers.__struct_fields__)}")
    return Headers(**known)
