"""Services for real processes: workers that serve them, and children that run their actions.

As in `jobs`, what an action does is a line in the file of effects, if a test named one.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import msgspec

from relevo import Relevo, current_job
from relevo.bus.service import Service
from tests.process.jobs import APP, CLOCK, EFFECTS, effect, ran_before

#: Messages that were noted in this process.
#: Of a message, as its handler sees it.
SEEN = (
    *("id", "type", "intent", "source", "instance", "version", "tenant", "tier", "session", "reply_to", "deadline_ms"),
    *("conversation_id", "correlation_id", "causation_id", "traceparent"),
)
noted: list[dict[str, Any]] = []

app = Relevo(os.environ.get(APP, "bus-tests"), _clock_key=os.environ.get(CLOCK, ""))
front, back, apart = app.service("front"), app.service("back"), app.service("apart")


class Order(msgspec.Struct):
    customer: str
    pieces: int = 1


def told() -> dict[str, Any]:
    """What a handler can know of its message."""
    message = current_job().message
    assert message is not None
    return {**{name: getattr(message, name) for name in SEEN}, "pid": os.getpid()}


def say(what: str, n: int) -> None:
    if EFFECTS in os.environ:
        effect(what, n)


# Those at the end of the line.
@back.action("tell")
async def tell() -> dict[str, Any]:
    return told()


@back.action("note")
async def note() -> None:
    noted.append(told())


@back.action("work")
async def work(n: int, seconds: float = 0.0) -> int:
    say("start", n)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        say("cancelled", n)
        raise
    say("end", n)
    return n


@back.action("plain_work")
def plain_work(n: int, seconds: float = 0.0) -> int:
    say("start", n)
    time.sleep(seconds)
    say("end", n)
    return n


@back.action("hold")
async def hold(n: int) -> int:
    """The first time, wait until the test lets go."""
    again = ran_before(n)
    say("start", n)
    while not (again or os.path.exists(gate())):
        await asyncio.sleep(0.01)
    say("end", n)
    return n


@back.action("hold_thread")
def hold_thread(n: int) -> int:
    again = ran_before(n)
    say("start", n)
    while not (again or os.path.exists(gate())):
        time.sleep(0.01)
    say("end", n)
    return n


def gate() -> str:
    """A file: once it is there, what was held goes on."""
    return f"{os.environ[EFFECTS]}-gate"


@back.action("vanish")
async def vanish(n: int) -> None:
    """Take the worker along."""
    say("start", n)
    os._exit(3)


@back.action("work_apart", executor="process")
def work_apart(n: int, seconds: float = 0.0) -> int:
    return plain_work.func(n, seconds)  # type: ignore[no-any-return]


# Those in the middle: they ask or send while they are asked, on the loop, in a thread, in a process.
def _asks(timeout: float) -> dict[str, Any]:
    return {"mine": told(), "theirs": front.request("back.tell", timeout=timeout)}


@front.action("ask_on_loop")
async def ask_on_loop(timeout: float = 30.0) -> dict[str, Any]:
    return {"mine": told(), "theirs": await front.arequest("back.tell", timeout=timeout)}


@front.action("ask_in_thread")
def ask_in_thread(timeout: float = 30.0) -> dict[str, Any]:
    return _asks(timeout)


@front.action("ask_in_process", executor="process")
def ask_in_process(timeout: float = 30.0) -> dict[str, Any]:
    return _asks(timeout)


@front.action("ask_on_loop_of_process", executor="process")
async def ask_on_loop_of_process(timeout: float = 30.0) -> dict[str, Any]:
    try:
        return {"mine": told(), "theirs": await front.arequest("back.tell", timeout=timeout)}
    finally:
        await app.aclose()


@front.action("send_on_loop")
async def send_on_loop() -> None:
    await front.asend("back.note")


@front.action("send_in_thread")
def send_in_thread() -> None:
    front.send("back.note")


@front.action("send_in_process", executor="process")
def send_in_process() -> None:
    front.send("back.note")


@front.action("order_in_process", executor="process")
def order_in_process(order: Order) -> str:
    return f"{order.pieces} for {order.customer}"


@front.action("ask_to_work")
async def ask_to_work(n: int) -> int:
    say("asked", n)
    found: int = await front.arequest("back.work", {"n": n}, timeout=600)
    return found


@front.action("ask_to_hold")
async def ask_to_hold(n: int) -> int:
    say("asked", n)
    found: int = await front.arequest("back.hold", {"n": n}, timeout=600)
    return found


# Made by a function, as an app does that is made anew for each test: no module holds the task.
def order_apart(order: Order) -> str:
    return f"{order.pieces} for {order.customer}"


def _serve(service: Service) -> None:
    service.action("order", executor="process")(order_apart)


_serve(apart)


def ask_many(count: int, timeout: float) -> None:
    """Send requests that are held, and wait for the answers: a process to kill."""

    async def ask() -> None:
        asked = (app.service("me").arequest("back.hold", {"n": n}, timeout=timeout) for n in range(count))
        await asyncio.gather(*asked)

    asyncio.run(ask())
