"""What running jobs print and how far they are: collected for one queue, and written to the server with its turns."""

from __future__ import annotations

import logging
from typing import Literal

from relevo.engine.job import write
from relevo.engine.turn import Note, note
from relevo.errors import OutOfMemory, StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.keys import QueueKeys
from relevo.worker.event_sender import EventSender
from relevo.worker.run import Run

log = logging.getLogger("relevo.worker")


class JobNotes:
    """The notes of one queue that are not written yet."""

    def __init__(self, keys: QueueKeys, queue: str, driver: AsyncDriver, events: EventSender, ttl_ms: int) -> None:
        self._keys = keys
        self._queue = queue
        self._driver = driver
        self._events = events
        self._ttl_ms = ttl_ms
        self._notes: list[Note] = []
        self._is_full = False

    def add(self, run: Run) -> None:
        """Note what a running job has printed and its progress, as far as that is new."""
        text = run.capture.text() if run.capture.changed else ""
        if self._events.is_on:
            self._events.noted(run, text)
        self._add(run, text, run.held.token)

    def add_end(self, run: Run, text: str, *, ended_well: bool) -> None:
        """The same for one that has just ended. `ended_well`: in the short way, so that its record is not shortened."""
        if self._events.is_on:
            self._events.noted(run, text)
        if not ended_well:
            self._add(run, text, "")
        elif run.result_ttl > 0:
            ms = max(1, round(run.result_ttl * 1000))
            if run.is_noted:
                self._notes.append(Note(run.held.id, "", "", "", ms))
            self._add(run, text, "", ms)
        elif run.is_noted:
            self._notes.append(Note(run.held.id, "", "", "", 0))

    def _add(self, run: Run, text: str, token: int | str, ms: int | Literal[""] = "") -> None:
        if run.is_asked:
            return  # the output of a request ends with it, as its record does
        if text:
            self._notes.append(Note(run.held.id, token, f"log:{run.context.attempt}", text, ms))
            run.is_noted = True
        progress = run.context._progress
        if progress is not None and progress != run.noted_progress:
            run.noted_progress = progress
            encoded = write({"fraction": progress[0], "message": progress[1]}).decode()
            self._notes.append(Note(run.held.id, token, "progress", encoded, ms))
            run.is_noted = True

    def take(self) -> list[Note]:
        """Take all of them, to write them."""
        notes, self._notes = self._notes, []
        return notes

    def put_back(self, notes: list[Note]) -> None:
        """They could not be written: keep them for the next turn."""
        self._notes[:0] = notes

    async def flush(self) -> None:
        """Write all of them now, in case no turn is due."""
        notes = self.take()
        if notes:
            try:
                await self.write(notes)
            except StoreError:
                self.put_back(notes)

    async def write(self, notes: list[Note]) -> None:
        """Write them; a full server loses them."""
        try:
            await self._driver.perform(note(self._keys, notes, self._ttl_ms), patience=0)
            self._is_full = False
        except OutOfMemory:
            # The output of jobs may be lost. Their outcomes may not, and settling them is what frees memory.
            if not self._is_full:
                log.warning("%s: the server is full; logs of jobs are dropped until it has room", self._queue)
            self._is_full = True
