"""What there is: the configuration, the provider, and a relevo pool for each kind of machine.

pending ──> ready ──> running ──> completed ──> gone
   │          │        ^   │          ^
   v          v        v   │          └── discovered: at the provider, and nobody knew of it
 dead       dead     migrating
"""

from __future__ import annotations

import logging
import os
import secrets
from typing import Any

from relevo import Relevo, Snooze
from relevo.pools.pool import Entity

from config import VmPool, load
from provider.client import Provider, ProviderDown

log = logging.getLogger("vmpooler.provider")

STATES = ("pending", "ready", "running", "completed", "discovered", "migrating")
config = load()
#: Seconds until a machine that is not up, or a provider that does not answer, is asked again: sooner than by the clock,
#: and not so soon that a thousand machines ask a provider that is ill to death.
SOON = min(5.0, config.vm_checktime * 0.4)
app = Relevo("vmpooler", **config.settings)
provider = Provider(os.environ.get("VMPOOLER_PROVIDER", "provider.sock"))
kinds = {pool.name: pool for pool in config.pools}


async def still_there(entity: Entity) -> bool:
    """The purge asks before it ends something. If the provider does not answer, nobody knows, and it stays."""
    return await provider.ask("look", vm=entity.id) is not None


vms = {name: app.pool(name, states=STATES, still_there=still_there, data_ttl=config.data_ttl) for name in kinds}
#: Requests of people for machines that are made for them.
requests = app.pool("odrequest", states=("requested", "filled", "failed", "expired"), data_ttl=config.data_ttl)
#: How many of a kind are kept in stock, where somebody has changed that at run time.
sizes = app.pool("poolsize", states=("set",), data_ttl=1)


async def ask(do: str, vm: str, **given: object) -> Any:
    """Have the provider do something with a machine, in a job.

    That it does not answer says nothing about the machine and is no fault of the job: that waits, however long.
    """
    try:
        return await provider.ask(do, vm=vm, **given)
    except ProviderDown as error:
        log.warning("%s: %s, asked again in %g s", vm, error, SOON)
        raise Snooze(SOON, str(error)) from error


def new_name(kind: VmPool) -> str:
    """A name that no machine ever had."""
    return f"{config.prefix}{kind.name}-{secrets.token_hex(4)}"
