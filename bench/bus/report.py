"""What was found about the ways of asking: tables for people, targets that are met or not, failures in words."""

from __future__ import annotations

from typing import Any, NamedTuple

from bench import report
from bench.bus.ways import BLOCKING, LISTS, RELEVO
from bench.figures import Figure, shown

Products = dict[str, dict[str, Any]]

ABOUT = """\
lists: each request is pushed to a list, and its caller blocks on a list of its own for the answer; plain redis-py
relevo: arequest; relevo-blocking: request, from threads. Client and responder are processes of their own."""

#: Speed and cost: shown with the ratio of relevo to lists.
COMPARED = (
    Figure("requests.requests_per_s", "requests a second", "", True),
    Figure("requests.p50_ms", "p50", "ms", False),
    Figure("requests.p99_ms", "p99", "ms", False),
    Figure("requests.first_p99_ms", "p99 of the first 1,000", "ms", False),
    Figure("requests.connections", "connections", "", False),
    Figure("requests.client_us", "client time per request", "µs", False),
    Figure("requests.responder_us", "responder time per request", "µs", False),
    Figure("requests.server_us", "server time per request", "µs", False),
    Figure("requests.reads", "server reads per request", "", False),
)
#: What became of the requests.
COUNTED = (
    Figure("requests.in_flight", "in flight", "", False),
    Figure("requests.n", "requests", "", True),
    Figure("requests.replies", "– replies", "", True),
    Figure("requests.timeouts", "– timeouts", "", False),
    Figure("requests.lost", "– neither", "", False),
    Figure("late.n", "requests, a fifth answered late", "", True),
    Figure("late.replies", "– replies", "", True),
    Figure("late.timeouts", "– timeouts", "", False),
    Figure("late.lost", "– neither", "", False),
    Figure("keys.leaked", "keys leaked", "", False),
    Figure("keys.without_end", "– without a time limit", "", False),
)
#: At least so many times what lists reach, or at most: by whether more is better.
TARGETS = {"requests.requests_per_s": 3.0, "requests.p99_ms": 0.1}


class Verdict(NamedTuple):
    """The ratio of relevo to lists, and what it should be, if anything is asked of it."""

    ratio: float
    target: str
    is_met: bool


def judge(figure: Figure, products: Products) -> Verdict | None:
    """A figure of both, or None where one is missing."""
    ours, theirs = (figure.of(products.get(way.name, {})) for way in (RELEVO, LISTS))
    if not ours or not theirs:
        return None
    ratio, target = ours / theirs, TARGETS.get(figure.key)
    if target is None:
        return Verdict(ratio, "", True)
    if figure.more_is_better:
        return Verdict(ratio, f"≥ {target:g}×", ratio >= target)
    return Verdict(ratio, f"≤ {target:g}×", ratio <= target)


def plain(machine: dict[str, Any], products: Products) -> str:
    """For a terminal."""
    ways = [way.name for way in (LISTS, RELEVO, BLOCKING)]
    rows = []
    for figure in (*COMPARED, *COUNTED):
        values = [_shown(figure.of(products.get(way, {}))) for way in ways]
        verdict = judge(figure, products) if figure in COMPARED else None
        judged = [f"{verdict.ratio:.2f}×", verdict.target] if verdict else ["", ""]
        met = "" if verdict is None or not verdict.target else "yes" if verdict.is_met else "NO"
        rows.append([figure.label, *values, *judged, met])
    table = report.columns(["", *ways, "relevo/lists", "target", ""], rows)
    return "\n\n".join([report.plain(machine, {}), table, ABOUT])


def _shown(value: float | None) -> str:
    return f"{value:,.0f}" if value is not None and value == int(value) else shown(value)


def failures(products: Products) -> list[str]:
    """What must not happen, in words: requests without an end, answers for somebody else, and keys that stay."""
    found = []
    for name, measures in products.items():
        for measure in ("requests", "late"):
            told = measures.get(measure, {})
            if told.get("lost") or told.get("wrong"):
                found.append(
                    f"{name}, {measure}: of {told['n']:,} requests {told['lost']:,} ended with neither reply nor "
                    f"timeout, {told['wrong']:,} with the answer to another; {told['trouble'] or 'they never ended'}"
                )
    keys = products.get(RELEVO.name, {}).get("keys", {})
    if keys.get("leaked") or keys.get("without_end"):
        found.append(f"{RELEVO.name}: {keys['leaked']:,} keys leaked, {keys['without_end']:,} without a time limit")
    return found
