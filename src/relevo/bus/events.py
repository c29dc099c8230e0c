"""Events: published by one service, and handled once by every service that subscribed."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from relevo.bus.outgoing import Sending
from relevo.store.plan import Call

if TYPE_CHECKING:
    from relevo.app import Relevo
    from relevo.task import Task


class Subscribed:
    """A subscription of a service of this app."""

    queue = ""
    task: Task[..., Any]

    @classmethod
    def of(cls, service: str, pattern: str, **options: Any) -> Subscribed:
        raise NotImplementedError

    def handled_by(self, task: Task[..., Any]) -> Subscribed:
        raise NotImplementedError

    def queue_for(self, worker: str) -> str:
        raise NotImplementedError


def publishing(app: Relevo, service: str, topic: str, data: Any, said: Sending) -> Generator[Call[Any], Any, int]:
    """Publish an event: how many subscriptions get it."""
    raise NotImplementedError
