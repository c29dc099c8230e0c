"""What only a Python process of its own shows: what an import loads and reads, what output costs in memory, forks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

from tests.eventually import PATIENCE
from tests.system.shell import environment


def run(code: str, *arguments: str, cwd: Path | None = None, **variables: str) -> list[str]:
    """The lines that this code prints in a new Python process."""
    ran = subprocess.run(
        [sys.executable, "-c", dedent(code), *arguments],
        env={**environment(None), **variables},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def test_liveness_probe_imports_nothing_else_so_it_starts_as_fast_as_python(tmp_path: Path) -> None:
    path = tmp_path / "alive"
    path.touch()
    code = """
        import os, sys, time
        before = {*sys.modules}
        import relevo.alive
        relevo.alive.main(sys.argv[1:])
        print(*sorted({*sys.modules} - before))
        """
    answer, loaded = run(code, str(path))
    assert re.fullmatch(r"alive \d+ s ago", answer)
    assert loaded == "relevo relevo.alive relevo.version"


def test_importing_the_settings_reads_no_file_and_checks_no_variable(tmp_path: Path) -> None:
    """A broken file or a wrong variable is an error where settings are loaded, not where a module is imported."""
    (tmp_path / "relevo.toml").write_text("= broken")
    code = """
        import sys
        opened = []
        sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
        import relevo.settings
        print([name for name in opened if name.endswith(".toml")])
        """
    assert run(code, cwd=tmp_path, RELEVO_LEASE="wrong") == ["[]"]


def test_captured_output_takes_bounded_memory() -> None:
    """64 KiB are kept: of 5 MB in lines, of one write of 20 MB, and of jobs that print nothing."""
    code = """
        import tracemalloc
        from relevo.worker.capture import Capture
        capture, huge = Capture(65_536), "x" * 5_000_000 + "€" * 5_000_000
        tracemalloc.start()
        def show(peak: bool) -> None:
            print(tracemalloc.get_traced_memory()[peak])
            tracemalloc.reset_peak()
        for _ in range(50_000):
            capture.write("é" * 49 + "\\n")
        show(peak=True)
        capture = Capture(65_536)
        capture.write(huge)
        show(peak=True)
        before = tracemalloc.get_traced_memory()[0]
        captures = [Capture(65_536) for _ in range(1000)]
        print(tracemalloc.get_traced_memory()[0] - before)
        """
    lines, one_write, silent_jobs = map(int, run(code))
    assert lines < 4 * 65_536
    assert one_write < 1_000_000
    assert silent_jobs < 1000 * 100


def test_forked_children_make_ids_of_their_own(tmp_path: Path) -> None:
    """Parent and children share the generator, and after the fork not one id."""
    code = """
        import os
        from pathlib import Path
        from relevo.engine.ids import Ids
        make = Ids()
        make()
        children = []
        while len(children) < 3:
            if not (child := os.fork()):
                children = []
                break
            children.append(child)
        Path(str(os.getpid())).write_text(" ".join(make() for _ in range(2000)))
        for child in children:
            assert os.waitpid(child, 0)[1] == 0
        """
    run(code, cwd=tmp_path)
    ids = [id for file in tmp_path.iterdir() for id in file.read_text().split()]
    assert len(set(ids)) == len(ids) == 8_000
