"""Dead letters: jobs that were given up, with their whole story."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from relevo.errors import OptionError
from relevo.handle import Job, JobInfo
from relevo.model.ids import looks_like_id
from relevo.model.job import State
from relevo.queue import JobRow, check_page, row_of
from relevo.store import jobs, queues
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo


Rows: TypeAlias = "list[DeadRow]"
Names: TypeAlias = list[str]
Page: TypeAlias = list[queues.Listed]


class DeadRow(JobRow, frozen=True, kw_only=True):
    """A dead letter in a listing."""

    queue: str = ""


class DeadLetters:
    """The dead letters of an app. Given by `app.dead`."""

    def __init__(self, app: Relevo) -> None:
        self._app = app

    def list(self, *, queue: str | None = None, error: str | None = None, limit: int = 50, offset: int = 0) -> Rows:
        """Dead letters, newest first; of one queue or of all, whose error holds a text."""
        return self._app.run(self._list(queue, error, limit, offset))

    async def alist(
        self, *, queue: str | None = None, error: str | None = None, limit: int = 50, offset: int = 0
    ) -> Rows:
        """`list` for async code."""
        return await self._app.arun(self._list(queue, error, limit, offset))

    def show(self, id: str, *, queue: str | None = None) -> JobInfo:
        """One dead letter with its story."""
        job: Job[Any] = self._app.run(self._find(id, queue))
        return job.info()

    def _find(self, id: str, queue: str | None) -> Generator[Call[Any], Any, Job[Any]]:
        """An event has one id in the queues of all who subscribed: the dead one is meant."""
        for name in (yield from self._queues(queue)):
            seen: jobs.Seen = yield jobs.look(self._app.keys_of(name), id)
            if seen.state is State.DEAD:
                return Job(self._app, id, name)
        return (yield from self._app.find_job(id, queue))

    def retry(self, ids: Iterable[str] | None = None, *, queue: str | None = None, all: bool = False) -> int:
        """Run dead letters again: some, or `all` (of a queue). Each runs once however often this is asked."""
        return self._app.run(self._each(ids, queue, all, discard=False))

    async def aretry(self, ids: Iterable[str] | None = None, *, queue: str | None = None, all: bool = False) -> int:
        """`retry` for async code."""
        return await self._app.arun(self._each(ids, queue, all, discard=False))

    def discard(self, ids: Iterable[str] | None = None, *, queue: str | None = None, all: bool = False) -> int:
        """Forget dead letters: some, or `all` (of a queue). How many there were."""
        return self._app.run(self._each(ids, queue, all, discard=True))

    async def adiscard(self, ids: Iterable[str] | None = None, *, queue: str | None = None, all: bool = False) -> int:
        """`discard` for async code."""
        return await self._app.arun(self._each(ids, queue, all, discard=True))

    def _queues(self, queue: str | None) -> Generator[Call[Any], Any, Names]:
        if queue is not None:
            return [queue]
        names: Names = yield from self._app.listed_queues()
        return names

    def _list(self, queue: str | None, error: str | None, limit: int, offset: int) -> Generator[Call[Any], Any, Rows]:
        check_page(offset, limit)
        if error is not None and not isinstance(error, str):
            raise OptionError(f"error: a part of the error's text is needed, found {error!r:.80}")
        found: Rows = []
        for name in (yield from self._queues(queue)):
            start = 0
            kept: set[str] = set()
            while len(kept) < offset + limit:
                rows: Page = yield queues.page(self._app.keys_of(name), "dead", start, 100)
                start += len(rows)
                for one in rows:
                    row = _dead_row(one, name)
                    if one.id in kept:  # a new letter came in front and moved this one to the next page
                        continue
                    if error is None or error.lower() in f"{row.reason} {row.error}".lower():
                        found.append(row)
                        kept.add(one.id)
                if not rows:
                    break
        found.sort(key=lambda row: row.ended_ms or 0, reverse=True)
        return found[offset : offset + limit]

    def _each(
        self, ids: Iterable[str] | None, queue: str | None, all: bool, *, discard: bool
    ) -> Generator[Call[Any], Any, int]:
        if (ids is None) == (not all):
            raise OptionError("name the dead letters by ids=[…], or say all=True; not both")
        ids = None if ids is None else _checked(ids)
        names = yield from self._queues(queue)
        done = 0
        if ids is not None:
            for id in ids:
                for name in names:
                    done += yield from self._one(name, id, discard)
            return done
        for name in names:
            while True:
                rows: Page = yield queues.page(self._app.keys_of(name), "dead", 0, 200)
                changed = 0
                for row in rows:
                    changed += yield from self._one(name, row.id, discard)
                done += changed
                if not changed:
                    break
        return done

    def _one(self, queue: str, id: str, discard: bool) -> Generator[Call[Any], Any, int]:
        keys = self._app.keys_of(queue)
        seen: jobs.Seen = yield jobs.look(keys, id)
        if seen.state is not State.DEAD:
            return 0
        if discard:
            gone, posted = yield jobs.discard(keys, [id])
            if posted:
                yield from self._app.relay(queue)
            return int(gone)
        if jobs.readable(seen.body) is None:  # cannot run again: it stays where it is
            return 0
        return int((yield from Job(self._app, id, queue)._retry()) > 0)


def _checked(ids: Iterable[str]) -> Names:
    found = [] if isinstance(ids, str) or not isinstance(ids, Iterable) else [*ids]
    strange = [id for id in found if not looks_like_id(id)]
    if strange:
        raise OptionError(f"ids: {strange[0]!r:.60} is not the id of a job: those have 20 letters and digits")
    if not found and ids != []:
        raise OptionError(f"ids: a list of ids is needed, found {ids!r:.80}")
    return found


def _dead_row(one: queues.Listed, queue: str) -> DeadRow:
    row = row_of(one)
    return DeadRow(**{name: getattr(row, name) for name in row.__struct_fields__}, queue=queue)
