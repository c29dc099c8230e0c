"""All ways of asking in turns on one server, then late answers, and what is left of it all."""

from __future__ import annotations

from statistics import median
from typing import NamedTuple

from bench.adapters.contract import CONCURRENCY
from bench.bus.watching import Kept, kept, kept_in_the_end
from bench.bus.ways import BLOCKING, ENDINGS, LISTS, RELEVO, THREADS, Way, flood, late, pair
from bench.measures.measure import Result
from bench.progress import say
from bench.results import Results
from bench.server import Server

#: Requests of which every fifth is answered late, if so many are measured at all.
LATE_REQUESTS = 1000

SPEEDS = ("requests_per_s", "p50_ms", "p90_ms", "p99_ms", "first_p99_ms")
COSTS = ("client_us", "responder_us", "server_us", "reads")


class Plan(NamedTuple):
    """How much to measure."""

    rounds: int
    requests: int
    in_flight: int
    keep_logs: bool = False


def run(server: Server, plan: Plan, results: Results) -> None:
    """Measure everything. What was found is added at once, so that an interrupted run keeps it."""
    at_first = {way.name: _first_life(server, way, plan, results) for way in (LISTS, RELEVO)}
    turns: dict[str, list[Result]] = {way.name: [] for way in (LISTS, RELEVO, BLOCKING)}
    for number in range(plan.rounds):
        # The next round begins with the other side: what the machine does meanwhile happens to both.
        for way in (LISTS, RELEVO, BLOCKING) if number % 2 == 0 else (BLOCKING, RELEVO, LISTS):
            in_flight = THREADS if way.is_blocking else plan.in_flight
            found = flood(server, way, plan.requests, in_flight, keep_logs=plan.keep_logs)
            say(
                f"  round {number + 1} of {plan.rounds}  {way.name:16} {found['requests_per_s']:7,} requests/s, "
                f"p50 {found.get('p50_ms')} ms, p99 {found.get('p99_ms')} ms, {found['connections']} connections"
            )
            turns[way.name].append(found)
            results.add(way.name, "requests", together(turns[way.name]))
    for way in (LISTS, RELEVO):
        # No more than the responder handles at once: late answers must not make others late.
        in_flight = min(plan.in_flight, CONCURRENCY)
        found = late(server, way, min(LATE_REQUESTS, plan.requests), in_flight, keep_logs=plan.keep_logs)
        say(f"  late answers  {way.name:16} {found['replies']:,} replies, {found['timeouts']:,} timeouts")
        results.add(way.name, "late", found)
    for way in (LISTS, RELEVO):
        found = _left(at_first[way.name], kept_in_the_end(server, way.prefix, at_first[way.name].lasting))
        say(f"  keys          {way.name:16} {found['leaked']:,} leaked")
        results.add(way.name, "keys", found)


def together(turns: list[Result]) -> Result:
    """All turns of one way: the sum of how requests ended, the median of speeds and costs, the most connections."""
    ended: Result = {name: sum(turn[name] for turn in turns) for name in ENDINGS}
    middle = {name: round(median(turn.get(name) or 0 for turn in turns), 3) for name in (*SPEEDS, *COSTS)}
    return {
        **ended,
        **middle,
        "trouble": next((turn["trouble"] for turn in turns if turn["trouble"]), ""),
        "connections": max(turn["connections"] for turn in turns),
        "in_flight": turns[0]["in_flight"],
        "runs": turns,
    }


def _first_life(server: Server, way: Way, plan: Plan, results: Results) -> Kept:
    """One request: what the way says of itself, and what it keeps from then on, such as a list of services."""
    with pair(server, way, keep_logs=plan.keep_logs) as (client, _):
        results.add(way.name, "about", client("about"))
    return kept(server, way.prefix)


def _left(at_first: Kept, in_the_end: Kept) -> Result:
    return {
        "at_first": at_first.lasting,
        "in_the_end": in_the_end.n,
        "leaked": max(0, in_the_end.n - at_first.lasting),
        "without_end": in_the_end.endless,
    }
