"""The running jobs of a worker process, in memory shared with its supervisor.

A task may hold the GIL for minutes inside one C call; then no thread of that process can renew its leases, and another
worker would claim the job while it still runs. So every started job is written here (0.4 µs), and the supervisor renews
its lease as long as the process is alive and not stopped and the job's time limit has not passed.

Layout: a header (when the process last renewed by itself, and when the server last answered its event loop), then cells
of 64 bytes:
in use, queue, token, id, monotonic start time, monotonic deadline (0: none).
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
import time
from collections.abc import Iterator

from msgspec import Struct

_HEADER = 64
_CELL = 64
_BEAT = struct.Struct("<d")
_ROW = struct.Struct("<BBI20sdd")


class Entry(Struct, frozen=True):
    """A started job."""

    #: its number among the worker's queues
    queue: int
    token: int
    id: str
    began: float
    deadline: float


class Ledger:
    """Written by the worker, read by the supervisor."""

    def __init__(self, fd: int, cells: int) -> None:
        self._map = mmap.mmap(fd, _HEADER + cells * _CELL)
        self._free = list(range(cells - 1, -1, -1))
        self._cells = cells

    @staticmethod
    def make(cells: int) -> int:
        """A descriptor of shared memory for a ledger, inherited by the worker process."""
        size = _HEADER + cells * _CELL
        if hasattr(os, "memfd_create"):
            fd = os.memfd_create("relevo-ledger", 0)
        else:
            fd, path = tempfile.mkstemp(prefix="relevo-ledger-")
            os.unlink(path)  # noqa: PTH108
        os.ftruncate(fd, size)
        return fd

    def beat(self) -> None:
        """Note that the worker has renewed its leases itself."""
        _BEAT.pack_into(self._map, 0, time.monotonic())

    @property
    def last_beat(self) -> float:
        """Monotonic time of the last beat; 0: never."""
        return float(_BEAT.unpack_from(self._map, 0)[0])

    def pulse(self) -> None:
        """Note that the event loop runs and the server has answered it."""
        _BEAT.pack_into(self._map, _BEAT.size, time.monotonic())

    @property
    def last_pulse(self) -> float:
        """Monotonic time of the last pulse; 0: never."""
        return float(_BEAT.unpack_from(self._map, _BEAT.size)[0])

    def write(self, queue: int, token: int, id: str, began: float, deadline: float) -> int:
        """Write a started job; returns its cell, or -1 if all are in use."""
        try:
            cell = self._free.pop()
        except IndexError:
            return -1
        _ROW.pack_into(self._map, _HEADER + cell * _CELL, 1, queue, token, id.encode(), began, deadline)
        return cell

    def clear(self, cell: int) -> None:
        """Free the cell of a job that has ended."""
        if cell >= 0:
            self._map[_HEADER + cell * _CELL] = 0
            self._free.append(cell)

    def entries(self) -> Iterator[Entry]:
        """All started jobs."""
        for cell in range(self._cells):
            used, queue, token, id, began, deadline = _ROW.unpack_from(self._map, _HEADER + cell * _CELL)
            if used:
                yield Entry(queue, token, id.decode("ascii", "replace"), began, deadline)

    def close(self) -> None:
        """Unmap the memory."""
        self._map.close()
