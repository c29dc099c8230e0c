"""What a move did, for people and for programs."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, field

#: Rows or jobs that are listed one by one; the rest is counted.
LISTED = 100


class Left(Struct, frozen=True):
    """Something that was not moved, and why."""

    what: str
    name: str
    reason: str


class MoveReport(Struct, kw_only=True):
    """Counts of one run."""

    table: str
    app: str
    direction: str
    dry_run: bool = False
    #: By kind: pending, delayed, retrying and cron.
    moved: dict[str, int] = field(default_factory=dict)
    #: Rows that an earlier run moved and that are still marked.
    moved_before: int = 0
    left: list[Left] = field(default_factory=list)
    left_count: int = 0

    def add(self, kind: str) -> None:
        """One more was moved."""
        self.moved[kind] = self.moved.get(kind, 0) + 1

    def leave(self, what: str, name: str, reason: str) -> None:
        """One more was left where it is."""
        self.left_count += 1
        if len(self.left) < LISTED:
            self.left.append(Left(what, name, reason))

    @property
    def count(self) -> int:
        """How many were moved."""
        return sum(self.moved.values())

    def lines(self) -> list[str]:
        """For people."""
        verb = "would be moved" if self.dry_run else "moved"
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(self.moved.items()))
        lines = [f"{self.count:,} {verb} {self.direction}{f' ({kinds})' if kinds else ''}"]
        if self.moved_before:
            lines.append(f"{self.moved_before:,} were moved before")
        if self.left_count:
            lines.append(f"{self.left_count:,} left where they are:")
            lines += [f"  {one.what} {one.name}: {one.reason}" for one in self.left]
            if self.left_count > len(self.left):
                lines.append(f"  … and {self.left_count - len(self.left):,} more")
        return lines

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "table": self.table,
            "app": self.app,
            "direction": self.direction,
            "dry_run": self.dry_run,
            "moved": self.moved,
            "count": self.count,
            "moved_before": self.moved_before,
            "left": [{"what": one.what, "name": one.name, "reason": one.reason} for one in self.left],
            "left_count": self.left_count,
        }
