"""The embedded server: one real Valkey or Redis per data directory, started by whoever needs it first.

There is no pid file to trust. The file `server.lock` is flocked by the starter, and the descriptor is
inherited by the supervisor (`embedded_supervisor.py`) and by the server, so the lock is held exactly
as long as one of them lives, also after `kill -9`. Whoever gets the lock starts the server; everybody
else waits until the unix socket answers. The supervisor ends the server when nobody has been connected for
a while; a client that meets that moment sees its connection close and calls `ensure` again.

    <data_dir>/server.lock     the lock
               server.sock     the socket, unless the path is too long for one
               server.conf     written anew at each start
               server.log      and server.log.1
               engine.json     which engine made the data: it must never be opened by a lesser one
               appendonlydir/  the data
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from relevo.errors import EmbeddedServerError
from relevo.store.embedded_engine import Engine, check_engine, engine_of, find_binary, recorded
from relevo.store.embedded_place import refuse_network_disk, socket_path, take_lock, unusable
from relevo.store.embedded_supervisor import CONNECTION_NAME

LOG_LIMIT_BYTES = 5_000_000
LOADING_PATIENCE = 10  # times the time-out: a server that says it is reading its data is not stuck

CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir {dir}
daemonize no
save ""
appendonly yes
appendfsync everysec
aof-use-rdb-preamble yes
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 8mb
maxmemory-policy noeviction
"""


class ServerStatus(msgspec.Struct, frozen=True):
    """What is known of the server of one data directory; `clients` does not count our own connections."""

    running: bool
    data_dir: str
    socket: str
    pid: int | None
    engine: str
    version: str
    uptime_s: int | None
    used_memory: int | None
    keys: int | None
    clients: int | None
    aof: bool | None
    log: str


def ensure(data_dir: Path, *, timeout: float = 20.0, idle_timeout: float = 30.0, binary: str | None = None) -> str:
    """Give the URL of the one server of this directory, starting it if need be.

    Any number of processes may call this at once: they get the same server. It stops by itself after
    `idle_timeout` seconds without a client (0: never), and keeps its data for the next start.

        url = ensure(Path(".relevo"))        # unix:///home/me/shop/.relevo/server.sock?db=0
    """
    data = data_dir.resolve()
    address = socket_path(data)
    began, nap = time.monotonic(), 0.001
    while (answer := _ping(address)) != "up":
        if answer == "down" and (lock := take_lock(data)) is not None:
            try:
                _start(data, address, lock, timeout, idle_timeout, binary or find_binary())
            except OSError as error:
                raise unusable(data, error) from error
            finally:
                os.close(lock)  # from here on only the supervisor and the server hold it
        patience = timeout * (LOADING_PATIENCE if answer == "loading" else 1)
        if time.monotonic() - began > patience:
            raise _no_answer(data, address, answer, patience)
        time.sleep(nap)
        nap = min(nap * 1.5, 0.05)
    return f"unix://{quote(os.fsencode(address))}?db=0"


def stop(data_dir: Path, *, timeout: float = 10.0) -> bool:
    """Stop the server of this directory and wait until it is gone; False if none was running."""
    data = data_dir.resolve()
    if not data.is_dir():
        return False
    address = socket_path(data)
    deadline, asked = time.monotonic() + timeout, ""
    while (lock := take_lock(data)) is None:
        run_id = _info(address).get("run_id", "")
        if asked and run_id not in ("", asked):
            return True  # gone, and somebody has started the next one already
        if run_id and not asked:
            asked = run_id
            _ask(address, "SHUTDOWN NOSAVE", timeout=timeout)  # NOSAVE means the snapshot: the log is synced
        if time.monotonic() > deadline:
            raise _no_answer(data, address, "up" if run_id else "down", timeout)
        time.sleep(0.01)
    os.close(lock)
    return bool(asked)


def status(data_dir: Path) -> ServerStatus:
    """Describe the server of this directory, without starting one or touching the directory."""
    data = data_dir.resolve()
    address = socket_path(data)
    info = _info(address)
    engine = _engine_in(info) or recorded(data) or Engine("", "")

    def number(name: str) -> int | None:
        return int(info[name]) if name in info else None

    databases = [value for name, value in info.items() if re.fullmatch(r"db\d+", name)]  # keys=7,expires=2
    clients = [line for line in _ask(address, "CLIENT LIST").splitlines() if "id=" in line] if info else []
    return ServerStatus(
        running=bool(info),
        data_dir=str(data),
        socket=str(address),
        pid=number("process_id"),
        engine=engine.engine,
        version=engine.version,
        uptime_s=number("uptime_in_seconds"),
        used_memory=number("used_memory"),
        keys=sum(int(value[5:].split(",")[0]) for value in databases) if info else None,
        clients=sum(f" name={CONNECTION_NAME} " not in line for line in clients) - 1 if clients else None,
        aof=info["aof_enabled"] == "1" if "aof_enabled" in info else None,
        log=str(data / "server.log"),
    )


# The process


def _start(data: Path, address: Path, lock: int, timeout: float, idle_timeout: float, binary: str) -> None:
    """Leave a supervisor with its server behind. Only for the holder of the lock."""
    refuse_network_disk(data)
    check_engine(data, engine_of(binary), binary)
    address.unlink(missing_ok=True)  # stale, since nobody held the lock
    conf, log = data / "server.conf", data / "server.log"
    conf.write_text(CONFIGURATION.format(socket=_quoted(address), dir=_quoted(data)))
    if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
        log.replace(log.with_name("server.log.1"))
    supervisor = Path(__file__).with_name("embedded_supervisor.py")
    with log.open("ab") as out:
        launch = subprocess.Popen(  # noqa: S603
            [_python(), "-I", "-S", supervisor, str(lock), binary, conf, address, str(idle_timeout)],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=data,
            env={**os.environ, "LC_ALL": "C"},  # whoever starts it, texts sort alike
            pass_fds=[lock],
            start_new_session=True,  # Ctrl-C in the starter's terminal is not meant for the server
        )
    try:
        code = launch.wait(timeout)  # until the server listens; the supervisor stays behind
    except subprocess.TimeoutExpired:
        code = 0  # the server is slow, and `ensure` tells so
    finally:
        launch.kill()
        launch.wait()
    if code not in (0, 128 + signal.SIGKILL):  # killed by somebody: the next round starts another
        raise EmbeddedServerError(
            f"The embedded server of {data} ended while it was starting, with code {code}. {_log_tail(data)}"
        )


def _python() -> str:
    """An interpreter to run the supervisor; inside uWSGI and frozen programs `sys.executable` is none."""
    for path in (sys.executable, str(Path(sys.prefix, "bin", "python3")), shutil.which("python3")):
        if path and Path(path).name.startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    raise EmbeddedServerError(
        "The embedded server needs a Python interpreter to watch over it, and neither this program nor PATH "
        "has one. Install python3, or set RELEVO_URL to a server of yours."
    )


def _quoted(path: Path) -> str:
    """The path as a word of the server's configuration, whatever bytes it has."""
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
    return '"' + "".join(chr(byte) if byte in safe else f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


def _log_tail(data: Path) -> str:
    path = data / "server.log"
    try:
        with path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - 2000))
            return f"The end of {path}:\n{log.read().decode(errors='replace').strip()}"
    except OSError as error:
        return f"({path}: {error.strerror})"


def _no_answer(data: Path, address: Path, answer: str, waited: float) -> EmbeddedServerError:
    match answer:
        case "loading":
            text = f"The embedded server of {data} still reads its data after {waited:g} s. Try again later."
        case "up":
            text = f"The embedded server of {data} has not stopped within {waited:g} s. It may still do so."
        case _:
            text = (
                f"The lock of {data} is held, but {address} did not answer within {waited:g} s: its server "
                "is running elsewhere (e.g. another container on the same volume), or hangs. Stop it "
                "there, set RELEVO_DATA_DIR to a directory of your own, or RELEVO_URL to a server of yours."
            )
    return EmbeddedServerError(f"{text} {_log_tail(data)}")


# The conversation: three commands, so no client library


def _ping(address: Path) -> str:
    """up, loading or down. An error reply other than -LOADING still comes from a server that is up."""
    reply = _ask(address, "PING", timeout=1.0)
    if not reply:
        return "down"
    return "loading" if reply.startswith("-LOADING") else "up"


def _info(address: Path) -> dict[str, str]:
    pairs = (line.partition(":") for line in _ask(address, "INFO").splitlines())
    return {name: value for name, colon, value in pairs if colon}


def _engine_in(info: dict[str, str]) -> Engine | None:
    if "valkey_version" in info:
        return Engine("valkey", info["valkey_version"])
    return Engine("redis", info["redis_version"]) if "redis_version" in info else None


def _ask(address: Path, command: str, *, timeout: float = 5.0) -> str:
    """The reply to one command, the first line included; empty if there was none."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(os.fsencode(address))
            connection.sendall(f"{command}\r\n".encode())
            with connection.makefile("rb") as reply:
                head = reply.readline()
                body = reply.read(int(head[1:])) if head.startswith(b"$") else b""
    except (OSError, ValueError):
        return ""
    return (head + body).decode(errors="replace")
