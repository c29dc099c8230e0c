"""For development, `relevo worker --reload`: a worker process ends when a file of the project that it imported changes,
and its supervisor starts another one. It needs watchfiles (`pip install "relevo[reload]"`)."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from relevo.errors import ConfigurationError
from relevo.settings import settings_files

if TYPE_CHECKING:
    from relevo.worker.worker import Worker

log = logging.getLogger("relevo.worker")

#: The exit code of a process that is to be replaced because a file has changed.
CHANGED = 76
#: Of one that could not stop by itself then: a job blocks its event loop.
BLOCKED = 77
#: Seconds that it may take to hand running jobs back.
PATIENCE = 15.0
#: Milliseconds between two looks at what was imported since.
LOOK_EVERY = 1000
SETTINGS = ("relevo.toml", "pyproject.toml")


def needs_extra() -> None:
    """Raise `ConfigurationError` if the package of the extra `reload` is not installed."""
    try:
        import watchfiles  # noqa: F401
    except ImportError as error:
        raise ConfigurationError('--reload needs watchfiles: pip install "relevo[reload]"') from error


class Reload:
    """Watches the files of a worker in a thread, and stops it when one has changed."""

    def __init__(self, worker: Worker, started: float) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._started = started
        self.has_changed = False
        threading.Thread(target=self._watch, name="relevo reload", daemon=True).start()

    def _watch(self) -> None:
        if not (changed := changes(self._started)):
            return
        log.info("%s: the worker starts anew", in_words(changed))
        self.has_changed = True
        self._loop.call_soon_threadsafe(self._worker.stop)
        self._loop.call_soon_threadsafe(self._worker.stop)  # the second time: hand running jobs back at once
        time.sleep(PATIENCE)
        log.error("the event loop is blocked; the process ends")
        os._exit(BLOCKED)


def changes(since: float, failed: BaseException | None = None) -> list[Path]:
    """Block until files of the project have changed since that time, and give them; none: interrupted.

    Those count that were imported, settings, and new modules beside them. With the error of an import that `failed`
    all Python files beside them count: what it would have imported is not known.
    """
    from watchfiles import Change, watch

    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it counts changes, and we name them
    while True:
        files = {*imported_files(), *_files_of(failed)}
        now = time.time()
        if changed := [path for path in sorted(files) if since < _changed_at(path) <= now]:
            return changed  # before it was watched

        def counts(change: Change, name: str, files: set[Path] = files) -> bool:
            path = Path(name)
            is_new = path.suffix == ".py" and (failed is not None or change is Change.added)
            return path in files or is_new or path.name in SETTINGS

        folders = {Path.cwd(), *(path.parent for path in files)}
        for found in watch(
            *sorted(folders), watch_filter=counts, recursive=False, rust_timeout=LOOK_EVERY, yield_on_timeout=True,
            raise_interrupt=False,
        ):  # fmt: skip
            if found:
                return sorted({Path(name) for _, name in found})
            if not files.issuperset(imported_files()):
                break  # a job has imported more
        else:
            return []


def imported_files() -> Iterator[Path]:
    """Files of the imported modules that belong to the project, and of its settings."""
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and file.endswith(".py") and not file.startswith(_OTHERS):
            yield Path(file)
    for name in settings_files():
        yield Path(name.rpartition(" of ")[2])


def _files_of(error: BaseException | None) -> Iterator[Path]:
    """Where an error was raised: a module that could not be imported is not among the imported ones."""
    while error is not None:
        names = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError) and error.filename:
            names.append(error.filename)
        yield from (Path(name) for name in names if name.endswith(".py") and not name.startswith(_OTHERS))
        error = error.__cause__


def _changed_at(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def in_words(changed: Iterable[Path]) -> str:
    """What has changed, as a person knows it."""
    here, paths = Path.cwd(), list(changed)
    names = [str(path.relative_to(here) if path.is_relative_to(here) else path) for path in paths]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more} changed"


def wait_after(failed: BaseException, started: float, die_with: Callable[[], None]) -> int:
    """After an app could not be loaded: wait until a file has changed; the exit code. `die_with` is run in a thread."""
    threading.Thread(target=die_with, daemon=True).start()
    log.info("waiting for a change of its files")
    try:
        changed = changes(started, failed)
    except KeyboardInterrupt:
        changed = []
    if not changed:
        return 0
    log.info("%s: trying again", in_words(changed))
    return CHANGED


#: Where files lie that are no part of a project: Python, installed packages, and relevo itself.
_OTHERS = tuple(
    f"{path}{os.sep}"
    for path in {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parents[1]),
    }
)
