"""One blocking connection: a socket, and hiredis to pack and parse.

A round trip through here costs about half of what a pooled client takes, which is most of what a blocking enqueue is.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import hiredis

from relevo.store.call_numbers import Numbers
from relevo.store.endpoint import Endpoint
from relevo.store.peers import check_peer
from relevo.store.plan import Argument
from relevo.store.replies import ConnectionLost, refusal

ASKING = (b"ASKING",)


class Link:
    """A connection for one thread."""

    def __init__(self, endpoint: Endpoint, *, connect_timeout: float, timeout: float, numbers: Numbers) -> None:
        self.endpoint = endpoint
        #: Whether the server was found fit to keep jobs (server_check.py).
        self.is_checked = False
        self.numbers = numbers
        self._timeout = timeout
        self._waits = -1.0
        self._reader = hiredis.Reader(notEnoughData=Ellipsis)
        try:
            self._socket = _open(endpoint, connect_timeout)
        except OSError as error:
            raise ConnectionLost(f"cannot connect to {endpoint}: {error}", sent=False) from error
        try:
            for command in endpoint.greeting():
                self.request(command)
        except ConnectionLost as error:  # only the greeting was under way
            raise ConnectionLost(str(error), sent=False) from error
        except BaseException:
            self.close()
            raise

    def request(self, command: Sequence[Argument], *, timeout: float | None = None, asking: bool = False) -> Any:
        """Send a command and read its reply; an error reply is raised.

        `asking`: the slot of its key is moving to this node, by the answer (ASK) of the node it moves from.
        """
        if asking:
            self.request(ASKING, timeout=timeout)
        self.send(command)
        return self.reply(timeout=timeout)

    def reply(self, *, timeout: float | None = None) -> Any:
        """The next reply; an error reply is raised."""
        found = self.read(timeout=timeout)
        if isinstance(found, Exception):
            raise refusal(str(found))
        return found

    def send(self, command: Sequence[Argument]) -> None:
        """Send without waiting."""
        try:
            self._wait_at_most(self._timeout)
            self._socket.sendall(hiredis.pack_command(tuple(command)))  # type: ignore[arg-type]
        except OSError as error:
            self.close()
            raise ConnectionLost(f"connection to {self.endpoint} lost while sending: {error}", sent=True) from error

    def read(self, *, timeout: float | None = None) -> Any:
        """The next reply or message."""
        reader = self._reader
        reply = reader.gets()
        if reply is not Ellipsis:
            return reply
        limit = self._timeout if timeout is None else timeout
        try:
            self._wait_at_most(limit)
            deadline = 0.0
            while True:
                data = self._socket.recv(65536)
                if not data:
                    raise OSError("closed by the server")
                reader.feed(data)
                reply = reader.gets()
                if reply is not Ellipsis:
                    return reply
                deadline = deadline or time.monotonic() + limit  # for a whole reply, also one that arrives slowly
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no whole reply within {limit:g} s")
        except (OSError, hiredis.HiredisError) as error:
            self.close()
            # The kernel reports a time-out as EAGAIN, whose text would not help the reader.
            why = f"no answer for {limit:g} s" if isinstance(error, BlockingIOError) else error
            raise ConnectionLost(f"connection to {self.endpoint} lost: {why}", sent=True) from error

    def wait(self, timeout: float) -> Any:
        """The next message, or TimeoutError after a quiet time, which leaves the connection as it is."""
        reply = self._reader.gets()
        if reply is not Ellipsis:
            return reply
        self._wait_at_most(timeout)
        try:
            data = self._socket.recv(65536)
            if not data:
                raise ConnectionResetError("closed by the server")
        except (TimeoutError, BlockingIOError) as quiet:
            raise TimeoutError("quiet") from quiet
        except OSError as error:
            self.close()
            raise ConnectionLost(f"connection to {self.endpoint} lost: {error}", sent=True) from error
        self._reader.feed(data)
        return self.read()

    def _wait_at_most(self, seconds: float) -> None:
        """Set the time-out in the kernel: Python's own costs two more system calls for each read."""
        if seconds == self._waits:
            return
        self._waits = seconds
        if self.endpoint.tls is not None:
            self._socket.settimeout(seconds)
            return
        span = struct.pack("ll", int(seconds), int(seconds % 1 * 1_000_000) or 1)
        self._socket.setblocking(True)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, span)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, span)

    def close(self) -> None:
        """Hang up."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def __del__(self) -> None:  # of a thread that has ended: there is no other reference to it
        with contextlib.suppress(AttributeError):  # it was never opened
            self.close()


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel detect a peer that vanished, also on a connection without writes."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 3), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _open(endpoint: Endpoint, timeout: float) -> socket.socket:
    if endpoint.path:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(timeout)
            made.connect(endpoint.path)
            if endpoint.is_own:
                check_peer(made, endpoint.path)
        except BaseException:
            made.close()
            raise
        return made
    made = socket.create_connection((endpoint.host, endpoint.port), timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    keep_alive(made)
    if endpoint.tls:
        return endpoint.tls.context().wrap_socket(made, server_hostname=endpoint.host)
    return made
