"""The data directory of an embedded server, opened once and used through its descriptor.

The server executes what it reads there, so the directory must belong to this user and be closed to others, and its
files must be plain files of this user. Names are looked up in the open directory and links are never followed: a
directory that another user puts in its place after the check is not used.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from relevo.errors import EmbeddedServerError, UntrustedDirectory
from relevo.project import named, user

#: What relevo and the server make in a data directory.
_NAMES = re.compile(r"(\.gitignore|identity|engine\.json)(\.new)?|server\..*|appendonly.*|temp-.*|dump\.rdb")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class DataDirectory:
    """An open directory that belongs to this user. Made by `open_directory`."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self.fd)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor of one of its files; a new file is readable by this user only."""
        try:  # not blocking: opening a pipe in the place of a file would wait for its writer
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=self.fd)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EMLINK, errno.ENXIO):
                raise self._strange(name) from error
            raise
        try:
            self._check_file(name, os.fstat(fd))
            if flags & os.O_CREAT:
                os.fchmod(fd, 0o600)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def read(self, name: str) -> bytes | None:
        """The content of a file; None if there is none."""
        try:
            with open(self.open(name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a new file in the place of whatever has this name."""
        beside = f"{name}.new"
        self.remove(beside)
        with open(self.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb") as file:
            file.write(content)
        os.replace(beside, name, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def remove(self, name: str) -> None:
        """Remove a file, or a link and not what it names; it may be missing."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def rename(self, name: str, to: str) -> None:
        """Give a file another name."""
        os.replace(name, to, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def has(self, name: str) -> bool:
        """Whether something of this name is there."""
        return name in self.names()

    def names(self) -> list[str]:
        """What is in it."""
        return os.listdir(self.fd)  # noqa: PTH208 - as above

    def is_for_data_alone(self) -> bool:
        """Whether nothing is in it that neither relevo nor the server made."""
        return all(map(_NAMES.fullmatch, self.names()))

    @property
    def is_open_to_others(self) -> bool:
        """Whether other users can put files into it."""
        return bool(os.fstat(self.fd).st_mode & _OTHERS_MAY_WRITE)

    def close_to_others(self) -> None:
        """Let only this user look into it."""
        os.fchmod(self.fd, 0o700)

    def check_files(self) -> None:
        """Refuse links and special files: the server opens its files by name, and would write where a link leads."""
        for name in filter(_NAMES.fullmatch, self.names()):
            found = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
            if not stat.S_ISDIR(found.st_mode):
                self._check_file(name, found)
                continue
            with self._folder(name) as fd:
                for inner in os.listdir(fd):  # noqa: PTH208 - as above
                    found = os.stat(inner, dir_fd=fd, follow_symlinks=False)
                    self._check_file(f"{name}/{inner}", found)

    @contextlib.contextmanager
    def _folder(self, name: str) -> Iterator[int]:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fd)
        try:
            yield fd
        finally:
            os.close(fd)

    def _check_file(self, name: str, found: os.stat_result) -> None:
        is_socket = name == "server.sock" and stat.S_ISSOCK(found.st_mode)
        if not (stat.S_ISREG(found.st_mode) or is_socket) or found.st_nlink > 1 or found.st_uid != user():
            raise self._strange(name)

    def _strange(self, name: str) -> UntrustedDirectory:
        return UntrustedDirectory(
            f"{self.path / name} is not a plain file of this user's own (a link, a second name of another file, or a "
            "special file): what is written there would go elsewhere. Nothing was started. Find out where it comes "
            "from and remove it, or set RELEVO_DATA_DIR to another directory."
        )


def place_of(data_dir: Path) -> Path:
    """The absolute path of a data directory, whose last part may not be a link."""
    return data_dir.parent.resolve() / data_dir.name if data_dir.name not in ("", "..") else data_dir.resolve()


def open_directory(path: Path, *, closed: bool = True) -> DataDirectory:
    """Open a directory of this user; FileNotFoundError if there is none. `closed`: others must not be able to write."""
    if path.is_symlink():
        raise UntrustedDirectory(
            f"{path} is a link to {path.readlink()}. A link may come with a repository; set RELEVO_DATA_DIR to the "
            "directory itself."
        )
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        refuse_other_owner(path, path.lstat() if os.path.lexists(path) else None)
        raise unusable(path, error) from error
    directory = DataDirectory(path, fd)
    try:
        found = os.fstat(fd)
        refuse_other_owner(path, found)
        if closed and directory.is_open_to_others:
            raise UntrustedDirectory(
                f"{path} can be written by other users (mode {stat.S_IMODE(found.st_mode):04o}), and a server started "
                "on it would execute their files. If you know what is in it, run "
                f"`relevo server trust {shlex.quote(str(path))}`, which closes it; else remove it."
            )
    except BaseException:
        directory.close()
        raise
    return directory


def refuse_other_owner(path: Path, found: os.stat_result | None) -> None:
    """Refuse what belongs to another user."""
    if found is not None and found.st_uid != user():
        raise UntrustedDirectory(
            f"{path} belongs to {named(found.st_uid)}, and a server started on it would execute that user's files. Set "
            "RELEVO_DATA_DIR to a directory of your own, or RELEVO_URL to a server of yours."
        )


def unusable(path: Path, error: OSError) -> EmbeddedServerError:
    """The error for a place that cannot be used."""
    return EmbeddedServerError(
        f"{path} cannot be used by the embedded server: {error.strerror}. Set RELEVO_DATA_DIR to a directory "
        "on a local disk that this user may write, or RELEVO_URL to a server of yours."
    )
