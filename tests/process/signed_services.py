"""A task and two services for processes whose signing keys are changed."""

from __future__ import annotations

import os

from relevo import Relevo, current_job
from relevo.engine.message import Reply
from tests.process.jobs import APP, CLOCK, effect


def stepped(n: int) -> int:
    """Run a second time, it does not take its step again."""
    job = current_job()
    found = job.step("first", int, n * job.attempt)
    if job.attempt == 1:
        raise ValueError(n)
    return found


def build(name: str, **settings: object) -> Relevo:
    """The app, in a worker and in the test."""
    app = Relevo(name, _clock_key=os.environ.get(CLOCK, ""), **settings)
    front, back = app.service("front"), app.service("back")

    async def double(n: int) -> int:
        return n * 2

    app.task(name="double")(double)
    app.task(name="stepped", executor="process", retries=1, backoff=0)(stepped)
    back.action("double")(double)

    @front.action("doubled")
    async def doubled(reply: Reply[int]) -> None:
        effect("doubled", reply.result or 0)

    return app


app = build(os.environ.get(APP, "signing-tests"))
