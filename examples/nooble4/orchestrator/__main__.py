"""The process of the orchestrator: `python -m orchestrator`.

It is no `relevo worker`, because it has a life of its own, the web sockets, and runs a worker beside them on the same
event loop. Each line on standard input is an upload, as JSON; when there are no more, or at SIGTERM, it stops.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator

import msgspec
from relevo.errors import NoResponders
from relevo.worker import Worker

from orchestrator.service import HOME, app, here, log, submit
from orchestrator.sessions import Upload


async def main() -> None:
    """Work until the last upload is in and everything that came for us is handled."""
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    await until_served()
    log.info("ready at %s", HOME)
    async for upload in uploads():
        await submit(upload)
    worker.stop()
    await working
    await app.aclose()


async def until_served() -> None:
    """Wait until the bus knows this process: from then on answers find the way here."""
    while True:
        try:
            await here.arequest("orchestrator.ping", at=HOME, timeout="5s")
            return
        except NoResponders:
            await asyncio.sleep(0.02)


@here.action("ping")
async def ping() -> None:
    """Answered by whoever serves the queue."""


async def uploads() -> AsyncIterator[Upload]:
    """What the browsers of this process send."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    loop.add_signal_handler(signal.SIGTERM, reader.feed_eof)
    async for line in reader:
        yield msgspec.json.decode(line, type=Upload)


if __name__ == "__main__":
    logging.basicConfig(
        level="INFO", format="%(asctime)s %(levelname)-7s [%(process)d] %(name)s: %(message)s", datefmt="%H:%M:%S"
    )
    asyncio.run(main())
