"""A unix socket that only the user of this process can open."""

from __future__ import annotations

import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relevo.errors import ConfigurationError


@contextmanager
def listening_at(path: Path) -> Iterator[socket.socket]:
    """The socket, of mode 0600 from its beginning; it is removed at the end if it is still this one.

    The socket of a killed process is replaced; anything else is refused: a file, a link, a socket of another user or of
    a live process, and a directory in which other users could replace the socket.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise ConfigurationError("--unix: this system does not tell who is at the other end; use a port and its token")
    try:
        _check_directory(path.parent)
        _remove_stale(path)
        listening = _bind(path)
    except OSError as error:
        raise _refused(path, error.strerror or str(error)) from error
    made = os.lstat(path)
    try:
        with listening:
            yield listening
    finally:
        if _is_same(path, made):
            path.unlink()


def peer_uid(connected: socket.socket) -> int | None:
    """The uid of the peer; None: it is no unix socket."""
    if connected.family != socket.AF_UNIX:
        return None
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)  # pid, uid, gid
    return int(struct.unpack("iII", credentials)[1])


def _check_directory(directory: Path) -> None:
    found = directory.stat()
    is_open = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if is_open or found.st_uid not in (0, os.geteuid()):
        raise _refused(directory, "others can replace files in this directory; choose one of your own")


def _remove_stale(path: Path) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.geteuid():
        raise _refused(path, "there is something that is no socket of yours; remove it, or choose another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
        tried.settimeout(1.0)
        try:
            tried.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except TimeoutError:  # its backlog is full: it is in use
            pass
    raise _refused(path, "another process listens there; stop it, or choose another path")


def _bind(path: Path) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))  # does not follow links: a link means that the address is in use
        listening.listen()
    except OSError:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def _is_same(path: Path, made: os.stat_result) -> bool:
    try:
        return os.path.samestat(os.lstat(path), made)
    except FileNotFoundError:
        return False


def _refused(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(f"cannot listen at {path}: {why}")
