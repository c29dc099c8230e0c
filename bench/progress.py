"""What is told while a long run goes on."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """A line for whoever watches; standard output is for results."""
    print(text, file=sys.stderr, flush=True)
