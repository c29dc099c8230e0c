"""The format of the keys: what earlier versions wrote is worked off, and versions that do not get along refuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.engine.key_format import FORMAT, Format, agreeing
from relevo.errors import FormatError
from relevo.store.keys import QueueKeys
from relevo.worker.child import CANNOT_START
from tests.clock import let_time_pass
from tests.conftest import PATIENT, AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.formats import mixed
from tests.formats.dump import restored
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.working import drained, working

FORMATS = Path(mixed.__file__).parent
CLOCK = "relevo-test-clock-formats"
QUEUES = ["default", "later"]


@pytest.fixture(params=[file.name for file in sorted(FORMATS.glob("*.json"))])
def kept(server: Server, request: pytest.FixtureRequest) -> Iterator[dict[str, Any]]:
    """The keys of an earlier version, on a server on which it is still the time at which they were written."""
    dump: dict[str, Any] = json.loads((FORMATS / request.param).read_text())
    remove(server, mixed.NAME)
    restored(server.command, dump)
    seconds, micros = server.command("TIME")
    let_time_pass(server, CLOCK, dump["now_ms"] - int(seconds) * 1000 - int(micros) // 1000)
    yield dump["ids"]
    remove(server, mixed.NAME)
    server.command("DEL", CLOCK)


def test_what_an_earlier_version_left_is_worked_off(server: Server, kept: dict[str, Any]) -> None:
    app = mixed.build(url=server.url, _clock_key=CLOCK, **PATIENT)
    queue = app.queue()

    def results(*names: str) -> list[Any]:
        ids = [id for name in names for id in (kept[name] if isinstance(kept[name], list) else [kept[name]])]
        return [app.job(id).result(timeout=PATIENCE) for id in ids]

    # read before anything is changed
    assert app.job(kept["done"]).info().result == 3
    assert [app.job(id).info().reason for id in kept["dead"]] == ["retries_exhausted"] * 3
    assert len(app.job(kept["retried"]).info().attempts) == 1
    assert app.job(kept["running"]).state() is State.RUNNING
    assert app.job(kept["ready"][0]).info().tags == ("a", "b")
    assert [limit.tenant for limit in queue.limits() if limit.concurrency] == ["acme"]
    assert {pause.reason for pause in queue.pauses()} == {"a look at it", "not needed now"}
    assert {one.name: one.paused_ms is not None for one in app.schedules.list()} == {"hourly": False, "paused": True}
    pool = app.pool("machines")
    assert pool.counts() == {"pending": 1, "ready": 1}

    drained(app, queues=QUEUES)
    assert results("ready", "named", "limited") == [10, 200, 1800, 6, 1, 2, 3, 4]
    assert queue.resume(task="double")
    drained(app, queues=QUEUES)
    assert app.workflow(kept["half done"]).result(timeout=PATIENCE) == 12
    assert app.workflow(kept["waiting"]).result(timeout=PATIENCE) == 20

    let_time_pass(server, CLOCK, 2 * 3_600_000)  # leases of the worker that is gone, delays, retries and ticks are due
    drained(app, queues=QUEUES)
    drained(app, queues=QUEUES)  # what was taken back by the first
    assert results("running", "delayed", "retried") == [42, 8, 7]
    assert len(app.job(kept["running"]).info().attempts or ()) <= 1
    assert app.schedules.get("hourly").info().last_job
    assert app.schedules.get("paused").info().last_job == ""

    assert app.dead.retry([kept["dead"][0]])
    drained(app, queues=QUEUES)
    assert [app.job(id).state() for id in kept["dead"]] == [State.DEAD] * 3
    assert pool.retry(kept["failed machine"], to="pending")
    assert pool.counts() == {"pending": 2, "ready": 1}

    assert queue.stats().living == 0
    assert server.command("GET", app.engine.own_keys.key("format")) == f"{FORMAT.number} {FORMAT.least}".encode()
    app.close()
    assert leaks(server, mixed.NAME) == []


def write(server: Server, keys: QueueKeys, found: str) -> None:
    """As if another version had been there."""
    server.command("SET", keys.key("format"), found, "EX", 3600)


def found(server: Server, app: Relevo) -> bytes | None:
    value: bytes | None = server.command("GET", app.engine.own_keys.key("format"))
    return value


def test_the_first_use_writes_the_format_down(server: Server, app: Relevo) -> None:
    app.task(name="a")(mixed.double).enqueue(1)
    assert found(server, app) == b"%d %d" % (FORMAT.number, FORMAT.least)


def test_an_older_version_refuses_the_keys_of_a_newer_one(server: Server, app_factory: AppFactory) -> None:
    app = app_factory()
    write(server, app.engine.own_keys, f"{FORMAT.number + 2} {FORMAT.number + 1}")
    task = app.task(name="a")(mixed.double)
    with pytest.raises(FormatError, match=r"written by a newer version of relevo.*upgrade relevo in this process"):
        task.enqueue(1)
    with pytest.raises(FormatError, match=r"format \d"):
        drained(app)
    assert found(server, app) == b"%d %d" % (FORMAT.number + 2, FORMAT.number + 1)


def test_an_older_version_works_beside_a_newer_one_that_allows_it(server: Server, app: Relevo) -> None:
    write(server, app.engine.own_keys, f"{FORMAT.number + 2} {FORMAT.number}")
    job = app.task(name="a")(mixed.double).enqueue(1)
    drained(app)
    assert job.result(timeout=PATIENCE) == 2
    assert found(server, app) == b"%d %d" % (FORMAT.number + 2, FORMAT.number)  # never lowered


@pytest.mark.parametrize("before", ["", "1 0", "2 2", "garbage"])
def test_a_newer_version_upgrades_what_it_can_read(server: Server, app: Relevo, before: str) -> None:
    if before:
        write(server, app.engine.own_keys, before)
    for _ in range(2):
        app.engine.run(agreeing(app.engine.own_keys, ours=Format(3, least=1, reads=0)))
        assert found(server, app) == (b"3 2" if before == "2 2" else b"3 1")


def test_a_newer_version_says_how_to_go_on_where_it_cannot_read_the_keys(server: Server, app: Relevo) -> None:
    write(server, app.engine.own_keys, "1 0")
    with pytest.raises(FormatError, match="let workers of the version before finish the jobs"):
        app.engine.run(agreeing(app.engine.own_keys, ours=Format(4, least=4, reads=3)))
    assert found(server, app) == b"1 0"


async def test_a_running_worker_stops_when_a_newer_version_took_over(server: Server, app: Relevo) -> None:
    app.task(name="a")(mixed.double)
    with pytest.raises(FormatError):
        async with working(app) as worker:
            await aeventually(lambda: worker.is_registered, what="the worker has looked")
            write(server, app.engine.own_keys, "99 99")
            worker.register_again()  # as after two minutes
            await aeventually(lambda: worker.is_stopping, what="the worker stops")


def test_a_worker_process_that_does_not_get_along_exits_with_one_line(
    server: Server, app: Relevo, tmp_path: Path
) -> None:
    write(server, app.engine.own_keys, "99 99")
    (tmp_path / "made.py").write_text(
        f"from relevo import Relevo\napp = Relevo({app.name!r}, env='test', url={server.url!r})\n"
    )
    command = [sys.executable, "-m", "relevo.worker.child", json.dumps({"app": "made:app"})]
    path = os.pathsep.join([str(tmp_path), *sys.path])
    ended = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == CANNOT_START, ended.stderr
    assert "upgrade relevo in this process" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_the_format_of_the_bus_is_looked_at_too(server: Server, bus: Relevo) -> None:
    write(server, bus.engine.bus_keys, "99 99")
    with pytest.raises(FormatError, match="written by a newer version"):
        bus.engine.run(bus.engine.list_queue("other:actions"))
