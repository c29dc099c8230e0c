"""Machines are cloned by jobs on the queue `clone`. What cannot be cloned is a dead letter there, retried or not."""

from __future__ import annotations

import logging

from relevo import Cancel, Failure, current_job

from config import VmPool
from pooler.estate import app, ask, config, kinds, vms
from pooler.requesting import fail_request, is_open
from provider.client import ProviderError, TemplateNotFound

log = logging.getLogger("vmpooler.clone")


async def order(vm: str, kind: VmPool, *, request_id: str = "", retry_count: int = 0) -> bool:
    """Have a machine made, for a request or for the stock. Asked again, it is the same one: whether it is new."""
    is_new = await _enter(vm, kind, request_id, retry_count)
    if not is_new and not await _is_to_clone(vm, kind):
        return False
    # Should this process die right here, nobody will ever clone it, and the purge finds it in `pending`.
    # As tenants, kinds of machines share the queue fairly: a hundred orders of one do not hold up another.
    await clone_vm.using(name=f"clone {vm}", tenant=kind.name).aenqueue(vm, kind.name, request_id, retry_count)
    return is_new


async def _is_to_clone(vm: str, kind: VmPool) -> bool:
    entity = await vms[kind.name].aget(vm)
    return entity is not None and entity.state == "pending" and not entity.metadata.get("is_cloned")


async def _enter(vm: str, kind: VmPool, request_id: str, retry_count: int) -> bool:
    return await vms[kind.name].aadd(
        vm,
        "pending",
        template=kind.template,
        # The purge has other limits for stock than for what somebody asked for.
        kind="ondemand" if request_id else "pool",
        request_id=request_id or None,
        pool_alias=kind.aliases[0] if kind.aliases else None,
        retry_count=retry_count,
    )


async def clone_failed(failure: Failure) -> None:
    """The job is a dead letter; the machine leaves `pending`, and who asked for it is told. Called once."""
    vm, pool, request_id, _ = failure.args
    await vms[pool].aupdate(vm, error_class=failure.error, error_message=failure.message)
    await vms[pool].aremove(vm, "pending")
    log.error("%s: given up, %s: %s", vm, failure.reason, failure.message)
    if request_id:
        await fail_request(request_id, failure.message)


@app.task(
    name="clone_vm",
    queue="clone",
    retries=config.max_tries - 1,
    backoff="500ms",
    timeout="1m",
    give_up_on=[TemplateNotFound],
    on_failure=app.task(name="clone_failed", queue="clone", retries=10)(clone_failed),
)
async def clone_vm(vm: str, pool: str, request_id: str, retry_count: int) -> None:
    """Clone a template. Trying again does not help if there is no such template; all else may pass."""
    if request_id and not await is_open(request_id):
        await vms[pool].aremove(vm, "pending")
        raise Cancel(f"{request_id} is closed, nobody wants {vm} any more")
    entity = await vms[pool].aget(vm)
    if entity is not None and entity.state != "pending" and "error_class" not in entity.metadata:
        raise Cancel(f"{vm} has left pending meanwhile: purged, or somebody took it out")
    await _enter(vm, kinds[pool], request_id, retry_count)  # it left when this was given up, and somebody retried it
    try:
        made = await ask("clone", vm, template=kinds[pool].template, pool=pool)
    except ProviderError as error:
        log.warning("%s: attempt %d: %s", vm, current_job().attempt, error)
        raise
    await vms[pool].aupdate(vm, ip=made["ip"], host=made["host"], is_cloned=True)
    log.info("%s: cloned from %s", vm, made["template"])
