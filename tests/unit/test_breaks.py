"""The list of hand-made breaks fits the source, so that `./dev breaks` can make each of them."""

from __future__ import annotations

from tests.breaks import ROOT, read_breaks


def test_every_break_changes_one_place_and_names_tests_that_exist() -> None:
    """`read_breaks` refuses a break whose text does not stand in its file exactly once."""
    breaks = read_breaks(set())
    assert len({one.id for one in breaks}) == len(breaks) >= 40
    for one in breaks:
        assert one.new != one.old, one.id
        assert all((ROOT / path.partition("::")[0]).exists() for path in one.near.split()), one.id
