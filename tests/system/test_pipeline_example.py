"""The pipeline of examples/pipeline: runs as its page shows, and prints what to do when a page is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

from tests.eventually import PATIENCE
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.system.shell import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "pipeline" / "pipeline.py"


def run(server: Server, prefix: str, *sources: Path) -> subprocess.CompletedProcess[str]:
    variables = environment(server.url, RELEVO_PREFIX=prefix)
    call = [sys.executable, str(EXAMPLE), *map(str, sources)]
    return subprocess.run(call, env=variables, capture_output=True, text=True, timeout=PATIENCE)


@pytest.fixture
def prefix(server: Server) -> str:
    return f"pipeline{uuid4().hex[:12]}"


def test_pages_are_fetched_parsed_and_summed_up(server: Server, prefix: str, tmp_path: Path) -> None:
    pages = [tmp_path / f"{name}.txt" for name in ("long", "short")]
    pages[0].write_text("seven words with more than three letters", "utf-8")
    pages[1].write_text("letters only", "utf-8")
    done = run(server, prefix, *reversed(pages))
    lines = done.stdout.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["7", "words"], ["2", "words"]]
    assert lines[2].startswith("most common: letters, ")
    assert re.fullmatch(r"5 jobs in \d+\.\d\d s", lines[3])
    assert (done.returncode, done.stderr) == (0, "")
    assert leaks(server, prefix) == []
    remove(server, prefix)


def test_a_missing_page_is_reported_once_with_what_to_do(server: Server, prefix: str, tmp_path: Path) -> None:
    there = tmp_path / "there.txt"
    there.write_text("some words", "utf-8")
    done = run(server, prefix, there, tmp_path / "missing.txt")
    assert (done.returncode, done.stdout) == (1, "")
    assert "2 of 5 jobs went well" in done.stderr
    assert "FileNotFoundError" in done.stderr and "workflow retry" in done.stderr
    assert leaks(server, prefix) == []
    remove(server, prefix)
