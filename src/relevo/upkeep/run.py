"""One run of upkeep: its time, its table of ages, and its findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from relevo.engine.leader import Leader, LeadLost
from relevo.store.keys import QueueKeys
from relevo.store.plan import Steps
from relevo.upkeep.report import Held, Purged, Uncertain, UpkeepReport
from relevo.upkeep.rules import Verdict, ages_of

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Entries of one queue or pool and state that one run acts on; bounds the run and its report.
MOST = 10_000
#: The state of a queue, pool or subscription that is no longer served or used.
UNUSED = "unused"


Part: TypeAlias = Steps[None]


class Entry(Struct, frozen=True):
    """An entry and its verdict."""

    id: str
    state: str
    verdict: Verdict
    bytes: int


class Run:
    """The findings of one run over queues, pools, or the bus."""

    def __init__(
        self, engine: Engine, now_ms: int, *, dry_run: bool, watch: Callable[[int], None] | None = None
    ) -> None:
        self.engine = engine
        self.now_ms = now_ms
        self.dry_run = dry_run
        self._watch = watch
        self.me = engine.new_id()
        self.ages = ages_of(engine.settings.purge_ages)
        #: Queues with outbox messages to relay.
        self.to_relay: dict[str, None] = {}
        #: Queues that live workers serve.
        self.served: frozenset[str] = frozenset()
        self.spared = 0
        self._purged: list[Purged] = []
        self._unknown: Counter[tuple[str, str, str]] = Counter()
        self._held: Counter[tuple[str, str, str, str]] = Counter()
        self._skipped: list[str] = []
        self._unfinished: dict[str, None] = {}

    def note(self, kind: str, name: str, entry: Entry) -> None:
        """Record an entry that was purged, or would be."""
        verdict = entry.verdict
        age_ms = self.now_ms - verdict.since_ms
        self._purged.append(
            Purged(
                kind=kind,
                name=name,
                id=entry.id,
                state=entry.state,
                what=verdict.then,
                reason=verdict.reason,
                age_ms=age_ms,
                limit_ms=verdict.limit_ms,
                bytes=entry.bytes,
            )
        )
        if self._watch is not None and not self.dry_run:
            self._watch(len(self._purged))

    def note_unknown(self, kind: str, name: str, state: str, count: int) -> None:
        """Count entries of unknown age or existence."""
        if count:
            self._unknown[kind, name, state] += count

    def note_held(self, kind: str, name: str, state: str, why: str) -> None:
        """Count an entry that is left alone for a reason."""
        self._held[kind, name, state, why] += 1

    def note_unfinished(self, name: str) -> None:
        """Record that there are more old entries than one run acts on."""
        self._unfinished[name] = None

    def leading(self, keys: QueueKeys, name: str, work: Part) -> Part:
        """Do this part while no other process does. A dry run changes nothing, so it does not lead."""
        if self.dry_run:
            yield from work
        elif not (yield from Leader(keys, self.me).leading(work)):
            self._skipped.append(name)

    def keep_lead(self, keys: QueueKeys) -> Part:
        """The heartbeat of a long part; LeadLost: another process took over."""
        if not self.dry_run and not (yield Leader(keys, self.me).keep()):
            raise LeadLost

    def report(self) -> UpkeepReport:
        """The report of this run."""
        unknown = tuple(Uncertain(*key, count) for key, count in self._unknown.items())
        held = tuple(Held(*key, count) for key, count in self._held.items())
        skipped, unfinished = tuple(self._skipped), tuple(self._unfinished)
        return UpkeepReport(
            purged=tuple(self._purged),
            dry_run=self.dry_run,
            unknown=unknown,
            spared=self.spared,
            skipped=skipped,
            unfinished=unfinished,
            held=held,
        )
