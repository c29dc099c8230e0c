"""The results of runs: where they were made, and how a later run is added to them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

from bench.rig import ROOT
from bench.server import Server

Products = dict[str, dict[str, Any]]


class Results:
    """What was found so far. With a file, it begins with what that holds, and everything is written there at once."""

    def __init__(self, path: str | None = None) -> None:
        self._path = path
        self.machine: dict[str, Any] = {}
        self.products: Products = {}
        #: Of this run alone.
        self.added: Products = {}
        if path and path != "-" and Path(path).exists():
            found = read(path)
            self.machine, self.products = found["machine"], found["products"]

    def add(self, product: str, measure: str, found: dict[str, Any]) -> None:
        """A measure that was taken again replaces the former one."""
        for products in (self.products, self.added):
            products.setdefault(product, {})[measure] = found
        if self._path and self._path != "-":
            beside = Path(self._path + ".new")
            beside.write_text(self.as_json() + "\n")
            beside.replace(self._path)

    def as_json(self) -> str:
        """All of it."""
        return json.dumps({"machine": self.machine, "products": self.products}, indent=1)


def read(path: str) -> dict[str, Any]:
    """The results in a file."""
    try:
        found: Any = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise SystemExit(f"python -m bench: {path} cannot be read as results: {error}") from None
    if isinstance(found, dict) and {"machine", "products"} <= found.keys():
        return found
    raise SystemExit(f"python -m bench: {path} holds JSON, but no results of `python -m bench --json`")


def machine(server: Server) -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    return {
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "pinned": os.environ.get("BENCH_PIN", "1") != "0",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "server": str(server.engine),
        "commit": commit(),
    }


def commit() -> str:
    """The commit that is measured, with a mark if the working tree differs from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=8", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())
