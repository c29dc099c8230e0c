"""One run of the purge: its time, its table, and what it found so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec import Struct

from relevo.errors import StoreError
from relevo.model.purging import Verdict, ages_of
from relevo.pools import Pool, StillThere
from relevo.purging.report import Held, Purged, PurgeReport, Uncertain
from relevo.store import purging as store
from relevo.store.keys import QueueKeys
from relevo.store.locks import unlock
from relevo.store.plan import Call
from relevo.store.pools import Entity

if TYPE_CHECKING:
    from relevo.app import Relevo

#: Entries of one queue or pool and state that one run acts on: a run must end, and so must its report.
MOST = 10_000


class Ask(Struct, frozen=True):
    """A question to somebody else's code: does this entity still exist?"""

    pool: Pool
    entity: Entity

    @property
    def hook(self) -> StillThere:
        """Who is asked."""
        assert self.pool.still_there is not None
        return self.pool.still_there


Part: TypeAlias = Generator[Call[Any] | Ask, Any, None]


class Entry(Struct, frozen=True):
    """An entry and its verdict."""

    id: str
    state: str
    verdict: Verdict
    bytes: int


class LockLost(Exception):
    """Somebody else purges by now: whoever stood still for a minute must not go on."""


class Run:
    """What one run over some queues and pools found so far."""

    def __init__(self, app: Relevo, now_ms: int, *, dry_run: bool, watch: Callable[[int], None] | None = None) -> None:
        self.app = app
        self.now_ms = now_ms
        self.dry_run = dry_run
        self._watch = watch
        self.me = app.new_id()
        self.ages = ages_of(app.settings.purge_ages)
        #: Queues from which something is to be told to others.
        self.to_relay: dict[str, None] = {}
        #: Queues that living workers serve.
        self.served: frozenset[str] = frozenset()
        self.spared = 0
        self._purged: list[Purged] = []
        self._unknown: Counter[tuple[str, str, str]] = Counter()
        self._held: Counter[tuple[str, str, str]] = Counter()
        self._skipped: list[str] = []
        self._unfinished: dict[str, None] = {}

    def note(self, kind: str, name: str, entry: Entry) -> None:
        """It was done, or would be."""
        verdict = entry.verdict
        age_ms = self.now_ms - verdict.since_ms
        said = (verdict.then, verdict.reason, age_ms, verdict.limit_ms, entry.bytes)
        self._purged.append(Purged(kind, name, entry.id, entry.state, *said))
        if self._watch is not None and not self.dry_run:
            self._watch(len(self._purged))

    def note_unknown(self, kind: str, name: str, state: str, count: int) -> None:
        """Nobody knows how long they have been there."""
        if count:
            self._unknown[kind, name, state] += count

    def note_held_back(self, name: str, state: str, why: str) -> None:
        """A job only waits for the end of a pause or a breaker."""
        self._held[name, state, why] += 1

    def note_unfinished(self, name: str) -> None:
        """There is more than one run acts on."""
        self._unfinished[name] = None

    def guarded(self, keys: QueueKeys, name: str, work: Part) -> Part:
        """Only one purge of a queue at a time. A dry run disturbs nobody and is not disturbed."""
        if self.dry_run:
            yield from work
            return
        if not (yield store.lock(keys, self.me)):
            work.close()
            self._skipped.append(name)
            return
        try:
            yield from work
        except LockLost:
            self._skipped.append(name)
        except StoreError:  # nothing could be said to the server: the lock ends by itself
            raise
        except BaseException:  # somebody stops us: the next one need not wait for that
            yield unlock(keys, self.me)
            raise
        yield unlock(keys, self.me)

    def report(self) -> PurgeReport:
        """All of it."""
        unknown = tuple(Uncertain(*key, count) for key, count in self._unknown.items())
        held = tuple(Held(*key, count) for key, count in self._held.items())
        skipped, unfinished = tuple(self._skipped), tuple(self._unfinished)
        return PurgeReport(tuple(self._purged), self.dry_run, unknown, self.spared, skipped, unfinished, held)
