"""The lists of queues: those of an app, and those of the whole bus.

A queue belongs to an app if it is on the app's list. Enqueuing adds an app's queues, workers add the queues of the
services that they serve, so a monitor that knows only the app's name finds them, too. Operations on a whole app use
only this list: queues of other apps' services do not belong to it, and often cannot be accessed.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import TYPE_CHECKING, Any

from relevo.engine.list_store import listed
from relevo.store.plan import Call
from relevo.text.names import is_bus_name, is_own_name, is_pool_name, known_as

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def listed_queues(engine: Engine, only: str | None = None) -> Generator[Call[Any], Any, list[str]]:
    """The queues of the app in use; with `only` just that one, in use or not."""
    return [only] if only is not None else (yield from own_queues(engine))


def job_queues(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """The queues of the app in use that hold jobs: all but its pools, which are listed for their dead letters."""
    return [name for name in (yield from own_queues(engine)) if not is_pool_name(name)]


def listed_pools(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """The names of all pools in use."""
    names: list[str] = yield listed(engine.keys.pools)
    return sorted(names)


def own_queues(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """The queues that belong to the app: those on its list, and those of services that its code declares."""
    on_list: list[str] = yield listed(engine.keys.queues)
    # A service's queue is in use if it is on the list of the bus, and belongs to the app if it is on the app's list. A
    # broadcast has one queue for each process, so its queues are compared by their shared name.
    ours = {*on_list, *map(known_as, engine.service_queues("any"))}
    names = {name for name in on_list if is_own_name(name)}
    names.update(name for name in (yield from bus_queues(engine)) if name in ours or known_as(name) in ours)
    return sorted(filter(engine.can_be_queue, names))


def bus_queues(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """All recently used queues of the bus, including those of other apps."""
    names: list[str] = yield listed(engine.bus_keys.key("queues"))
    return sorted(name for name in names if is_bus_name(name) and engine.can_be_queue(name))


def others(engine: Engine, names: Iterable[str]) -> Generator[Call[Any], Any, list[str]]:
    """The queues of the bus besides these, for a search by id; access to any of them may be denied."""
    known = set(names)
    return [name for name in (yield from bus_queues(engine)) if name not in known]


def known_queues(engine: Engine) -> Generator[Call[Any], Any, list[str]]:
    """All queues that can be used by name: those of the app, and all of the bus."""
    own = yield from own_queues(engine)
    return sorted({*own, *(yield from bus_queues(engine))})
