"""An app in the middle of its work: jobs in every state, a workflow, a schedule, limits, a pool, dead letters.

`fill` runs with any version of relevo, also with earlier ones: it uses nothing that 0.1.0 does not have, nor the tests.
"""

from __future__ import annotations

import asyncio
from typing import Any

from relevo import Relevo, chain, current_job, group
from relevo.worker import Worker

NAME = "mixed"


async def add(a: int, b: int) -> int:
    return a + b


def double(n: int) -> int:
    return 2 * n


async def total(numbers: list[int]) -> int:
    return sum(numbers)


async def fail(n: int) -> None:
    raise ValueError(f"number {n}")


async def fail_at_first(n: int) -> int:
    if current_job().attempt == 1:
        raise ValueError("not yet")
    return n


def build(**settings: Any) -> Relevo:
    """The app; its functions tell nothing, for their results and records do."""
    app = Relevo(NAME, env="test", **settings)
    for func in (add, double, total):
        app.task(name=func.__name__)(func)
    app.task(name="fail", retries=0)(fail)
    app.task(name="fail_at_first", retries=3, backoff=["1h"])(fail_at_first)
    return app


def fill(app: Relevo) -> dict[str, Any]:
    """Bring the app in the middle of its work: ids of its jobs, by what they are."""
    add, double, total, fail, fail_at_first = app.tasks.values()
    queue, ids = app.queue(), dict[str, Any]()
    ids["done"] = add.enqueue(1, 2).id
    ids["dead"] = [fail.enqueue(n).id for n in range(3)]
    ids["retried"] = fail_at_first.enqueue(7).id
    ids["half done"] = chain(group(add.s(1, 1), add.s(2, 2)), total.s(), double.using(queue="later").s()).enqueue().id
    asyncio.run(Worker(app, queues=["default"], burst=True).run())

    ids["running"] = double.enqueue(21).id
    [lease] = queue.take(1, worker="gone")  # whose worker never says what became of it
    assert lease.id == ids["running"]
    ids["ready"] = [add.using(priority=n, tags=("a", "b")).enqueue(n, n).id for n in (5, 100, 900)]
    ids["named"] = add.using(name="only one").enqueue(3, 3).id
    ids["delayed"] = add.using(delay="30m").enqueue(4, 4).id
    queue.limit("acme", concurrency=1)
    ids["limited"] = [add.using(tenant="acme").enqueue(n, 1).id for n in range(4)]
    ids["waiting"] = chain(add.s(5, 5), double.s()).enqueue().id
    queue.pause(task="double", reason="a look at it", by="me")
    app.schedule("hourly", add.s(6, 6), every="1h")
    app.schedule("paused", add.s(7, 7), every="1h").pause(reason="not needed now")

    pool = app.pool("machines", states=("pending", "ready"))
    for n in range(3):
        pool.add(f"m{n}", cores=n)
    pool.move("m1", "pending", "ready", ip="10.0.0.1")
    ids["failed machine"] = pool.fail("m2", "does not boot")
    app.close()
    return ids
