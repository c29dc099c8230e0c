"""The batch of examples/batch: real processes, Ctrl-C in the middle, a failure that stops all, going on after each."""

from __future__ import annotations

import csv
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import pytest

from relevo import Relevo
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.system.shell import PATIENT_ENV, environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "batch"
SENSORS = 300


class Batch:
    """The example in a directory of its own."""

    def __init__(self, server: Server, folder: Path, app: Relevo) -> None:
        self.folder = folder
        self.queue = app.queue()
        self._variables = environment(server.url, RELEVO_PREFIX=app.settings.prefix, **PATIENT_ENV)

    def start(self, script: str, *arguments: str) -> subprocess.Popen[str]:
        """Start a script of the example as a user does, with a terminal's process group of its own."""
        call = [sys.executable, str(EXAMPLE / script), *arguments]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            call, cwd=self.folder, env=self._variables, stdout=pipe, stderr=pipe, text=True, process_group=0
        )

    def run(self, script: str, *arguments: str) -> tuple[int, str]:
        """Run it to its end: exit code and output."""
        return ending(self.start(script, *arguments))

    @property
    def done(self) -> int:
        """Jobs that were run to a good end, each as often as that happened."""
        return self.queue.stats().totals.get("done", 0)

    @property
    def sensors(self) -> list[int]:
        """The sensors in the file of results."""
        with (self.folder / "nightly.csv").open(newline="") as file:
            return [int(row["sensor"]) for row in csv.DictReader(file)]


def ending(process: subprocess.Popen[str]) -> tuple[int, str]:
    with process:
        out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, err
    return process.returncode, out


@pytest.fixture
def batch(server: Server, tmp_path: Path) -> Iterator[Batch]:
    prefix = f"batch{uuid4().hex[:12]}"
    with closing(Relevo("batch", url=server.url, env="test", prefix=prefix, **PATIENT)) as app:
        yield Batch(server, tmp_path, app)
    assert leaks(server, prefix) == []
    remove(server, prefix)


def test_what_was_interrupted_goes_on_and_each_item_is_computed_once(batch: Batch) -> None:
    batch.run("make_readings.py", "--sensors", str(SENSORS))
    batch.queue.limit(rate="1/m", burst=20)  # so that Ctrl-C comes in the middle on any machine
    first = batch.start("run.py")
    eventually(lambda: batch.done > 0, what="an interval is computed")
    first.send_signal(signal.SIGINT)
    code, said = ending(first)
    assert code == 130
    assert said.startswith(f"nightly: {SENSORS + 1} jobs\n")
    assert f"of {SENSORS + 1} are done, and the same command goes on" in said
    before = batch.done
    assert 0 < before < SENSORS

    batch.queue.unlimit()
    code, said = batch.run("run.py")
    assert code == 0
    assert said.startswith(f"nightly is known: {before} of {SENSORS + 1} are done\n")
    assert said.endswith(f"{SENSORS} intervals in nightly.csv\n")
    assert batch.sensors == list(range(1, SENSORS + 1))
    assert batch.done == SENSORS + 1


def test_the_first_failure_cancels_the_rest_and_after_a_repair_only_the_rest_is_computed(batch: Batch) -> None:
    batch.run("make_readings.py", "--sensors", str(SENSORS), "--broken", "7")
    batch.queue.limit(rate="1/m", burst=20)  # so that most have not started when it fails
    code, said = batch.run("run.py")
    assert code == 1
    assert "ValueError: sensor 7: could not convert string to float: 'n/a'" in said
    stats = batch.queue.stats()
    assert stats.dead == 1
    assert stats.living == 0
    assert stats.cancelled >= SENSORS - 20

    with closing(sqlite3.connect(batch.folder / "readings.db")) as database, database:
        database.execute("UPDATE sensors SET readings = '[21.5, 22.5]' WHERE id = 7")
    batch.queue.unlimit()
    before = batch.done
    code, said = batch.run("run.py")
    assert code == 0
    assert f"nightly is known: {before} of {SENSORS + 1} are done\n{SENSORS - before} run again\n" in said
    assert batch.sensors == list(range(1, SENSORS + 1))
    assert batch.done == SENSORS + 1


def test_ctrl_c_of_a_terminal_reaches_its_processes_too_and_costs_no_item(batch: Batch) -> None:
    batch.run("make_readings.py", "--sensors", "40")
    batch.queue.limit(rate="1/m", burst=20)
    first = batch.start("run.py")
    eventually(lambda: batch.done > 0, what="an interval is computed")
    signal_group(first)
    assert ending(first)[0] == 130
    batch.queue.unlimit()
    assert batch.run("run.py")[0] == 0
    totals = batch.queue.stats().totals
    assert (totals["done"], totals.get("retry", 0), totals.get("dead", 0)) == (41, 0, 0)


def signal_group(process: subprocess.Popen[str]) -> None:
    """What a terminal does: all processes of the group get it."""
    os.killpg(process.pid, signal.SIGINT)
