"""What a worker's terminal shows of jobs: their start and end, their output, and why they died."""

from __future__ import annotations

import io
import logging
import os
import pty
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.cli.worker import _log_jobs
from relevo.errors import OptionError
from relevo.worker import Worker
from relevo.worker.job_log import LINES, JobFormatter
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system.shell import command, environment, relevo
from tests.working import drain

APP = """\
import logging
from relevo import Relevo

app = Relevo("{name}")


@app.task(retries=0)
def charge(n: int) -> int:
    print("charging", n)
    logging.getLogger("shop").warning("card %d", n)
    if n == 13:
        raise ValueError("unlucky")
    return n


if __name__ == "__main__":
    print(charge.enqueue(7).id, charge.enqueue(13).id)
"""


def lines(caplog: pytest.LogCaptureFixture, *, of: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if of in record.getMessage()]


async def test_jobs_are_logged_when_they_start_and_when_they_are_done(
    app: Relevo, caplog: pytest.LogCaptureFixture
) -> None:
    @app.task(name="charge", retries=1, backoff=0)
    async def charge(n: int) -> None:
        if n:
            raise ValueError(f"no {n}")

    good, bad = await charge.aenqueue(0), await charge.aenqueue(7)
    with caplog.at_level("INFO", "relevo.worker"):
        await drain(app, log_jobs="all")
        await drain(app, log_jobs="all")
    said = lines(caplog, of=good.id)
    assert said[0] == f"charge {good.id} started"
    assert re.fullmatch(rf"charge {good.id} done in \d+\.\d{{3}} s", said[1])
    said = lines(caplog, of=bad.id)
    assert [said[0], said[2]] == [f"charge {bad.id} started", f"charge {bad.id} started (attempt 2)"]
    first, *trace = said[3].splitlines()
    assert first == f"charge {bad.id} is dead (retries_exhausted): ValueError no 7; see: relevo job {bad.id}"
    assert trace[0] == "Traceback (most recent call last):" and trace[-1] == "ValueError: no 7"


async def test_jobs_that_go_well_are_not_logged_unless_wanted(app: Relevo, caplog: pytest.LogCaptureFixture) -> None:
    @app.task(name="charge")
    async def charge() -> None: ...

    job = await charge.aenqueue()
    with caplog.at_level("DEBUG", "relevo.worker"):
        await drain(app)
    assert lines(caplog, of=job.id) == []
    with pytest.raises(OptionError, match="log_jobs: 'none', 'some' or 'all' is needed"):
        Worker(app, log_jobs="most")  # type: ignore[arg-type]


async def test_more_jobs_than_a_person_can_follow_are_counted(
    app: Relevo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("relevo.worker.job_log.WINDOW", 3600.0)  # what is left out is told at the end

    @app.task(name="charge", result_ttl=0)
    async def charge(n: int) -> None: ...

    charge.enqueue_many(((n,), {}) for n in range(200))
    with caplog.at_level("INFO", "relevo.worker"):
        await drain(app, log_jobs="some")
    said = lines(caplog, of="charge ")
    assert len(said) == LINES
    (count,) = lines(caplog, of="more jobs than")
    left = [int(number) for number in re.findall(r"\d+", count)]
    assert sum(left) == 400 - LINES


def test_a_terminal_shows_jobs_with_their_output_and_the_traceback(app: Relevo, server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(name=app.name))
    env = environment(server.url, RELEVO_LEASE="60s", RELEVO_CALL_TIMEOUT="30s")
    made = subprocess.run(
        [sys.executable, "shop.py"], env=env, cwd=tmp_path, capture_output=True, text=True, check=True
    )
    good, bad = made.stdout.split()
    ours, theirs = pty.openpty()
    written: list[bytes] = []

    def read() -> None:
        try:
            while chunk := os.read(ours, 65536):
                written.append(chunk)
        except OSError:  # how Linux says that the other side was closed
            pass

    reading = threading.Thread(target=read)
    reading.start()
    worker = subprocess.Popen(
        command("worker", "shop:app", "--burst"), env=env, cwd=tmp_path, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    assert worker.wait(PATIENCE) == 0
    reading.join(PATIENCE)
    os.close(ours)
    text = b"".join(written).decode().replace("\r", "")
    assert f"relevo.worker: shop.charge {good} started\n" in text
    assert f"\n[shop.charge {good}] charging 7\n" in text
    assert f"shop: [shop.charge {good}] card 7\n" in text
    assert f"relevo.worker: shop.charge {good} done in " in text
    assert f"ValueError unlucky; see: relevo job {bad} -A shop:app\nTraceback (most recent call last):\n" in text


def test_the_terminal_decides_unless_it_is_said() -> None:
    assert [_log_jobs(None, is_terminal=one) for one in (True, False)] == ["some", "none"]
    assert [_log_jobs(given, is_terminal=False) for given in (True, False)] == ["all", "none"]


def test_without_a_terminal_a_line_is_enough(app: Relevo, server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP.format(name=app.name))
    made = subprocess.run(
        [sys.executable, "shop.py"],
        env=environment(server.url),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    good, bad = made.stdout.split()
    ran = relevo("worker", "shop:app", "--burst", cwd=tmp_path, url=server.url, RELEVO_APP="shop:app")
    assert sorted(ran.out.splitlines()) == ["charging 13", "charging 7"], "as they were printed: other programs read it"
    assert f"ValueError unlucky; see: relevo job {bad}\n" in ran.err
    assert "Traceback" not in ran.err and good + " done" not in ran.err


def test_the_formatter_leaves_other_lines_alone() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JobFormatter("%(name)s: %(message)s"))
    handler.handle(logging.LogRecord("shop", 30, "x.py", 1, "card %d", (7,), None))
    assert stream.getvalue() == "shop: card 7\n"


BROKEN = {
    "syntax": ("app = (", "SyntaxError: '(' was never closed"),
    "error": ("{}['x']", "KeyError: 'x'"),
    "exit": ("raise SystemExit(0)", "SystemExit: 0"),
    "import": ("import not_installed_anywhere", "imports 'not_installed_anywhere', which is not installed"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_an_app_that_cannot_be_imported_ends_the_worker(how: str, server: Server, tmp_path: Path) -> None:
    code, told = BROKEN[how]
    (tmp_path / "broken.py").write_text(code + "\n")
    ran = relevo("worker", "broken:app", "-p", "2", cwd=tmp_path, url=server.url)
    assert ran.code == 2
    assert told in ran.err
    assert "cannot start; see above" in ran.err
    assert "SIGTERM" not in ran.err and "another starts" not in ran.err
    if how == "error":
        assert 'Traceback (most recent call last):\n  File "' + str(tmp_path / "broken.py") in ran.err
