"""Jobs with large arguments: what the bytes cost, beside what they cost without a queue."""

from __future__ import annotations

from bench.adapters.contract import TEXT
from bench.measures.doing import against, bare, delivered, middle, put
from bench.measures.drain import LEAST, emptied
from bench.measures.measure import Measure, Result
from bench.rig import Rig

LARGE = "x" * 10_240
#: Seconds of enqueueing one by one, and of each bare run.
SECONDS, BARE = 0.5, 0.2
#: Jobs in bulk, and then drained.
SMALL_JOBS, LARGE_JOBS = 20_000, 5_000
#: What is done with jobs, and what `bench.bare` calls the same with mere values.
WAYS = {"one": "one", "bulk": "stored", "drain": "fetched"}


def work_large(rig: Rig) -> Result:
    """Arithmetic: a large job takes as long as a small one, and then as long as the bytes themselves take."""
    rounds = [_round(rig) for _ in range(rig.repeat)]
    parts = {way: middle([one[way] for one in rounds], "of_arithmetic") for way in WAYS}
    return delivered(part for one in rounds for part in one.values()) | {"bytes": len(LARGE)} | parts


def _round(rig: Rig) -> dict[str, Result]:
    share = min(1.0, rig.scale)
    raw_small, raw = (
        bare(rig, "values", rig.server.port, size, max(0.05, BARE * share)) for size in (len(TEXT), len(LARGE))
    )
    small, large = _done(rig, TEXT, SMALL_JOBS, share), _done(rig, LARGE, LARGE_JOBS, share)
    for way, same in WAYS.items():
        per_s, of_small = large[way]["jobs_per_s"], small[way]["jobs_per_s"]
        bytes_take = max(0.0, 1 / raw[same] - 1 / raw_small[same])
        large[way] |= {
            "mb_per_s": round(per_s * len(LARGE) / 1e6, 1),
            "small_jobs_per_s": of_small,
            **against(per_s, 1 / (1 / of_small + bytes_take)),
            **delivered([small[way], large[way]]),
        }
    return large


def _done(rig: Rig, text: str, jobs: int, share: float) -> dict[str, Result]:
    nothing = {"n": 0, "ran": 0, "twice": 0, "lost": 0}  # these are not run, or are counted by the drain
    driver = rig.driver()
    rig.reset()
    one = driver("ask", method="put_one_by_one", task="noop", value=text, seconds=SECONDS * share)
    rig.reset()
    put(rig, "noop", text, 1)
    rig.server.watch_slow()
    bulk = put(rig, "noop", text, max(LEAST, round(jobs * share)), first=1)
    stored_ms = rig.server.slowest_ms()
    rig.server.watch_slow()
    drained = emptied(rig, 1 + bulk["n"])
    return {
        "one": {**nothing, "jobs_per_s": round(one["n"] / one["seconds"])},
        "bulk": {**nothing, "jobs_per_s": round(bulk["n"] / bulk["seconds"]), "slowest_command_ms": stored_ms},
        "drain": {**drained, "slowest_command_ms": rig.server.slowest_ms()},
    }


MEASURES = (
    Measure(
        "work_large",
        "arguments of 10 KB: enqueued one by one, in bulk, drained",
        work_large,
        only_asked=True,
        only_ours=True,
    ),
)
