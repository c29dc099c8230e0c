"""A worker's offer for a queue: the targets that it can run, each with the digest of its signature.

Workers of one build have the same offer. A job that one worker cannot run goes to a live worker with the same target
whose signature has not refused it.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path
from typing import Any

from msgspec import Struct

from relevo.bus.bus import Bus
from relevo.codec.digest import short
from relevo.engine.engine import Engine
from relevo.engine.outcome import Route
from relevo.engine.task import Task
from relevo.text.names import is_bus_name, shared_queue

#: The target of jobs without a task name: plain functions of allowed modules, and the events of a subscription.
ANY = "*"
#: Longer or unprintable targets are not offered; they are replaced by their digest.
LONGEST = 200
#: Source files of allowed modules that are read for the build; with more, each worker counts as its own build.
MOST_FILES = 2_000


class Offer(Struct, frozen=True):
    """The offer of one worker for one queue."""

    #: target -> digest of its signature
    targets: dict[str, str]

    @property
    def text(self) -> str:
        """As stored in `offers`."""
        return "\n" + "".join(f"{target}={digest}\n" for target, digest in sorted(self.targets.items()))

    @property
    def build(self) -> str:
        """The digest of the offer; equal for workers with the same offer."""
        return short(self.text.encode())

    def route_of(self, target: str) -> Route:
        """What to look for in the offers of other workers, for a job of this target."""
        if target not in self.targets and (":" in target or ANY in self.targets):
            return Route(ANY, self.targets.get(ANY, ""))
        is_name = len(target) <= LONGEST and target.isprintable() and target != ANY
        name = target if is_name else "#" + short(target.encode(errors="replace"))
        return Route(name, self.targets.get(target, ""))


def offer_of(engine: Engine, queue: str, worker: str) -> Offer:
    """The offer of this worker for a queue."""
    known: dict[str, Task[..., Any]] = {}
    bus = engine.part(Bus)
    if not is_bus_name(queue):
        known = {**engine.built_in, **engine.tasks}
        targets = _digests(known)
        if engine.settings.allow:
            targets[ANY] = _functions(engine, worker)
        return Offer(targets)
    if ":notifications:" in queue:
        subscribed = bus.subscriptions.get(queue) or bus.subscriptions.get(shared_queue(queue))
        return Offer({} if subscribed is None or subscribed.task is None else {ANY: subscribed.task.signature.digest})
    for target in (*bus.actions, *bus.failure_handlers):
        task = bus.handler(queue, target)
        if task is not None:
            known[target] = task
    return Offer(_digests(known))


def executors_of(engine: Engine, queue: str) -> set[str]:
    """Where jobs of this queue are known to run: places are kept for them before the first one comes."""
    bus = engine.part(Bus)
    if not is_bus_name(queue):
        return {task.executor for task in engine.tasks.values() if task.options.queue == queue}
    if ":notifications:" in queue:
        subscribed = bus.subscribed(queue)
        return set() if subscribed is None or subscribed.task is None else {subscribed.task.executor}
    return {task.executor for task in bus.actions_of(queue.partition(":")[0]).values()}


def _digests(tasks: dict[str, Task[..., Any]]) -> dict[str, str]:
    return {name: task.signature.digest for name, task in tasks.items() if name.isprintable() and len(name) <= LONGEST}


def _functions(engine: Engine, worker: str) -> str:
    """The digest of the allowed modules' sources: any function of them may be a job."""
    found = hashlib.sha1(repr(sorted(engine.settings.allow)).encode(), usedforsecurity=False)
    count = 0
    for module in sorted(engine.settings.allow):
        for path in _files_of(module):
            count += 1
            if count > MOST_FILES:
                return short(worker.encode())
            try:
                found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
            except OSError:
                found.update(worker.encode())
    return short(found.digest())


def _files_of(module: str) -> list[Path]:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return []
    if spec is None:
        return []
    if spec.submodule_search_locations:
        return [path for place in spec.submodule_search_locations for path in sorted(Path(place).rglob("*.py"))]
    return [Path(spec.origin)] if spec.origin and spec.has_location else []
