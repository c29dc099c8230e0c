"""Machines are looked at by and by; those that cannot be used are dead letters of their pool.

`check_pools` comes by the clock and queues a check for each machine. A check has the machine's name, so there is one at
a time. That the provider does not answer says nothing about a machine: the check waits, however long that takes.
"""

from __future__ import annotations

import logging

from relevo import Cancel, Snooze
from relevo.pools.pool import Entity, Pool

from config import VmPool
from pooler.cloning import order
from pooler.ending import destroy_vm
from pooler.estate import SOON, app, ask, config, kinds, new_name, provider, requests, sizes, vms
from pooler.ondemand import odcreate, replace
from pooler.requesting import note_ready
from provider.client import ProviderDown

log = logging.getLogger("vmpooler.check")

#: As many of one state are asked for in one go.
MANY = 1000


class Unreachable(Exception):
    """A machine does not answer, or there is none."""


@app.task(name="check_pools", queue="checks", every=config.vm_checktime, retries=0)
async def check_pools() -> None:
    """All that is due, each as a job of its own."""
    for request in await everyone(requests, "requested"):
        await odcreate.using(name=request.id).aenqueue(request.id)  # in case that a crash came before
    for name, kind in kinds.items():
        pool = vms[name]
        await take_inventory.using(name=f"inventory {name}").aenqueue(name)
        for vm in await pool.aitems("discovered", limit=MANY):
            if await pool.amove(vm.id, "discovered", "completed"):
                log.info("%s: discovered at the provider, where nobody wants it", vm.id)
        for vm in await pool.aitems("running", older_than=config.vm_lifetime, limit=MANY):
            await pool.amove(vm.id, "running", "completed")
        await keep_stock(kind)
        for check, state in ((check_pending_vm, "pending"), (check_ready_vm, "ready"), (destroy_vm, "completed")):
            for vm in await everyone(pool, state):
                await check.using(name=f"{state} {vm.id}").aenqueue(vm.id, name)


async def everyone(pool: Pool, state: str) -> list[Entity]:
    """All in a state, those that are there longest first.

    The last page is asked for first: who leaves meanwhile moves those behind forward, to where they are seen twice, and
    not never.
    """
    found: dict[str, Entity] = {}
    for offset in range((await pool.acounts())[state] // MANY * MANY, -1, -MANY):
        found |= {one.id: one for one in await pool.aitems(state, limit=MANY, offset=offset)}
    return sorted(found.values(), key=lambda one: (one.since_ms, one.id))


@app.task(name="check_pending_vm", queue="checks", retries=5)
async def check_pending_vm(vm: str, pool: str) -> None:
    """Is it up? If it is not in time, or lost, it is given up."""
    entity = await _still(vm, pool, "pending")
    if not entity.metadata.get("is_cloned"):
        return  # its job on the queue `clone` still has it; if there is none, that is for the purge
    seen = await ask("look", vm)
    if seen is not None and seen["up"]:
        if await vms[pool].amove(vm, "pending", "ready", ip=seen["ip"]):
            log.info("%s: ready at %s", vm, seen["ip"])
        if request_id := entity.metadata.get("request_id"):
            await note_ready(request_id, vm, pool)
    elif seen is None:
        await fail_pending_vm(entity, Unreachable("there is no such machine at the provider"))
    elif await app.engine.arun(app.engine.now_ms()) - entity.since_ms >= kinds[pool].timeout * 1000:
        await fail_pending_vm(entity, TimeoutError(f"not up within {kinds[pool].timeout:g} s"))
    else:
        raise Snooze(SOON, "not up yet")


async def fail_pending_vm(entity: Entity, error: Exception) -> None:
    """Give up a machine that never got ready."""
    await _give_up(entity, error)


@app.task(name="check_ready_vm", queue="checks", retries=5)
async def check_ready_vm(vm: str, pool: str) -> None:
    """Does it still answer? Else it is given up, and nobody gets it."""
    entity = await _still(vm, pool, "ready")
    seen = await ask("look", vm)
    if seen is None or not seen["up"]:
        await _give_up(entity, Unreachable("it does not answer" if seen else "there is no such machine"))
    elif request_id := entity.metadata.get("request_id"):
        await note_ready(request_id, vm, pool)  # in case that a crash came before


async def _give_up(entity: Entity, error: Exception) -> None:
    if await vms[entity.pool].afail(entity.id, error, entity.state) is None:
        return  # somebody has moved it meanwhile, so it is theirs
    log.error("%s: %s, given up in %s", entity.id, error, entity.state)
    if request_id := entity.metadata.get("request_id"):
        await replace(request_id, entity.id)


@app.task(name="take_inventory", queue="checks", retries=0)
async def take_inventory(pool: str) -> None:
    """What the provider has and no state of the pool knows is `discovered`: left by a crash, or given up."""
    try:
        for vm in await provider.ask("inventory", pool=pool):
            entity = await vms[pool].aget(vm)
            if entity is not None and entity.state:
                continue
            # Asked again, for it may have been destroyed meanwhile: that is done before it leaves `completed`.
            if await provider.ask("look", vm=vm) is not None:
                await vms[pool].aadd(vm, "discovered", kind="pool")
    except ProviderDown:
        return  # the next one comes by the clock


async def keep_stock(kind: VmPool) -> None:
    """As many pending and ready machines as the stock is to hold; what is too much goes."""
    stock: dict[str, str] = {}
    for state in ("pending", "ready"):  # in their order: what moves on meanwhile is seen twice, and not never
        found = await everyone(vms[kind.name], state)
        stock |= {vm.id: state for vm in found if vm.metadata.get("kind") == "pool"}
    changed = await sizes.aget(kind.name)
    size = kind.size if changed is None else changed.metadata["size"]
    if len(stock) < size and await _has_no_template(kind):
        log.warning("%s: nothing is cloned while the dead letter of its template is there", kind.name)
        return
    for _ in range(size - len(stock)):
        await order(new_name(kind), kind)
    ready = [vm for vm, state in stock.items() if state == "ready"]
    for vm in ready[: max(0, len(stock) - size)]:
        await vms[kind.name].amove(vm, "ready", "completed")


async def _has_no_template(kind: VmPool) -> bool:
    """A missing template is one dead letter, not thousands: until somebody saw to it and retried or discarded it."""
    return bool(await app.dead.alist(queue="clone", error="TemplateNotFound", tenant=kind.name, limit=1))


async def _still(vm: str, pool: str, state: str) -> Entity:
    entity = await vms[pool].aget(vm)
    if entity is None or entity.state != state:
        raise Cancel(f"{vm} is not {state} any more")
    return entity
