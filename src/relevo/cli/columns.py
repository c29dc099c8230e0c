"""Fits the columns of a table into a terminal that is too narrow for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

#: Between two columns.
GAP = 2


def fitted(widths: Mapping[str, int], room: int, gives_way: Sequence[tuple[str, int]]) -> dict[str, int]:
    """The width of each column, such that those shown fit into `room`, if they can.

    `gives_way`: which column shrinks next, and to what width; at 0 it is left out.
    """
    found = dict(widths)
    for name, least in gives_way:
        over = sum(found.values()) + GAP * (len(found) - 1) - room
        if over <= 0:
            break
        if name not in found or found[name] <= least:
            continue
        if least:
            found[name] = max(least, found[name] - over)
        else:
            del found[name]
    return found
