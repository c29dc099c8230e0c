"""What the web pages and the API of a pooler call: blocking, and quick, for the work is done by jobs."""

from __future__ import annotations

import secrets
from typing import Any

from pooler.ending import destroy_vm
from pooler.estate import kinds, requests, sizes, vms
from pooler.ondemand import odcreate


def checkout(pool: str) -> str | None:
    """Hand out a machine of the stock; None if there is none. No two people get the same one."""
    for vm in vms[pool].items("ready"):
        if vm.metadata.get("kind") == "pool" and vms[pool].move(vm.id, "ready", "running"):
            return vm.id
    return None


def give_back(vm: str, pool: str) -> bool:
    """It is not needed any more."""
    if not vms[pool].move(vm, "running", "completed"):
        return False
    destroy_vm.using(name=f"completed {vm}").enqueue(vm, pool)
    return True


def ask_for(pool_or_alias: str, count: int) -> str:
    """Have machines made: the id of the request."""
    name = next(kind.name for kind in kinds.values() if pool_or_alias in (kind.name, *kind.aliases))
    request_id = f"req-{secrets.token_hex(3)}"
    requests.add(request_id, "requested", status="pending", pool=name, count=count, retry_count=0)
    odcreate.using(name=request_id).enqueue(request_id)
    return request_id


def status(request_id: str) -> dict[str, Any]:
    """How a request stands; also of one that failed, for `data_ttl`."""
    request = requests.get(request_id)
    return {"status": "unknown"} if request is None else request.metadata


def collect(request_id: str) -> list[str]:
    """Fetch the machines of a request that is ready."""
    known = status(request_id)
    if not requests.remove(request_id, "filled"):
        return []
    pool = vms[known["pool"]]
    made = [name[3:] for name in known if name.startswith("vm ")]
    return [vm for vm in made if pool.move(vm, "ready", "running")]


def resize(pool: str, size: int) -> None:
    """Another size of the stock, until `resize` says otherwise or the entry is removed."""
    if not sizes.add(pool, "set", size=size):
        sizes.update(pool, size=size)
