"""Source trees to measure: a commit in a worktree of its own, or a copy of the working tree as it stands."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.processes import ProductFailed
from bench.rig import ROOT

#: What the working tree is called where a commit is expected.
WORKING = "this tree"


@contextmanager
def source_of(commit: str) -> Iterator[Path]:
    """The folder `src` of a commit, for as long as the `with`."""
    with tempfile.TemporaryDirectory(prefix="relevo-bench-tree-") as folder:
        tree = Path(folder, "tree")
        if commit == WORKING:
            # A copy, so that nobody's editing meanwhile gets into the numbers.
            shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__"))
            yield tree / "src"
            return
        _git("worktree", "add", "--quiet", "--detach", str(tree), resolve(commit))
        try:
            yield tree / "src"
        finally:
            _git("worktree", "remove", "--force", str(tree))


def resolve(commit: str) -> str:
    """The full name of a commit; refuses what is none."""
    return _git("rev-parse", "--verify", "--quiet", "--end-of-options", commit + "^{commit}", what=commit)


def _git(*arguments: str, what: str = "") -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    if what:
        raise ProductFailed(f"{what!r} is not a commit of this repository; `git log --oneline` shows those there are")
    raise ProductFailed(f"git {arguments[0]}: {done.stderr.strip()}")
