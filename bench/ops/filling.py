"""A full server: jobs that wait, jobs that are due later, and dead letters of several kinds."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.progress import say
from relevo import Relevo
from relevo.worker import Worker

#: Jobs made in one call of `enqueue_many`, so that progress can be told.
CHUNK = 100_000
TENANTS = 50


class Full:
    """An app whose queues are full, and how much is in them."""

    def __init__(self, url: str, *, ready: int, scheduled: int, dead: int) -> None:
        self.app = Relevo("ops", url=url, env="bench", dead_max=max(10_000, dead), result_ttl=0)
        self.sizes = {"ready": ready, "scheduled": scheduled, "dead": dead}
        self._define()

    def _define(self) -> None:
        app = self.app

        @app.task(name="ops.mail")
        async def mail(number: int) -> None:
            """Never run here."""

        @app.task(name="ops.charge", queue="charges", retries=0)
        async def charge(number: int) -> None:
            if number % 3 == 0:
                raise ConnectionError("the bank is away")
            if number % 3 == 1:
                raise ValueError(f"no such card: {number}")
            _deeper(number)

        self.mail, self.charge = mail, charge

    def fill(self) -> None:
        """Make it so."""
        for size in _chunks(self.sizes["ready"]):
            self.mail.enqueue_many([((n,), {}) for n in range(size)])
        say(f"  {self.sizes['ready']:,} jobs wait")
        later = self.mail.using(delay="30d")
        for size in _chunks(self.sizes["scheduled"]):
            later.enqueue_many([((n,), {}) for n in range(size)])
        say(f"  {self.sizes['scheduled']:,} jobs are due later")
        for size in _chunks(self.sizes["dead"]):
            for tenant in range(TENANTS):
                some = range(tenant, size, TENANTS)
                self.charge.using(tenant=f"tenant_{tenant}").enqueue_many([((n,), {}) for n in some])
        asyncio.run(self._bury())
        say(f"  {self.app.queue('charges').stats().dead:,} dead letters")

    async def _bury(self) -> None:
        """All of these fail, which is logged for each: not here."""
        import logging

        logging.getLogger("relevo").setLevel(logging.CRITICAL)
        await Worker(self.app, queues=["charges"], burst=True).run()
        await self.app.aclose()


def _deeper(number: int) -> None:
    raise TimeoutError(f"nobody answered {number}")


def _chunks(count: int) -> Iterator[int]:
    while count > 0:
        yield min(count, CHUNK)
        count -= CHUNK
