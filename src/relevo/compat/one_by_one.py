"""A loop of one's own over the tasks of IFDB: `get_next_task`, and `execute_task` for what that gave.

    while (task := get_next_task()) is not None:
        execute_task(task)

`Worker` needs neither. They are for callers that decide before each task, and for debuggers.
"""

from __future__ import annotations

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, cast

from relevo.compat.current import current_app
from relevo.compat.failure_handlers import handler_in
from relevo.engine import context
from relevo.engine.engine import Engine
from relevo.engine.ids import made_ms
from relevo.engine.outbox import Taken, deliver, take_outbox
from relevo.engine.outcome import Finish, Happened, Reroute, Returned, decide
from relevo.engine.turn import Note, note
from relevo.errors import StoreError
from relevo.queues.queue import Lease
from relevo.schedules.firing import fire_due
from relevo.store.plan import Steps
from relevo.worker import capture
from relevo.worker.attempt_record import NOTHING, encoded
from relevo.worker.happened import happened_in
from relevo.worker.intake import Intake
from relevo.worker.run import Encoded, Origin, Run
from relevo.worker.soft_limits import call

__all__ = ["TakenTask", "execute_task", "get_next_task"]

#: What a task printed is kept for so long while it waits for its next attempt.
LOG_MS = 7 * 86_400_000


class TakenTask(dict[str, Any]):
    """A task that this process has taken, as the dict that `get_next_task` always gave.

    No other process gets it while its lease lasts; `execute_task` renews that.
    """

    def __init__(self, lease: Lease, about: dict[str, Any]) -> None:
        super().__init__(about)
        self.lease = lease


def get_next_task() -> TakenTask | None:
    """Take the next task that is due, the most urgent first; None if there is none. Cron tasks that are due are queued.

    Give it to `execute_task`; one that is not executed goes to others when its lease ends.
    """
    app = current_app()
    queue = app.settings.queue
    app.engine.run(_errands(app.engine, queue))
    for lease in app.queue(queue).take(1, worker=f"{socket.gethostname()}-{os.getpid()}"):
        return TakenTask(lease, _about(app.engine, queue, lease))
    return None


def execute_task(task_data: TakenTask) -> bool:
    """Run a task here and now, and settle it: True if it succeeded, False if it failed, to be tried again or not."""
    lease = task_data.lease
    engine, queue = lease._queue._engine, lease._queue.name
    run = Intake(engine, lease._held.worker).run_of(cast("Origin", _Here(engine, queue)), lease._held, _now_ms(engine))
    if not isinstance(run, Run):  # it may not run here
        _settle(lease, run, NOTHING)
        return False
    with _renewed(lease):
        try:
            happened, result = _attempt(run)
        except KeyboardInterrupt:
            lease.give_back()
            raise
        is_ours = _settle(lease, happened, result)
    if is_ours and run.capture.changed:
        written = Note(run.held.id, "", f"log:{run.context.attempt}", run.capture.text())
        engine.run(note(engine.keys_of(queue), [written], LOG_MS))
    return is_ours and isinstance(happened, Returned)


class _Here:
    """The origin of a run without a worker."""

    number = 0

    def __init__(self, engine: Engine, queue: str) -> None:
        self._engine = engine
        self.queue = queue

    def now_ms(self) -> int:
        return _now_ms(self._engine)


def _now_ms(engine: Engine) -> int:
    return engine.run(engine.now_ms())


def _attempt(run: Run) -> tuple[Happened, Encoded]:
    job, output = context.running.set(run.context), capture.current.set(run.capture)
    try:
        with capture.Installed(forward=True):
            result = call(run.task.func, run.args, run.kwargs, run.task.options.soft_timeout)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001  # SystemExit and its like are failures of a task
        return happened_in(run, error), NOTHING
    finally:
        context.running.reset(job)
        capture.current.reset(output)
    return Returned(), encoded(run, result, run.task.engine.settings.max_payload)


def _settle(lease: Lease, happened: Happened, result: Encoded) -> bool:
    """Tell the server what became of it; False: the lease had ended."""
    queue, held = lease._queue, lease._held
    policy, _ = queue._engine.terms_of(held.envelope, queue.name)
    outcome = decide(held.story, happened, policy, _now_ms(queue._engine), random.random())
    if isinstance(outcome, Reroute) and outcome.otherwise is not None:  # there may be no worker that would take it
        outcome = outcome.otherwise
    return queue._engine.run(
        queue._settle(held, outcome, lease._limits, result.result if isinstance(outcome, Finish) else b"")
    )


@contextmanager
def _renewed(lease: Lease) -> Iterator[None]:
    """The lease is renewed while the block runs, by a thread."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease._limits.lease_ms / 3000):
            try:
                if not lease.renew():
                    return  # lost: what this attempt does is not counted
            except StoreError:
                continue

    thread = threading.Thread(target=renew, name=f"relevo lease of {lease.id}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _errands(engine: Engine, queue: str) -> Steps[None]:
    """What workers do besides: queue the cron tasks that are due, and tell others what has ended."""
    keys, finished = engine.keys_of(queue), list[str]()
    while True:
        taken: Taken = yield take_outbox(keys, finished, ticks=True)
        if not taken.ids:
            return
        pairs = list(zip(taken.ids, taken.texts, strict=True))
        letters = [(id, text) for id, text in pairs if not id.startswith("@")]
        finished, _ = yield from deliver(engine.keys_of, keys, letters, engine.settings.dead_max)
        for id, text in pairs:
            if id.startswith("@"):
                yield from fire_due(engine, queue, id[1:], text, taken.now_ms)


def _about(engine: Engine, queue: str, lease: Lease) -> dict[str, Any]:
    """What the record of a task was, with its names."""
    envelope, held = lease._envelope, lease._held
    policy, _ = engine.terms_of(envelope, queue)
    module, _, function = envelope.target.rpartition(":" if ":" in envelope.target else ".")
    onfail_module, _, onfail_function = handler_in(envelope.tags).partition(":")
    made = made_ms(held.id)
    return {
        "id": held.id,
        "name": envelope.name or envelope.target.replace(":", "."),
        "module": module,
        "function": function,
        "args": lease.args,
        "kwargs": lease.kwargs,
        "priority": envelope.priority,
        "retries_left": policy.retries - held.story.spent,
        "enqueue_time": _iso(made),
        "scheduled_time": _iso(made + envelope.later_ms) if envelope.later_ms else None,
        "start_time": _iso(held.since_ms),
        "onfail_module": onfail_module or None,
        "onfail_function": onfail_function or None,
        "pending": True,
        "success": False,
        "fail": False,
        "log": "",
    }


def _iso(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat()
