"""What can be measured: relevo and its peers, and what to install for each."""

from __future__ import annotations

from typing import NamedTuple


class Product(NamedTuple):
    """A product in one flavour."""

    name: str
    #: `module:Class` of its adapter.
    adapter: str
    #: Packages of its environment; none for relevo, which is measured with the running interpreter.
    packages: tuple[str, ...] = ()
    #: The folder of its environment, where that is not its name.
    venv: str = ""
    #: The measures it takes part in; empty for all.
    measures: tuple[str, ...] = ()
    #: Not Python: shown for comparison, and left out of the ratios.
    is_reference: bool = False

    @property
    def is_ours(self) -> bool:
        """Whether it is relevo."""
        return not self.packages


RELEVO = Product("relevo", "bench.adapters.relevo:Async")
#: What is the same on the server whoever enqueued is measured once, with the flavour above.
BLOCKING = Product(
    "relevo-blocking",
    "bench.adapters.relevo:Blocking",
    measures=("floor", "one", "concurrent", "bulk", "drain", "drain_results", "idle", "cold", "rtt"),
)

PEERS = (
    Product("celery", "bench.adapters.celery:Celery", ("celery[redis]", "hiredis")),
    Product("rq", "bench.adapters.rq:RQ", ("rq", "hiredis")),
    Product("dramatiq", "bench.adapters.dramatiq:Dramatiq", ("dramatiq[redis]", "hiredis")),
    Product("huey", "bench.adapters.huey:Huey", ("huey", "redis", "hiredis")),
    Product("arq", "bench.adapters.arq:Arq", ("arq", "hiredis", "uvloop")),
    # saq needs typing_extensions and does not say so
    Product("saq", "bench.adapters.saq:SAQ", ("saq[redis,hiredis]", "typing_extensions", "uvloop")),
    Product(
        "taskiq-list",
        "bench.adapters.taskiq:List",
        ("taskiq", "taskiq-redis", "hiredis", "uvloop", "orjson"),
        venv="taskiq",
    ),
    Product(
        "taskiq-stream",
        "bench.adapters.taskiq:Stream",
        ("taskiq", "taskiq-redis", "hiredis", "uvloop", "orjson"),
        venv="taskiq",
    ),
    Product("streaq", "bench.adapters.streaq:Streaq", ("streaq", "uvloop", "hiredis")),
    Product("docket", "bench.adapters.docket:Docket", ("pydocket", "uvloop", "hiredis")),
    Product("bullmq", "bench.adapters.bullmq:BullMQ", ("bullmq", "uvloop", "hiredis")),
    Product("bullmq-node", "", ("bullmq", "ioredis"), measures=("one", "bulk", "drain"), is_reference=True),
)

PRODUCTS = {product.name: product for product in (RELEVO, BLOCKING, *PEERS)}
