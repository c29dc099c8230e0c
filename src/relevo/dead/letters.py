"""`app.dead`: lists, retries, edits, discards, exports and imports the dead letters of an app."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

from relevo.dead import replay_store as replays
from relevo.dead.choosing import Watch, check_limit, checked, named
from relevo.dead.deeds import discarding, retrying
from relevo.dead.editing import editing
from relevo.dead.error_groups import ErrorGroup, grouping
from relevo.dead.export import Export, Imported, loading
from relevo.dead.paging import LOOKED_AT, DeadPage, DeadRow, paging
from relevo.dead.replay import SILENT_MS, Replay
from relevo.dead.replaying import Leading, Watcher, find, stopping
from relevo.dead.restoring import restoring
from relevo.dead.wanted import Filters
from relevo.engine import finding
from relevo.engine.handle import Job, JobInfo
from relevo.engine.ids import looks_like_id
from relevo.queues.queue import check_page
from relevo.store.plan import Call, Steps
from relevo.text.durations import Duration, milliseconds

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


Rows: TypeAlias = list[DeadRow]
ErrorGroups: TypeAlias = list[ErrorGroup]
Replays: TypeAlias = list[Replay]
Args: TypeAlias = list[Any] | tuple[Any, ...]

#: How long canaries may take: longer than most jobs, retries included, and shorter than a shift.
PATIENCE = "30m"
#: Seconds that a replay waits for a server that is away: after that, another process may go on with it.
OUTLASTS = SILENT_MS / 1000
INTERRUPTED = "its process was interrupted"


class DeadLetters:
    """The dead letters of an app. Given by `app.dead`.

    Filters choose dead letters, which must match all that are given: `queue`, `task`, `reason`, `came_from` (the
    state), `tenant`, `error_group` (a fingerprint), `permanent`; `error` and `text` match a part; `since` and `until`
    are datetimes, or how long ago ("2h"). To act on all of them, or on all of a queue, pass `all=True`.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    # looking
    def list(self, *, limit: int = 50, offset: int = 0, **filters: Unpack[Filters]) -> Rows:
        """Dead letters, newest first: as many as there are, up to `limit`.

        Queue, time and error group are found by an index. With any other filter, letters are read until enough match:
        all of them if few do, which takes some seconds per 100,000. `page` reads a bounded number per call.
        """
        return self._engine.run(paging(self._engine, filters, limit=limit, offset=offset)).rows

    async def alist(self, *, limit: int = 50, offset: int = 0, **filters: Unpack[Filters]) -> Rows:
        """`list` for async code."""
        return (await self._engine.arun(paging(self._engine, filters, limit=limit, offset=offset))).rows

    def page(self, *, limit: int = 50, after: str = "", **filters: Unpack[Filters]) -> DeadPage:
        """A page of dead letters, newest first; pass its `after` for the next page. That of the last page is ''.

        Queue, time and error group are found by an index. With any other filter a bounded number of letters is read per
        call, so a page may hold fewer than its limit, or none, although there are more.
        """
        return self._engine.run(paging(self._engine, filters, limit=limit, after=after, looks=LOOKED_AT))

    async def apage(self, *, limit: int = 50, after: str = "", **filters: Unpack[Filters]) -> DeadPage:
        """`page` for async code."""
        return await self._engine.arun(paging(self._engine, filters, limit=limit, after=after, looks=LOOKED_AT))

    def show(self, id: str, *, queue: str | None = None) -> JobInfo:
        """One dead letter with its history."""
        job: Job[Any] = self._engine.run(self._find(id, queue))
        return job.info()

    async def ashow(self, id: str, *, queue: str | None = None) -> JobInfo:
        """`show` for async code."""
        job: Job[Any] = await self._engine.arun(self._find(id, queue))
        return await job.ainfo()

    def _find(self, id: str, queue: str | None) -> Steps[Job[Any]]:
        """An event has one id in the queues of all subscribers: this finds the dead one."""
        if looks_like_id(id):
            for letter in (yield from named(self._engine, checked([id]), queue)):
                return Job(self._engine, id, letter.queue)
        return (yield from finding.job(self._engine, id, queue))

    def error_groups(
        self, queue: str | None = None, *, permanent: bool | None = None, limit: int = 50, offset: int = 0
    ) -> ErrorGroups:
        """Error groups, the largest first: dead letters of the same error, on the same path through the code.

        `permanent`: only those that would fail again as they are, or (False) that may succeed once the cause is fixed.
        """
        return self._engine.run(grouping(self._engine, queue, permanent, limit, offset))

    async def aerror_groups(
        self, queue: str | None = None, *, permanent: bool | None = None, limit: int = 50, offset: int = 0
    ) -> ErrorGroups:
        """`error_groups` for async code."""
        return await self._engine.arun(grouping(self._engine, queue, permanent, limit, offset))

    # acting
    def retry(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        sign: bool = False,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Retry dead letters: by id, by filters, or `all`. Each runs once however often this is called.

        Returns the number re-enqueued. `watch(n)` is called after each batch, so that progress is known if an error
        interrupts it. `replay` does the same at a rate, behind canaries, and can be resumed. `sign`: sign those without
        a good signature; use it if you know who made them.
        """
        return self._engine.run(retrying(self._engine, ids, all, limit, sign, watch, filters))

    async def aretry(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        sign: bool = False,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """`retry` for async code."""
        return await self._engine.arun(retrying(self._engine, ids, all, limit, sign, watch, filters))

    def discard(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        undo: bool = True,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Discard dead letters: by id, by filters, or `all`. Returns how many there were.

        They can be restored for ten minutes; with `undo=False` they are removed at once, to make room on the server.
        `watch(n)` is called after each batch.
        """
        return self._engine.run(discarding(self._engine, ids, all, limit, undo, watch, filters))

    async def adiscard(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        undo: bool = True,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """`discard` for async code."""
        return await self._engine.arun(discarding(self._engine, ids, all, limit, undo, watch, filters))

    def restore(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """Restore dead letters that were discarded in the last ten minutes: by id, by filters, or `all`. Returns how
        many.

        `watch(n)` is called after each batch.
        """
        return self._engine.run(restoring(self._engine, ids, all, limit, watch, filters))

    async def arestore(
        self,
        ids: Iterable[str] | None = None,
        *,
        all: bool = False,
        limit: int | None = None,
        watch: Watch | None = None,
        **filters: Unpack[Filters],
    ) -> int:
        """`restore` for async code."""
        return await self._engine.arun(restoring(self._engine, ids, all, limit, watch, filters))

    def edit(
        self,
        id: str,
        *,
        args: Args | None = None,
        kwargs: dict[str, Any] | None = None,
        queue: str | None = None,
    ) -> Job[Any]:
        """Run a dead letter with other arguments, as a new job; each of the two refers to the other. The letter is no
        longer listed. The arguments must fit the task, if this app knows it.
        """
        return self._engine.run(editing(self._engine, id, args, kwargs, queue))

    async def aedit(
        self,
        id: str,
        *,
        args: Args | None = None,
        kwargs: dict[str, Any] | None = None,
        queue: str | None = None,
    ) -> Job[Any]:
        """`edit` for async code."""
        return await self._engine.arun(editing(self._engine, id, args, kwargs, queue))

    # replays
    def replay(
        self,
        *,
        all: bool = False,
        rate: str | float | None = None,
        canary: bool = False,
        patience: Duration = PATIENCE,
        who: str = "",
        watch: Watcher | None = None,
        **filters: Unpack[Filters],
    ) -> Replay:
        """Retry dead letters, by filters or `all`, as a tracked run, the oldest first; returns how it ended.

        At a `rate` ("100/m"); with `canary`, one, then ten, then the rest, and no more if one of these eleven fails or
        does not end within `patience`. Other processes can follow it (`runs`) and `stop` it; if this process dies,
        `resume` continues it. `watch` is called after each step.
        """
        leading = self._leading(patience)
        self._engine.run(leading.begin(filters, all, rate, canary, who))
        return self._lead(leading, watch)

    async def areplay(
        self,
        *,
        all: bool = False,
        rate: str | float | None = None,
        canary: bool = False,
        patience: Duration = PATIENCE,
        who: str = "",
        watch: Watcher | None = None,
        **filters: Unpack[Filters],
    ) -> Replay:
        """`replay` for async code."""
        leading = self._leading(patience)
        await self._engine.arun(leading.begin(filters, all, rate, canary, who))
        return await self._alead(leading, watch)

    def resume(self, run: str, *, patience: Duration = PATIENCE, who: str = "", watch: Watcher | None = None) -> Replay:
        """Continue a replay that was stopped, or whose process died."""
        leading = self._leading(patience)
        self._engine.run(leading.resume(run, who))
        return self._lead(leading, watch)

    async def aresume(
        self, run: str, *, patience: Duration = PATIENCE, who: str = "", watch: Watcher | None = None
    ) -> Replay:
        """`resume` for async code."""
        leading = self._leading(patience)
        await self._engine.arun(leading.resume(run, who))
        return await self._alead(leading, watch)

    def _leading(self, patience: Duration) -> Leading:
        return Leading(self._engine, milliseconds(patience, what="patience"))

    def _lead(self, leading: Leading, watch: Watcher | None) -> Replay:
        try:
            return self._engine.client.run(leading.to_the_end(watch), patience=OUTLASTS)
        except KeyboardInterrupt:
            self._engine.run(leading.let_go(INTERRUPTED))
            raise

    async def _alead(self, leading: Leading, watch: Watcher | None) -> Replay:
        try:
            return await self._engine.client.arun(leading.to_the_end(watch), patience=OUTLASTS)
        except asyncio.CancelledError:
            await self._engine.arun(leading.let_go(INTERRUPTED))
            raise

    def runs(self, *, limit: int = 50, offset: int = 0) -> Replays:
        """Replays of the last week, the most recently active first."""
        return self._engine.run(self._runs(limit, offset))

    async def aruns(self, *, limit: int = 50, offset: int = 0) -> Replays:
        """`runs` for async code."""
        return await self._engine.arun(self._runs(limit, offset))

    def _runs(self, limit: int, offset: int) -> Generator[Call[Any], Any, Replays]:
        check_limit(limit, replays.MOST)
        check_page(offset, limit)
        return replays.newest(self._engine.own_keys, limit, offset)

    def run(self, run: str) -> Replay:
        """The state of one replay."""
        return self._engine.run(find(self._engine, run))

    async def arun(self, run: str) -> Replay:
        """`run` for async code."""
        return await self._engine.arun(find(self._engine, run))

    def stop(self, run: str) -> bool:
        """Ask the process that leads a replay to stop it after its next step; False if none does."""
        return self._engine.run(stopping(self._engine, run))

    async def astop(self, run: str) -> bool:
        """`stop` for async code."""
        return await self._engine.arun(stopping(self._engine, run))

    # elsewhere
    def export(self, **filters: Unpack[Filters]) -> Iterator[bytes]:
        """Matching dead letters as lines of JSON, the oldest first. They are not removed."""
        lines = Export(self._engine, filters)
        while (line := self._engine.run(lines.next())) is not None:
            yield line

    async def aexport(self, **filters: Unpack[Filters]) -> AsyncIterator[bytes]:
        """`export` for async code."""
        lines = Export(self._engine, filters)
        while (line := await self._engine.arun(lines.next())) is not None:
            yield line

    def load(self, lines: Iterable[bytes | str], *, watch: Watch | None = None) -> Imported:
        """Import dead letters that `export` wrote, here or elsewhere. Existing ones stay as they are.

        Returns the lines that are no letters, with what is wrong with them; the others are stored. `watch(n)` is called
        with how many are new so far.
        """
        return self._engine.run(loading(self._engine, lines, watch))

    async def aload(self, lines: Iterable[bytes | str], *, watch: Watch | None = None) -> Imported:
        """`load` for async code."""
        return await self._engine.arun(loading(self._engine, lines, watch))
