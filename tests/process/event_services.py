"""Services that publish and hear events, for processes that are killed while they do.

Which of them a process serves stands in its environment. As in `jobs`, everything that is done is a line in the file of
effects: the name of the service, and the number of the event.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import Generator
from functools import partial
from pathlib import Path
from typing import Any

from relevo import Relevo
from relevo.bus.events import delivering, publishing
from relevo.bus.headers import Sending
from relevo.bus.history_store import NO_LOG
from relevo.store.plan import Call
from tests.process.dying import carry_out, fork_each
from tests.process.jobs import APP, CLOCK, EFFECTS, effect

#: Services of this process, such as `mail,audit`.
SERVICES = "EVENT_TEST_SERVICES"
#: Events from this number on take `mail` ten minutes when it hears them for the first time.
SLOW = 100_000


def build(name: str, services: str, **settings: Any) -> Relevo:
    """An app with these services; those whose name ends with `s` hear as a broadcast."""
    made = Relevo(name, **settings)
    for service in filter(None, services.split(",")):
        _hear(made, service)
    return made


def _hear(made: Relevo, service: str) -> None:
    @made.service(service).on("shop.sold", broadcast=service.endswith("s"))
    async def heard(n: int) -> None:
        is_slow = service == "mail" and n >= SLOW and not _was_begun(service, n)
        effect(f"{service}-began", n)
        if is_slow:
            await asyncio.sleep(600)
        effect(service, n)


def _was_begun(service: str, n: int) -> bool:
    file = Path(os.environ[EFFECTS])
    return file.exists() and any(line.split()[2:] == [f"{service}-began", str(n)] for line in file.open())


app = build(os.environ.get(APP, "event-tests"), os.environ.get(SERVICES, ""), _clock_key=os.environ.get(CLOCK, ""))


# publishers


def publish_from(first: int) -> None:
    """Publish one event after the other, for ever; each that was acknowledged is an effect."""
    shop = app.service("shop")
    for n in itertools.count(first):
        shop.publish("sold", {"n": n}, conversation=f"task {n}")
        effect("published", n)


def publish_and_signal(number: int, last: int) -> None:
    """Publish events, each in a process of its own that gets this signal after so many calls as the event's number."""

    def publish(n: int) -> None:
        carry_out(app, _published_and_delivered(n), n, signal.Signals(number))

    fork_each(partial(publish, n) for n in range(1, last + 1))


def _published_and_delivered(n: int) -> Generator[Call[Any], Any, None]:
    event = yield from publishing(app.engine, "shop", "sold", {"n": n}, Sending(conversation="task 7"), NO_LOG)
    yield from delivering(app.engine, event)
