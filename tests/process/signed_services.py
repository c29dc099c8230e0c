"""A task and two services for processes whose signing keys are changed."""

from __future__ import annotations

import os

from relevo import Relevo
from relevo.model.message import Reply
from tests.process.jobs import APP, CLOCK, effect


def build(name: str, **settings: object) -> Relevo:
    """The app, in a worker and in the test."""
    app = Relevo(name, _clock_key=os.environ.get(CLOCK, ""), **settings)
    front, back = app.service("front"), app.service("back")

    async def double(n: int) -> int:
        return n * 2

    app.task(name="double")(double)
    back.action("double")(double)

    @front.action("doubled")
    async def doubled(reply: Reply[int]) -> None:
        effect("doubled", reply.result or 0)

    return app


app = build(os.environ.get(APP, "signing-tests"))
