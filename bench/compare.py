"""Two commits measured in turns, so that what the machine does meanwhile happens to both."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from bench.figures import FIGURES, Figure, shown
from bench.measures import MEASURES
from bench.measures.measure import Measure, Result
from bench.processes import ProductFailed
from bench.products import Product
from bench.progress import say
from bench.report import columns
from bench.rig import Rig
from bench.server import Server
from bench.trees import WORKING, resolve, source_of

DEFAULT = ("one", "bulk", "concurrent", "drain", "drain_results", "idle", "rtt")
#: A single turn is shorter than a run that stands alone: many short ones see more of the noise than a few long ones.
SHARE = 0.3
#: How sure the spread is to hold the true median, if there are turns enough.
SURE = 0.9

#: Sizes are chosen, and the p99 of a short turn is one job.
_LEFT_OUT = ("backlog.long", "delayed.n", "idle.p99_ms", "rtt.p99_ms")
#: What is compared: what the tables show, and more of what a change of code can move.
COMPARED = (
    *(figure for key, figure in FIGURES.items() if key not in _LEFT_OUT and not key.startswith("floor.")),
    Figure("drain_results.server_us_per_job", "with results, server time per job", "µs", False),
    Figure("drain_results.worker_us_per_job", "with results, worker time per job", "µs", False),
    Figure("idle.p90_ms", "idle start, p90", "ms", False),
    Figure("rtt.p90_ms", "enqueue to result, p90", "ms", False),
    Figure("backlog.long_jobs_per_s", "drain of a long queue", "jobs/s", True),
)

#: The measures of the old and of the new side in one round.
Turn = tuple[dict[str, Result], dict[str, Result]]


class Change(NamedTuple):
    """A figure of both sides, and the ratio new/old of each turn."""

    figure: Figure
    old: float
    new: float
    ratio: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """In a word."""
        if self.low <= 1 <= self.high:
            return "no difference seen"
        return "better" if (self.ratio > 1) == self.figure.more_is_better else "WORSE"


def compare(
    commits: Sequence[str],
    measures: Sequence[Measure],
    product: Product,
    binary: str | None,
    *,
    rounds: int,
    scale: float,
) -> int:
    """Measure both and print what changed; the exit code."""
    old, new = commits[0], commits[1] if len(commits) == 2 else WORKING
    named = {side: side if side == WORKING else f"{side} ({resolve(side)[:8]})" for side in (old, new)}
    measures = measures or [MEASURES[name] for name in DEFAULT]
    say(f"{product.name}: {named[old]} and {named[new]} in turns, {rounds} rounds")
    found = _turns(old, new, measures, product, binary, rounds=rounds, scale=scale * SHARE)
    rows = [
        [
            change.figure.label,
            shown(change.old),
            shown(change.new),
            f"{change.ratio:.3f}",
            f"{change.low:.3f} – {change.high:.3f}",
            change.verdict,
        ]
        for change in changes(found)
    ]
    print(columns(["", named[old], named[new], "new/old", "spread", ""], rows))
    if 1 - 2 / 2**rounds < SURE:
        say(f"{rounds} rounds are few: what looks like a difference may be chance")
    return 0


def _turns(
    old: str, new: str, measures: Sequence[Measure], product: Product, binary: str | None, *, rounds: int, scale: float
) -> list[Turn]:
    found: list[Turn] = []
    with ExitStack() as stack:
        server = stack.enter_context(Server(binary))
        rigs = []
        for side in (old, new):
            source = stack.enter_context(source_of(side))
            rig = Rig(server, product, sys.executable, scale=scale, repeat=1, source=source)
            rigs.append(stack.enter_context(rig))
        rigs[1].drain_rate = rigs[0].drain_rate  # so both drain the same number of jobs
        for turn in range(rounds):
            pair: Turn = ({}, {})
            for measure in measures:
                for i in (0, 1) if turn % 2 == 0 else (1, 0):
                    result = pair[i][measure.name] = measure.take(rigs[i])
                    if lost := result.get("lost"):
                        raise ProductFailed(f"{(old, new)[i]}, {measure.name}: {lost} jobs DID NOT RUN")
            found.append(pair)
            say(f"  round {turn + 1} of {rounds}")
    return found


def changes(turns: Sequence[Turn]) -> list[Change]:
    """What became of every figure that both sides have."""
    found = []
    for figure in COMPARED:
        pairs = [(figure.of(old), figure.of(new)) for old, new in turns]
        known = [(old, new) for old, new in pairs if old and new is not None]
        if known:
            ratios = sorted(new / old for old, new in known)
            low, high = spread(ratios)
            old, new = (statistics.median(side) for side in zip(*known, strict=True))
            found.append(Change(figure, old, new, statistics.median(ratios), low, high))
    return found


def spread(ratios: Sequence[float]) -> tuple[float, float]:
    """The narrowest pair of the sorted ratios that holds the true median as surely as we want.

    The median lies below the k-th smallest of n only if fewer than k of n fair coins show heads. With five turns
    these are the smallest and the largest ratio; with more, single odd turns are left out.
    """
    n, left_out, tail = len(ratios), 0, 0.0
    for k in range(n // 2):
        tail += math.comb(n, k) / 2**n
        if 1 - 2 * tail < SURE:
            break
        left_out = k
    return ratios[left_out], ratios[n - 1 - left_out]
