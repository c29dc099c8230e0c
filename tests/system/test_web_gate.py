"""Access to the HTTP API by token, role, origin and host, and refusal of malformed requests."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import HTTPConnection
from starlette.routing import Mount

from relevo import Relevo
from relevo.audit.trail import whoami
from relevo.engine.lists import known_queues
from relevo.errors import ConfigurationError
from relevo.web import api
from relevo.web.access import Caller, Role, token_of
from relevo.web.bad_tokens import ADDRESSES, BadTokens
from relevo.web.gate import PEER_UID, Gate
from relevo.web.problems import Problem, Refused
from relevo.web.refusals import AT_ONCE
from relevo.web.route import Route
from relevo.web.table import ROUTES
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system.shell import command, environment, relevo
from tests.system.web import SECRETS, TOKENS, Here, alone, served


@pytest.fixture(scope="module")
def guarded(server: Server) -> Iterator[str]:
    """An app with tokens. Nothing is in it, and no test leaves anything."""
    with alone(server, web_tokens=TOKENS) as app, served(app) as url:
        yield url


@pytest.fixture(scope="module")
def open_here(server: Server) -> Iterator[str]:
    """The same without tokens, on loopback."""
    with alone(server) as app, served(app) as url:
        yield url


def concrete(route: Route) -> str:
    path = route.path
    for name in route.names:
        path = path.replace(f"{{{name}}}", "nothing")
    return f"/api/v1{path}"


# Roles


@pytest.mark.parametrize("role", ["", *SECRETS])
def test_every_route_asks_for_its_role(guarded: str, role: str) -> None:
    """The whole table, with every role and without any."""
    have = Role[role.upper()] if role else None
    with Here(guarded, role) as here:
        for route in ROUTES:
            answer = here.request(route.method, concrete(route))
            what = f"{role or 'no token'}: {route.method} {route.path}: {answer.status_code} {answer.text}"
            if have is None:
                assert answer.status_code == 401, what
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            elif not route.producers if have is Role.PRODUCER else have < route.role:
                assert answer.status_code == 403, what
                assert route.role.label in answer.json()["message"]
            else:
                assert answer.status_code in (200, 404, 415, 422), what
            if answer.status_code != 200:
                assert answer.headers["Content-Type"] == "application/problem+json"
                found = answer.json()
                assert found.keys() - {"argument"} == {*Problem.__struct_fields__} - {"argument"}, what
                assert (found["status"], found["detail"]) == (answer.status_code, found["message"])
            assert answer.headers["Cache-Control"] == "no-store"


def test_routes_that_remove_need_admin_and_routes_that_change_need_operator() -> None:
    for route in ROUTES:
        loses = any(word in route.path for word in ("clear", "discard", "purge", "cleanup", "sweep", "/remove"))
        if route.path == "/queues/{queue}/limits/remove":  # can be set again
            loses = False
        if route.path == "/dead/import":  # what comes from elsewhere may be run here
            loses = True
        if route.creates:
            assert route.role is Role.ADMIN and route.producers and not route.deed, route.path
        elif route.changes:
            assert route.role is (Role.ADMIN if loses else Role.OPERATOR), route.path
            assert route.deed, route.path
        else:
            assert route.method == "GET" and route.role < Role.ADMIN, route.path


def test_unknown_token_is_refused(guarded: str) -> None:
    for given in ("Bearer wrong-wrong-wrong-wrong", "Basic YTpi", "", "\xff\xfe"):
        answer = httpx.get(f"{guarded}/api/v1/me", headers={b"Authorization": given.encode("latin-1")}, trust_env=False)
        assert answer.status_code == 401 and "web_tokens" in answer.json()["message"], given


def test_no_token_is_taken_from_a_cookie_or_the_query(guarded: str) -> None:
    secret = SECRETS["admin"]
    with Here(guarded) as here:
        cookies = f"token={secret}; Authorization=Bearer {secret}"
        assert here.get("/api/v1/me", headers={"Cookie": cookies}).status_code == 401
        assert here.get("/api/v1/me", params={"token": secret, "access_token": secret}).status_code == 401
        assert "set-cookie" not in here.get("/").headers


# Origin and Host


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1", ""])
def test_page_of_another_origin_changes_nothing(guarded: str, open_here: str, origin: str) -> None:
    """Also where a token comes along, and where none is asked for."""
    with Here(guarded, "admin") as here:
        assert here.post("/api/v1/orphans/sweep", headers={"Origin": origin}).status_code == 403
        assert here.get("/api/v1/me", headers={"Origin": origin}).status_code == 200
    with Here(open_here) as here:
        assert here.post("/api/v1/orphans/sweep", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", "10.0.0.7", "localhost.evil.example", "", "[::"])
def test_dns_rebinding_is_refused(open_here: str, host: str) -> None:
    """A page of evil.example whose name now means 127.0.0.1 is of the same origin as its requests."""
    headers = {"Host": host, "Origin": f"http://{host}"}
    with Here(open_here) as here:
        for answer in (
            here.get("/api/v1/queues", headers=headers),
            here.post("/api/v1/orphans/sweep", headers=headers),
        ):
            assert answer.status_code in (400, 403), answer.text  # uvicorn itself refuses what is no host


def test_made_token_is_believed_from_this_machine_and_meant_for_it(open_here: str, guarded: str) -> None:
    port = open_here.rpartition(":")[2]
    with Here(open_here) as here:
        assert here.ask("/me")["name"] == whoami() and here.ask("/me")["role"] == "admin"
        for name in ("localhost", "[::1]", "LOCALHOST"):
            assert here.get("/api/v1/me", headers={"Host": f"{name}:{port}"}).status_code == 200, name
        for header in ("X-Forwarded-For", "X-Forwarded-Port", "CF-Connecting-IP"):
            assert here.get("/api/v1/me", headers={header: "127.0.0.1"}).status_code == 403, header
        assert here.post("/api/v1/orphans/sweep").status_code == 200
        assert here.post("/api/v1/orphans/sweep", headers={"Origin": open_here}).status_code == 200
        here.headers.pop("Authorization")
        assert here.ask("/me", 401)["error"] == "Unauthorized"
    with Here(guarded, "viewer") as here:
        assert here.get("/api/v1/me", headers={"Host": "ops.example.com"}).status_code == 200, "with tokens, any name"
        assert here.get("/api/v1/me", headers={"Via": "proxy"}).status_code == 200, "and behind a proxy"


@pytest.mark.parametrize(("peer", "owner", "admits"), [(0, True, True), (1, True, False), (0, False, False)])
async def test_peer_of_a_unix_socket_is_believed_if_it_is_this_user_and_no_tokens_are_set(
    peer: int, owner: bool, admits: bool
) -> None:
    gate = Gate((), owner=Caller("ana", Role.ADMIN)) if owner else Gate([token_of(TOKENS[0])])
    state = {PEER_UID: os.geteuid() + peer}
    asked = HTTPConnection({"type": "http", "headers": [(b"host", b"localhost")], "client": None, "state": state})
    if admits:
        assert (await gate.admit(asked, Role.ADMIN)).name == "ana"
    else:
        with pytest.raises(Refused) as refused:
            await gate.admit(asked, Role.VIEWER)
        assert refused.value.status == 401


def test_wrong_tokens_are_delayed_by_address_within_bounds() -> None:
    bad = BadTokens()
    assert [bad.seconds("10.0.0.7", 0.0) for _ in range(9)] == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]
    assert bad.seconds("10.0.0.8", 0.0) == 0.0, "another one"
    assert bad.seconds("10.0.0.7", 1_000.0) == 0.0, "long ago"
    assert [bad.seconds(f"2001:db8::{n:x}", 2_000.0) for n in range(3)] == [0.0, 0.1, 0.2], "one network"
    for n in range(3 * ADDRESSES):
        bad.seconds(f"10.1.{n // 256}.{n % 256}", 3_000.0)
    assert len(bad._counts) == ADDRESSES


def test_refused_requests_are_in_the_audit_trail_within_bounds(bus_factory: AppFactory) -> None:
    app = bus_factory(web_tokens=TOKENS)
    with served(app) as url, Here(url, "viewer") as viewer, Here(url) as stranger:
        viewer.do("/queues/default/clear", 403)
        assert (stranger.get("/metrics").status_code, stranger.get("/?token=guessed").status_code) == (401, 401)
        for _ in range(50):
            stranger.ask("/me", 401)
        found = eventually(lambda: (deeds := app.audit.list())[AT_ONCE - 1 :] and deeds, what="the entries")
        assert len(found) == AT_ONCE
        assert {(one.who, one.what, one.via, one.count) for one in found} == {
            ("viewer-ana", "http.refuse", "http", 1),
            ("127.0.0.1", "http.refuse", "http", 1),
        }
        about = [one.about for one in found]
        for asked, status in (
            ("POST /queues/{queue}/clear", 403),
            ("GET /metrics", 401),
            ("GET /", 401),
            ("GET /me", 401),
        ):
            assert {"asked": asked, "status": status} in about
        viewer.ask("/queues", 422, limit=0)  # what is only wrong is no refusal
    assert len(app.audit.list()) == AT_ONCE


# Mounted


def test_api_can_be_mounted_in_another_app_if_it_has_tokens(bus_factory: AppFactory) -> None:
    with pytest.raises(ConfigurationError, match="RELEVO_WEB_TOKENS"):
        api(bus_factory())
    app = bus_factory(web_tokens=TOKENS)
    site = Starlette(routes=[Mount("/ops/relevo", api(app))])

    async def ask(client: str, **headers: str) -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(site, client=(client, 5000))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as here:
            found = await here.get("/ops/relevo/me"), await here.get("/ops/relevo/openapi.json")
        await app.aclose()
        return found

    for client in ("127.0.0.1", "10.0.0.7", "testclient"):
        me, about = asyncio.run(ask(client, Authorization=f"Bearer {SECRETS['viewer']}"))
        assert me.json()["app"] == app.name
        assert about.json()["servers"] == [{"url": "/ops/relevo"}]
        assert asyncio.run(ask(client))[0].status_code == 401


# Nonsense


def test_invalid_query_is_refused(open_here: str) -> None:
    with Here(open_here) as here:
        for path, says in (
            ("/queues?limit=1001", "limit"),
            ("/queues?limit=ten", "limit"),
            ("/queues?offset=1000000001", "offset"),
            ("/queues?limt=5", "did you mean 'limit'?"),
            ("/queues?limit=5&limit=6", "twice"),
            ("/me?limit=5", "takes no query"),
            ("/queues/default/jobs?state=asleep", "state"),
            ("/jobs/01k9q4w2zhq3mf7d0a2f/logs?attempt=0", "attempt"),
        ):
            found = here.ask(path, 422)
            assert found["error"] == "Invalid" and says in found["message"], path


INVALID_BODIES = [
    (422, b"{"), (422, b"[]"), (422, b"null"), (422, b"\xff\xfe"), (422, b'{"ids": "x"}'), (422, b'{"ids": [7]}'),
    (422, b'{"ids": ["\\ud800"], "queue": "\\ud800"}'), (422, b'{"idz": []}'), (422, b'{"all": "yes"}'),
    (422, b'{"ids": ' + json.dumps(["0" * 20] * 1001).encode() + b"}"), (422, b"[" * 100_000),
    (422, b'{"ids": [], "queue": "' + b"q" * 1001 + b'"}'), (404, b'{"all": true, "queue": "no-such-queue"}'),
    (413, b" " * 2_000_000),
]  # fmt: skip


def test_invalid_body_is_refused(open_here: str) -> None:
    with Here(open_here) as here:
        for status, body in INVALID_BODIES:
            answer = here.post("/api/v1/dead/retry", content=body, headers={"Content-Type": "application/json"})
            assert answer.status_code == status and answer.json()["message"], (body[:50], answer.text)


def test_body_of_a_route_that_reads_none_is_refused(open_here: str) -> None:
    """Else a purge of one queue would be one of all."""
    with Here(open_here) as here:
        for path, says in (
            ("/queue/purge?dry_run=false", "use the query"),
            ("/queues/default/clear?dry_run=false", "use the query"),
            ("/schedules/nightly/run", "this request takes no body"),
        ):
            found = here.do(path, 422, {"queue": "mail"})
            assert found["error"] == "Invalid" and says in found["message"]
        for nothing in (b"", b"{}", b" null "):
            answer = here.post("/api/v1/queue/purge", content=nothing, headers={"Content-Type": "application/json"})
            assert answer.status_code == 200, answer.text


def test_client_that_disconnects_in_a_request_logs_no_error(open_here: str, caplog: pytest.LogCaptureFixture) -> None:
    head = "POST /api/v1/{} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {}\r\nContent-Length: 9\r\n\r\n{{"
    port = int(open_here.rpartition(":")[2])
    for path, media in (("dead/retry", "application/json"), ("dead/import", "application/x-ndjson")):
        with socket.create_connection(("127.0.0.1", port)) as caller:
            caller.sendall(head.format(path, media).encode())
    with Here(open_here) as here:
        here.ask("/queues")
    assert not [one for one in caplog.records if one.name == "relevo.web"]


def test_media_types_of_html_forms_are_refused(open_here: str) -> None:
    with Here(open_here) as here:
        for media in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
            for path in ("retry", "import"):
                answer = here.post(f"/api/v1/dead/{path}", content=b'{"all": true}', headers={"Content-Type": media})
                assert answer.status_code == 415 and "application/" in answer.json()["message"]


UNKNOWN = {
    404: [
        "GET /nothing", "GET /", "GET /queues/%00", "GET /queues/%ff%fe", "GET /queues//jobs", "GET /jobs/not-an-id",
        f"GET /queues/{'q' * 3000}", f"GET /jobs/{'0' * 20}", "GET /workflows/not-an-id", "GET /schedules/nothing",
        "GET /services/nothing", "GET /traces/nothing", "GET /tasks/nothing", "POST /queues/nothing/pause",
        "POST /queues/nothing/clear?dry_run=false",
    ],
    422: [f"GET /conversations/{'t' * 201}"],
    405: ["GET /queues/default/pause", "POST /queues", "DELETE /queues/default", "OPTIONS /me", "BREW /me"],
}  # fmt: skip


def test_unknown_paths_and_methods_are_refused_with_a_message(open_here: str) -> None:
    with Here(open_here) as here:
        for status, requests in UNKNOWN.items():
            for method, path in map(str.split, requests):
                answer = here.request(method, f"/api/v1{path}")
                assert answer.status_code == status and answer.json()["message"], (path[:50], answer.text)
        assert here.get("/api/v2/queues").status_code == here.get("/api/v1").status_code == 404
        assert here.head("/api/v1/me").status_code == 200


def test_request_for_an_unknown_queue_creates_nothing(bus: Relevo) -> None:
    with served(bus) as url, Here(url) as here:
        here.do("/queues/nothing/pause", 404)
        here.do("/queues/nothing/limits", 404, {"tenant": "acme", "concurrency": 1})
    assert bus.engine.run(known_queues(bus.engine)) == [] and not bus.queue("nothing").stats().paused


# Around the API


def test_page_and_healthz_need_no_token(guarded: str) -> None:
    with Here(guarded) as here:
        page = here.get("/")
        assert "/api/v1/openapi.json" in page.text and "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert here.get("/healthz").text == "ok\n"
        assert here.get("/nothing").status_code == 404
        assert "server" not in page.headers


def test_metrics_need_a_token(guarded: str, bus: Relevo) -> None:
    with Here(guarded) as stranger, Here(guarded, "viewer") as viewer:
        assert stranger.get("/metrics").status_code == 401
        seen = viewer.get("/metrics")
    assert seen.status_code == 200 and seen.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "relevo_up" in seen.text
    with served(bus) as url, Here(url) as here:
        assert f'relevo_up{{app="{bus.name}"}} 1' in here.get("/metrics").text


def test_server_that_is_down_is_answered_with_503() -> None:
    # No port of those that servers of other tests take, a moment later.
    app = Relevo("shop", url="redis://127.0.0.1:1/0", call_timeout="100ms", connect_timeout="100ms")
    with served(app) as url, Here(url) as here:
        for path in ("/queues", "/dead", "/workers", "/schedules", "/services", "/audit", "/jobs/" + "0" * 20):
            answer = here.get(f"/api/v1{path}")
            assert answer.status_code == 503, answer.text
            assert answer.json()["error"] == "ServerUnavailable"
            assert answer.headers["Retry-After"]
        assert here.do("/queues/default/pause", 503)["message"]
        assert here.get("/healthz").status_code == 200  # a restart of this process would not mend it
        assert here.ask("/me")["app"] == "shop"


# The command


def test_command_serves_until_sigterm(server: Server, bus: Relevo, tmp_path: Path) -> None:
    env = environment(server.url, RELEVO_PREFIX=bus.settings.prefix)
    words = command("web", "--name", bus.name, "--port", "0")
    pipe = subprocess.PIPE
    with subprocess.Popen(words, env=env, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            assert process.stdout is not None and process.stderr is not None
            url = process.stdout.readline().split(" at ")[1].split(",")[0]
            token = process.stderr.readline().strip().removeprefix(f"open {url}/?token=")
            with Here(url) as here:
                here.headers["Authorization"] = f"Bearer {token}"
                me = eventually(lambda: here.ask("/me"), what="it answers", errors=(httpx.TransportError,))
            assert me == {"name": whoami(), "role": "admin", "app": bus.name, "env": "test"}
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "ops.example.com"])
def test_command_refuses_a_public_host_without_tokens(host: str) -> None:
    seen = relevo("web", "--name", "shop", "--host", host, url="redis://127.0.0.1:1/0")
    assert seen.code == 2 and "RELEVO_WEB_TOKENS=admin:NAME:SECRET" in seen.err


def test_port_in_use_is_refused(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        seen = relevo("web", "--name", "shop", "--port", port, url=server.url)
    assert seen.code == 2 and "choose another with --port" in seen.err
    assert relevo("web", "--name", "shop", "--port", "70000", url=server.url).code == 2


def test_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("relevo.web")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    seen = relevo("web", "--name", "shop")
    assert seen.code == 2 and 'pip install "relevo[web]"' in seen.err, seen
