"""Own one embedded server: start it, stop it when it is not used, and end together with it.

Run by `relevo.store.embedded.server` as `python -I -S supervisor.py LOCK_FD DIR_FD BINARY SOCKET IDLE_S`,
with stdout and stderr on the server's log. The command returns 0 as soon as the server listens, or the
server's exit code if it ended before; the supervisor itself stays behind. It lives as long as the server
does, so it imports only small parts of the standard library and nothing of relevo.

The descriptor LOCK_FD holds the flock of the data directory. This process and the server both
inherit it, so the lock is free exactly when both are gone, however they ended.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time

STOP_GRACE_S = 10.0  # a server that ignores SIGTERM this long sits in a script; its log is safe, so kill it
CONNECTION_NAME = "relevo-supervisor"


def spawn(binary: str, conf: str) -> int:
    """Start the server as a child that the kernel kills when this process ends."""
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        if sys.platform == "linux":
            die_with(supervisor)
        os.execv(binary, [binary, conf])  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, f"cannot run {binary}: {error}\n".encode(errors="replace"))
    finally:
        os._exit(127)


def die_with(parent: int) -> None:
    """Ask Linux for SIGKILL on the death of the parent. Elsewhere a server may outlive its supervisor.

    SIGKILL and not SIGTERM: it also ends a server that is deep in a script. Nothing acknowledged is
    lost by it, because the append-only file was written, if not yet synced, before each reply.
    """
    try:
        import ctypes  # here and not above: it would stay in the supervisor's memory

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # 1 = PR_SET_PDEATHSIG
    except (ImportError, OSError, AttributeError):
        return
    if os.getppid() != parent:  # it died before the request was in force
        os._exit(1)


class Watch:
    """Counts the clients of the server, without itself, over one connection that it keeps."""

    def __init__(self, path: str, server_pid: int) -> None:
        self._path = path
        self._server_pid = server_pid
        self._socket: socket.socket | None = None
        self._connections_seen = -1

    def busy(self) -> bool:
        """Whether a client is connected, or was since the last check. Unknown counts as busy."""
        try:
            info = self._info()
            if int(info["process_id"]) != self._server_pid:
                raise ValueError("a successor's socket, in a directory that was removed and made anew")
            clients, seen = int(info["connected_clients"]), int(info["total_connections_received"])
        except (OSError, ValueError, KeyError):
            if self._socket is not None:
                self._socket.close()
            self._socket = None
            return True
        came_by = seen != self._connections_seen
        self._connections_seen = seen
        return came_by or clients > 1

    def _info(self) -> dict[str, str]:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            self._socket.settimeout(5)
            self._socket.connect(self._path)
            self._socket.sendall(f"CLIENT SETNAME {CONNECTION_NAME}\r\n".encode())
            self._socket.recv(64)
        self._socket.sendall(b"INFO\r\n")
        with self._socket.makefile("rb") as reply:
            text = reply.read(int(reply.readline()[1:]) + 2).decode(errors="replace")
        return {name: value for name, _, value in (line.partition(":") for line in text.splitlines())}


def supervise(lock_fd: int, binary: str, conf: str, path: str, idle_s: float, starter: int) -> None:
    """Run the server to its end; send the starter one byte with the result of the start."""
    wake_up, bell = os.pipe()
    os.set_blocking(wake_up, False)
    os.set_blocking(bell, False)
    signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
    asked: list[int] = []
    for ending in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(ending, lambda number, _frame: asked.append(number))
    signal.signal(signal.SIGCHLD, lambda *_: None)  # only to ring the bell

    server = spawn(binary, conf)
    watch = Watch(path, server)
    tick_s = max(0.1, min(5.0, idle_s / 4)) if idle_s > 0 else 5.0
    last_busy = time.monotonic()
    stopping_since: float | None = None
    listening = False
    while True:
        select.select([wake_up], [], [], tick_s if listening else 0.003)
        try:
            os.read(wake_up, 1024)
        except BlockingIOError:
            pass
        ended, code = os.waitpid(server, os.WNOHANG)
        if ended:
            if not listening:
                status = os.waitstatus_to_exitcode(code)
                os.write(starter, bytes([status or 1 if status >= 0 else 128 - status]))  # as a shell says it
            return
        now = time.monotonic()
        if os.fstat(lock_fd).st_nlink == 0:
            # The data directory was removed. A new server may be at the same path already, and
            # an orderly exit would unlink that one's socket.
            os.kill(server, signal.SIGKILL)
        elif stopping_since is not None:
            if now - stopping_since > STOP_GRACE_S:
                os.kill(server, signal.SIGKILL)
        elif asked or (listening and not os.path.exists(path)):  # noqa: PTH110 - no pathlib in memory
            # Without its socket file new clients cannot reach the server, and its lock would keep a new one away.
            stopping_since = now
            os.kill(server, signal.SIGTERM)
        elif not listening:
            if os.path.exists(path):  # noqa: PTH110 - the starter had removed any old one
                listening = True
                os.write(starter, b"\0")
                os.close(starter)
        elif watch.busy():
            last_busy = now
        elif 0 < idle_s <= now - last_busy:
            stopping_since = now
            os.kill(server, signal.SIGTERM)


def main() -> int:
    lock_fd, directory_fd, binary, path, idle_s = sys.argv[1:]
    os.fchdir(int(directory_fd))  # not by its name, which may belong to another directory by now
    os.close(int(directory_fd))
    started, starter = os.pipe()
    if os.fork():  # this half returns, and init adopts the other: the starter is not left with a zombie
        os.close(starter)
        return (os.read(started, 1) or b"\1")[0]
    os.close(started)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the starter may have been killed
    os.umask(0o077)  # other users must not read jobs, even in a directory that is open to them
    supervise(int(lock_fd), binary, "server.conf", path, float(idle_s), starter)
    return 0


if __name__ == "__main__":
    sys.exit(main())
