"""What the web pages and the API of a pooler call: blocking, and quick, for the work is done by jobs."""

from __future__ import annotations

import secrets
from typing import Any

from pooler.ending import destroy_vm
from pooler.estate import kinds, requests, sizes, vms
from pooler.ondemand import odcreate

#: Machines of one request: what is known of them stands in its metadata, a field each.
MOST = 40


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


def ask_for(pool_or_alias: str, count: int, token: str | None = None) -> str:
    """Have machines made: the id of the request. Who asks may be noted with it."""
    pools = {alias: kind.name for kind in kinds.values() for alias in (kind.name, *kind.aliases)}
    if pool_or_alias not in pools:
        raise ValueError(f"there are no machines {pool_or_alias!r}. There are: {', '.join(pools)}")
    if not 1 <= count <= MOST:
        raise ValueError(f"1 to {MOST} machines can be asked for, not {count!r}")
    request_id = f"req-{secrets.token_hex(3)}"
    known = {"status": "pending", "pool": pools[pool_or_alias], "count": count, "retry_count": 0, "token": token}
    requests.add(request_id, "requested", **known)
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
    made = sorted(name[3:] for name in known if name.startswith("vm "))
    return [vm for vm in made if pool.move(vm, "ready", "running")]


def resize(pool: str, size: int) -> None:
    """Another size of the stock, until `resize` says otherwise or the entry is removed."""
    if not sizes.add(pool, "set", size=size):
        sizes.update(pool, size=size)
