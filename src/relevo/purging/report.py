"""What a purge tells: each entry with its reason, age and bytes, the same for a dry run and for one that acts."""

from __future__ import annotations

import logging

from msgspec import Struct

from relevo.model.durations import spoken

log = logging.getLogger("relevo.purge")


class Purged(Struct, frozen=True):
    """Something that was too old."""

    #: queue or pool, and its name
    kind: str
    name: str
    id: str
    #: The state it was in, or orphaned.
    state: str
    #: What became of it: dead, cancelled, expired, recovered, removed, noted, or the state it moved to.
    what: str
    reason: str
    age_ms: int
    limit_ms: int
    bytes: int


class Uncertain(Struct, frozen=True):
    """How many in a state are left alone because something about them is not known."""

    kind: str
    name: str
    state: str
    count: int

    @property
    def why(self) -> str:
        """What is not known: of jobs their age, of entities whether they exist."""
        if self.kind == "pool":
            return "nobody knows whether they still exist"
        return "noted not long enough ago" if self.state == "orphaned" else "of unknown age"


class Held(Struct, frozen=True):
    """How many jobs in a state are left alone because a pause or a breaker holds them back."""

    #: Of the queue.
    name: str
    state: str
    #: What holds them back: `group acme is paused`.
    why: str
    count: int


class PurgeGroup(Struct, frozen=True):
    """What was too old for the same reason."""

    kind: str
    name: str
    state: str
    reason: str
    what: str
    count: int
    oldest_ms: int
    bytes: int


class PurgeReport(Struct, frozen=True):
    """What a purge did, or would do."""

    purged: tuple[Purged, ...]
    dry_run: bool
    #: Of unknown age, or nobody says whether they exist: counted, and left alone.
    unknown: tuple[Uncertain, ...] = ()
    #: Something happened to them between finding and acting.
    spared: int = 0
    #: Queues and pools that somebody else was purging: not looked at, or not to the end.
    skipped: tuple[str, ...] = ()
    #: Those with more of it than one run acts on.
    unfinished: tuple[str, ...] = ()
    #: Jobs that only wait for the end of a pause or a breaker: counted, and left alone.
    held: tuple[Held, ...] = ()

    @property
    def count(self) -> int:
        """How many were purged, or would be."""
        return len(self.purged)

    @property
    def bytes(self) -> int:
        """How many bytes they take."""
        return sum(one.bytes for one in self.purged)

    def groups(self) -> list[PurgeGroup]:
        """The same by queue, state and reason: how many, and the oldest."""
        found: dict[tuple[str, str, str, str, str], list[Purged]] = {}
        for one in self.purged:
            found.setdefault((one.kind, one.name, one.state, one.reason, one.what), []).append(one)
        return [
            PurgeGroup(*key, len(some), max(one.age_ms for one in some), sum(one.bytes for one in some))
            for key, some in found.items()
        ]


def tell(report: PurgeReport) -> None:
    """Log it: count, age and reason."""
    verb = "would be" if report.dry_run else "are"
    for one in report.groups():
        log.info(
            "%s %s: %d of state %s %s %s: %s, the oldest for %s, %d bytes",
            *(one.kind, one.name, one.count, one.state, verb, one.what, one.reason),
            spoken(one.oldest_ms // 1000),
            one.bytes,
        )
    for some in report.unknown:
        named = (some.kind, some.name, some.count, some.state, some.why)
        log.info("%s %s: %d of state %s are left alone: %s", *named)
    for held in report.held:
        log.info("queue %s: %d of state %s are left alone: %s", held.name, held.count, held.state, held.why)
    for name in report.skipped:
        log.info("%s: somebody else is purging it", name)
