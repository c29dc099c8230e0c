"""The names by which workers import functions."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from relevo.errors import TargetError


def module_of(func: Callable[..., Any]) -> str:
    """The module that a worker would import. A script run directly is known by its file's name."""
    if func.__module__ != "__main__":
        return func.__module__
    main = sys.modules["__main__"]
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name != "__main__":
        return str(spec.name).removesuffix(".__main__")
    file = getattr(main, "__file__", None)
    if file is None or file.startswith("<"):  # "<stdin>" is no file
        raise TargetError(
            f"{func.__qualname__} is defined in an interactive session, where no worker can import it; "
            "put it in a module, or give the task a name= that the worker's code also uses"
        )
    return Path(file).stem


def is_task_name(name: Any) -> bool:
    """Whether this is a valid name of a task."""
    return isinstance(name, str) and name != "" and name.isprintable() and ":" not in name and " " not in name


def own_name(func: Callable[..., Any]) -> str:
    """The name of a function in its module; it must be unique, or workers would confuse them."""
    name: str = getattr(func, "__qualname__", "")
    if not name or "<lambda>" in name or inspect.ismethod(func):
        kind = "a lambda" if "<lambda>" in name else "a bound method" if name else "an object without a name"
        raise TargetError(f"{kind} does not say by which name workers shall know it; give the task a name=")
    return name


def refuse_method(func: Callable[..., Any]) -> None:
    """Refuse a function that is defined in a class and takes the object (or the class) first."""
    name = getattr(func, "__qualname__", "").rpartition("<locals>.")[2]
    if "." not in name or not inspect.isfunction(func):
        return
    first = next(iter(inspect.signature(func).parameters), "")
    if first in ("self", "cls"):
        owner, _, method = name.rpartition(".")
        raise TargetError(
            f"{name} is a method; a worker has no {owner} to call it on. Write a function in the module that makes or "
            f"finds the {owner}; or put @staticmethod above, without {first!r}; or register the bound method of an "
            f"object that workers have, too: app.task(name={method!r})(the_{owner.rpartition('.')[2].lower()}.{method})"
        )


def refuse_local(func: Callable[..., Any]) -> None:
    """Refuse what the module of a child process does not have: functions inside another one, methods of an object."""
    name = getattr(func, "__qualname__", "")
    if inspect.ismethod(func) and not isinstance(func.__self__, type):
        raise TargetError(
            f"{name} is a method of an object, which a child process does not have: write a function in the module "
            'that makes or finds the object, or do not give it executor="process"'
        )
    if "<locals>" in name or "<lambda>" in name:
        raise TargetError(
            f"{name} is defined inside a function, where a child process cannot import it: move it to the module, or "
            'do not give it executor="process"'
        )


def importable(func: Callable[..., Any]) -> tuple[str, str]:
    """Module and name by which a worker finds a plain function."""
    name = getattr(func, "__qualname__", "")
    module = getattr(func, "__module__", None) or ""
    if not name or not module:
        raise TargetError(f"{func!r:.80} has no import path; a worker could not find it")
    if "<lambda>" in name:
        raise TargetError("a lambda cannot be a job: it has no name a worker could import; write a function")
    if "<locals>" in name:
        raise TargetError(f"{name} is defined inside a function, where no worker can import it; move it to the module")
    owner = getattr(func, "__self__", None)  # for a built-in function, its module
    if (owner is not None and not isinstance(owner, ModuleType)) or "." in name:
        raise TargetError(f"{name} is a method; a worker has no instance to call it on; write a plain function")
    if module == "__main__":
        raise TargetError(f"{name} is in the script that is running; move it to a module that a worker can import")
    if getattr(sys.modules.get(module), name, None) is not func:
        raise TargetError(f"{module}.{name} is not the function that was given; only plain importable functions can be")
    return module, name
