"""The liveness probe of a worker: its options, exit codes and output."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from relevo.alive import main


def file_of_age(path: Path, seconds: float) -> str:
    path.touch()
    os.utime(path, (time.time() - seconds,) * 2)
    return str(path)


@pytest.mark.parametrize(
    ("age", "options", "code"),
    [
        (0, [], 0),
        (-5, [], 0),  # a clock that stepped back
        (-65, [], 1),  # and the file was not touched since
        (50, [], 0),
        (65, [], 1),
        (65, ["--max-age", "90s"], 0),
        (65, ["--max-age=2m"], 0),
        (65, ["--max-age", "30"], 1),
        (3500, ["--max-age=1h"], 0),
    ],
)
def test_a_worker_is_alive_while_its_file_is_recent(tmp_path: Path, age: float, options: list[str], code: int) -> None:
    assert main([file_of_age(tmp_path / "alive", age), *options]) == code


def test_a_worker_without_a_file_is_not_alive(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "none")]) == 1
    assert "not alive" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["a", "b"],
        ["a", "--age=3"],
        ["a", "--max-age"],
        *(["a", f"--max-age={age}"] for age in ("0", "-3", "x", "s")),
    ],
)
def test_a_wrong_command_line_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert "usage: python -m relevo.alive" in capsys.readouterr().err


def test_help_explains_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "Exit code 0: yes. 1: no." in capsys.readouterr().out
