"""Two releases of one program: the second has a task and an action more, and an argument more in what both have.

What they give is the number of the delivery: 1 if the first worker took the job, 2 after one hand-over.
"""

from __future__ import annotations

import os

from relevo import Relevo, current_job
from tests.process.jobs import APP, CLOCK

RELEASE = "RELEVO_TEST_RELEASE"

app = Relevo(os.environ.get(APP, "release-tests"), _clock_key=os.environ.get(CLOCK, ""))
shop = app.service("shop")


async def bill_in_euro(cents: int) -> int:
    return current_job()._token


async def bill(cents: int, currency: str = "EUR") -> int:
    return current_job()._token


async def remind(cents: int) -> int:
    return current_job()._token


if os.environ.get(RELEASE) == "2":
    app.task(name="bill")(bill)
    app.task(name="remind")(remind)
    shop.action("charge")(bill)
    shop.action("refund")(remind)
else:
    app.task(name="bill")(bill_in_euro)
    shop.action("charge")(bill_in_euro)
