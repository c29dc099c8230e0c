"""What can be read and changed over HTTP, on a real uvicorn and a real server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from relevo import Failure, Relevo, State, chain
from relevo.store import source
from tests.conftest import PATIENT, AppFactory
from tests.eventually import eventually
from tests.servers import Server
from tests.system.shell import Output, relevo
from tests.system.web import TOKENS, Filled, Here, emptied, served
from tests.working import drained

#: A number that is in no id and in no time by chance, as three or four digits are now and then. So is "4111-".
CENTS = 987_654_321
NDJSON = {"Content-Type": "application/x-ndjson"}


class Desk(NamedTuple):
    app: Relevo
    data: Filled
    url: str

    def __call__(self, role: str) -> Here:
        return Here(self.url, role)


@pytest.fixture
def desk(bus_factory: AppFactory) -> Iterator[Desk]:
    app = bus_factory("shop", web_tokens=TOKENS)
    with emptied(app) as data, served(app) as url:
        yield Desk(app, data, url)


def deeds(app: Relevo) -> list[tuple[str, str, str, int]]:
    """What was done; refusals are no deeds."""
    return [(one.what, one.who, one.via, one.count) for one in app.audit.list() if one.what != "http.refuse"]


# Looking


def test_lists_go_on_in_pages(server: Server, desk: Desk) -> None:
    """The same pages as on the command line."""
    app = desk.app
    for number in range(3):
        app.audit.note("queue.pause", number=number)
    with desk("operator") as here:
        for path in ("/jobs", "/dead/error-groups", "/audit", "/workflows", "/queues", "/dead"):
            place = "after" if path in ("/jobs", "/dead") else "offset"
            whole = here.ask(path, limit=100)
            assert whole["next"] is None, path
            items: list[Any] = []
            asked: dict[str, Any] = {}
            while asked.get(place, "") is not None:
                page = here.ask(path, limit=1, **asked)
                items += page["items"]
                asked = {place: page["next"]}
            assert items == whole["items"] and items, path
        words = ("job", "list", "--state", "scheduled", "--json", "--name", "shop")
        shown = relevo(*words, url=server.url, RELEVO_PREFIX=app.settings.prefix)
        assert here.ask("/jobs", state="scheduled") == shown.json
        assert here.ask("/jobs", queue="default", state="scheduled")["items"] == shown.json["items"]
        assert "did you mean 'default'" in here.ask("/jobs", 404, queue="defualt")["message"]
        assert here.ask("/jobs", 422, after="here")["error"] == "OptionError"


def test_every_kind_of_object_can_be_read(desk: Desk) -> None:
    with desk("operator") as here:
        queues = {one["name"]: one for one in here.ask("/queues")["items"]}
        assert queues["default"]["ready"] == 2 and queues["default"]["dead"] == 1
        assert here.ask("/queues/default") == queues["default"]
        assert [row["id"] for row in here.ask("/queues/default/jobs")["items"]] == [desk.data.ready, desk.data.tenant]
        part = here.ask("/queues/default/jobs", limit=1)
        assert ([row["id"] for row in part["items"]], part["next"]) == ([desk.data.ready], 1)
        part = here.ask("/queues/default/jobs", limit=1, offset=1)
        assert [row["id"] for row in part["items"]] == [desk.data.tenant]
        assert here.ask("/queues/default/jobs", limit=1, offset=2) == {"items": [], "next": None}
        assert here.ask("/queues/default/jobs", state="scheduled")["items"][0]["task"] == "double"
        (dead,) = here.ask("/queue/dlq", queue="default", limit=50)["items"]
        assert (dead["id"], dead["queue"], dead["error"]) == (desk.data.dead, "default", "ValueError: no such invoice")
        assert here.ask("/dead", error="no such") == here.ask("/dead") == here.ask("/queue/dlq")
        assert here.ask("/dead", error="another")["items"] == []
        assert here.ask(f"/dead/{desk.data.dead}")["reason"] == "retries_exhausted"
        assert here.ask(f"/jobs/{desk.data.done}")["state"] == "done"
        assert "charging 13" in here.ask(f"/jobs/{desk.data.dead}/logs")["logs"]
        assert here.ask(f"/jobs/{desk.data.dead}/logs", attempt=2)["logs"] == ""
        assert [one["id"] for one in here.ask("/workflows")["items"]] == [desk.data.flow]
        assert here.ask(f"/workflows/{desk.data.flow}")["progress"]["done"] == 2
        assert [one["name"] for one in here.ask("/schedules")["items"]] == ["nightly"]
        assert here.ask("/schedules/nightly/history")["items"] == []
        assert [one["name"] for one in here.ask("/services")["services"]] == ["embedding"]
        assert here.ask("/services/embedding")["services"][0]["actions"][0]["about"] == "Make it loud."
        assert here.ask("/asyncapi.json")["asyncapi"] == "3.0.0"
        assert here.ask("/tallies")["actions"]["done"] == 1
        assert here.ask("/traces/task_7")["items"][0]["type"] == "embedding.generate"
        assert here.ask("/workers") == {"workers": [], "silent": []}
        assert here.ask("/audit") == {"items": [], "next": None}
        assert here.ask("/me") == {"name": "operator-ana", "role": "operator", "app": "shop", "env": "test"}


def test_names_may_hold_anything(desk: Desk) -> None:
    """Slashes, colons and percent signs, which mean something in paths and in names of queues."""
    for name in ("a b", "50%", "ünï", "a?b#c", "a%2Fb", "a/jobs", "a/jobs/limits"):
        desk.app.tasks["double"].using(queue=name).enqueue(1)
    with desk("operator") as here:
        for name in here.ask("/queues")["items"]:
            path = str(name["name"]).replace("%", "%25").replace("/", "%2F").replace("?", "%3F").replace("#", "%23")
            assert here.ask(f"/queues/{path}")["name"] == name["name"]
            assert len(here.ask(f"/queues/{path}/jobs")["items"]) == name["ready"]


# What is hidden


def test_secrets_are_hidden_from_every_role(desk: Desk) -> None:
    """By name, by mark, in places, by key, in results, of schedules and of the bus."""
    for role in ("viewer", "operator", "admin"):
        with desk(role) as here:
            ready = here.ask(f"/jobs/{desk.data.ready}")
            assert (ready["args"], ready["kwargs"]) == ([8, "***"], {"token": "***"})
            dead = here.ask(f"/dead/{desk.data.dead}")
            assert (dead["args"], dead["kwargs"]) == ([13, "***"], {"token": "***"})
            done = here.ask(f"/jobs/{desk.data.done}")
            assert done["result"] == {"invoice": 7, "receipt": {"api_key": "***"}}
            assert (done["args"], done["kwargs"], done["priority"]) == ([7, "***"], {"token": "***"}, 100)
            nightly = here.ask("/schedules/nightly")
            assert (nightly["args"], nightly["kwargs"]) == (["monday"], {"password": "***"})
            text = "".join(
                here.get(f"/api/v1{path}").text
                for path in (
                    f"/jobs/{desk.data.dead}",
                    f"/jobs/{desk.data.done}",
                    "/schedules",
                    "/dead",
                    "/queues/default/jobs",
                    "/audit",
                )
            )
            assert "4111-" not in text and "of-schedule" not in text and "token-" not in text


def test_secrets_are_hidden_on_the_command_line_too(server: Server, desk: Desk) -> None:
    def command(*words: str) -> Output:
        return relevo(*words, "--name", "shop", url=server.url, RELEVO_PREFIX=desk.app.settings.prefix)

    assert 'token="***"' in command("job", desk.data.ready).out
    assert command("dead", "show", desk.data.dead, "--json").json["kwargs"] == {"token": "***"}
    seen = command("schedules", "show", "nightly").out
    assert "monday" in seen and "of-schedule" not in seen


def test_names_of_the_setting_mask_are_hidden_too(bus_factory: AppFactory) -> None:
    app = bus_factory("shop", mask=["number"])
    with emptied(app) as data, served(app) as url, Here(url) as here:
        assert here.ask(f"/jobs/{data.tenant}")["args"] == ["***"]


def test_viewer_sees_no_arguments_of_tasks_whose_code_is_not_loaded(bus_factory: AppFactory, desk: Desk) -> None:
    """`relevo web --name shop` knows neither what they marked nor what is in which place."""
    stranger = bus_factory("shop", web_tokens=TOKENS)
    with served(stranger) as url:
        with Here(url, "viewer") as here:
            assert here.ask(f"/jobs/{desk.data.ready}")["args"] == ["***", "***"]
            assert here.ask("/schedules/nightly")["args"] == ["***"]
        with Here(url, "operator") as here:
            seen = here.ask(f"/jobs/{desk.data.ready}")
            assert (seen["args"], seen["kwargs"]) == ([8, "4111-ready"], {"token": "***"})


def test_tracebacks_logs_and_search_in_hidden_text_are_for_operators(desk: Desk) -> None:
    with desk("viewer") as here:
        assert [one["traceback"] for one in here.ask(f"/dead/{desk.data.dead}")["attempts"]] == ["***"]
        assert here.ask(f"/jobs/{desk.data.dead}/logs", 403)["error"] == "Forbidden"
        assert here.ask("/dead", task="charge")["items"]
        assert "operator" in here.ask("/dead", 403, text="4111")["message"]
    with desk("operator") as here:
        assert "raise ValueError" in here.ask(f"/dead/{desk.data.dead}")["attempts"][0]["traceback"]


@pytest.fixture
def failed(bus_factory: AppFactory) -> Relevo:
    """An app with a failure handler that fails as well, and has a handler of its own, and passes on what it got."""
    app = bus_factory("shop", web_tokens=TOKENS)

    @app.task(name="passed", retries=0)
    def passed(about: dict[str, Any]) -> dict[str, Any]:
        if about["broken"]:
            raise ValueError("no")
        return about

    @app.task(name="last", retries=0)
    def last(failure) -> None:  # type: ignore[no-untyped-def]  # as people write it
        raise ValueError("the last one fails, too")

    @app.task(name="tell", retries=0, on_failure=last)
    def tell(failure: Failure) -> None:
        for broken in (True, False):
            passed.enqueue({"found": [msgspec.json.decode(msgspec.json.encode(failure))], "broken": broken})
        raise ValueError("no address")

    @app.task(name="pay", retries=0, secret=["card"], on_failure=tell)
    def pay(card: str, cents: int, *, more: Any = None, password: str = "") -> None:
        raise ValueError("no bank")

    pay.enqueue("4111-place", CENTS, more={"card": "4111-deep"}, password="4111-word")
    pay.enqueue(card="4111-name", cents=CENTS)
    drained(app)
    return app


def test_failure_handlers_show_no_more_of_a_job_than_the_job_itself(failed: Relevo) -> None:
    """In the argument of a handler, of the handler's handler, and of whatever it was passed on to."""
    with served(failed) as url:
        for role in ("viewer", "operator", "admin"):
            with Here(url, role) as here:
                rows = [row for state in ("dead", "done") for row in _rows(here, state)]
                assert sorted(row["task"] for row in rows) == sorted(["pay", "tell", "last", "passed", "passed"] * 2)
                for row in rows:
                    text = here.get(f"/api/v1/jobs/{row['id']}").text
                    assert "4111-" not in text and str(CENTS) in text, (role, row)
                    assert ("Traceback" in text) == (role != "viewer"), (role, row)
                (tell, *_) = [here.ask(f"/dead/{row['id']}") for row in rows if row["task"] == "tell"]
                (failure,) = tell["args"]
                assert (failure["task"], failure["queue"], failure["message"]) == ("pay", "default", "no bank")


def test_arguments_of_a_failed_task_whose_code_is_not_loaded_are_hidden(
    bus_factory: AppFactory, server: Server, failed: Relevo
) -> None:
    stranger = bus_factory("shop", web_tokens=TOKENS)
    with served(stranger) as url, Here(url, "operator") as here:
        for row in _rows(here, "dead"):
            if row["task"] in ("tell", "last"):
                (failure,) = here.ask(f"/jobs/{row['id']}")["args"]
                values = [*failure.get("args", ()), *failure.get("kwargs", {}).values()]
                assert values == ["***"] * len(values) != []
                words = ("dead", "show", row["id"], "--name", "shop")
                seen = relevo(*words, url=server.url, RELEVO_PREFIX=stranger.settings.prefix)
                assert seen.code == 0 and "4111-" not in seen.out and str(CENTS) not in seen.out, seen


def _rows(here: Here, state: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = here.ask("/queues/default/jobs", state=state)["items"]
    return rows


# Doing


def test_clearing_a_queue_is_a_dry_run_by_default(desk: Desk) -> None:
    with desk("admin") as here:
        answered = here.do("/queues/default/clear")
        assert answered == {"queue": "default", "removed": 3, "dry_run": True}
        assert desk.app.queue().stats().living == 3 and deeds(desk.app) == []
        assert here.do("/queues/default/clear", dry_run="false") == {**answered, "dry_run": False}
        assert desk.app.queue().stats().living == 0
    assert deeds(desk.app) == [("queue.clear", "admin-ana", "http", 3)]


def test_a_job_is_cancelled_and_run_again(desk: Desk) -> None:
    id = desk.data.ready
    with desk("operator") as here:
        assert here.do(f"/jobs/{id}/cancel")["state"] == "cancelled"
        assert here.do(f"/jobs/{id}/cancel", 409)["error"] == "Conflict"
        assert here.do(f"/jobs/{id}/retry", queue="default")["state"] == "ready"
        assert "only a dead" in here.do(f"/jobs/{id}/retry", 409)["message"]
    assert deeds(desk.app) == [("job.retry", "operator-ana", "http", 1), ("job.cancel", "operator-ana", "http", 1)]
    assert desk.app.audit.list()[0].about == {"id": id, "queue": "default"}


def test_jobs_and_workflows_are_distinguished(desk: Desk) -> None:
    with desk("operator") as here:
        for path in ("", "/logs"):
            assert "is a workflow" in here.ask(f"/jobs/{desk.data.flow}{path}", 404)["message"]
        assert "is a workflow" in here.do(f"/jobs/{desk.data.flow}/retry", 404)["message"]
        assert "is a job" in here.ask(f"/workflows/{desk.data.ready}", 404)["message"]
        assert here.ask(f"/workflows/{'0' * 20}", 404)["error"] == "UnknownJob"


def test_dead_letters_are_run_again_once(desk: Desk) -> None:
    with desk("admin") as here:
        for path in ("/dead/replays", "/dead/retry", "/dead/discard?dry_run=false"):
            for body in ({}, {"queue": "default"}):
                refused = here.do(path, 422, body)
                assert refused["error"] == "OptionError" and "all of a queue are" in refused["message"], path
        assert here.ask("/dead/replays") == {"items": [], "next": None}
        for wrong in ({"ids": [desk.data.dead], "all": True}, {"ids": ["short"]}):
            assert here.do("/dead/retry", 422, wrong)["error"] == "OptionError"
        assert here.do("/dead/retry", body={"ids": [desk.data.dead]}) == {"retried": 1}
        assert here.do("/dead/retry", body={"ids": [desk.data.dead]}) == {"retried": 0}
        drained(desk.app)
        assert here.do("/dead/retry", body={"all": True, "queue": "default"}) == {"retried": 1}
        assert here.ask(f"/dead/{desk.data.dead}", 404)["message"].endswith(f"see /jobs/{desk.data.dead}")


@pytest.mark.parametrize("which", ["ids", "all"])
def test_discarding_dead_letters_is_a_dry_run_by_default_and_can_be_undone(desk: Desk, which: str) -> None:
    body: dict[str, Any] = {"ids": [desk.data.dead, desk.data.ready]} if which == "ids" else {"all": True}
    with desk("admin") as here:
        assert here.do("/dead/discard", body=body) == {"discarded": 1, "dry_run": True}
        assert len(here.ask("/dead")["items"]) == 1 and deeds(desk.app) == []
        refused = here.do("/dead/discard", 422, body={**body, "dry_run": False})["message"]
        assert refused == "'dry_run' belongs in the query, not in the body: ?dry_run=…"
        assert here.do("/dead/discard", body=body, dry_run=False) == {"discarded": 1, "dry_run": False}
        assert here.ask("/dead")["items"] == []
        assert here.do("/dead/restore", body={"all": True}) == {"restored": 1}
        assert here.do("/dead/restore", body={"ids": [desk.data.dead]}) == {"restored": 0}
        assert [one["id"] for one in here.ask("/dead")["items"]] == [desk.data.dead]
    assert [(what, count) for what, *_, count in deeds(desk.app)] == [
        ("dead.restore", 0), ("dead.restore", 1), ("dead.discard", 1),
    ]  # fmt: skip


def test_dead_letters_are_found_by_group_and_filters(desk: Desk) -> None:
    with desk("operator") as here:
        (group,) = here.ask("/dead/error-groups")["items"]
        assert here.ask(f"/dead/error-groups?permanent={str(group['permanent']).lower()}")["items"] == [group]
        assert here.ask(f"/dead/error-groups?permanent={str(not group['permanent']).lower()}")["items"] == []
        assert (group["count"], group["error"], group["tasks"]) == (1, "ValueError: no such invoice", ["charge"])
        alike = {
            "queue": "default",
            "task": "charge",
            "reason": "retries_exhausted",
            "error_group": group["fingerprint"],
        }
        found = here.ask("/dead", **alike, came_from="running", permanent="false", since="1h", text="4111-dead")
        assert [one["id"] for one in found["items"]] == [desk.data.dead] and found["next"] is None
        for other in ("task=double", "tenant=acme", "until=1h", "permanent=true"):
            assert here.ask(f"/dead?{other}")["items"] == []
        assert here.ask("/dead", since="2020-01-01T00:00:00Z")["items"]
        for wrong in (
            {"since": "yesterday"},
            {"since": "2020-01-01T00:00:00"},
            {"error_group": "x"},
            {"queue": "mials"},
        ):
            assert here.get("/api/v1/dead", params=wrong).status_code in (404, 422), wrong
        assert here.do("/dead/retry", body={"error_group": group["fingerprint"], "text": "4111"}) == {"retried": 1}
    assert desk.app.audit.list()[0].about == {"error_group": group["fingerprint"], "text": "***"}


def test_a_dead_letter_runs_with_other_arguments(desk: Desk) -> None:
    path = f"/dead/{desk.data.dead}/edit"
    with desk("operator") as here:
        # What was shown is not sent back as if it were the value.
        assert "hidden value" in here.do(path, 422, {"args": [7, "***"]})["message"]
        assert "hidden value" in here.do(path, 422, {"kwargs": {"token": "***"}})["message"]
        assert here.do(path, 422, {"args": ["seven"]})["error"] == "PayloadError"
        assert here.do(path, 422, {})["error"] == "OptionError"
        job = here.do(path, body={"args": [7, "4111-edited"]})
        drained(desk.app)
        assert desk.app.job(job["id"]).state() is State.DONE
        assert here.do(path, 404, {"args": [7, "x"]})["error"] == "UnknownJob"
    (deed,) = desk.app.audit.list()
    assert (deed.what, deed.about["changed"]) == ("dead.edit", ["args"]) and "4111-" not in str(deed.about)


def test_a_replay_goes_on_after_the_request_that_began_it(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    # Until it is stopped one letter goes, however slow this machine is; after that, hours pass at once.
    hours = count()
    passing = SimpleNamespace(monotonic=lambda: time.monotonic() + 3600 * next(hours), sleep=time.sleep)
    monkeypatch.setattr("relevo.dead.replaying.SIGN_EVERY", 0.1)
    for invoice in range(3):
        desk.app.tasks["charge"].enqueue(13, f"card-{invoice}")
    drained(desk.app)
    with desk("operator") as here:
        begun = here.do("/dead/replays", body={"task": "charge", "rate": "1/h"})
        assert (begun["state"], begun["left"], begun["why"]) == ("running", 0, ""), "also what is as it was at first"
        assert (begun["who"], begun["total"]) == ("operator-ana", 4)
        assert [one["id"] for one in here.ask("/dead/replays")["items"]] == [begun["id"]]
        assert here.do(f"/dead/replays/{begun['id']}/resume", 409)["error"] == "JobError"
        here.do(f"/dead/replays/{begun['id']}/stop")
        stopped = eventually(lambda: _unless_running(here, begun["id"]), what="it stops")
        assert (stopped["state"], stopped["retried"]) == ("stopped", 1)
        assert here.do(f"/dead/replays/{begun['id']}/stop", 409)["error"] == "Conflict"
        monkeypatch.setattr("relevo.dead.replaying.time", passing)
        here.do(f"/dead/replays/{begun['id']}/resume")
        done = eventually(lambda: _unless_running(here, begun["id"]), what="it ends")
        assert (done.get("state"), done["retried"]) == ("done", 4)
        assert here.ask(f"/dead/replays/{'0' * 20}", 404)["error"] == "UnknownJob"
        assert here.ask("/dead/replays", 422, limit=101)["error"] == "Invalid", "as the document says"
    eventually(lambda: len(deeds(desk.app)) == 3, what="the entries of the audit trail")
    counts = {what: count for what, _, _, count in deeds(desk.app)}
    assert counts == {"dead.replay_stop": 1, "dead.replay": 1, "dead.replay_resume": 3}
    assert {deed.about["id"] for deed in desk.app.audit.list()} == {begun["id"]}


def _unless_running(here: Here, id: str) -> Any:
    found = here.ask(f"/dead/replays/{id}")
    return found if found.get("state", "running") != "running" else None


def test_health_is_answered_for_every_queue(desk: Desk) -> None:
    with desk("viewer") as here:
        health = here.ask("/queue/health")
        assert health["status"] == desk.app.health().status
        assert {one["name"] for one in health["queues"]} >= {"default"}
        assert here.ask("/queue/health", cached="true")["status"] == "unknown"  # no worker looks after it


def test_schedule_is_paused_run_edited_and_removed(desk: Desk) -> None:
    with desk("admin") as here:
        assert here.do("/schedules/nightly/pause") == {"changed": True}
        assert here.ask("/schedules/nightly")["next_ms"] is None
        assert here.do("/schedules/nightly/resume") == {"changed": True}
        job = here.do("/schedules/nightly/run")
        assert desk.app.job(job["id"]).state() is State.READY
        assert here.ask("/schedules/nightly/history")["items"][0]["job"] == job["id"]
        edited = here.do("/schedules/nightly/edit", body={"every": "10m"})
        assert (edited["when"], edited["kwargs"]) == ("600s", {"password": "***"})
        assert here.do("/schedules/nightly/edit", 422, {"cron": "soon"})["error"] == "OptionError"
        assert here.do("/schedules/nightly/edit", 422, {"task": "x"})["message"].startswith("unknown name 'task'")
        assert "did you mean 'nightly'?" in here.do("/schedules/nihgtly/run", 404)["message"]
        assert here.do("/schedules/remove_stale") == {"removed": [], "dry_run": True, "comes_back": False}
        assert here.do("/schedules/remove_stale", dry_run=False)["dry_run"] is False
        gone = {"removed": ["nightly"], "dry_run": False, "comes_back": False}
        assert here.do("/schedules/nightly/remove") == {**gone, "dry_run": True}
        assert here.do("/schedules/nightly/remove", dry_run=False) == gone
        assert here.ask("/schedules")["items"] == []
        assert here.do("/schedules/nightly/remove", 404)["error"] == "UnknownSchedule"
    assert [what for what, *_ in deeds(desk.app)] == [
        f"schedule.{verb}" for verb in ("remove", "remove_stale", "edit", "run", "resume", "pause")
    ]


def test_a_workflow_is_cancelled_and_run_again(desk: Desk) -> None:
    double = desk.app.tasks["double"]
    flow = chain(double.s(1), double.s()).enqueue()
    with desk("operator") as here:
        assert here.do(f"/workflows/{flow.id}/cancel") == {"id": flow.id, "state": "cancelled", "jobs": 2}
        assert here.do(f"/workflows/{flow.id}/cancel", 409)["error"] == "Conflict"
        assert here.do(f"/workflows/{flow.id}/retry")["state"] == "running"
        assert here.do(f"/workflows/{desk.data.flow}/retry", 409)["error"] == "Conflict"


def test_cleanup_of_a_task_is_a_dry_run_by_default(desk: Desk) -> None:
    desk.app.service("ingestion").send("embedding.generate", {"text": "b"}, conversation="task_8")
    with desk("admin") as here:
        assert here.ask("/conversations/task_8")["items"][0]["state"] == "ready"
        assert here.do("/conversations/task_8/cleanup")["living"] == 1
        assert deeds(desk.app) == []
        assert here.do("/conversations/task_8/cleanup", dry_run=False, dead=True)["dry_run"] is False
        assert here.do("/orphans/sweep")["dry_run"] is True
        assert here.do("/orphans/sweep", dry_run=False)["count"] == 0
    assert [what for what, *_ in deeds(desk.app)] == ["orphans.sweep", "conversation.cleanup"]


def test_queues_tasks_tenants_and_schedules_are_paused_and_resumed(desk: Desk) -> None:
    desk.app.task(lambda: None, name="print", queue="labels")  # type: ignore[call-overload]  # has had no job
    with desk("operator") as here:
        assert here.do("/queues/labels/pause") == {"changed": True}
        assert here.do("/queues/labels/pause") == {"changed": False}
        assert desk.app.queue("labels").stats().paused
        assert here.do("/queues/labels/resume", body={}) == {"changed": True}
        assert "did you mean 'labels'?" in here.do("/queues/lables/pause", 404)["message"]

        body = {"task": "charge", "reason": "the bank is down", "until": "2h"}
        assert here.do("/queues/default/pause", body=body) == {"changed": True}
        (paused,) = here.ask("/pauses")["items"]
        assert (paused["kind"], paused["name"], paused["reason"]) == ("task", "charge", "the bank is down")
        assert paused["by"] == "operator-ana"
        assert paused["until_ms"] - paused["since_ms"] == pytest.approx(7_200_000, abs=60_000)
        assert here.do("/queues/default/resume", body={"task": "charge"}) == {"changed": True}
        for path in ("/queues/default/pause", "/queues/default/resume", "/queues/default/limits", "/pause", "/resume"):
            refused = here.do(path, 404, body={"task": "chrage"})["message"]
            assert "did you mean 'charge'?" in refused and '"force": true' in refused
        assert here.do("/queues/default/pause", body={"task": "chrage", "force": True}) == {"changed": True}
        assert here.do("/resume", body={"task": "chrage"})["queues"] == ["default"]

        body = {"tenant": "acme", "reason": "unpaid", "until": "2031-05-01T08:00:00+02:00"}
        assert here.do("/pause", body=body) == {"queues": ["default", "labels"]}
        (paused,) = here.ask("/pauses", queue="labels")["items"]
        assert (paused["by"], paused["until_ms"]) == ("operator-ana", 1_935_381_600_000)
        assert here.do("/resume", body={"tenant": "acme"}) == {"queues": ["default", "labels"]}
        for wrong in (
            {},
            {"tenant": "acme", "until": "2031-05-01T08:00:00"},
            {"tenant": "acme", "until": "2 fortnights"},
        ):
            assert here.do("/pause", 422, wrong)["error"] == "OptionError", wrong

        assert here.do("/schedules/nightly/pause", body={"reason": "holiday", "until": "1h"}) == {"changed": True}
        (paused,) = here.ask("/pauses")["items"]
        assert (paused["kind"], paused["name"], paused["by"]) == ("schedule", "nightly", "operator-ana")
        assert here.do("/schedules/nightly/resume") == {"changed": True}
    assert deeds(desk.app)[-2:] == [("queue.pause", "operator-ana", "http", count) for count in (0, 1)]


def test_limits_are_set_listed_and_removed(desk: Desk) -> None:
    vms = desk.app.pool("vms")
    vms.fail("vm-1", "no ip")
    with desk("operator") as here:
        (limit,) = here.do("/queues/default/limits", body={"tenant": "acme", "concurrency": 2, "rate": "100/m"})
        assert (limit["tenant"], limit["concurrency"], limit["rate"]) == ("acme", 2, "100/m")
        assert here.ask("/queues/default/limits")["items"] == [limit]
        assert here.do("/queues/default/limits", 422, {"tenant": "acme"})["error"] == "OptionError"
        assert here.do("/queues/default/limits/remove", body={"tenant": "acme"}) == {"changed": True}
        assert here.ask("/queues/default/limits")["items"] == []
        pool = f"/queues/{vms.queue.replace(':', '%3A')}"
        assert "is a pool" in here.do(f"{pool}/limits", 422, {"concurrency": 1})["message"]
    assert [what for what, *_ in deeds(desk.app)] == ["tenant.unlimit", "tenant.limit"]


def test_purge_is_a_dry_run_by_default(desk: Desk) -> None:
    double = desk.app.tasks["double"]
    stale = double.using(queue="stale").enqueue(1)
    desk.app.engine.settings = msgspec.structs.replace(desk.app.settings, purge_ages={"ready": "1ms"})
    eventually(lambda: desk.app.purge(queue="stale").count == 1, what="it is a millisecond old")
    with desk("admin") as here, desk("operator") as operator:
        operator.do("/queue/purge", 403)
        dry = here.do("/queue/purge", queue="stale")
        assert (dry["dry_run"], dry["count"], dry["groups"][0]["reason"]) == (True, 1, "stale_ready")
        assert [one["id"] for one in dry["purged"]] == [stale.id]
        assert stale.state() is State.READY and deeds(desk.app) == []
        assert here.do("/queue/purge", queue="stale", dry_run=False)["count"] == 1
        here.do("/queue/purge", 404, queue="stail")
        for name in ("vms", desk.app.pool("vms").queue):  # as on the command line
            assert here.do("/queue/purge", queue=name)["count"] == 0
    assert stale.state() is not State.READY
    assert [what for what, *_ in deeds(desk.app)] == ["purge.run"]


def test_dead_letters_are_exported_and_imported(desk: Desk) -> None:
    """Hundreds: more than leave or are filed in one piece, with what is hidden elsewhere, since it is to run again."""
    charge = desk.app.tasks["charge"]
    jobs = charge.enqueue_many([((13, f"4111-{number:0900}"), {}) for number in range(250)])
    drained(desk.app)
    with desk("admin") as here, desk("operator") as operator, desk("viewer") as viewer:
        viewer.do("/dead/export", 403, {})
        answer = operator.post("/api/v1/dead/export", json={"task": "charge"})
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert answer.headers["Cache-Control"] == "no-store"
        lines = answer.content.splitlines()
        assert len(lines) == 251 and b"4111-dead" in lines[0]
        assert operator.post("/api/v1/dead/export", json={"task": "double"}).content == b""
        assert operator.do("/dead/export", 422, {"since": "yesterday"})["error"] == "OptionError"
        assert operator.do("/dead/export", 404, {"queue": "mials"})["error"] == "NotFound"

        here.do("/dead/discard", body={"all": True}, dry_run=False, undo=False)
        assert here.do("/dead/restore", body={"all": True}) == {"restored": 0}
        given: dict[str, Any] = {"content": answer.content + b"\nnonsense", "headers": NDJSON}
        assert operator.post("/api/v1/dead/import", **given).status_code == 403
        done = here.post("/api/v1/dead/import", **given).json()
        assert (done["new"], done["known"], done["refused"], done["dropped"]) == (251, 0, 1, 0)
        assert done["why"][0]["line"] == 253 and "not a dead letter" in done["why"][0]["why"]
        assert here.post("/api/v1/dead/import", **given).json()["known"] == 251
        assert here.do("/dead/retry", body={"ids": [jobs[0].id]}) == {"retried": 1}
    did = [(what, count) for what, _, _, count in deeds(desk.app)][:5]
    assert did == [
        ("dead.retry", 1), ("dead.import", 0), ("dead.import", 251), ("dead.restore", 0), ("dead.discard", 251),
    ]  # fmt: skip
    assert ("dead.export", "operator-ana", "http", 251) in deeds(desk.app)


def test_letters_filed_before_an_import_broke_off_are_audited(desk: Desk) -> None:
    with desk("admin") as here:
        line = here.post("/api/v1/dead/export", json={}).content
        here.do("/dead/discard", body={"all": True}, dry_run=False, undo=False)

        def letters() -> Iterator[bytes]:
            yield line + b"\n" * 120
            for _ in range(100):
                yield b"x" * 65_536

        try:
            answered = here.post("/api/v1/dead/import", content=letters(), headers=NDJSON)
            assert answered.status_code == 413 and "a line of" in answered.json()["message"]
        except httpx.NetworkError:  # hung up while we still sent
            pass
        entry = ("dead.import", "admin-ana", "http", 1)
        eventually(lambda: deeds(desk.app)[0] == entry, what="the entry of the audit trail")
    assert desk.app.audit.list()[0].about == {"broken_off": True}


def test_export_that_breaks_off_is_an_incomplete_answer(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client must not take a part of it for the whole."""
    own_server = Server(engine, directory=tmp_path)
    own_server.start()
    app = Relevo("shop", url=own_server.url, web_tokens=TOKENS, **PATIENT)
    # A call that gets no answer waits 30 s; one whose server is gone is tried once more.
    monkeypatch.setattr(source, "pauses", lambda patience: iter([0.0]))

    @app.task(name="pay", retries=0)
    def pay(card: str) -> None:
        raise ValueError(card)

    pay.enqueue_many([(("4" * 60_000,), {}) for _ in range(200)])  # more than sockets hold
    drained(app)
    with (
        served(app) as url,
        Here(url, "operator") as here,
        here.stream("POST", "/api/v1/dead/export", json={}) as answer,
    ):
        next(answer.iter_raw())
        answer.close()
        (deed,) = eventually(app.audit.list, what="the entry of the audit trail")
        assert deed.what == "dead.export" and deed.count < 200, "the rest was not read"
    with (
        served(app) as url,
        Here(url, "operator") as here,
        pytest.raises(httpx.RemoteProtocolError),
        here.stream("POST", "/api/v1/dead/export", json={}) as answer,
    ):
        assert answer.status_code == 200
        parts = answer.iter_raw()
        next(parts)
        own_server.kill()
        for _ in parts:
            pass
    app.close()


def test_dead_letters_of_a_state_are_asked_for_as_in_vmpooler(desk: Desk) -> None:
    vms = desk.app.pool("vms", states=("pending", "ready", "booting"))
    letters = {}
    for state in vms.states:
        vms.add(f"vm-{state}", state)
        letters[state] = vms.fail(f"vm-{state}", "no ip")
    with desk("viewer") as here:
        for state, letter in letters.items():
            assert [row["id"] for row in here.ask("/queue/dlq", queue=state, limit=50)["items"]] == [letter]
        assert [row["id"] for row in here.ask("/queue/dlq", queue="running")["items"]] == [desk.data.dead]
        assert here.ask("/queue/dlq", 404, queue="pendin")["error"] == "NotFound"
        assert here.ask("/dead", 404, queue="pending")["error"] == "NotFound"
        assert here.ask("/queue/dlq", 404, queue="pending", came_from="ready")["error"] == "NotFound", "nothing is lost"
        desk.app.task(lambda: None, name="later", queue="pending")  # type: ignore[call-overload]  # meant before a state
        assert here.ask("/queue/dlq", queue="pending")["items"] == []


def test_entities_of_a_pool_are_listed_added_moved_failed_and_removed(desk: Desk) -> None:
    vms = desk.app.pool("vms", states=("pending", "ready", "running"))
    path = "/pools/vms/items/rack%2Fvm-1"
    with desk("admin") as here, desk("operator") as operator:
        counts = {"pending": 1, "ready": 0, "running": 0}
        assert here.ask("/pools")["items"][1] == {"name": "vms", "queue": vms.queue, "counts": counts}
        (one,) = here.ask("/pools/vms/items", state="pending")["items"]
        assert (one["id"], one["metadata"]) == ("vm-1", {"ip": "10.0.0.7", "token": "***"})
        here.ask("/pools/vm/items", 404)
        here.ask("/pools/vms/items", 404, state="no state")
        body = {"id": "rack/vm-1", "metadata": {"ip": "10.0.0.7", "token": "s3cret"}}
        new = operator.do("/pools/vms/items", body=body)
        assert (new["state"], new["metadata"]) == ("pending", {"ip": "10.0.0.7", "token": "***"})
        assert operator.do("/pools/vms/items", 409, {"id": "rack/vm-1"})["message"].startswith("pool vms has")
        operator.do("/pools/wms/items", 404, {"id": "vm-2"})
        for wrong in ({"token": "***"}, {"state": "ready"}, {"@state": "ready"}):
            assert operator.do("/pools/vms/items", 422, {"id": "vm-2", "metadata": wrong})["message"]
        assert operator.do("/pools/vms/items", 422, {"id": "vm-2", "state": "redy"})["error"] == "OptionError"
        assert operator.do("/pools/vms/items", 422, {"id": "a\nb"})["error"] == "OptionError"

        moved = operator.do(f"{path}/move", body={"from": "pending", "to": "ready", "metadata": {"state": "up"}})
        assert (moved["state"], moved["metadata"]["state"]) == ("ready", "up")
        again = operator.do(f"{path}/move", 409, {"from": "pending", "to": "ready"})
        assert again["message"] == "'rack/vm-1' is ready in pool vms, not pending"
        assert "ip" not in operator.do(f"{path}/update", body={"metadata": {"ip": None}})["metadata"]
        assert vms.get("rack/vm-1").metadata["token"] == "s3cret"  # type: ignore[union-attr]
        assert operator.ask(path)["state"] == "ready"
        assert operator.ask("/pools/vms/items", state="ready", older_than="1h")["items"] == []

        operator.do(f"{path}/fail", 409, {"error": "gone", "state": "running"})
        letter = operator.do(f"{path}/fail", body={"error": "the rack is gone"})
        (dead,) = here.ask("/pools/vms/dead")["items"]
        assert (dead["id"], dead["error_message"]) == (letter["id"], "the rack is gone")
        assert dead["metadata"]["token"] == "***"
        assert operator.do(f"/pools/vms/dead/{letter['id']}/retry", body={"to": "pending"})["state"] == "pending"
        operator.do(f"/pools/vms/dead/{letter['id']}/retry", 404)
        operator.do("/pools/vms/dead/nothing/retry", 404)

        operator.do(f"{path}/remove", 403)
        assert here.do(f"{path}/remove")["dry_run"] is True and vms.counts()["pending"] == 2
        assert here.do(f"{path}/remove", dry_run=False)["entity"]["state"] == "pending"
        assert "has left" in here.do(f"{path}/remove", 409, dry_run=False)["message"]
        here.ask("/pools/vms/items/vm-9", 404)
    assert [what for what, *_ in reversed(deeds(desk.app))] == [
        f"pool.{verb}" for verb in ("add", "move", "update", "fail", "retry", "remove")
    ]
    assert "s3cret" not in str(desk.app.audit.list())
