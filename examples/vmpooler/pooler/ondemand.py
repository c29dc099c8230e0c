"""The machines of on-demand requests: ordered, and replaced where one was lost."""

from __future__ import annotations

import logging

from relevo import Cancel

from pooler.cloning import order
from pooler.estate import app, config, kinds, requests
from pooler.requesting import fail_request, is_open

log = logging.getLogger("vmpooler.request")


@app.task(name="odcreate", queue="odcreate")
async def odcreate(request_id: str) -> None:
    """Order the machines of a request that are not there yet. May be run at any time, and any number of times."""
    request = await requests.aget(request_id)
    if request is None or request.state != "requested":
        raise Cancel(f"{request_id} is closed")
    kind, count = kinds[request.metadata["pool"]], request.metadata["count"]
    new = 0
    for number in range(1, count + 1):
        tries = request.metadata.get(f"tries {number}", 0)
        name = f"{config.prefix}{request_id}-{number}" + (f".{tries}" if tries else "")
        new += await order(name, kind, request_id=request_id, retry_count=tries)
    if new:
        log.info("%s: %d of %s ordered", request_id, new, kind.name)


async def replace(request_id: str, vm: str) -> None:
    """A machine of a request was lost: another one, unless too many were."""
    number, _, before = vm.rpartition("-")[2].partition(".")
    tries = int(before or 0) + 1
    if not await is_open(request_id):
        return
    await requests.aupdate(request_id, retry_count=tries, **{f"tries {number}": tries, f"vm {vm}": None})
    if tries >= config.max_tries:
        await fail_request(request_id, f"{tries} machines failed one after the other, the last one was {vm}")
    else:
        await odcreate.using(name=request_id).aenqueue(request_id)
