"""`relevo completion`: what a real shell makes of its script."""

from __future__ import annotations

import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from relevo.cli.main import COMMANDS
from tests.eventually import PATIENCE
from tests.system.shell import relevo

BASH = shutil.which("bash")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    file = tmp_path / "relevo.bash"
    made = relevo("completion", "bash")
    assert (made.code, made.err) == (0, "")
    file.write_text(made.out)
    return file


def completed(script: Path, *words: str) -> set[str]:
    """What bash offers for the last of these words."""
    assert BASH is not None, "bash is needed for this test"
    program = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _shtab_relevo'
    program += '; printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        [BASH, "--norc", "-c", program, "bash", str(script), "relevo", *words],
        cwd=script.parent,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return {word.strip() for word in done.stdout.splitlines() if word.strip()}


def test_bash_completes_commands_actions_options_and_files(script: Path) -> None:
    assert completed(script, "") >= set(COMMANDS)
    assert completed(script, "sched") == {"schedules"}
    assert completed(script, "job", "") >= {"list", "show", "cancel", "retry"}
    assert completed(script, "dead", "re") == {"retry", "restore", "resume"}
    assert completed(script, "job", "list", "--st") == {"--state"}
    assert completed(script, "job", "list", "--state", "run") == {"running"}
    assert completed(script, "completion", "") >= {"bash", "zsh", "fish"}
    (script.parent / "letters.jsonl").touch()
    assert completed(script, "dead", "import", "let") == {"letters.jsonl"}
    assert completed(script, "dead", "export", "--output", "let") == {"letters.jsonl"}


def test_the_tab_key_of_a_person_completes(script: Path) -> None:
    assert BASH is not None, "bash is needed for this test"
    ours, theirs = pty.openpty()
    env = {"PATH": os.environ["PATH"], "HOME": str(script.parent), "TERM": "dumb", "PS1": "$ "}
    shell = subprocess.Popen(
        [BASH, "--norc", "--noprofile", "-i"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        start_new_session=True,
    )
    os.close(theirs)
    typed = (
        f"source {script}\n",
        'relevo() { echo "ran: $*"; }\n',
        "relevo sched\tli\t--na\tshop --js\t\n",
        "exit\n",
    )
    os.write(ours, "".join(typed).encode())
    seen = b""
    try:
        while chunk := os.read(ours, 65536):
            seen += chunk
    except OSError:  # how Linux says that the other side was closed
        pass
    assert shell.wait(PATIENCE) == 0
    os.close(ours)
    ran = [line for line in seen.decode().replace("\r", "").splitlines() if line.startswith("ran: ")]
    assert [line.split() for line in ran] == [["ran:", "schedules", "list", "--name", "shop", "--json"]], seen


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_of_other_shells_know_all_commands(shell: str) -> None:
    made = relevo("completion", shell)
    assert (made.code, made.err) == (0, "")
    assert all(name in made.out for name in COMMANDS)
    installed = shutil.which(shell)
    if installed is not None:
        checked = subprocess.run([installed, "-n"], input=made.out, capture_output=True, text=True, timeout=PATIENCE)
        assert (checked.returncode, checked.stderr) == (0, "")


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    seen = relevo("completion", "bash")
    assert (seen.code, seen.out) == (2, "")
    assert seen.err == "relevo: completion needs the extra: pip install 'relevo[completion]'\n"
    assert "invalid choice: 'tcsh'" in relevo("completion", "tcsh").err
