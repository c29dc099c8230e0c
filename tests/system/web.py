"""The HTTP API on a real uvicorn, for an app that has jobs, dead letters, workflows, schedules, pools and services."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import httpx

from relevo import Relevo, chain, current_job
from relevo.engine.lists import known_queues
from relevo.text.names import is_pool_name
from relevo.web import serving
from relevo.web.gate import own_gate
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.working import drained

SECRETS = {role: f"{role}-0123456789abcdef" for role in ("producer", "viewer", "operator", "admin")}
TOKENS = [f"{role}:{role}-ana:{secret}" for role, secret in SECRETS.items()]
#: By URL: tokens that were made at the start of servers of apps without tokens.
MADE: dict[str, str] = {}


class Here(httpx.Client):
    """A client of the API; with a role, it sends the token of that role, else the one made at the start, if any."""

    def __init__(self, url: str, role: str = "") -> None:
        secret = SECRETS[role] if role else MADE.get(url)
        headers = {"Authorization": f"Bearer {secret}"} if secret else {}
        super().__init__(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False)

    def ask(self, path: str, status: int = 200, **query: Any) -> Any:
        """Look at something."""
        return _checked(self.get(f"/api/v1{path}", params=query or None), status)

    def do(self, path: str, status: int = 200, body: Any = None, **query: Any) -> Any:
        """Change something."""
        return _checked(self.post(f"/api/v1{path}", params=query or None, json=body), status)


def _checked(answer: httpx.Response, status: int) -> Any:
    assert answer.status_code == status, answer.text
    return answer.json()


@contextmanager
def served(app: Relevo) -> Iterator[str]:
    """Serve the app as `relevo web` does, in a thread: the URL."""
    listening = serving.bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    gate, made = own_gate(app)
    if made is not None:
        MADE[url] = made.secret
    server = serving.server(app, gate, log_level="error")
    thread = threading.Thread(target=lambda: server.run(sockets=[listening]), name="web under test")
    thread.start()
    try:
        eventually(lambda: server.started, what="uvicorn listens")
        yield url
    finally:
        MADE.pop(url, None)
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive(), "uvicorn does not stop"


@contextmanager
def alone(server: Server, **settings: Any) -> Iterator[Relevo]:
    """An app under a prefix of its own, for several tests."""
    prefix = f"w{uuid4().hex[:12]}"
    app = Relevo("shop", url=server.url, env="test", prefix=prefix, **{**PATIENT, **settings})
    yield app
    app.close()
    left = leaks(server, prefix)
    remove(server, prefix)
    assert not left, f"without an end: {left}"


class Filled(NamedTuple):
    """What there is to look at."""

    ready: str
    done: str
    dead: str
    flow: str
    tenant: str


def describe(app: Relevo) -> None:
    """The code of the app: its tasks, a schedule, a service."""

    @app.task(name="charge", retries=0, secret=["card"])
    def charge(invoice: int, card: str, *, token: str = "") -> dict[str, Any]:
        print("charging", invoice)
        if invoice == 13:
            raise ValueError("no such invoice")
        return {"invoice": invoice, "receipt": {"api_key": "key-of-receipt"}}

    @app.task(name="double")
    def double(number: int) -> int:
        return number * 2

    @app.task(name="report")
    def report(day: str, password: str = "") -> str:
        return f"{day} {current_job().id}"

    service = app.service("embedding")

    @service.action("generate")
    def generate(text: str, password: str = "") -> str:
        """Make it loud."""
        return text.upper()


def fill(app: Relevo) -> Filled:
    """Jobs in many states, dead letters, a workflow, a schedule, messages of the bus."""
    describe(app)
    charge, double, report = (app.tasks[name] for name in ("charge", "double", "report"))
    app.service("ingestion").send("embedding.generate", {"text": "a", "password": "of-bus"}, conversation="task_7")
    done = charge.enqueue(7, "4111-done", token="token-done")
    dead = charge.enqueue(13, "4111-dead", token="token-dead")
    flow = chain(double.s(2), double.s()).enqueue()
    drained(app)
    ready = charge.enqueue(8, "4111-ready", token="token-ready")
    tenant = double.using(tenant="acme").enqueue(1)
    double.using(delay="1h").enqueue(3)
    app.pool("vms").add("vm-1", ip="10.0.0.7", token="of-pool")
    app.pool("racks").add("rack-1")
    app.schedule("nightly", report.s("monday", password="of-schedule"), cron="30 2 * * *")
    return Filled(ready.id, done.id, dead.id, flow.id, tenant.id)


@contextmanager
def emptied(app: Relevo) -> Iterator[Filled]:
    """A filled app, of which nothing is left afterwards."""
    try:
        yield fill(app)
    finally:
        app.schedules.get("nightly").remove()
        for pool in map(app.pool, app.pools()):
            for state in pool.counts():
                for entity in pool.items(state, limit=1000):
                    pool.remove(entity.id)
        for queue in (app.queue(name) for name in app.engine.run(known_queues(app.engine)) if not is_pool_name(name)):
            for one in queue.limits():
                queue.unlimit(one.tenant)
                queue.resume(tenant=one.tenant)
            queue.resume()
            queue.clear()
