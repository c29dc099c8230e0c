"""What people want of a running machine: another host, a disk, a snapshot. Jobs of the queue `tasks`."""

from __future__ import annotations

from relevo import Cancel

from pooler.estate import app, ask, vms


@app.task(name="migrate_vm", queue="tasks")
async def migrate_vm(vm: str, pool: str, host: str) -> None:
    """Move a running machine to another host. It is `migrating` meanwhile, and after a crash that goes on."""
    if not await vms[pool].amove(vm, "running", "migrating"):
        entity = await vms[pool].aget(vm)
        if entity is None or entity.state != "migrating":
            raise Cancel(f"{vm} is not running")
    await ask("migrate", vm, host=host)
    await vms[pool].amove(vm, "migrating", "running", host=host)


@app.task(name="disk", queue="tasks")
async def disk(vm: str, size: int) -> None:
    """Give it a disk of so many GB."""
    await ask("disk", vm, size=size)


@app.task(name="snapshot", queue="tasks")
async def snapshot(vm: str, label: str) -> None:
    """Keep its state under a name."""
    await ask("snapshot", vm, name=label)


@app.task(name="snapshot-revert", queue="tasks")
async def snapshot_revert(vm: str, label: str) -> None:
    """Bring it back to a snapshot."""
    await ask("revert", vm, name=label)
