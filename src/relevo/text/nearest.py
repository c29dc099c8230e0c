"""Suggests the nearest known name in error messages."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The end of an error message: `, did you mean 'lease'?`, or '' if no known name is near.

    >>> "unknown option 'leese'" + did_you_mean("leese", ["lease", "grace"])
    "unknown option 'leese', did you mean 'lease'?"

    A name without the modules before it is near, too:

    >>> did_you_mean("charge", ["shop.billing.invoices.charge", "shop.mail"])
    ", did you mean 'shop.billing.invoices.charge'?"
    """
    names = sorted(known)
    near = get_close_matches(name, names, n=1) or [one for one in names if one.endswith(f".{name}")]
    return f", did you mean {near[0]!r}?" if near else ""
