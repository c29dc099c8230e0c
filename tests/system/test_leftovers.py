"""Jobs and messages that print, log and end well leave no key behind, not even one with a time limit."""

from __future__ import annotations

import logging

import pytest

from relevo import Relevo
from tests.eventually import aeventually
from tests.servers import Server
from tests.working import working

log = logging.getLogger("shop")
TIMES = 60


def keys_of(server: Server, app: Relevo) -> set[bytes]:
    return set(server.command("KEYS", f"*{app.name}*"))


@pytest.mark.parametrize("result_ttl", [0, 2])
async def test_as_many_keys_after_sixty_as_after_one(app: Relevo, server: Server, result_ttl: int) -> None:
    shop, mail = app.service("shop"), app.service("mail")
    ran: list[str] = []

    def talk(what: str) -> None:
        print("printed", what)
        log.warning("logged %s", what)
        ran.append(what)

    @app.task(result_ttl=result_ttl)
    async def job() -> None:
        talk("job")

    @app.task(result_ttl=result_ttl)
    def thread() -> None:
        talk("thread")

    @app.task(result_ttl=result_ttl, retries=1, backoff=0.01)
    async def twice() -> None:
        talk("twice")
        if ran.count("twice") % 2:
            raise ValueError("once more")

    @shop.action("order")
    async def order() -> int:
        talk("order")
        return 1

    @mail.on("shop.sold")
    async def sold(**data: object) -> None:
        talk("sold")

    async def all_of_it() -> None:
        before = len(ran)
        await job.aenqueue()
        await thread.aenqueue()
        await twice.aenqueue()
        await shop.arequest("shop.order", {}, wait=True)
        await shop.asend("shop.order", {})
        await shop.apublish("sold", {})
        await aeventually(lambda: len(ran) >= before + 7, what="all have run")

    async def quiet() -> bool:
        stats = [await app.queue(name).astats() for name in app.queues()]
        return not any(one.living for one in stats)

    async with working(app):
        await all_of_it()
        await aeventually(quiet, what="all have ended")
        first = keys_of(server, app)
        for _ in range(TIMES):
            await all_of_it()
        await aeventually(quiet, what="all have ended")
        await aeventually(lambda: len(keys_of(server, app)) <= len(first) + 5, what=f"no more than {len(first)} keys")
