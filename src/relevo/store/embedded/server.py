"""The embedded server: one real Valkey or Redis per data directory, started by the first process that needs it.

There is no pid file to trust. The file `server.lock` is flocked by the starter, and the descriptor is
inherited by the supervisor (`supervisor.py`) and by the server, so the lock is held exactly
as long as one of them lives, also after `kill -9`. The process that gets the lock starts the server; all
others wait until the unix socket answers. The supervisor stops the server after a time without clients; a client
that connects at that moment sees its connection close and calls `ensure` again.

The directory is opened once and used through its descriptor (`directory.py`); one that this user neither made
nor trusts is refused before anything in it is used.

    <data_dir>/identity        names the directory in this user's records (trust.py)
               server.lock     the lock
               server.sock     the socket, unless the path is too long for one
               server.conf     written anew at each start
               server.log      and server.log.1
               engine.json     which engine wrote the data: an older one must never open it
               appendonlydir/  the data
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from relevo.errors import EmbeddedServerError, UntrustedDirectory
from relevo.store.embedded import trust as embedded_trust
from relevo.store.embedded.directory import DataDirectory, open_directory, place_of, unusable
from relevo.store.embedded.place import refuse_network_disk, socket_path, take_lock
from relevo.store.embedded.program import Engine, check_engine, engine_of, find_binary, recorded
from relevo.store.embedded.supervisor import CONNECTION_NAME
from relevo.store.peers import check_peer

LOG_LIMIT_BYTES = 5_000_000
MOST_STARTS = 5  # per call: a server that stops each time after it listened does so because of its data
LOADING_PATIENCE = 10  # times the time-out: a server that reports that it loads its data is not stuck

CONFIGURATION = """\
port 0
unixsocket {socket}
unixsocketperm 700
dir .
daemonize no
save ""
appendonly yes
appendfsync everysec
aof-use-rdb-preamble yes
aof-load-truncated yes
auto-aof-rewrite-percentage 100
auto-aof-rewrite-min-size 8mb
maxmemory-policy noeviction
sanitize-dump-payload yes
"""

# Commands by which an append-only file could load code, write other files or call other servers. relevo uses none of
# them, so the server does not know them, and refuses a file that holds one: `enable-module-command no` and its like do
# not apply to files. Scripts stay, because relevo needs them; they cannot call these commands either.
REMOVED_COMMANDS = (
    "MODULE",
    "CONFIG",
    "DEBUG",
    "REPLICAOF",
    "SLAVEOF",
    "FAILOVER",
    "MIGRATE",
    "CLUSTER",
    "SYNC",
    "PSYNC",
    "REPLCONF",
)


#: A directory with one of these holds the data of a server, whatever else is in it.
_DATA = ("engine.json", "appendonlydir", "appendonly.aof")


class ServerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of the server of one data directory; `clients` does not count our own connections."""

    running: bool
    data_dir: str
    #: None: there is no directory.
    trusted: bool | None
    #: Why the directory is not trusted, and what to do.
    refusal: str
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


def ensure(
    data_dir: Path,
    *,
    timeout: float = 20.0,
    idle_timeout: float = 30.0,
    binary: str | None = None,
    record: bool = True,
) -> str:
    """Give the URL of the one server of this directory, starting it if need be.

    Any number of processes may call this at once: they get the same server. It stops by itself after
    `idle_timeout` seconds without a client (0: never), and keeps its data for the next start. A directory that this
    user neither made nor trusts raises `UntrustedDirectory`. `record=False`: a new one is for this process alone.

        url = ensure(Path(".relevo"))        # unix:///home/me/shop/.relevo/server.sock?db=0
    """
    data = place_of(data_dir)
    address = socket_path(data)
    began, nap = time.monotonic(), 0.001
    starts: list[int] = []  # offset in the log at which each start begins
    while True:
        with embedded_trust.open_trusted(data, timeout=timeout, record=record) as directory:
            if (answer := _ping(address)) == "up":
                return f"unix://{quote(os.fsencode(address))}?db=0"
            if answer == "down" and (lock := take_lock(directory)) is not None:
                try:
                    if starts and (error := _ended(directory, starts)):
                        raise error
                    starts.append(_start(directory, address, lock, timeout, idle_timeout, binary or find_binary()))
                except OSError as failed:
                    raise unusable(data, failed) from failed
                finally:
                    os.close(lock)  # from here on only the supervisor and the server hold it
            patience = timeout * (LOADING_PATIENCE if answer == "loading" else 1)
            if time.monotonic() - began > patience:
                raise _no_answer(directory, address, answer, patience)
        time.sleep(nap)
        nap = min(nap * 1.5, 0.05)


def trust(data_dir: Path) -> bool:
    """Trust a directory of this user's own from now on; False if it was trusted before."""
    data = place_of(data_dir)
    try:
        directory = open_directory(data, closed=False)
    except FileNotFoundError as error:
        raise EmbeddedServerError(f"{data} does not exist; what relevo makes itself is trusted.") from error
    with directory:
        if not directory.is_for_data_alone() and not any(map(directory.has, _DATA)):
            raise EmbeddedServerError(
                f"{data} is not the data directory of an embedded server; that is mostly a .relevo below it."
            )
        directory.check_files()
        if embedded_trust.is_trusted(directory) and not directory.is_open_to_others:
            return False
        try:
            embedded_trust.trust(directory)
        except OSError as error:
            raise unusable(data, error) from error
        return True


def stop(data_dir: Path, *, timeout: float = 10.0) -> bool:
    """Stop the server of this directory and wait until it is gone; False if none was running."""
    data = place_of(data_dir)
    address = socket_path(data)
    deadline, asked = time.monotonic() + timeout, ""
    while True:
        try:
            directory = open_directory(data)  # it need not be trusted: an earlier version may have started the server
        except FileNotFoundError:
            return bool(asked)
        with directory:
            if (lock := take_lock(directory)) is not None:
                os.close(lock)
                return bool(asked)
            run_id = _info(address).get("run_id", "")
            if asked and run_id not in ("", asked):
                return True  # gone, and the next one was started already
            if run_id and not asked:
                asked = run_id
                _ask(address, "SHUTDOWN NOSAVE", timeout=timeout)  # NOSAVE means the snapshot: the log is synced
            if time.monotonic() > deadline:
                raise _no_answer(directory, address, "up" if run_id else "down", timeout)
        time.sleep(0.01)


def status(data_dir: Path) -> ServerStatus:
    """Describe the server of this directory, without starting one or touching the directory."""
    data = place_of(data_dir)
    address = socket_path(data)
    trusted, refused, info, made_by = None, "", {}, None
    try:
        with open_directory(data) as directory:
            info, made_by = _info(address), recorded(directory)
            trusted = embedded_trust.is_trusted(directory) or embedded_trust.is_unused(directory)
            refused = "" if trusted else str(embedded_trust.untrusted(data))
    except FileNotFoundError:
        pass
    except UntrustedDirectory as error:
        trusted, refused = False, str(error)
    engine = _engine_in(info) or made_by or Engine("", "")

    def number(name: str) -> int | None:
        return int(info[name]) if name in info else None

    databases = [value for name, value in info.items() if re.fullmatch(r"db\d+", name)]  # keys=7,expires=2
    clients = [line for line in _ask(address, "CLIENT LIST").splitlines() if "id=" in line] if info else []
    return ServerStatus(
        running=bool(info),
        data_dir=str(data),
        trusted=trusted,
        refusal=refused,
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


def _start(directory: DataDirectory, address: Path, lock: int, timeout: float, idle_timeout: float, binary: str) -> int:
    """Start a supervisor with its server; the offset of its log. Only for the holder of the lock."""
    data = directory.path
    refuse_network_disk(data)
    directory.check_files()
    check_engine(directory, engine_of(binary), binary)
    embedded_trust.note_use(directory)
    # By its name alone where it is in the directory, which is the working directory of the server.
    listen = Path(address.name) if address.parent == data else address
    if listen == address:
        address.unlink(missing_ok=True)  # stale, since the lock was free
    else:
        directory.remove(address.name)
    directory.write("server.conf", _configuration(listen).encode())
    log, written = _open_log(directory)
    try:
        supervisor = Path(__file__).with_name("supervisor.py")
        launch = subprocess.Popen(  # noqa: S603
            [_python(), "-I", "-S", supervisor, str(lock), str(directory.fd), binary, listen, str(idle_timeout)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "LC_ALL": "C"},  # texts sort alike in every environment
            pass_fds=[lock, directory.fd],
            start_new_session=True,  # Ctrl-C in the starter's terminal is not meant for the server
        )
    finally:
        os.close(log)
    try:
        code = launch.wait(timeout)  # until the server listens; the supervisor stays behind
    except subprocess.TimeoutExpired:
        code = 0  # the server is slow; `ensure` reports that
    finally:
        launch.kill()
        launch.wait()
    if code not in (0, 128 + signal.SIGKILL):  # killed from outside: the next iteration starts another
        raise _refused_data(directory, written) or EmbeddedServerError(
            f"The embedded server of {data} ended while it was starting, with code {code}. {_log_tail(directory)}"
        )
    return written


def _configuration(listen: Path) -> str:
    removed = "".join(f'rename-command {name} ""\n' for name in REMOVED_COMMANDS)
    return CONFIGURATION.format(socket=_quoted(listen)) + removed


def _open_log(directory: DataDirectory) -> tuple[int, int]:
    """The log to append to, and how much is in it."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    log = directory.open("server.log", flags)
    size = os.fstat(log).st_size
    if size <= LOG_LIMIT_BYTES:
        return log, size
    os.close(log)
    directory.rename("server.log", "server.log.1")
    return directory.open("server.log", flags), 0


def _ended(directory: DataDirectory, starts: list[int]) -> EmbeddedServerError | None:
    """Why a server that listened already has ended; None: it was stopped or killed, and another may be started."""
    if error := _refused_data(directory, starts[-1]):
        return error
    if len(starts) < MOST_STARTS:
        return None
    return EmbeddedServerError(
        f"The embedded server of {directory.path} was started {len(starts)} times, and ended each time. "
        f"{_log_tail(directory)}"
    )


def _refused_data(directory: DataDirectory, since: int) -> EmbeddedServerError | None:
    """Whether the server refused its append-only file because of a command in it."""
    pattern = r"[Uu]nknown command '(.*?)'(?:,.*| reading the append only file)"
    unknown = re.findall(pattern, _log(directory, since))
    if not unknown:
        return None
    return EmbeddedServerError(
        f"The append-only file of {directory.path} holds the command {unknown[-1].upper():.40}, which relevo never "
        "writes and its server does not know: another program changed the file, perhaps to make the server load code. "
        "The command was not run, and the server did not start. Remove the directory, or restore it from a backup."
    )


def _python() -> str:
    """The interpreter for the supervisor; inside uWSGI and frozen programs `sys.executable` is another program."""
    for path in (sys.executable, str(Path(sys.prefix, "bin", "python3")), shutil.which("python3")):
        if path and Path(path).name.startswith(("python", "pypy")) and os.access(path, os.X_OK):
            return path
    raise EmbeddedServerError(
        "The embedded server needs a Python interpreter to watch over it, and neither this program nor PATH "
        "has one. Install python3, or set RELEVO_URL to a server of yours."
    )


def _quoted(path: Path) -> str:
    """The path quoted for the server's configuration, whatever bytes it has."""
    safe = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-"
    return '"' + "".join(chr(byte) if byte in safe else f"\\x{byte:02x}" for byte in os.fsencode(path)) + '"'


def _log(directory: DataDirectory, since: int) -> str:
    """The log from this offset on, at most its last part."""
    with open(directory.open("server.log"), "rb") as log:
        log.seek(max(since, log.seek(0, os.SEEK_END) - 100_000))
        return log.read().decode(errors="replace")


def _log_tail(directory: DataDirectory) -> str:
    path = directory.path / "server.log"
    try:
        return f"The end of {path}:\n{_log(directory, 0)[-2000:].strip()}"
    except OSError as error:
        return f"({path}: {error.strerror})"


def _no_answer(directory: DataDirectory, address: Path, answer: str, waited: float) -> EmbeddedServerError:
    data = directory.path
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
    return EmbeddedServerError(f"{text} {_log_tail(directory)}")


# Three commands, so no client library


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
        if not stat.S_ISSOCK(address.lstat().st_mode):
            return ""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(timeout)
            connection.connect(os.fsencode(address))
            check_peer(connection, str(address))
            connection.sendall(f"{command}\r\n".encode())
            with connection.makefile("rb") as reply:
                head = reply.readline()
                body = reply.read(int(head[1:])) if head.startswith(b"$") else b""
    except (OSError, ValueError):
        return ""
    return (head + body).decode(errors="replace")
