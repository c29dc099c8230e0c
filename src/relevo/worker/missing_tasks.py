"""Warns about tasks that a worker does not know, mostly because no one imports their module, and says what to do."""

from __future__ import annotations

import logging
import re
import sys
from importlib.machinery import PathFinder
from pathlib import Path

from relevo.engine.engine import Engine
from relevo.text.legible import short

log = logging.getLogger("relevo.worker")

#: Names that are warned about; others are only in the records of their jobs, since any program may enqueue any name.
MOST_NAMES = 100
#: Source files that are looked at for tasks, and bytes of one.
_MOST_FILES, _MOST_BYTES = 200, 2**18
_DECORATED = re.compile(r"^\s*@\w[\w.]*\.(task|action|on)\b", re.MULTILINE)
_WHERE = "in relevo.toml, or Relevo(…, imports=[…])"


class MissingTasks:
    """What one worker was asked for and does not know."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._warned: set[str] = set()

    def note(self, target: str, why: str) -> None:
        """A job of this target came, which does not run here: one line for each name."""
        if target in self._warned or len(self._warned) > MOST_NAMES:
            return
        self._warned.add(target)
        if len(self._warned) > MOST_NAMES:
            log.warning("more than %d unknown tasks: further ones are not logged", MOST_NAMES)
            return
        log.warning("%s; its jobs wait for a worker that knows it%s", short(why, 300), remedy(target))

    def warn_of_none(self) -> None:
        """The app has no task at all."""
        module = self._engine.loaded_from.partition(":")[0]
        found = modules_with_tasks(module) if module else []
        named = ", ".join(f'"{one}"' for one in found) or '"shop.mails"'
        log.warning(
            "app %r has no tasks%s: name the modules that define them, such as imports = [%s] %s",
            self._engine.name, f" after the import of {module}" if module else "", named, _WHERE,
        )  # fmt: skip


def remedy(target: str) -> str:
    """What to do, if the module that the name of a task speaks of exists and was not imported."""
    module = target.rpartition(".")[0]
    if module in sys.modules or not can_be_found(module):
        return ""
    return f'; {module} was not imported: imports = ["{module}"] {_WHERE}'


def can_be_found(module: str) -> bool:
    """Whether there is such a module. Imports nothing: any program may write any name into a job."""
    if not all(part.isidentifier() for part in module.split(".")):
        return False
    places: list[str] | None = None
    parts = module.split(".")
    if parts[0] in sys.stdlib_module_names:
        return False
    for depth in range(len(parts)):
        spec = PathFinder.find_spec(".".join(parts[: depth + 1]), places)
        if spec is None:
            return False
        places = list(spec.submodule_search_locations or ())
    return True


def modules_with_tasks(beside: str) -> list[str]:
    """Modules in the directory of this one that seem to have tasks, and were not imported."""
    file = getattr(sys.modules.get(beside), "__file__", None)
    if file is None:
        return []
    package, found = beside.rpartition(".")[0], []
    for path in sorted(Path(file).parent.rglob("*.py"))[:_MOST_FILES]:
        parts = path.relative_to(Path(file).parent).with_suffix("").parts
        name = ".".join((*([package] if package else ()), *(part for part in parts if part != "__init__")))
        if name not in sys.modules and all(map(str.isidentifier, parts)) and _has_tasks(path):
            found.append(name)
    return found[:5]


def _has_tasks(path: Path) -> bool:
    try:
        return path.stat().st_size <= _MOST_BYTES and bool(_DECORATED.search(path.read_text(errors="replace")))
    except OSError:
        return False
