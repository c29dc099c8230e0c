"""The ways of asking that are measured, and one turn of each: a client process and a responder process of its own.

Nothing of one way is there while another is measured, and both processes end in good order after each turn, so that
what is left on the server is what they leave.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from bench.bus.watching import Connections
from bench.measures.measure import Result, percentiles
from bench.processes import DriverProcess, Process, ProductFailed
from bench.products import Product
from bench.progress import say
from bench.rig import Rig
from bench.server import Server

#: Seconds until a responder must be up.
STARTS = 30.0
#: Seconds that a caller waits for an answer that comes at once.
TIMEOUT = 5.0
#: Seconds that a caller waits where answers are late, and how late these are.
IMPATIENT, LATE = 1.0, 1.5
#: How requests end; see `bench.bus.caller`.
ENDINGS = ("n", "replies", "timeouts", "wrong", "lost")
#: Threads of the blocking API.
THREADS = 16
#: The first requests of new processes, which open connections and run cold code, are told apart from the rest.
FIRST = 1000


class Way(NamedTuple):
    """A way of asking."""

    product: Product
    #: How the names of all its keys begin.
    prefix: str
    is_blocking: bool = False

    @property
    def name(self) -> str:
        """As tables call it."""
        return self.product.name


LISTS = Way(Product("lists", "bench.bus.list_per_answer:ListPerAnswer"), "lists:")
RELEVO = Way(Product("relevo", "bench.bus.relevo_caller:Async"), "{relevo:")
BLOCKING = Way(Product("relevo-blocking", "bench.bus.relevo_caller:Blocking"), "{relevo:", is_blocking=True)


@contextmanager
def pair(server: Server, way: Way, *, keep_logs: bool = False) -> Iterator[tuple[DriverProcess, Process]]:
    """A client and a responder that have exchanged one request."""
    with Rig(server, way.product, sys.executable, keep_log=keep_logs) as rig:
        try:
            client = rig.driver()
            with rig.worker() as responder:
                client("ask", method="ready", seconds=STARTS, within=STARTS + 10)
                yield client, responder
        except ProductFailed:
            say(rig.log_tail())
            raise


def flood(server: Server, way: Way, n: int, in_flight: int, *, keep_logs: bool = False) -> Result:
    """`n` requests that are answered at once: how many a second, how long each took, what they cost."""
    with Connections(server) as connections, pair(server, way, keep_logs=keep_logs) as (client, responder):
        first = _ask(client, way, min(n, FIRST), in_flight)
        busy, before = (client.cpu(), responder.cpu()), server.counters()
        found = _ask(client, way, n, in_flight)
        spent = server.counters().since(before)
        busy = (client.cpu() - busy[0], responder.cpu() - busy[1])
    return {
        "requests_per_s": round(found["replies"] / found.pop("seconds")),
        **percentiles(found.pop("ms")),
        "first_p99_ms": percentiles(first.pop("ms")).get("p99_ms"),
        **{name: found[name] + first[name] for name in ENDINGS},
        "trouble": found["trouble"] or first["trouble"],
        "in_flight": in_flight,
        "connections": connections.most,
        "client_us": round(busy[0] / n * 1e6, 1),
        "responder_us": round(busy[1] / n * 1e6, 1),
        "server_us": round(spent.cpu / n * 1e6, 1),
        "commands": {name: round(calls / n, 3) for name, calls in spent.calls.items() if calls / n >= 0.001},
        "reads": round(spent.reads / n, 3),
    }


def late(server: Server, way: Way, n: int, in_flight: int, *, keep_logs: bool = False) -> Result:
    """`n` requests of which a fifth is answered when nobody waits any more: how each ended."""
    with pair(server, way, keep_logs=keep_logs) as (client, _):
        found = _ask(client, way, n, in_flight, timeout=IMPATIENT, late=LATE)
        time.sleep(LATE)  # until the last of the late answers was given
    return {"seconds": round(found.pop("seconds"), 2), **percentiles(found.pop("ms")), **found}


def _ask(client: DriverProcess, way: Way, n: int, in_flight: int, timeout: float = TIMEOUT, **more: float) -> Result:
    method = "flood_threads" if way.is_blocking else "flood"
    bound = 30.0 + n / 100  # seconds; whoever is slower has failed
    return client(
        "ask", method=method, n=n, in_flight=in_flight, timeout=timeout, bound=bound, within=bound + 10, **more
    )
