"""The command `relevo` as its users meet it: a process of its own, with an environment of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

_SOURCE = Path(__file__).parents[2] / "src"
_BOUND = 60.0  # seconds for any command


class Told(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output, which must be JSON and nothing else."""
        return json.loads(self.out)


def command(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "relevo.cli.main", *arguments]


def environment(url: str | None, **variables: str) -> dict[str, str]:
    """This process' variables without those of relevo, and with what is given."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
    given = {"RELEVO_URL": url} if url else {}
    return {**kept, "PYTHONPATH": str(_SOURCE), "RELEVO_ENV": "test", **given, **variables}


def relevo(*arguments: str, url: str | None = None, cwd: Path | None = None, **variables: str) -> Told:
    """Run the command to its end, with pipes instead of a terminal."""
    done = subprocess.run(
        command(*arguments),
        env=environment(url, **variables),
        cwd=cwd,
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=_BOUND,
        stdin=subprocess.DEVNULL,
    )
    return Told(done.returncode, done.stdout, done.stderr)
