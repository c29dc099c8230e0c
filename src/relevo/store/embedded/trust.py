"""Which data directories this user made or trusts: a record of each is kept outside of them.

A directory that comes with a repository or an archive belongs to the user who unpacked it, so its owner says nothing
about who wrote its files. Each directory therefore has a random `identity`, and a record of path and identity is kept
in the user's state directory, where no repository can put one:

    $XDG_STATE_HOME/relevo/data-directories/<sha256 of path and identity>      (~/.local/state by default)

A directory that is missing or empty is made and recorded; any other needs its record, or `relevo server trust`.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from relevo.errors import EmbeddedServerError, UntrustedDirectory
from relevo.project import named, user
from relevo.store.embedded.directory import DataDirectory, open_directory, unusable
from relevo.store.embedded.place import take_lock

#: What is in a directory that was never used. Nothing of it is read before it is written anew.
_UNUSED = {"server.lock", "identity", "identity.new", ".gitignore", ".gitignore.new"}
#: Records of directories that are gone are removed after so many days without a start of their server.
KEPT_DAYS = 90
#: Directories that this process made for itself, by the names of their records.
_of_this_process: set[str] = set()


def open_trusted(path: Path, *, timeout: float, record: bool) -> DataDirectory:
    """Open the directory of a server, made if it is missing; refuse one that this user neither made nor trusts.

    Without `record` a new one is trusted by this process alone, and needs no state directory.
    """
    began = time.monotonic()
    while True:
        try:
            directory = open_directory(path)
        except FileNotFoundError:
            _make(path, record)
            continue
        try:
            if is_trusted(directory) or _took(directory, record):
                return directory
            if time.monotonic() - began > timeout:
                raise EmbeddedServerError(
                    f"The lock of {path}, which is empty, was held for {timeout:g} s: it is used elsewhere (e.g. by "
                    "another container on the same volume), its server is running elsewhere or was removed. Stop it "
                    "there, or set RELEVO_DATA_DIR to a directory of your own."
                )
        except BaseException:
            directory.close()
            raise
        directory.close()
        time.sleep(0.01)


def trust(directory: DataDirectory, *, record: bool = True) -> None:
    """Give the directory a new identity, close it to others, and remember it."""
    identity = secrets.token_hex(16)
    directory.close_to_others()
    if directory.is_for_data_alone():
        directory.write(".gitignore", b"*\n")
    directory.write("identity", f"{identity}\n".encode())
    name = _record_name(directory.path, identity)
    if not record:
        _of_this_process.add(name)
        return
    with _records(make=True) as records:
        _forget_old(records)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=records)
        with open(fd, "wb") as file:
            file.write(os.fsencode(directory.path))
            file.flush()
            os.fsync(fd)  # the record must survive a loss of power, as the data does


def is_trusted(directory: DataDirectory) -> bool:
    """Whether this user made the directory at this path, or trusted it by `relevo server trust`."""
    name = _own_record(directory)
    if name is None or name in _of_this_process:
        return name is not None
    try:
        with _records(make=False) as records:
            found = os.stat(name, dir_fd=records, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == user()


def note_use(directory: DataDirectory) -> None:
    """Keep the record of a directory whose server is started."""
    name = _own_record(directory)
    if name is not None and name not in _of_this_process:
        with contextlib.suppress(OSError), _records(make=False) as records:
            os.utime(name, dir_fd=records, follow_symlinks=False)


def untrusted(path: Path) -> UntrustedDirectory:
    """The error for a directory of this user that has no record."""
    return UntrustedDirectory(
        f"{path} was not made by relevo for this user at this place, and a server started on it would execute its "
        "files: it may come with a repository, an archive or a copy. If you know where it comes from (an earlier "
        "version of relevo, or you moved it), and only then, run "
        f"`relevo server trust {shlex.quote(str(path))}`; else remove it, or set RELEVO_DATA_DIR to another directory."
    )


def _make(path: Path, record: bool) -> None:
    if record:
        with _records(make=True):
            pass  # where it cannot be recorded, no directory is left behind
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError:
        return  # a file, or a link to nothing: opening it says so
    except OSError as error:
        raise unusable(path, error) from error


def _took(directory: DataDirectory, record: bool) -> bool:
    """Make an unused directory this user's own; False: another process is about to."""
    if not is_unused(directory):
        # Its maker records a directory before the server puts anything into it.
        if is_trusted(directory):
            return True
        raise untrusted(directory.path)
    lock = take_lock(directory)
    if lock is None:
        return False
    try:
        if is_trusted(directory):
            return True
        if not is_unused(directory):
            raise untrusted(directory.path)
        trust(directory, record=record)
    except OSError as error:
        raise unusable(directory.path, error) from error
    finally:
        os.close(lock)
    return True


def is_unused(directory: DataDirectory) -> bool:
    """Whether nothing is in it that a server would read."""
    return _UNUSED.issuperset(directory.names())


def _own_record(directory: DataDirectory) -> str | None:
    identity = (directory.read("identity") or b"").decode(errors="replace").strip()
    return _record_name(directory.path, identity) if re.fullmatch("[0-9a-f]{32}", identity) else None


def _record_name(path: Path, identity: str) -> str:
    return hashlib.sha256(os.fsencode(path) + b"\0" + identity.encode()).hexdigest()


# The records


def records_place() -> Path:
    """Where records are kept."""
    given = os.environ.get("XDG_STATE_HOME", "")
    state = Path(given) if given.startswith("/") else _home() / ".local" / "state"
    return state / "relevo" / "data-directories"


def _home() -> Path:
    """The home directory; for root not that of another user, which sudo may leave in HOME."""
    import pwd

    with contextlib.suppress(OSError, RuntimeError):
        home = Path.home()
        if user() != 0 or home.stat().st_uid == 0:
            return home
    try:
        return Path(pwd.getpwuid(user()).pw_dir)
    except KeyError:
        raise _no_records("this user has no home directory") from None


def _make_private(place: Path) -> None:
    if not place.is_dir():
        _make_private(place.parent)
        place.mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _records(*, make: bool) -> Iterator[int]:
    """The open directory of records. FileNotFoundError if there is none and it is not to be made."""
    place = records_place()
    try:
        if make:
            _make_private(place)
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not make:
            raise
        raise _no_records(f"{place} cannot be used: {error.strerror}") from error
    try:
        found = os.fstat(fd)
        if found.st_uid != user():
            raise _no_records(f"{place} belongs to {named(found.st_uid)}")
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise _no_records(f"{place} can be written by other users")
        if make and not os.access(place, os.W_OK):
            raise _no_records(f"{place} cannot be written")
        yield fd
    finally:
        os.close(fd)


def _no_records(why: str) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"relevo remembers outside of a data directory that it made it, and cannot: {why}. Set XDG_STATE_HOME to a "
        "directory that this user may write and that lasts as long as the data (in a container, one on the same "
        "volume), or RELEVO_URL to a server of yours."
    )


def _forget_old(records: int) -> None:
    oldest = time.time() - KEPT_DAYS * 86_400
    for name in os.listdir(records):
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=records)
        except OSError:
            continue
        with open(fd, "rb") as file:
            if os.fstat(fd).st_mtime < oldest and not os.path.lexists(file.read(4096)):
                os.unlink(name, dir_fd=records)
