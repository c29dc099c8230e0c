"""Processes that send themselves a signal half-way, forked from one process: each start of Python costs a second."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from relevo import Relevo
from relevo.store.plan import Steps
from tests.plans import one_by_one


def carry_out(app: Relevo, plan: Steps[Any], calls: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Make the calls of a plan, and send this process a signal after so many of them."""
    answer, steps = None, one_by_one(plan)
    for call in itertools.count(1):
        try:
            step = steps.send(answer)
        except StopIteration:
            return
        answer = app.engine.run(step)
        if call == calls:
            os.kill(os.getpid(), number)


def fork_each(acts: Iterable[Callable[[], None]]) -> None:
    """Run each in a process of its own, all at once, and print how they ended: exit codes, or signals below 0."""
    started = []
    for act in acts:
        pid = os.fork()
        if not pid:
            try:
                act()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        started.append(pid)
    print(*(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in started))
    sys.stdout.flush()
