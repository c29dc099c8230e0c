"""Two releases of the app of the process tests: the second has a task, an action and a parameter more."""

from __future__ import annotations

import os

from tests.process.jobs import APP, app, nap

from relevo import Relevo

#: Which release a worker is of.
RELEASE = "RELEVO_TEST_RELEASE"


def service_of(name: str) -> str:
    """The service that an app of this name serves."""
    return f"{name}shop"


async def charge(n: int) -> int:
    return await nap(n)


async def charge_in(n: int, currency: str = "EUR") -> int:
    assert currency
    return await nap(n)


async def refund(n: int) -> int:
    return await nap(n)


def add_tasks(app: Relevo, release: int) -> None:
    """What both releases have, and what only the second has."""
    app.task(name="charge")(charge if release == 1 else charge_in)
    if release == 2:
        app.task(name="refund")(refund)


def _serve(release: int) -> None:
    add_tasks(app, release)
    shop = app.service(service_of(app.name))
    shop.action("charge")(charge if release == 1 else charge_in)
    if release == 2:
        shop.action("refund")(refund)


if APP in os.environ:  # a worker
    _serve(int(os.environ.get(RELEASE, "1")))
