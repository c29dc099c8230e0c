"""`relevo web` as a process: whom it answers without a token, and what clients that do not behave can do to it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.eventually import PATIENCE, eventually
from tests.process.web import NOWHERE, Web, as_another_user, can_be_another_user, web
from tests.system.shell import relevo

_HALF = b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
_ASK = """
address = {address!r}
connection = http.client.HTTPConnection("localhost")
connection.sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
try:
    connection.sock.connect(address)
    connection.request("GET", "/api/v1/me")
    print(connection.getresponse().status)
except PermissionError:
    print("no permission")
"""
PROXIES = (
    *("Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server"),
    *("X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP"),
)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A directory that other users can enter, and whose name is short enough for a socket."""
    with TemporaryDirectory(prefix="rw") as made:
        os.chmod(made, 0o755)
        yield Path(made)


# Who is let in without web_tokens


def test_no_user_of_this_machine_is_admin_without_a_token(folder: Path) -> None:
    with web(folder) as here:
        for path in ("/api/v1/me", "/api/v1/openapi.json", "/metrics", f"/api/v1/me?token={here.token}"):
            assert here.get(path).status_code == 401, path
        if can_be_another_user():
            assert as_another_user(_ASK.format(address=here.address)) == "401"
        assert here.get("/api/v1/me", **here.bearer).json()["role"] == "admin"
        assert here.get("/healthz").status_code == here.get("/").status_code == 200
        assert here.get(f"/?token={here.token}x").status_code == 401


def test_made_token_is_written_once_and_never_echoed(folder: Path) -> None:
    with web(folder, "--log-level", "DEBUG") as here:
        page = here.get(f"/?token={here.token}")
        assert page.status_code == 200 and "<b>admin</b>" in page.text and here.token not in page.text
        assert page.headers["Referrer-Policy"] == "no-referrer" and page.headers["Cache-Control"] == "no-store"
        assert "Set-Cookie" not in page.headers and here.token not in str(page.headers)
        for path in ("/", "/nothing", "/api/v1/nothing", "/api/v1/me", "/api/v1/queues", "/metrics"):
            answer = here.get(f"{path}?token={here.token}", **here.bearer)
            assert here.token not in answer.text + str(answer.headers)
        with here.connect() as broken:
            broken.sendall(f"GET /?token={here.token} NONSENSE\r\n\r\n".encode())
            assert here.token.encode() not in broken.recv(65_536)
    assert "GET /nothing" in here.output, "requests are logged, without what stands in their queries"
    assert here.output.count(here.token) == 1


def test_made_token_is_for_this_machine_and_refused_behind_a_proxy(folder: Path) -> None:
    with web(folder) as here:
        for name in PROXIES:
            answer = here.get("/api/v1/me", **here.bearer, **{name: "127.0.0.1"})
            assert answer.status_code == 403 and "RELEVO_WEB_TOKENS" in answer.text, name
            assert here.get("/api/v1/me", **{name: "127.0.0.1"}).status_code == 401, name
        assert here.get("/api/v1/me", **here.bearer, Host="ops.example.com").status_code == 403


# At a unix socket


def test_unix_socket_answers_the_user_that_started_it_and_no_other(folder: Path) -> None:
    path = folder / "web.sock"
    with web(folder, "--unix", str(path)) as here:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert here.get("/api/v1/me").json()["role"] == "admin"
        assert here.token == "" and "needs no token" in here.output
        for name in PROXIES:
            assert here.get("/api/v1/me", **{name: "127.0.0.1"}).status_code == 403, name
        if can_be_another_user():
            assert as_another_user(_ASK.format(address=here.address)) == "no permission"
            path.chmod(0o666)  # the mode is not all that keeps others out
            assert as_another_user(_ASK.format(address=here.address)) == "401"
    assert not path.exists()


def test_unix_socket_asks_for_tokens_where_some_are_set(folder: Path) -> None:
    secret = "0123456789abcdef"
    with web(folder, "--unix", str(folder / "s"), RELEVO_WEB_TOKENS=f"viewer:ana:{secret}") as here:
        assert here.get("/api/v1/me").status_code == 401
        assert here.get("/api/v1/me", Authorization=f"Bearer {secret}").json()["name"] == "ana"


def test_unix_socket_of_a_killed_process_is_replaced_and_that_of_a_living_one_is_not(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    with web(folder, "--unix", str(path)):
        seen = relevo("web", "--name", "shop", "--unix", str(path), url=NOWHERE)
        assert seen.code == 2 and "another process listens there" in seen.err
    with web(folder, "--unix", str(path)) as here:
        path.unlink()
        path.write_text("of another program")
        here.unix = None
        here.process.terminate()
        assert here.process.wait(PATIENCE) == 0
    assert path.read_text() == "of another program"


def test_unix_socket_takes_the_place_of_nothing_else(folder: Path) -> None:
    file, link, loose = folder / "file", folder / "link", folder / "loose"
    file.write_text("kept")
    link.symlink_to(folder / "elsewhere")
    loose.mkdir()
    loose.chmod(0o777)
    for path, why in (
        (file, "no socket of yours"),
        (link, "no socket of yours"),
        (loose / "s", "others can replace"),
        (folder / "nothing" / "s", "No such file"),
        (folder / ("s" * 120), "too long"),
    ):
        seen = relevo("web", "--name", "shop", "--unix", str(path), url=NOWHERE)
        assert seen.code == 2 and why in seen.err, (path, seen)
    assert file.read_text() == "kept" and not (folder / "elsewhere").exists()
    both = relevo("web", "--name", "shop", "--unix", str(folder / "s"), "--port", "0", url=NOWHERE)
    assert both.code == 2 and "leave out --host and --port" in both.err


# Connections


@pytest.fixture(params=["port", "unix socket"])
def at(request: pytest.FixtureRequest, folder: Path) -> tuple[str, ...]:
    """Where it listens."""
    return ("--unix", str(folder / "s")) if request.param == "unix socket" else ()


def admin(here: Web) -> dict[str, str]:
    return here.bearer if here.unix is None else {}


@pytest.mark.parametrize("has_uvloop", [True, False])
def test_half_requests_keep_no_one_out(folder: Path, at: tuple[str, ...], has_uvloop: bool) -> None:
    """More of them than it may have files open."""
    with web(folder, *at, files=256, has_uvloop=has_uvloop) as here, ExitStack() as stack:
        for _ in range(330):
            _send(stack.enter_context(here.connect()), _HALF)
        for _ in range(5):
            assert here.get("/healthz").text == "ok\n"
            assert here.get("/api/v1/me", **admin(here)).status_code == 200
    assert "Traceback" not in here.output and "out of system resource" not in here.output


def test_health_is_answered_while_all_other_requests_are_too_many(folder: Path, at: tuple[str, ...]) -> None:
    """They were let in, and send no body."""
    with web(folder, *at, files=256) as here, ExitStack() as stack:
        for _ in range(330):
            _send(stack.enter_context(here.connect()), _request(here, "Content-Length: 9\r\n"))
        for _ in range(5):
            assert here.get("/healthz").text == "ok\n"
        assert here.get("/api/v1/me", **admin(here)).status_code == 503
    assert "Traceback" not in here.output


def test_connection_ends_if_no_request_comes_in_time(folder: Path, at: tuple[str, ...]) -> None:
    with web(folder, *at, limits={"HEADERS": 1.0, "IDLE": 1}) as here:
        for sent in (b"", _HALF):
            with here.connect() as one:
                one.sendall(sent)
                assert one.recv(1) == b"", sent
        with here.connect() as dripping:  # some bytes now and then give it no more time
            dripping.sendall(_HALF)
            eventually(lambda: not _send(dripping, b"x"), what="its end")
        with here.connect() as idle:
            idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert _all_of(idle).endswith(b"ok\n"), "and then it was closed"


def test_body_that_does_not_come_is_answered_with_408(folder: Path, at: tuple[str, ...]) -> None:
    with web(folder, *at, limits={"BODY": 1.0}) as here, here.connect() as one:
        one.sendall(_request(here, "Content-Length: 1000\r\n") + b"{")
        answer = _all_of(one)
        assert answer.startswith(b"HTTP/1.1 408") and b"connection: close" in answer.lower()


@pytest.mark.parametrize("length", ["Content-Length", "chunked"])
def test_client_that_sends_too_much_sees_why_it_is_refused(folder: Path, at: tuple[str, ...], length: str) -> None:
    """It reads the answer only when it has sent all, as most do."""
    part, count = b" " * 65_536, 800
    with web(folder, *at) as here:
        for authorization, status in ((admin(here), b"413"), ({"Authorization": "Bearer x"}, b"401")):
            if status == b"401" and here.unix:
                continue
            how = f"{length}: {len(part) * count}" if length != "chunked" else f"Transfer-Encoding: {length}"
            with here.connect() as one:
                one.sendall(_request(here, how + "\r\n", **authorization))
                for _ in range(count):
                    one.sendall(part if length != "chunked" else b"10000\r\n" + part + b"\r\n")
                assert _all_of(one).startswith(b"HTTP/1.1 " + status)


def test_connection_whose_client_sends_for_ever_ends(folder: Path) -> None:
    with web(folder, limits={"LINGER": 1.0}) as here, here.connect() as one:
        one.sendall(b"POST /api/v1/me HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000000\r\n\r\n")
        eventually(lambda: not _send(one, b" " * 65_536), what="its end")


def test_client_that_reads_no_answer_is_let_go(folder: Path) -> None:
    with web(folder, limits={"ANSWER": 1.0}) as here, here.connect() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask = f"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {here.token}\r\n\r\n"
        eventually(lambda: not _send(one, ask.encode() * 10), what="its end")
        assert here.get("/healthz").status_code == 200


def test_wrong_tokens_wait_and_good_ones_do_not(folder: Path) -> None:
    """Hundreds of wrong ones at once, from the address of the good one."""
    with web(folder) as here, ExitStack() as stack:
        ask = b"GET /api/v1/me HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n"
        wrong = [stack.enter_context(here.connect()) for _ in range(60)]
        for one in wrong:
            one.sendall(ask)
            assert here.get("/api/v1/me", **here.bearer).status_code == 200
        answers = [one.recv(12) for one in wrong]
        assert {*answers} == {b"HTTP/1.1 401", b"HTTP/1.1 429"}
        assert here.get("/api/v1/me", **here.bearer).status_code == 200
        assert here.output.count("wrong token from 127.0.0.1") < 6, "of which the log has few lines"


def _request(here: Web, headers: str, **others: str) -> bytes:
    """A request up to its body."""
    given = {"Host": "localhost", "Content-Type": "application/json", **admin(here), **others}
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items())
    return f"POST /api/v1/dead/retry HTTP/1.1\r\n{lines}{headers}\r\n".encode()


def _send(connection: socket.socket, data: bytes) -> bool:
    """Whether it could be sent."""
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def _all_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes it."""
    parts = []
    while part := connection.recv(65_536):
        parts.append(part)
    return b"".join(parts)
