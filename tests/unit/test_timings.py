"""How long tasks wait and run: counted by bounds, written as whole numbers, read back."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.model.ids import Ids, made_ms
from relevo.model.job import Envelope, Story
from relevo.model.timings import BOUNDS, FAILED, NAME_MOST, OTHER, RAN, SLOTS, WAITED, WAITS, no_sums, read, written
from relevo.store.keys import QueueKeys
from relevo.store.settlement import Held
from relevo.worker.timings import MOST_TASKS, Timings


class Ended:
    """As much of a run as is measured."""

    def __init__(
        self, target: str = "shop.charge", *, started: float = 1.0, id: str = "", token: int = 1, **envelope: Any
    ) -> None:
        self.task: Any = type("", (), {"target": target})
        self.held: Any = Held(id or Ids()(), token, b"", Envelope(target, **envelope), Story(), "w", 0)
        self.started = started


def kept(timings: Timings) -> dict[str, list[float]]:
    return timings._tasks


def timings() -> Timings:
    return Timings(QueueKeys("shop"))


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


def test_nothing_is_written_of_what_is_zero() -> None:
    assert written(no_sums()) == ""


def test_counts_of_other_bounds_go_to_the_next_higher_one() -> None:
    """A newer version may have other bounds while sums of the old one are kept."""
    found = read({"r3": 1, "r5": 1, "r99999999": 2, "rinf": 3, "w7000": 4, "later": 9})
    assert found.ran.counts[BOUNDS.index(0.005)] == 2
    assert found.ran.counts[-1] == 5
    assert found.waited.counts[BOUNDS.index(10.0)] == 4
    assert found.ran.count == 7


def test_a_value_on_a_bound_counts_for_that_bound(monkeypatch: Any) -> None:
    """Prometheus: `le` is less or equal."""
    measured = timings()
    monkeypatch.setattr("relevo.worker.timings.monotonic", lambda: 1.5)
    measured.note(Ended(started=1.0))  # type: ignore[arg-type]
    assert kept(measured)["shop.charge"][BOUNDS.index(0.5)] == 1


def test_only_a_first_delivery_counts_as_waiting() -> None:
    """The second one waited for a pause between attempts, or for a worker that died."""
    measured = timings()
    measured.note(Ended(token=2))  # type: ignore[arg-type]
    sums = kept(measured)["shop.charge"]
    assert (sum(sums[:WAITS]), sum(sums[WAITS:RAN])) == (1, 0)


def test_a_job_of_a_client_whose_clock_is_ahead_waited_for_nothing() -> None:
    """Clocks of clients differ."""
    measured = timings()
    measured.ahead = 0.0
    measured.note(Ended())  # type: ignore[arg-type]
    sums = kept(measured)["shop.charge"]
    assert (sums[WAITS], sums[WAITED]) == (1, 0)


def test_a_job_with_a_strange_id_is_measured_all_the_same() -> None:
    measured = timings()
    measured.note(Ended(id="ünfug"))  # type: ignore[arg-type]
    assert sum(kept(measured)["shop.charge"][:WAITS]) == 1


def test_a_job_that_never_started_is_not_measured() -> None:
    measured = timings()
    measured.note(Ended(started=0.0))  # type: ignore[arg-type]
    assert not kept(measured)


def test_tasks_beyond_the_limit_count_together() -> None:
    measured = timings()
    for n in range(MOST_TASKS + 50):
        measured.note(Ended(f"task{n}"))  # type: ignore[arg-type]
    measured.note(Ended("x" * (NAME_MOST + 1)))  # type: ignore[arg-type]
    assert len(kept(measured)) == MOST_TASKS + 1
    assert sum(kept(measured)[OTHER][:WAITS]) == 51


def test_a_delay_that_was_asked_for_is_no_waiting() -> None:
    measured, ended = timings(), Ended(started=1.0, later_ms=98_000)
    measured.ahead = made_ms(ended.held.id) / 1000 - ended.started + 100
    measured.note(ended)  # type: ignore[arg-type]
    assert kept(measured)["shop.charge"][WAITED] == pytest.approx(2.0, abs=0.001)


@pytest.mark.parametrize("envelope", [{"later_ms": 0}, {"flow": "x"}, {"takes": "taken"}])
def test_waiting_for_other_jobs_does_not_count_as_waiting_for_a_worker(envelope: dict[str, Any]) -> None:
    measured = timings()
    measured.note(Ended(**envelope), is_failure=True)  # type: ignore[arg-type]
    sums = kept(measured)["shop.charge"]
    assert (sum(sums[:WAITS]), sum(sums[WAITS:RAN]), sums[FAILED]) == (1, 0, 1)
