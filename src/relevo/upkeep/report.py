"""The report of upkeep: each entry with its reason, age and bytes; a dry run gives the same report."""

from __future__ import annotations

import logging

from msgspec import Struct

from relevo.text.durations import spoken

log = logging.getLogger("relevo.purge")


class Purged(Struct, frozen=True, kw_only=True):
    """An entry that was too old, or something that was no longer used."""

    #: queue, pool or subscription, and its name
    kind: str
    name: str
    #: Of a job or an entity; '': the whole queue or subscription.
    id: str
    #: The state it was in, orphaned, or unused.
    state: str
    #: The action: dead, cancelled, expired, recovered, removed, noted, or the state it moved to.
    what: str
    reason: str
    age_ms: int
    limit_ms: int
    bytes: int


class Uncertain(Struct, frozen=True):
    """The number of entries in a state that are left alone because their age or existence is unknown."""

    kind: str
    name: str
    state: str
    count: int

    @property
    def why(self) -> str:
        """What is unknown: the age of jobs, the existence of entities."""
        if self.kind == "pool":
            return "unknown whether they still exist"
        return "noted not long enough ago" if self.state == "orphaned" else "of unknown age"


class Held(Struct, frozen=True):
    """The number of entries in a state that are left alone for a reason."""

    kind: str
    name: str
    state: str
    #: What holds them back, such as `tenant acme is paused`; or why an unused queue is kept.
    why: str
    count: int


class PurgeGroup(Struct, frozen=True, kw_only=True):
    """Entries of one state purged for the same reason."""

    kind: str
    name: str
    state: str
    reason: str
    what: str
    count: int
    oldest_ms: int
    bytes: int

    @classmethod
    def of(cls, some: list[Purged]) -> PurgeGroup:
        """Of entries that were purged alike."""
        return cls(
            kind=some[0].kind,
            name=some[0].name,
            state=some[0].state,
            reason=some[0].reason,
            what=some[0].what,
            count=len(some),
            oldest_ms=max(one.age_ms for one in some),
            bytes=sum(one.bytes for one in some),
        )


class UpkeepReport(Struct, frozen=True, kw_only=True):
    """The result of a purge or a sweep, or of a dry run."""

    purged: tuple[Purged, ...]
    dry_run: bool
    #: Of unknown age or existence: counted and left alone.
    unknown: tuple[Uncertain, ...] = ()
    #: Entries that changed between search and action.
    spared: int = 0
    #: Queues and pools, or `bus`, that another process was working on: not searched, or not completely.
    skipped: tuple[str, ...] = ()
    #: Queues and pools with more old entries than one run acts on.
    unfinished: tuple[str, ...] = ()
    #: Left alone for a reason: held back by a pause or a breaker; unused, but not empty.
    held: tuple[Held, ...] = ()

    @property
    def count(self) -> int:
        """Number of entries that were purged, or would be."""
        return len(self.purged)

    @property
    def bytes(self) -> int:
        """Size of these entries in bytes."""
        return sum(one.bytes for one in self.purged)

    def groups(self) -> list[PurgeGroup]:
        """The entries by queue, state and reason, with count and oldest age."""
        found: dict[tuple[str, str, str, str, str], list[Purged]] = {}
        for one in self.purged:
            found.setdefault((one.kind, one.name, one.state, one.reason, one.what), []).append(one)
        return [PurgeGroup.of(some) for some in found.values()]


def log_report(report: UpkeepReport) -> None:
    """Log the report: count, age and reason."""
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
        log.info("%s %s: %d of state %s are left alone: %s", held.kind, held.name, held.count, held.state, held.why)
    for name in report.skipped:
        log.info("%s: another process is purging it", name)
