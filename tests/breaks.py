"""Checks that the suite notices defects: breaks the product in one place after the other, and runs the tests each time.

    ./dev breaks                                     all breaks of tests/breaks.toml
    ./dev breaks --only push-order,tick-twice
    ./dev breaks --suite ../before --json before.json    the same breaks against the tests of another checkout
    ./dev breaks --tests "tests/unit tests/store"    only these tests

The project is copied once, and one file of the copy changed for each break. The tests that should notice run first,
then the others from cheap to expensive, until one fails. It counts only if that test, run alone, fails again
with the break and passes without it.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
STAGES = ("tests/unit tests/store", "tests/fundamentals tests/machine", "tests/system", "tests/process")
#: It checks that the breaks fit the source, which they do not where one was made.
OF_THE_LIST = "tests/unit/test_breaks.py"
#: Seconds of one test. One that hangs because of a break has failed.
TEST_LIMIT = 60
#: Tests that fail without the break, too, are left out, at most so many in one stage.
MOST_UNSOUND = 3
_NOT_COPIED = (".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__", "*.log", ".relevo")


class Break(Struct, frozen=True, forbid_unknown_fields=True):
    """A defect: `new` instead of `old`, which occurs once in `file`."""

    id: str
    #: What goes wrong for a user.
    what: str
    file: str
    old: str
    new: str
    #: Tests that should notice, separated by spaces.
    near: str


class Result(Struct, frozen=True):
    """What the suite made of one break."""

    id: str
    caught: bool
    #: The test that failed.
    by: str
    #: 0: among those near; then as in STAGES. -1: none noticed.
    stage: int
    seconds: float
    #: What did not count: tests that fail without the break, stages that took too long.
    notes: list[str] = []


class Copy:
    """A copy of the project, in which one file at a time is broken."""

    def __init__(self, root: Path, suite: Path, limit: float) -> None:
        self.root = root
        self._limit = limit
        shutil.copytree(suite, root, ignore=shutil.ignore_patterns(*_NOT_COPIED, "src"), symlinks=True)
        shutil.copytree(ROOT / "src", root / "src", ignore=shutil.ignore_patterns(*_NOT_COPIED))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
        self._env = {**kept, "PYTHONPATH": str(root / "src")}
        command = [sys.executable, "-c", "import relevo; print(relevo.__file__)"]
        found = subprocess.run(command, cwd=root, env=self._env, check=True, capture_output=True, text=True).stdout
        if not Path(found.strip()).is_relative_to(root):
            raise SystemExit(f"the tests would import {found.strip()}, and not the copy in {root}")

    @contextmanager
    def broken(self, one: Break) -> Iterator[None]:
        """The copy has this defect."""
        path = self.root / one.file
        whole, times = path.read_text(), path.stat()
        path.write_text(whole.replace(one.old, one.new))
        # Python takes a compiled file for the right one if the time and the size of the source are as before.
        os.utime(path, (times.st_atime, times.st_mtime + 10))
        try:
            yield
        finally:
            path.write_text(whole)
            os.utime(path, (times.st_atime, times.st_mtime + 20))

    def failing(self, tests: list[str], left_out: list[str]) -> str | None:
        """The first test that fails; "": none does, None: there was no time to say."""
        processes = "0" if "::" in tests[0] else "2"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-n", processes, "-p", "no:cacheprovider"]
        command += [f"--timeout={TEST_LIMIT}", f"--ignore={OF_THE_LIST}"]
        command += [*(f"--deselect={test}" for test in left_out), *tests]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, cwd=self.root, env=self._env, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True
        ) as running:
            try:
                output = running.communicate(timeout=self._limit)[0].decode(errors="replace")
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                return None
        found = re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\])?)(?= - |$)", output, flags=re.MULTILINE)
        if not found and running.returncode not in (0, 5):  # 5: all tests were left out
            raise SystemExit(f"pytest ended with {running.returncode}:\n{output[-3000:]}")
        return found[0] if found else ""


def main() -> int:
    """Try all breaks; 1 if the suite misses any."""
    parser = argparse.ArgumentParser("dev breaks", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--suite", type=Path, default=ROOT, help="checkout whose tests run (default: this one)")
    parser.add_argument("--only", default="", metavar="ID,ID", help="only these breaks")
    parser.add_argument("--tests", default="", metavar="PATHS", help="only these tests, separated by spaces")
    parser.add_argument("--near", action="store_true", help="only the tests that should notice, of each break")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one run of pytest (default: 900)")
    args = parser.parse_args()
    breaks = read_breaks(set(filter(None, args.only.split(","))))
    others = () if args.near else STAGES
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="relevo-breaks-", ignore_cleanup_errors=True) as folder:
        copy = Copy(Path(folder).resolve() / "copy", args.suite.resolve(), args.limit)
        for one in breaks:
            results.append(attempt(copy, one, (args.tests,) if args.tests else (one.near, *others)))
            print(row(results[-1]), flush=True)
            if args.json is not None:
                args.json.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
    missed = [result.id for result in results if not result.caught]
    seconds = sum(result.seconds for result in results)
    print(f"{len(results) - len(missed)} of {len(results)} breaks caught in {seconds:.0f} s", flush=True)
    return int(bool(missed))


def read_breaks(wanted: set[str]) -> list[Break]:
    """The breaks of breaks.toml with these ids, or all; ends the program if one does not fit its file any more."""
    table = tomllib.loads((HERE / "breaks.toml").read_text())
    breaks = msgspec.convert(table["break"], list[Break])
    if unknown := wanted - {one.id for one in breaks}:
        raise SystemExit(f"there is no break {', '.join(sorted(unknown))}")
    for one in breaks:
        if (count := (ROOT / one.file).read_text().count(one.old)) != 1:
            raise SystemExit(f"{one.id}: its old text occurs {count} times in {one.file}, and must occur once")
    return [one for one in breaks if not wanted or one.id in wanted]


def attempt(copy: Copy, one: Break, stages: tuple[str, ...]) -> Result:
    """Run the stages until a test notices the break."""
    began, notes, unsound = time.monotonic(), list[str](), list[str]()
    for stage, paths in enumerate(stages):
        tests = [path for path in paths.split() if (copy.root / path).exists()]
        for _ in range(MOST_UNSOUND if tests else 0):
            with copy.broken(one):
                failed = copy.failing(tests, unsound)
            if failed is None:
                notes.append(f"no end within the time limit: {' '.join(tests)}")
            if not failed:
                break
            if is_sound(copy, one, failed):
                return Result(one.id, True, failed, stage, time.monotonic() - began, notes)
            unsound.append(failed)
            notes.append(f"fails without the break, or not again with it: {failed}")
    return Result(one.id, False, "", -1, time.monotonic() - began, notes)


def is_sound(copy: Copy, one: Break, test: str) -> bool:
    """Whether a test fails because of the break: alone, it passes without and fails with it."""
    if copy.failing([test], []) != "":
        return False
    with copy.broken(one):
        return bool(copy.failing([test], []))


def row(result: Result) -> str:
    """One line per break, and one per note."""
    line = f"{result.id:26} {'caught' if result.caught else 'MISSED'} {result.seconds:6.0f} s  {result.by}"
    return "\n".join([line.rstrip(), *(f"    {note}" for note in result.notes)])


if __name__ == "__main__":
    sys.exit(main())
