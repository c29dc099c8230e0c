"""The actions that an app's services offer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from relevo.bus.actions import ActionSignature, described
from relevo.bus.bus import Bus
from relevo.engine.job import write
from relevo.text.names import is_bus_name, parse

if TYPE_CHECKING:
    from relevo.engine.engine import Engine
    from relevo.engine.task import Task


def offered(engine: Engine, queues: Iterable[str]) -> dict[str, dict[str, bytes]]:
    """The actions that are served on each of these queues, with their descriptions; only queues of the bus."""
    found: dict[str, dict[str, bytes]] = {}
    for queue in queues:
        if not is_bus_name(queue):
            continue
        address = parse(queue, prefix=False, env=False)
        actions = engine.part(Bus).actions_of(address.service) if address.kind == "actions" else {}
        found[queue] = {name: write(_described(task)) for name, task in actions.items()}
    return found


def _described(task: Task[..., Any]) -> dict[str, Any]:
    assert isinstance(task.signature, ActionSignature)
    return described(task.func, task.signature)
