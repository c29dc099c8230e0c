"""How long tasks wait and run: counted by bounds, written as whole numbers, read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.engine.ids import Ids, made_ms
from relevo.engine.job import Envelope, Story
from relevo.engine.settle import Held
from relevo.metrics.timings import BOUNDS, FAILED, NAME_MOST, OTHER, RAN, SLOTS, WAITED, WAITS, no_sums, read, written
from relevo.store.keys import QueueKeys
from relevo.worker.timings import MOST_TASKS, Timings


class Ended:
    """As much of a run as is measured."""

    def __init__(
        self, target: str = "shop.charge", *, started: float = 1.0, id: str = "", token: int = 1, **envelope: Any
    ) -> None:
        self.task: Any = type("", (), {"target": target})
        self.held: Any = Held(id or Ids()(), token, b"", Envelope(target, **envelope), Story(), "w", 0)
        self.started = started


def sums_of(ended: Ended, *, ahead: float | None = None, is_failure: bool = False) -> list[float] | None:
    """What is counted for the task of one run."""
    measured = Timings(QueueKeys("shop"))
    if ahead is not None:
        measured.ahead = ahead
    measured.note(ended, is_failure=is_failure)  # type: ignore[arg-type]
    return measured._tasks.get("shop.charge")


@given(st.lists(st.integers(0, 10**9), min_size=len(SLOTS), max_size=len(SLOTS)))
def test_what_is_written_is_read_back(counts: list[int]) -> None:
    sums: list[float] = [*counts]
    sums[RAN] = counts[RAN] / 1000
    sums[WAITED] = counts[WAITED] / 1000
    words = written(sums).split()
    found = read({slot: int(n) for slot, n in zip(words[::2], words[1::2], strict=True)})
    assert list(found.ran.counts) == counts[:WAITS]
    assert list(found.waited.counts) == counts[WAITS:RAN]
    assert (found.ran.total, found.waited.total) == (sums[RAN], sums[WAITED])
    assert found.failed == counts[FAILED]


def test_counts_of_other_bounds_go_to_the_next_higher_one() -> None:
    """A newer version may have other bounds while sums of the old one are kept."""
    found = read({"r3": 1, "r5": 1, "r99999999": 2, "rinf": 3, "w7000": 4, "later": 9})
    assert found.ran.counts[BOUNDS.index(0.005)] == 2
    assert found.ran.counts[-1] == 5
    assert found.waited.counts[BOUNDS.index(10.0)] == 4
    assert found.ran.count == 7


def test_a_value_on_a_bound_counts_for_that_bound(monkeypatch: Any) -> None:
    """Prometheus: `le` is less or equal."""
    monkeypatch.setattr("relevo.worker.timings.monotonic", lambda: 1.5)
    sums = sums_of(Ended(started=1.0))
    assert sums is not None and sums[BOUNDS.index(0.5)] == 1


def test_a_job_that_never_started_is_not_measured_and_one_with_a_strange_id_is() -> None:
    assert sums_of(Ended(started=0.0)) is None
    strange = sums_of(Ended(id="ünfug"))
    assert strange is not None and sum(strange[:WAITS]) == 1
    assert written(no_sums()) == ""


@pytest.mark.parametrize(
    ("of", "ahead", "waits"),
    [
        ({"token": 2}, None, 0),  # it waited for a pause between attempts, or for a worker that died
        ({"later_ms": 0}, None, 0),  # these waited for other jobs
        ({"flow": "x"}, None, 0),
        ({"takes": "taken"}, None, 0),
        ({}, 0.0, 1),  # the clock of its client is ahead: it waited for nothing
    ],
)
def test_only_waiting_for_a_worker_is_counted_as_such(of: dict[str, Any], ahead: float | None, waits: int) -> None:
    sums = sums_of(Ended(**of), ahead=ahead, is_failure=True)
    assert sums is not None
    assert (sum(sums[:WAITS]), sum(sums[WAITS:RAN]), sums[WAITED], sums[FAILED]) == (1, waits, 0, 1)


def test_tasks_beyond_the_limit_count_together() -> None:
    measured = Timings(QueueKeys("shop"))
    for target in (*(f"task{n}" for n in range(MOST_TASKS + 50)), "x" * (NAME_MOST + 1)):
        measured.note(Ended(target))  # type: ignore[arg-type]
    assert len(measured._tasks) == MOST_TASKS + 1
    assert sum(measured._tasks[OTHER][:WAITS]) == 51


def test_a_delay_that_was_asked_for_is_no_waiting() -> None:
    ended = Ended(started=1.0, later_ms=98_000)
    sums = sums_of(ended, ahead=made_ms(ended.held.id) / 1000 - ended.started + 100)
    assert sums is not None and sums[WAITED] == pytest.approx(2.0, abs=0.001)
