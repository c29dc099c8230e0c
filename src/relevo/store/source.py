"""Where this process gets its server from: the URL that was given, or the embedded one, started on demand."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from relevo.errors import OutcomeUnknown, ServerRefused, ServerUnavailable, StoreError
from relevo.store.call_numbers import DOUBLINGS, REPEATED, Numbers, ServerClock, Try
from relevo.store.embedded import server as embedded
from relevo.store.endpoint import Endpoint, Location, read_url
from relevo.store.plan import Call
from relevo.store.replies import ConnectionLost, Late, SlotMoving, WrongNode
from relevo.store.server_check import ServerCheck
from relevo.store.topology import Topology


class Source:
    """Finds the server for a key. Nothing is opened or started before the first look-up."""

    def __init__(
        self,
        url: str | None,
        *,
        data_dir: Path,
        connect_timeout: float,
        call_timeout: float,
        server_check: str = "warn",
    ) -> None:
        self.url = url
        self.check = ServerCheck(server_check)
        self.data_dir = data_dir
        self.connect_timeout = connect_timeout
        self.call_timeout = call_timeout
        self._location: Location | None = None if url is None else read_url(url)
        self._topology: Topology | None = None
        self._clocks: dict[Endpoint, ServerClock] = {}

    @property
    def is_embedded(self) -> bool:
        """Whether this process may start the server."""
        return self.url is None

    @property
    def is_cluster(self) -> bool:
        """Whether keys of different queues may live on different servers."""
        return self._location is not None and self._location.kind == "cluster"

    def known(self, route: bytes | None) -> Endpoint | None:
        """The server for a key, if that is known without a look-up or a start."""
        return None if self._topology is None else self._topology.known(route)

    def locate(self, route: bytes | None) -> Endpoint:
        """The server for a key. Blocks while sentinels are asked or the embedded server starts."""
        if self._topology is None:
            location = self._location or _own_server(self.data_dir)
            self._topology = Topology(location, timeout=self.connect_timeout)
        return self._topology.locate(route)

    def numbers(self, endpoint: Endpoint) -> Numbers:
        """What numbers the calls of a new connection."""
        clock = self._clocks.setdefault(endpoint, ServerClock())
        return Numbers(clock, self.call_timeout)

    def heed(self, error: WrongNode) -> Endpoint | None:
        """The node that has a key, as named by another node; later calls of its slot go there. None: unknown."""
        return None if self._topology is None else self._topology.heed(error)

    def forget(self) -> None:
        """Look the server up again: it did not answer, so it may have moved, or stopped when idle (embedded)."""
        if self._topology is not None:
            self._topology.forget()
            if self.is_embedded:
                self._topology = None


def _own_server(data_dir: Path) -> Location:
    location = read_url(embedded.ensure(data_dir))
    return replace(location, seeds=tuple(replace(seed, is_own=True) for seed in location.seeds))


class Tries:
    """Repeats of a failed call: as long as repeating is harmless, until the patience ends."""

    def __init__(self, call: Call[Any], source: Source, patience: float | None) -> None:
        self._call = call
        self._source = source
        self._pauses = pauses(source.call_timeout if patience is None else patience)
        self._late = 0
        #: Until when the server remembers the tries whose replies were lost.
        self._known_until = time.monotonic() + REPEATED * source.call_timeout if call.before else math.inf
        #: The server may have carried the call out already.
        self.repeated = False
        #: Tries of a numbered call whose replies were lost.
        self.before = call.before
        #: Of a cluster: the node that the next try goes to, announced by ASKING; None: the one whose slot it is.
        self.asked: Endpoint | None = None
        self._was_sent_on = False

    def number(self, numbers: Numbers) -> Try:
        """Number the next try."""
        return numbers.next(self._call.route, self.before, self._call.timed, self._late)

    def pause_after(self, error: StoreError, tried: Try | None) -> float:
        """Seconds to wait before the next try; raises the error when there is none."""
        self.asked = None
        if isinstance(error, Late):
            if tried is None:
                raise error
            self._late += 1
            if self._late > DOUBLINGS:
                raise self._end(ServerUnavailable(f"every call reaches the server too late: {error}")) from error
            return 0.0
        if isinstance(error, ConnectionLost) and error.sent:
            if not self._call.repeatable:
                raise error
            self.lost(tried)
        if isinstance(error, WrongNode):
            if self._goes_on(error):
                return 0.0
        elif not isinstance(error, SlotMoving):
            self._source.forget()
        self._was_sent_on = False
        pause = next(self._pauses, None)
        if isinstance(error, SlotMoving):  # the node answers, so a short fixed pause will do
            pause = min(pause, random.uniform(0.1, 0.3)) if pause else next(self._pauses, None)
        if pause is None or time.monotonic() + pause > self._known_until:
            raise self._end(error) from error
        return pause

    def _goes_on(self, error: WrongNode) -> bool:
        """Whether to try the named node at once; not twice in a row, because nodes may disagree."""
        if not self._source.is_cluster:
            raise ServerRefused(f"the server is a node of a cluster: write redis+cluster:// ({error})") from error
        node = self._source.heed(error)
        if node is None:
            self._source.forget()
        self.asked = node if error.is_moving else None
        self._was_sent_on = node is not None and not self._was_sent_on
        return self._was_sent_on

    def lost(self, tried: Try | None) -> None:
        """The reply to a try did not come."""
        self.repeated = True
        if tried is not None:
            if not self.before:
                self._known_until = time.monotonic() + REPEATED * self._source.call_timeout
            self.before = f"{self.before} {tried.name}".lstrip()

    def _end(self, error: StoreError) -> StoreError:
        return outcome_unknown(error, self._call, self.before) if self.before else error


def outcome_unknown(error: StoreError, call: Call[Any], before: str) -> OutcomeUnknown:
    """The error of a numbered call that may have been carried out."""
    advice = "it has a name, so it can be repeated" if call.is_named else "repeating it may run it twice"
    return OutcomeUnknown(
        f"the server may have carried this out: {error}; {advice}", is_safe=call.is_named, tries=before
    )


def pauses(patience: float) -> Iterator[float]:
    """Seconds to wait before each try: none, then longer and longer, with jitter, until the patience ends."""
    deadline = time.monotonic() + patience
    yield 0.0  # most often only this connection was stale
    pause = 0.02
    while time.monotonic() < deadline:
        yield pause * random.uniform(0.5, 1.5)
        pause = min(pause * 2, 1.0)
