"""What is completed is destroyed. A destruction that fails for good is a dead letter of the queue `tasks`."""

from __future__ import annotations

import logging

from relevo import Cancel

from pooler.estate import app, ask, vms
from provider.client import ProviderError

log = logging.getLogger("vmpooler.destroy")


# The name is held for a while whatever becomes of the job: what cannot be destroyed now is tried again then, and until
# then there is one dead letter of it and not one for each check.
@app.task(name="destroy_vm", queue="tasks", retries=2, backoff="300ms", unique="10m")
async def destroy_vm(vm: str, pool: str) -> None:
    """End a machine; only when the provider has done so it leaves `completed`."""
    entity = await vms[pool].aget(vm)
    if entity is None or entity.state != "completed":
        raise Cancel(f"{vm} is not completed any more")
    try:
        await ask("destroy", vm)
    except ProviderError as error:
        log.warning("%s: %s", vm, error)
        raise
    await vms[pool].aremove(vm, "completed")
    log.info("%s: destroyed", vm)
