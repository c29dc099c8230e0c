"""The blocking driver: performs plans on one socket per thread."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from itertools import islice
from typing import Any, TypeAlias, TypeVar, cast

from relevo.errors import ServerRefused, StoreError
from relevo.store.call_numbers import Try
from relevo.store.endpoint import Endpoint
from relevo.store.link import Link
from relevo.store.plan import Ahead, Ask, Call, Plan
from relevo.store.replies import ConnectionLost, Late, NotNow, ScriptMissing, WrongType
from relevo.store.server_check import ASK
from relevo.store.source import Source, Tries

T = TypeVar("T")


_Flight: TypeAlias = tuple[Call[Any], Link | None, Try | None]


def _landed(call: Call[T], link: Link | None) -> T:
    assert link is not None
    return call.decode(link.reply())


class BlockingDriver:
    """For plain code. Safe between threads; a forked child opens its own connections."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._renew()

    def _renew(self) -> None:
        self._pid = os.getpid()
        self._local = threading.local()
        self._all: weakref.WeakSet[Link] = weakref.WeakSet()

    @property
    def is_cluster(self) -> bool:
        """Whether keys of different queues may live on different servers."""
        return self._source.is_cluster

    def perform(self, plan: Plan[T], *, patience: float | None = None, within: float | None = None) -> T:
        """Carry a plan out. `patience`: seconds to go on trying while the server is away.

        `within`: seconds for all of it, where the usual time for an answer is too long.
        """
        if within is None:
            return self._perform(plan, patience)
        self._local.until = time.monotonic() + within
        try:
            return self._perform(plan, within if patience is None else min(patience, within))
        finally:
            self._local.until = None

    def _perform(self, plan: Plan[T], patience: float | None) -> T:
        if isinstance(plan, Call):
            return self._call(plan, patience)
        steps = plan
        try:
            step = next(steps)
            while True:
                try:
                    done = self._call(step, patience) if isinstance(step, Call) else self._step(step, patience)
                except BaseException as error:  # noqa: BLE001  # the plan cleans up, goes on, or raises it again
                    step = steps.throw(error)
                else:
                    step = steps.send(done)
        except StopIteration as stop:
            return cast("T", stop.value)

    def _step(self, step: Ahead[Any] | Ask[Any], patience: float | None) -> Any:
        return self._ahead(step, patience) if isinstance(step, Ahead) else step.block()

    def _call(self, call: Call[T], patience: float | None, tries: Tries | None = None) -> T:
        tried: Try | None = None
        while True:
            try:
                link = self.link(call.route, tries.asked if tries else None)
                if call.numbered:
                    tried = tries.number(link.numbers) if tries else link.numbers.next(*call.numbering)
                return call.decode(self._ask(link, call, tried, tries))
            except (ConnectionLost, NotNow, Late) as error:
                tries = tries or Tries(call, self._source, patience)
                time.sleep(tries.pause_after(error, tried))
            except WrongType:
                if call.script is not None:
                    raise
                call = call.guarded()

    def _ahead(self, ahead: Ahead[T], patience: float | None) -> list[T]:
        calls = iter(ahead.calls)
        results = [self._call(call, patience) for call in islice(calls, 1)]  # finds the server, and loads the script
        flying: deque[_Flight] = deque()  # calls to several queues may be to several nodes
        try:
            for call in calls:
                flying.append((call, None, None))
                link = self.link(call.route)
                if not link.is_checked and call.script is not None and call.script.is_storing:
                    self._check(link, self._left())
                tried = link.numbers.next(*call.numbering) if call.numbered else None
                flying[-1] = call, link, tried
                link.send(call.command(tried))
                if len(flying) > ahead.depth:
                    results.append(_landed(*flying[0][:2]))
                    flying.popleft()
            while flying:
                results.append(_landed(*flying[0][:2]))
                flying.popleft()
        except BaseException as error:
            for _, link_used, _ in flying:  # unread replies must not be taken for replies to the next calls
                if link_used is not None:
                    link_used.close()
                    self._links().pop(link_used.endpoint, None)
            if not isinstance(error, ConnectionLost | NotNow | ScriptMissing | WrongType | Late):
                raise
            results += [self._call(call, patience, self._lost(call, patience, tried)) for call, _, tried in flying]
            results += [self._call(call, patience) for call in calls]
        return results

    def _lost(self, call: Call[T], patience: float | None, tried: Try | None) -> Tries:
        tries = Tries(call, self._source, patience)
        tries.lost(tried)
        return tries

    def _ask(self, link: Link, call: Call[T], tried: Try | None, tries: Tries | None) -> Any:
        limit = self._left()
        repeated = tries is not None and tries.repeated
        asking = tries is not None and tries.asked is not None
        try:
            if not link.is_checked and call.script is not None and call.script.is_storing:
                self._check(link, limit)
            try:
                return link.request(call.command(tried, repeated=repeated), timeout=limit, asking=asking)
            except ScriptMissing:
                whole = call.command(tried, repeated=repeated, text=True)
                return link.request(whole, timeout=limit, asking=asking)
        except BaseException as error:
            # A thread may be interrupted between a call and its reply: that reply must not be taken for the reply
            # to the next call.
            if not isinstance(error, StoreError):
                link.close()
            if not isinstance(error, StoreError) or isinstance(error, ConnectionLost):
                self._links().pop(link.endpoint, None)
            if tried is not None:
                link.numbers.refused(call.route, error)
            raise

    def _check(self, link: Link, limit: float | None) -> None:
        check = self._source.check
        if not check.is_off:
            try:
                reply: bytes | StoreError = link.request(ASK, timeout=limit)
            except ServerRefused as error:
                reply = error
            check.judge(link.endpoint, reply)
        link.is_checked = True

    def link(self, route: bytes | None, at: Endpoint | None = None) -> Link:
        """This thread's connection to the server of a key, or to that one."""
        endpoint = at or self._source.known(route) or self._source.locate(route)
        links = self._links()
        link = links.get(endpoint)
        if link is None:
            link = links[endpoint] = self._open(endpoint)
            self._all.add(link)
        return link

    def open(self, route: bytes | None) -> Link:
        """A new connection, for long blocking reads."""
        return self._open(self._source.locate(route))

    def has_moved(self, link: Link, route: bytes) -> bool:
        """Whether the slot of a key, for which a connection was opened, is on another node of the cluster now."""
        if not self.is_cluster:
            return False
        self.perform(Call([b"EXISTS", route]))
        return self._source.locate(route) != link.endpoint

    def _open(self, endpoint: Endpoint) -> Link:
        limit = self._left()
        connect_timeout = self._source.connect_timeout if limit is None else min(limit, self._source.connect_timeout)
        return Link(
            endpoint,
            connect_timeout=connect_timeout,
            timeout=self._source.call_timeout,
            numbers=self._source.numbers(endpoint),
        )

    def _left(self) -> float | None:
        """Seconds left for the plan under way in this thread; None: it has the usual time."""
        until: float | None = getattr(self._local, "until", None)
        return None if until is None else max(0.01, min(self._source.call_timeout, until - time.monotonic()))

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
