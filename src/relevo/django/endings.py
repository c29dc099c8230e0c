"""Announces the end of Django's tasks that could not do so themselves: by a time limit, a cancel, or a dead worker."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from relevo.django.connections import OwnThread
from relevo.django.site_task import SiteTask
from relevo.engine import finding
from relevo.engine.engine import Engine
from relevo.engine.observers import Conclusion, OutcomeObserver
from relevo.engine.outcome import End, Failed, Raised
from relevo.engine.verdicts import Verdict
from relevo.errors import RelevoError

log = logging.getLogger("relevo.django")


class EndObserver(OutcomeObserver):
    """Sends `task_finished` for tasks of one queue, when the server knows their end."""

    def __init__(self, engine: Engine, queue: str) -> None:
        self._engine = engine
        self._queue = queue
        self._ended: list[tuple[str, Any]] = []
        self._in_turn = 0
        self._announcing: set[asyncio.Task[None]] = set()

    def ended(self, conclusion: Conclusion) -> None:
        """Note it, if no code of the task saw this end."""
        envelope = conclusion.held.envelope
        if envelope is None or not isinstance(conclusion.outcome, End) or _was_seen(conclusion):
            return
        task = self._engine.tasks.get(envelope.target)
        if isinstance(task, SiteTask) and task.of_django is not None:
            self._ended.append((conclusion.held.id, task.of_django))

    def before_turn(self) -> None:
        """What has ended so far is about to be settled."""
        self._in_turn = len(self._ended)

    def after_turn(self) -> None:
        """It is settled: announce it."""
        settled, self._ended = self._ended[: self._in_turn], self._ended[self._in_turn :]
        self._in_turn = 0
        for id, task in settled:
            announcing = asyncio.create_task(self._announce(id, task), name=f"relevo end of {id}")
            self._announcing.add(announcing)
            announcing.add_done_callback(self._announcing.discard)

    async def _announce(self, id: str, task: Any) -> None:
        from relevo.django.task_result import result_of
        from relevo.django.tasks_api import signals

        try:
            info = await (await self._engine.arun(finding.job(self._engine, id, self._queue))).ainfo()
            async with OwnThread():
                result = result_of(info, task.backend)
                await signals.task_finished.asend(sender=type(task.get_backend()), task_result=result)
        except (RelevoError, LookupError) as error:
            log.warning("the end of task %s could not be announced: %s", id, error)
        except Exception:
            log.exception("a receiver of task_finished failed for task %s", id)


def _was_seen(conclusion: Conclusion) -> bool:
    """Whether the task ran to its end: then its runner has sent the signal."""
    match conclusion.happened:
        case Raised(error):
            return not isinstance(error, Verdict)
        case Failed():
            return True
        case _:
            return False
