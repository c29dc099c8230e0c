"""How jobs are cut into calls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevo.engine.push import CHUNK, CHUNK_BYTES, chunks


@given(st.lists(st.integers(0, CHUNK_BYTES * 2), max_size=200), st.integers(0, 3000))
def test_no_call_is_too_long_or_too_large_and_no_job_is_left_out(sizes: list[int], small: int) -> None:
    all_sizes = [*sizes, *[10] * small]
    parts = [all_sizes[part] for part in chunks(all_sizes)]
    assert [size for part in parts for size in part] == all_sizes
    for part in parts:
        assert 1 <= len(part) <= CHUNK
        assert len(part) == 1 or sum(part) <= CHUNK_BYTES


def test_small_jobs_fill_a_call() -> None:
    assert [part.stop - part.start for part in chunks([50] * (CHUNK * 2 + 5))] == [CHUNK, CHUNK, 5]
    assert list(chunks([])) == []
