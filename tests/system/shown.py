"""What the demonstration of an example prints, run as its page shows, on the embedded server."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from relevo.store.embedded.server import stop
from tests.system.shell import environment


class Shown(NamedTuple):
    """What the demonstration printed, without the times."""

    code: int
    err: str
    lines: list[str]
    data: Path

    def at(self, pattern: str, after: int = -1) -> int:
        """The number of the first line like this."""
        found = [n for n, line in enumerate(self.lines) if n > after and re.fullmatch(pattern, line)]
        assert found, f"no line like {pattern!r} after line {after} of:\n" + "\n".join(self.lines)
        return found[0]


def without_time(line: str) -> str:
    return re.sub(r" +", " ", re.sub(r"^ *\d+\.\d s +", "", line)).strip()


@contextmanager
def demonstrated(folder: Path, place: Path, **variables: str) -> Iterator[Shown]:
    """Run it with its data below `place`; the server that it leaves runs until the end of the `with`."""
    data = place / "data"
    done = subprocess.run(
        [sys.executable, str(folder / "demo.py")],
        env=environment(None, RELEVO_DATA_DIR=str(data), **variables),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=250,
    )
    yield Shown(done.returncode, done.stderr, [without_time(line) for line in done.stdout.splitlines()], data)
    stop(data)
