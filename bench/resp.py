"""A blocking connection to the server with the standard library alone: what watches a product must not load another."""

from __future__ import annotations

import socket
from typing import Any


class ReplyError(Exception):
    """The server refused a command."""


def pack(*words: str | bytes | int) -> bytes:
    """A command as the server reads it."""
    parts = [word if isinstance(word, bytes) else str(word).encode() for word in words]
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)


def connect(port: int, timeout: float = 60.0) -> socket.socket:
    """A socket to the server of this run."""
    found = socket.create_connection(("127.0.0.1", port), timeout=timeout)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


class Connection:
    """One command, one reply."""

    def __init__(self, port: int) -> None:
        self._socket = connect(port)
        self._replies = self._socket.makefile("rb")

    def close(self) -> None:
        """Close it."""
        self._replies.close()
        self._socket.close()

    def __call__(self, *words: str | bytes | int) -> Any:
        """Send a command and wait for its reply."""
        self._socket.sendall(pack(*words))
        return self._read()

    def info(self, section: str) -> dict[str, str]:
        """A section of INFO."""
        lines = self("INFO", section).decode().splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    def _read(self) -> Any:
        line = self._replies.readline()
        if not line:
            raise ConnectionError("the server closed the connection")
        kind, rest = line[:1], line[1:-2]
        match kind:
            case b"+":
                return rest.decode()
            case b"-":
                raise ReplyError(rest.decode())
            case b":":
                return int(rest)
            case b"$":
                size = int(rest)
                return None if size < 0 else self._replies.read(size + 2)[:-2]
            case b"*":
                return [self._read() for _ in range(int(rest))]
        raise ReplyError(f"a reply that is no RESP2: {line[:80]!r}")
