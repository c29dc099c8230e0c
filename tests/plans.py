"""Plans of the store, call by call, so that a test can act between two of them."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from relevo.store.plan import Ahead, Call, Steps


def one_by_one(plan: Steps[Any]) -> Generator[Call[Any], Any, Any]:
    """The same plan without calls that are sent ahead."""
    answer: Any = None
    while True:
        try:
            step = plan.send(answer)
        except StopIteration as over:
            return over.value
        if isinstance(step, Ahead):
            answer = []
            for call in step.calls:
                answer.append((yield call))
        else:
            assert isinstance(step, Call)
            answer = yield step
