"""`relevo web` as a process, and clients that do not behave."""

from __future__ import annotations

import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.eventually import PATIENCE, eventually
from tests.system.shell import environment

#: No server: what these tests do needs none.
NOWHERE = "redis://127.0.0.1:1/0"
_COMMAND = """\
import sys
{prelude}
from relevo.cli.main import main
sys.exit(main())
"""
_LIMITS = "from relevo.web import connections\nfor name, value in {!r}.items(): setattr(connections, name, value)"
#: For a process of another user; this one's may be out of its reach.
OTHER_UID = 12345


class Web:
    """A running `relevo web`."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path) -> None:
        self.process = process
        self._output = output
        self.url = "http://localhost"
        self.unix: str | None = None

    @property
    def output(self) -> str:
        """All that it wrote, standard output and standard error."""
        return self._output.read_text("utf-8")

    @property
    def token(self) -> str:
        """The token that it made at its start; '': it made none."""
        found = re.search(r"\?token=(\S+)", self.output)
        return found[1] if found else ""

    @property
    def address(self) -> str | tuple[str, int]:
        """Where it listens."""
        host, _, port = self.url.removeprefix("http://").partition(":")
        return self.unix or (host, int(port))

    def connect(self) -> socket.socket:
        """A connection without a client of HTTP."""
        found = socket.socket(socket.AF_UNIX if self.unix else socket.AF_INET)
        found.connect(self.address)  # without a time limit: else a full queue of a unix socket is an error at once
        found.settimeout(PATIENCE)
        return found

    def client(self, **headers: str) -> httpx.Client:
        """A client of HTTP."""
        transport = httpx.HTTPTransport(uds=self.unix, verify=False)  # no TLS: to prepare for it takes its time
        return httpx.Client(base_url=self.url, headers=headers, timeout=PATIENCE, trust_env=False, transport=transport)

    def get(self, path: str, **headers: str) -> httpx.Response:
        """Ask once, on a connection of its own."""
        with self.client(**headers) as client:
            return client.get(path)

    @property
    def bearer(self) -> dict[str, str]:
        """The header with the token that was made."""
        return {"Authorization": f"Bearer {self.token}"}


@contextmanager
def web(
    folder: Path,
    *arguments: str,
    files: int | None = None,
    limits: dict[str, float] | None = None,
    has_uvloop: bool = True,
    url: str = NOWHERE,
    **variables: str,
) -> Iterator[Web]:
    """Run it. `files`: as many it may have open; `limits`: other ones of `web/connections.py`."""
    unix = arguments[arguments.index("--unix") + 1] if "--unix" in arguments else None
    words = [*(() if arguments and ":" in arguments[0] else ("--name", "shop")), *arguments]
    prelude = ("" if has_uvloop else "sys.modules['uvloop'] = None\n") + (_LIMITS.format(limits) if limits else "")
    output = folder / "web.log"
    with output.open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(prelude=prelude), "web", *words, *(() if unix else ("--port", "0"))],
            env=environment(url, PYTHONUNBUFFERED="1", **variables),
            cwd=folder,
            stdout=file,
            stderr=subprocess.STDOUT,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else None,
        )
    here = Web(process, output)
    try:
        eventually(lambda: ", API at " in here.output, what="its first line")
        here.unix = unix
        if unix is None:
            here.url = here.output.partition(" at ")[2].partition(",")[0]
        eventually(lambda: here.get("/healthz").status_code == 200, what="it answers", errors=(httpx.TransportError,))
        yield here
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) in (0, -signal.SIGTERM), here.output


def can_be_another_user() -> bool:
    """Whether this process may start others as another user."""
    return os.geteuid() == 0


def as_another_user(code: str) -> str:
    """What Python code prints that another user of this machine runs; Python itself may be out of its reach."""
    become = f"import http.client, os, socket, sys\nos.setgroups([])\nos.setgid({OTHER_UID})\nos.setuid({OTHER_UID})\n"
    words = [sys.executable, "-I", "-c", become + code]
    done = subprocess.run(words, cwd="/", capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
