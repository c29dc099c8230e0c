"""Where the socket of an embedded server lies, the lock of its directory, and whether the disk will do."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
import re
import stat
import sys
import tempfile
from pathlib import Path

from relevo.errors import EmbeddedServerError
from relevo.project import user
from relevo.store.embedded.directory import DataDirectory, unusable

SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # what fits into sockaddr_un, less its NUL


def socket_path(data: Path) -> Path:
    """Where the server of this directory listens; the same for every process of this user."""
    if importlib.util.find_spec("fcntl") is None:
        raise EmbeddedServerError(
            "The embedded server needs a POSIX system, and this is not one (Windows has no Redis or Valkey). "
            "Work inside WSL, or set RELEVO_URL to a server of yours."
        )
    path = data / "server.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    # Neither TMPDIR nor XDG_RUNTIME_DIR: a cron job and a shell must come to the same place.
    root = Path("/tmp")  # noqa: S108 - the directory in it is checked to be ours
    private = (root if root.is_dir() else Path(tempfile.gettempdir())) / f"relevo-{user()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
    except OSError as error:
        raise unusable(private, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != user() or found.st_mode & 0o077:
        raise EmbeddedServerError(
            f"The path {data} is too long for a socket, and {private}, the place for such sockets, is not a "
            "private directory of this user. Remove it, or set RELEVO_DATA_DIR to a shorter path."
        )
    return private / (hashlib.sha256(os.fsencode(data)).hexdigest()[:16] + ".sock")


def network_disk(path: Path, mounts: str) -> str | None:
    """The type of the network file system that holds this path, by the text of /proc/mounts."""
    holder, kind = "", ""
    for line in mounts.splitlines():
        _, point, filesystem, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        if path.is_relative_to(point) and len(point) >= len(holder):  # a later mount hides an earlier one
            holder, kind = point, filesystem
    if kind == "9p" and holder == "/":
        return None  # the own disk of a sandbox, not a directory of another system
    if kind == "fuse.fuse-overlayfs":
        return None  # the local disk of a container without root
    family = kind.split(".")[0]
    return kind if family.startswith(("nfs", "cifs", "smb")) or family in ("9p", "fuse") else None


def refuse_network_disk(data: Path) -> None:
    """Locks and sockets do not work there."""
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:
        return  # not Linux: a disk without locks or sockets is noticed when they are used
    if kind := network_disk(data, mounts):
        raise EmbeddedServerError(
            f"{data} is on a network or shared disk ({kind}), where locks and sockets cannot be relied on. "
            "Set RELEVO_DATA_DIR to a directory on a local disk, or RELEVO_URL to a server of yours."
        )


def take_lock(directory: DataDirectory) -> int | None:
    """A descriptor that holds the lock of the directory; None if a server or its starter has it."""
    import fcntl

    try:
        lock = directory.open("server.lock", os.O_RDWR | os.O_CREAT)
    except FileNotFoundError:
        return None  # the directory was removed
    except OSError as error:
        raise unusable(directory.path, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return None
        raise unusable(directory.path, error) from error
    if os.fstat(lock).st_nlink == 0:  # the directory was removed under us: this lock guards nothing
        os.close(lock)
        return None
    return lock
