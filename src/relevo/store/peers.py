"""Who is at the other end of a unix socket."""

from __future__ import annotations

import socket
import struct
import sys

from relevo.errors import UntrustedDirectory
from relevo.project import named, user


def check_peer(sock: socket.socket, path: str) -> None:
    """Refuse a socket whose server belongs to another user, who put it in the place of this user's own."""
    uid = peer_uid(sock)
    if uid not in (None, user()):
        raise UntrustedDirectory(
            f"the server at {path} belongs to {named(uid or 0)}, not to this user: its directory was replaced. "
            "Set RELEVO_DATA_DIR to a directory whose parents others cannot change."
        )


def peer_uid(sock: socket.socket) -> int | None:
    """The user who listens there; None where the system does not say."""
    if sys.platform == "linux":
        return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1])
    if sys.platform == "darwin":  # struct xucred by LOCAL_PEERCRED
        return int(struct.unpack_from("=II", sock.getsockopt(0, 1, 76))[1])
    return None
