"""The blocking driver: performs plans on one socket per thread."""

from __future__ import annotations

import os
import threading
import time
import weakref
from typing import Any, TypeVar, cast

from relevo.store.link import Link
from relevo.store.plan import Call, Plan
from relevo.store.replies import ConnectionLost, NotNow, ScriptMissing, WrongNode
from relevo.store.source import Source, Tries

T = TypeVar("T")


class BlockingDriver:
    """For plain code. Safe between threads; a forked child opens its own connections."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        self._all: weakref.WeakSet[Link] = weakref.WeakSet()

    def perform(self, plan: Plan[T], *, patience: float | None = None) -> T:
        """Carry a plan out. `patience`: seconds to go on trying while the server is away."""
        if isinstance(plan, Call):
            return self._call(plan, patience)
        steps = plan
        try:
            call = next(steps)
            while True:
                call = steps.send(self._call(call, patience))
        except StopIteration as stop:
            return cast("T", stop.value)

    def _call(self, call: Call[T], patience: float | None) -> T:
        tries: Tries | None = None
        while True:
            try:
                return call.decode(self._ask(call, tries is not None and tries.repeated))
            except (ConnectionLost, NotNow, WrongNode) as error:
                tries = tries or Tries(call, self._source, patience)
                time.sleep(tries.pause_after(error))

    def _ask(self, call: Call[T], repeated: bool) -> Any:
        link = self.link(call.route)
        try:
            return link.request(call.command(repeated=repeated))
        except ScriptMissing:
            return link.request(call.command(repeated=repeated, text=True))
        except ConnectionLost:
            self._links().pop(link.endpoint, None)
            raise

    def link(self, route: bytes | None) -> Link:
        """This thread's connection to the server of a key."""
        endpoint = self._source.known(route) or self._source.locate(route)
        links = self._links()
        link = links.get(endpoint)
        if link is None:
            link = self.open(route)
            links[endpoint] = link
            self._all.add(link)
        return link

    def open(self, route: bytes | None) -> Link:
        """A connection of its own, for whoever reads from it for long."""
        endpoint = self._source.locate(route)
        return Link(endpoint, connect_timeout=self._source.connect_timeout, timeout=self._source.call_timeout)

    def _links(self) -> dict[Any, Link]:
        if self._pid != os.getpid():
            self._renew()
        try:
            return cast("dict[Any, Link]", self._local.links)
        except AttributeError:
            self._local.links = {}
            return cast("dict[Any, Link]", self._local.links)

    def close(self) -> None:
        """Close the connections of all threads."""
        for link in list(self._all):
            link.close()
        self._renew()
