"""The project around a directory: how far up settings and data are looked for, and which of its files are trusted.

A file above the working directory may have been put there by another user of this machine, and settings decide which
server is used and which functions a worker runs. So the search ends at the root of the project, at the home directory
and below a directory of another user or for all (/tmp). A file is trusted only if no other user but root could have
written it.
"""

from __future__ import annotations

import logging
import os
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from relevo.errors import SettingsError

log = logging.getLogger("relevo.settings")

Table = dict[str, Any]


class Project(NamedTuple):
    """The directories in which settings and data are looked for."""

    #: The working directory, and those above it up to the root; without a root, as far up as others cannot write.
    folders: tuple[Path, ...]
    #: The nearest directory with `.git`, else with `pyproject.toml`; None: the working directory alone is the project.
    root: Path | None
    #: Directories further up, in which nothing is looked for.
    above: tuple[Path, ...]

    @property
    def end(self) -> str:
        """Why nothing above is used."""
        last = self.folders[-1]
        if self.root:
            return f"it is above {last}, the root of the project"
        if last == _home():
            return f"it is above the home directory, {last}"
        return f"it is above {last}, and the directory above that belongs to another user or is for all"


class SettingsFile(NamedTuple):
    """What a settings file says."""

    path: Path
    table: Table


def project_of(directory: Path) -> Project:
    """The project around this directory, which is an absolute path without links."""
    folders, home = [directory], _home()
    for parent in directory.parents:
        if folders[-1] == home or _is_shared(parent):
            break
        folders.append(parent)
    # A repository may hold several packages, which share settings and data at its top.
    root = next((one for mark in (".git", "pyproject.toml") for one in folders if os.path.lexists(one / mark)), None)
    if root is not None:
        folders = folders[: folders.index(root) + 1]
    return Project(tuple(folders), root, tuple(directory.parents)[len(folders) - 1 :])


def is_own(path: Path) -> bool:
    """Whether this user owns what is at this path."""
    try:
        return path.stat().st_uid == user()
    except OSError:
        return False


def find_settings(directory: Path, name: str, part: Callable[[Path, Table], Table]) -> SettingsFile | None:
    """The nearest file of this name. `part` takes from its table what is meant for relevo."""
    project = project_of(directory)
    for folder in project.folders:
        path = folder / name
        is_inside = project.root is not None or folder == directory
        try:
            reason = foreign_entry(folder.stat(), path.lstat())
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error
        if reason and not is_inside:
            warn_once(path, f"{reason}. Give settings as RELEVO_* variables, or in a file of your own")
            continue
        content, found = _read(path)
        reason = reason or foreign(found, "it")
        table = part(path, _parsed(path, content))
        if reason and table:
            raise SettingsError(
                f"{path} is not trusted: {reason}, and settings decide which server is used and what a worker runs. "
                "Make it and its directory your own (chown), or give settings as RELEVO_* variables."
            )
        if (risky := next((one for one in ("allow", "imports") if one in table), None)) and not is_inside:
            raise SettingsError(
                f"{risky} in {path}: the file is above the working directory, and no pyproject.toml or .git says that "
                f"both belong to one project. Put the file into {directory}, or a pyproject.toml into {folder}."
            )
        return SettingsFile(path, table)
    if name == "relevo.toml":
        _warn_of_files_outside(project, name)
    return None


def _read(path: Path) -> tuple[bytes, os.stat_result]:
    try:
        # Not blocking: a pipe in the place of a file would wait for a writer.
        with open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise SettingsError(f"{path} cannot be read: it is not a file.")
            return file.read(), found
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}.") from error


def foreign_entry(folder: os.stat_result, entry: os.stat_result) -> str | None:
    """How another user could have put this entry (a file, or a link to one) into its directory; None: not at all."""
    if reason := foreign(folder, "its directory"):
        return reason
    if folder.st_mode & stat.S_IWOTH and entry.st_nlink > 1:
        return "it has a second name, and every user may make links in its directory"
    return foreign(entry, "it")


def foreign(found: os.stat_result, what: str) -> str | None:
    """How another user could have made or changed this; None if only this user and root could.

    What root owns is accepted, because root can change this program as well. The mode of what this user owns is not
    looked at: those who may write to a project can change the program in it.
    """
    if user() in (found.st_uid, -1):
        return None
    if found.st_uid != 0:
        return f"{what} belongs to {named(found.st_uid)}"
    # In a sticky directory users can only remove and replace what is theirs, and entries are looked at one by one.
    is_sticky = stat.S_ISDIR(found.st_mode) and found.st_mode & stat.S_ISVTX
    if _is_writable_by_others(found) and not is_sticky and not stat.S_ISLNK(found.st_mode):
        return f"{what} belongs to root, and other users may write to it"
    return None


def _is_writable_by_others(found: os.stat_result) -> bool:
    return bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _is_shared(folder: Path) -> bool:
    """Whether a directory belongs to another user, or is meant for all, as /tmp is."""
    try:
        found = folder.stat()
    except OSError:
        return True
    if user() in (found.st_uid, -1):
        return bool(found.st_mode & stat.S_IWOTH and found.st_mode & stat.S_ISVTX)
    return found.st_uid != 0 or _is_writable_by_others(found)


def user() -> int:
    """By whose rights this process uses files; -1 where there are no users, on Windows."""
    return os.geteuid() if hasattr(os, "geteuid") else -1


def named(uid: int) -> str:
    """A user, for people."""
    try:
        import pwd

        return f"user {pwd.getpwuid(uid).pw_name} (uid {uid})"
    except (ImportError, KeyError):
        return f"uid {uid}"


def _home() -> Path | None:
    try:
        return Path.home().resolve()
    except (OSError, RuntimeError):
        return None


def _parsed(path: Path, content: bytes) -> Table:
    text = ""
    try:
        text = content.decode()
        return tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise SettingsError(f"{path}, line {line}: not UTF-8 text.") from error
    except tomllib.TOMLDecodeError as error:
        end = f"line {text.count(chr(10)) + 1}, the end"
        why = str(error).replace("end of document", end)
        raise SettingsError(f"{path} is not valid TOML: {why}.") from error


_warned: set[Path] = set()


def _warn_of_files_outside(project: Project, name: str) -> None:
    for folder in project.above:
        if os.path.lexists(folder / name):
            warn_once(folder / name, project.end)
            return


def warn_once(path: Path, why: str) -> None:
    """Log, once in this process, that something is not used."""
    if path not in _warned:
        _warned.add(path)
        log.warning("%s is not used: %s", path, why)
