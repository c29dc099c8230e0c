"""Enqueueing over HTTP: what a producer may, what is refused and why, and what happens once."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from relevo import Relevo, State
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.web import SECRETS, TOKENS, Filled, Here, emptied, served
from tests.working import drained, working

OTHERS = {
    "web2": f"producer:web2:{'2' * 16}",
    "narrow": f"producer dou* shop.x:narrow:{'n' * 16}",
}


class Desk(NamedTuple):
    app: Relevo
    data: Filled
    url: str

    def __call__(self, role: str) -> Here:
        """A client with the token of a role, or of another producer."""
        if role in SECRETS:
            return Here(self.url, role)
        here = Here(self.url)
        here.headers["Authorization"] = f"Bearer {OTHERS[role].rpartition(':')[2]}"
        return here

    def waiting(self) -> int:
        """Jobs that have not ended."""
        return self.app.queue().stats().living


@pytest.fixture
def desk(bus_factory: AppFactory) -> Iterator[Desk]:
    app = bus_factory("shop", web_tokens=[*TOKENS, *OTHERS.values()], allow=["posix"])
    with emptied(app) as data, served(app) as url:
        yield Desk(app, data, url)


def enqueue(here: Here, task: str = "double", *, key: str = "", **body: Any) -> httpx.Response:
    headers = {"Idempotency-Key": key} if key else {}
    return here.post(f"/api/v1/tasks/{task}/jobs", json=body, headers=headers)


# What a producer may


def test_producer_enqueues_waits_for_the_result_and_sees_its_own_jobs_only(desk: Desk) -> None:
    with desk("producer") as here, desk("web2") as other, desk("viewer") as viewer, working(desk.app):
        made = enqueue(here, args=[21])
        assert made.status_code == 201 and made.json().keys() == {"id", "queue", "created"}
        where = made.headers["Location"]
        assert where == f"/api/v1/jobs/{made.json()['id']}?queue=default"
        found = here.get(where, params={"wait": 30}).json()
        assert (found["state"], found["result"], found["tags"]) == ("done", 42, ["http:producer-ana"])
        assert viewer.get(where).json()["result"] == 42
        none = other.get(f"/api/v1/jobs/{'0' * 20}").json()["message"]
        for theirs in (made.json()["id"], desk.data.ready, desk.data.done, desk.data.dead, desk.data.flow):
            refused = other.get(f"/api/v1/jobs/{theirs}")
            assert refused.status_code == 404, theirs
            assert refused.json()["message"] == none.replace("0" * 20, theirs), "as where there is none"
        for path in ("/me", "/queues", "/dead", "/openapi.json", f"/jobs/{made.json()['id']}/logs"):
            assert here.ask(path, 403)["error"] == "Forbidden"
        assert here.get("/metrics").status_code == 403
        here.do(f"/jobs/{made.json()['id']}/cancel", 403)


def test_roles_besides_producer_and_admin_enqueue_nothing(desk: Desk) -> None:
    before = desk.waiting()
    for role in ("viewer", "operator"):
        with desk(role) as here:
            refused = enqueue(here, args=[1])
            assert refused.status_code == 403 and "admin or producer" in refused.json()["message"]
    assert desk.waiting() == before
    with desk("admin") as here:
        assert enqueue(here, args=[1]).status_code == 201
    assert {deed.what for deed in desk.app.audit.list()} <= {"http.refuse"}, "no deeds of operators"


def test_token_with_tasks_is_for_those(desk: Desk) -> None:
    with desk("narrow") as here:
        assert enqueue(here, "double", args=[1]).status_code == 201
        unlike = [enqueue(here, task, args=[1]).json()["message"] for task in ("charge", "nothing")]
        assert unlike[0] == unlike[1].replace("nothing", "charge") and "dou* shop.x" in unlike[0]
        assert enqueue(here, "doubel").status_code == 404


def test_only_registered_tasks_can_be_enqueued(desk: Desk, bus_factory: AppFactory) -> None:
    """Neither functions of allowed modules, nor what every app has, nor actions of services."""
    before = desk.waiting()
    with desk("producer") as here:
        assert "did you mean 'double'" in enqueue(here, "doubel", args=[1]).json()["message"]
        for name in ("posix:system", "posix.system", *desk.app.engine.built_in, "generate", "embedding.generate"):
            assert enqueue(here, name, args=["true"]).status_code == 404, name
    assert desk.waiting() == before
    stranger = bus_factory("shop", web_tokens=TOKENS)
    with served(stranger) as url, Here(url, "producer") as here:
        assert "MODULE:APP" in enqueue(here, args=[1]).json()["message"]


# What is refused


@pytest.mark.parametrize(
    ("body", "argument"),
    [
        ({"args": ["seven"]}, "number"),
        ({"kwargs": {"number": [7]}}, "number"),
        ({"kwargs": {"numbr": 7}}, "number"),
        ({"args": [7], "kwargs": {"numbr": 7}}, "numbr"),
        ({"args": [7], "kwargs": {"number": 7}}, "number"),
        ({}, "number"),
        ({"args": [7, 8]}, ""),
        ({"args": {"number": 7}}, "args"),
        ({"args": [7], "priority": 1024}, "priority"),
        ({"args": [7], "priority": "high"}, "priority"),
        ({"args": [7], "delay": -1}, "delay"),
        ({"args": [7], "tags": ["http:web2"]}, "tags"),
        ({"args": [7], "queue": "other"}, "queue"),
        ({"jobs": []}, "jobs"),
        ({"jobs": [{"args": [1]}] * 101}, "jobs"),
        ({"jobs": [{"args": [1]}], "args": [1]}, "jobs"),
        ({"jobs": [{"args": [1]}], "name": "one"}, "name"),
        ({"jobs": [{"args": [1]}, {"args": ["x"]}]}, "jobs[1].number"),
        ({"jobs": [{"args": [1]}, {"arg": [1]}]}, "arg"),
    ],
)
def test_refusal_names_the_part_at_fault_and_nothing_is_stored(desk: Desk, body: Any, argument: str) -> None:
    before = desk.waiting()
    with desk("producer") as here:
        refused = enqueue(here, **body)
        assert refused.status_code == 422, refused.text
        assert refused.headers["Content-Type"] == "application/problem+json"
        assert refused.json().get("argument", "") == argument, refused.text
        assert "stored" not in refused.text
    assert desk.waiting() == before


def test_options_that_contradict_are_refused(desk: Desk) -> None:
    with desk("producer") as here:
        for body, says in (
            ({"delay": "soon"}, "delay"),
            ({"eta": "2030-01-01T00:00:00"}, "a time with its zone"),
            ({"eta": "2030-01-01T00:00:00Z", "delay": 5}, "say the same thing twice"),
            ({"unique": "for ever"}, "unique"),
            ({"expires": "soon"}, "expires"),
            ({"tenant": "\x00"}, "printable"),
        ):
            refused = enqueue(here, args=[7], **body)
            assert refused.status_code == 422 and says in refused.json()["message"], refused.text
        assert "leave out" in enqueue(here, args=[7], key="k", name="a").json()["message"]
        assert "leave out" in enqueue(here, args=[7], key="k", unique=True).json()["message"]
        assert enqueue(here, args=[7], key="k k").status_code == 422
        assert enqueue(here, args=[7], key="k" * 129).status_code == 422


def test_too_large_arguments_are_refused(bus_factory: AppFactory) -> None:
    app = bus_factory("shop", web_tokens=TOKENS, max_payload=1000)

    @app.task(name="keep")
    def keep(text: str) -> None: ...

    with served(app) as url, Here(url, "producer") as here:
        assert enqueue(here, "keep", args=["x" * 1000]).status_code == 413
        assert enqueue(here, "keep", args=["x" * 100_000]).status_code == 413
        assert enqueue(here, "keep", args=["x" * 900]).status_code == 201
    app.queue().clear()


# Options


def test_options_arrive_as_those_of_the_python_api(desk: Desk) -> None:
    eta = datetime(2040, 1, 1, tzinfo=UTC)
    with desk("producer") as here:
        for body, shown in (
            ({"priority": 7, "tenant": "acme"}, {"priority": 7, "tenant": "acme", "state": State.READY}),
            ({"eta": eta.isoformat()}, {"due_ms": int(eta.timestamp() * 1000), "state": State.SCHEDULED}),
            ({"delay": "1h"}, {"state": State.SCHEDULED}),
            ({"delay": 3600}, {"state": State.SCHEDULED}),
            ({"name": "seven"}, {"name": "http:producer-ana:name:seven"}),
        ):
            info = desk.app.job(enqueue(here, args=[7], **body).json()["id"]).info()
            assert {name: getattr(info, name) for name in shown} == shown
        late = enqueue(here, args=[7], expires=0.001).json()["id"]
        drained(desk.app)
        assert here.ask(f"/jobs/{late}")["state"] == "expired"


def test_name_holds_one_job_of_its_producer_and_none_of_others(desk: Desk) -> None:
    ours = desk.app.tasks["double"].using(name="nightly").enqueue(1)
    with desk("producer") as here, desk("web2") as other:
        first, again, theirs = (enqueue(one, args=[1], name="nightly") for one in (here, here, other))
        assert [one.status_code for one in (first, again, theirs)] == [201, 200, 201]
        assert first.json()["id"] == again.json()["id"] and again.json()["created"] is False
        assert len({ours.id, first.json()["id"], theirs.json()["id"]}) == 3
        assert [enqueue(one, args=[5], unique="1h").status_code for one in (here, here, other)] == [201, 200, 201]
        assert enqueue(here, args=[6], unique="1h").status_code == 201
        batch = enqueue(here, jobs=[{"args": [5]}, {"args": [7]}], unique="1h").json()["jobs"]
        assert [one["created"] for one in batch] == [False, True]
    assert desk.app.tasks["double"].using(unique=True).enqueue(5).created


# Once


def test_request_with_a_key_makes_one_job_however_often_it_is_sent(desk: Desk) -> None:
    with desk("producer") as here, desk("web2") as other:
        first = enqueue(here, args=[4], key="order-4")
        assert (first.status_code, enqueue(here, args=[4], key="order-4").status_code) == (201, 200)
        drained(desk.app)
        again = enqueue(here, args=[4], key="order-4")
        assert again.status_code == 200 and again.headers["Location"] == first.headers["Location"]
        assert here.get(again.headers["Location"]).json()["result"] == 8
        for task, body in (
            ("double", {"args": [5]}),
            ("double", {"kwargs": {"number": 4}}),
            ("report", {"args": ["4"]}),
        ):
            refused = enqueue(here, task, key="order-4", **body)
            assert refused.status_code == 422 and first.json()["id"] in refused.json()["message"]
        assert enqueue(other, args=[5], key="order-4").status_code == 201, "its keys are its own"


def test_batch_is_stored_as_a_whole_and_with_a_key_once(desk: Desk) -> None:
    jobs = [{"args": [n]} for n in range(100)]
    before = desk.waiting()
    with desk("producer") as here:
        made = enqueue(here, jobs=jobs, tenant="acme")
        assert made.status_code == 201 and "Location" not in made.headers
        assert len({one["id"] for one in made.json()["jobs"]}) == 100 == desk.waiting() - before
        first = enqueue(here, jobs=jobs[:3], key="batch")
        again = enqueue(here, jobs=jobs[:4], key="batch")  # the first was cut off, as far as its sender knows
        assert (first.status_code, again.status_code) == (201, 201)
        assert [one["created"] for one in again.json()["jobs"]] == [False, False, False, True]
        assert enqueue(here, jobs=jobs[:4], key="batch").status_code == 200
        drained(desk.app)
        assert here.ask(f"/jobs/{again.json()['jobs'][3]['id']}")["result"] == 6


# Limits


def test_no_more_requests_wait_than_connections_allow(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.web.asgi.most_connections", lambda: 0)
    with served(desk.app) as url, Here(url, "viewer") as here:
        refused = here.get(f"/api/v1/jobs/{desk.data.ready}", params={"wait": 1})
        assert refused.status_code == 503 and refused.headers["Retry-After"]
        assert here.get(f"/api/v1/jobs/{desk.data.ready}").status_code == 200
        assert here.get(f"/api/v1/jobs/{desk.data.done}", params={"wait": 31}).status_code == 422


def test_full_server_is_answered_with_503(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path) as server:
        app = Relevo("shop", url=server.url, web_tokens=TOKENS)

        @app.task(name="double")
        def double(number: int) -> int:
            return number * 2

        with served(app) as url, Here(url, "producer") as here:
            assert enqueue(here, args=[1]).status_code == 201
            server.command("CONFIG", "SET", "maxmemory", "1")
            refused = enqueue(here, args=[1])
            assert (refused.status_code, refused.json()["error"]) == (503, "OutOfMemory")
            assert refused.headers["Retry-After"]
        app.close()
