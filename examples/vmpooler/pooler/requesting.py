"""On-demand requests: entities of a pool of their own, with status, count and tries in their metadata."""

from __future__ import annotations

import logging

from pooler.estate import requests, vms

log = logging.getLogger("vmpooler.request")


async def is_open(request_id: str) -> bool:
    """Whether somebody still waits for its machines."""
    request = await requests.aget(request_id)
    return request is not None and request.state == "requested"


async def note_ready(request_id: str, vm: str, pool: str) -> None:
    """A machine of a request is ready. With the last one, the request is filled."""
    # A field for each, so that two machines that get ready together do not write over each other.
    await requests.aupdate(request_id, **{f"vm {vm}": "ready"})
    request = await requests.aget(request_id)
    if request is None or request.state == "expired" or request.metadata["status"] == "failed":
        await vms[pool].amove(vm, "ready", "completed")  # nobody waits for it any more
        return
    ready = sorted(name[3:] for name in request.metadata if name.startswith("vm "))
    is_all = len(ready) >= request.metadata["count"]
    if is_all and await requests.amove(request_id, "requested", "filled", status="ready"):
        log.info("%s: ready, %s", request_id, " and ".join(ready))


async def fail_request(request_id: str, why: str) -> None:
    """It is over: status `failed`, and its other machines are not wanted. Nothing of it is queued again."""
    request = await requests.aget(request_id)
    if request is None:
        return
    if await requests.amove(request_id, "requested", "failed", status="failed", error_message=why):
        log.error("%s: failed, %s", request_id, why)
    await requests.aremove(request_id, "failed")  # what is known of it can be asked for `data_ttl`
    for name in request.metadata:
        if name.startswith("vm "):
            await vms[request.metadata["pool"]].amove(name[3:], "ready", "completed")
