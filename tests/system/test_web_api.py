"""What can be seen and done over HTTP, on a real uvicorn and a real server of queues."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest

from relevo import Relevo, State
from tests.conftest import AppFactory
from tests.eventually import eventually
from tests.servers import Server
from tests.system.shell import Told, relevo
from tests.system.web import TOKENS, Filled, Here, emptied, served
from tests.working import drained


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
    return [(deed.what, deed.who, deed.via, deed.count) for deed in app.audit.list()]


# Looking


def test_everything_there_is_can_be_looked_at(desk: Desk) -> None:
    """R153 R154"""
    with desk("operator") as here:
        queues = {one["name"]: one for one in here.ask("/queues")["items"]}
        assert queues["default"]["ready"] == 2 and queues["default"]["dead"] == 1
        assert here.ask("/queues/default") == queues["default"]
        assert [row["id"] for row in here.ask("/queues/default/jobs")["items"]] == [desk.data.ready, desk.data.tenant]
        assert here.ask("/queues/default/jobs", state="scheduled")["items"][0]["task"] == "double"
        (dead,) = here.ask("/queue/dlq", queue="default", limit=50)["items"]
        assert (dead["id"], dead["queue"], dead["error"]) == (desk.data.dead, "default", "ValueError: no such invoice")
        assert here.ask("/dead", error="no such") == here.ask("/dead") == here.ask("/queue/dlq")
        assert here.ask("/dead", error="another")["items"] == []
        assert here.ask(f"/dead/{desk.data.dead}")["reason"] == "retries_exhausted"
        assert here.ask(f"/jobs/{desk.data.done}")["state"] == "done"
        assert "charging 13" in here.ask(f"/jobs/{desk.data.dead}/logs")["logs"]
        assert here.ask(f"/jobs/{desk.data.dead}/logs", attempt=2)["logs"] == ""
        assert [one["id"] for one in here.ask("/workflows")] == [desk.data.flow]
        assert here.ask(f"/workflows/{desk.data.flow}")["progress"]["done"] == 2
        assert [one["name"] for one in here.ask("/schedules")] == ["nightly"]
        assert here.ask("/schedules/nightly/history") == []
        assert [one["name"] for one in here.ask("/services")["services"]] == ["embedding"]
        assert here.ask("/services/embedding")["services"][0]["actions"][0]["about"] == "Make it loud."
        assert here.ask("/tallies")["actions"]["done"] == 1
        assert here.ask("/traces/task_7")[0]["type"] == "embedding.generate"
        assert here.ask("/workers") == {"workers": [], "silent": []}
        assert here.ask("/audit") == []
        assert here.ask("/me") == {"name": "operator-ana", "role": "operator", "app": "shop", "env": "test"}


def test_a_list_is_given_in_parts(desk: Desk) -> None:
    with desk("viewer") as here:
        first = here.ask("/queues/default/jobs", limit=1)
        assert first["next"] == 1
        second = here.ask("/queues/default/jobs", limit=1, offset=first["next"])
        assert [row["id"] for row in first["items"] + second["items"]] == [desk.data.ready, desk.data.tenant]
        assert here.ask("/queues/default/jobs", limit=1, offset=2) == {"items": [], "next": None}


def test_names_may_hold_anything(desk: Desk) -> None:
    """Slashes, colons and percent signs, which mean something in paths and in names of queues."""
    for name in ("a/b", "a b", "50%", "ünï", "a?b#c", "a%2Fb"):
        desk.app.tasks["double"].using(queue=name).enqueue(1)
    with desk("operator") as here:
        for name in here.ask("/queues")["items"]:
            path = str(name["name"]).replace("%", "%25").replace("/", "%2F").replace("?", "%3F").replace("#", "%23")
            assert here.ask(f"/queues/{path}")["name"] == name["name"]
            assert len(here.ask(f"/queues/{path}/jobs")["items"]) == name["ready"]


# What is hidden


def test_secrets_are_shown_to_nobody(desk: Desk) -> None:
    """RB18: by name, by mark, in places, by key, in results, of schedules and of the bus."""
    for role in ("viewer", "operator", "admin"):
        with desk(role) as here:
            ready = here.ask(f"/jobs/{desk.data.ready}")
            assert (ready["args"], ready["kwargs"]) == ([8, "***"], {"token": "***"})
            dead = here.ask(f"/dead/{desk.data.dead}")
            assert (dead["args"], dead["kwargs"]) == ([13, "***"], {"token": "***"})
            done = here.ask(f"/jobs/{desk.data.done}")
            assert done["result"] == {"invoice": 7, "receipt": {"api_key": "***"}}
            nightly = here.ask("/schedules/nightly")
            assert (nightly["args"], nightly["kwargs"]) == (["monday"], {"password": "***"})
            text = "".join(
                here.get(f"/api/v1{path}").text
                for path in (f"/jobs/{desk.data.dead}", "/schedules", "/dead", "/queues/default/jobs", "/audit")
            )
            assert "4111" not in text and "of-schedule" not in text and "token-" not in text


def test_secrets_are_hidden_on_the_command_line_too(server: Server, desk: Desk) -> None:
    def told(*words: str) -> Told:
        return relevo(*words, "--name", "shop", url=server.url, RELEVO_PREFIX=desk.app.settings.prefix)

    seen = told("job", desk.data.ready)
    assert 'token="***"' in seen.out, seen
    seen = told("dead", "show", desk.data.dead, "--json")
    assert seen.json["kwargs"] == {"token": "***"}
    seen = told("schedules", "show", "nightly")
    assert "monday" in seen.out and "of-schedule" not in seen.out


def test_names_of_the_setting_mask_are_hidden_too(bus_factory: AppFactory) -> None:
    app = bus_factory("shop", mask=["number"])
    with emptied(app) as data, served(app) as url, Here(url) as here:
        assert here.ask(f"/jobs/{data.tenant}")["args"] == ["***"]


def test_of_tasks_whose_code_is_not_known_a_viewer_sees_no_arguments(bus_factory: AppFactory, desk: Desk) -> None:
    """`relevo web --name shop` knows neither what they marked nor what is in which place."""
    stranger = bus_factory("shop", web_tokens=TOKENS)
    with served(stranger) as url:
        with Here(url, "viewer") as here:
            assert here.ask(f"/jobs/{desk.data.ready}")["args"] == ["***", "***"]
            assert here.ask("/schedules/nightly")["args"] == ["***"]
        with Here(url, "operator") as here:
            seen = here.ask(f"/jobs/{desk.data.ready}")
            assert (seen["args"], seen["kwargs"]) == ([8, "4111-ready"], {"token": "***"})


def test_tracebacks_and_logs_are_for_operators(desk: Desk) -> None:
    with desk("viewer") as here:
        assert [one["traceback"] for one in here.ask(f"/dead/{desk.data.dead}")["attempts"]] == ["***"]
        assert here.ask(f"/jobs/{desk.data.dead}/logs", 403)["error"] == "Forbidden"
    with desk("operator") as here:
        assert "raise ValueError" in here.ask(f"/dead/{desk.data.dead}")["attempts"][0]["traceback"]


# Doing


def test_a_queue_is_paused_and_resumed(desk: Desk) -> None:
    with desk("operator") as here:
        assert here.do("/queues/default/pause") == {"changed": True}
        assert here.do("/queues/default/pause") == {"changed": False}
        assert desk.app.queue().stats().paused
        assert here.do("/queues/default/resume", body={}) == {"changed": True}
        assert not desk.app.queue().stats().paused
        assert here.do("/queues/default/pause", body={"group": "acme"}) == {"changed": True}
        assert here.ask("/queues/default/limits")[0]["paused"] is True
        assert here.do("/queues/default/resume", body={"group": "acme"}) == {"changed": True}
    assert deeds(desk.app)[-2:] == [
        ("queue.pause", "operator-ana", "http", 0),
        ("queue.pause", "operator-ana", "http", 1),
    ]


def test_a_group_is_limited_and_freed(desk: Desk) -> None:
    with desk("operator") as here:
        (limit,) = here.do("/queues/default/limits", body={"group": "acme", "concurrency": 2, "rate": "100/m"})
        assert (limit["group"], limit["concurrency"], limit["rate"]) == ("acme", 2, "100/m")
        assert here.do("/queues/default/limits", 422, {"group": "acme"})["error"] == "OptionError"
        assert here.do("/queues/default/limits/remove", body={"group": "acme"}) == {"changed": True}
        assert here.ask("/queues/default/limits") == []
    assert [what for what, *_ in deeds(desk.app)] == ["queue.unlimit", "queue.limit"]


def test_clearing_a_queue_only_tells_what_it_would_do_until_it_is_meant(desk: Desk) -> None:
    """RB18"""
    with desk("admin") as here:
        told = here.do("/queues/default/clear")
        assert told == {"queue": "default", "removed": 3, "dry_run": True}
        assert desk.app.queue().stats().living == 3 and deeds(desk.app) == []
        assert here.do("/queues/default/clear", dry_run="false") == {**told, "dry_run": False}
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


def test_jobs_and_workflows_are_told_apart(desk: Desk) -> None:
    with desk("operator") as here:
        for path in ("", "/logs"):
            assert "is a workflow" in here.ask(f"/jobs/{desk.data.flow}{path}", 404)["message"]
        assert "is a workflow" in here.do(f"/jobs/{desk.data.flow}/retry", 404)["message"]
        assert "is a job" in here.ask(f"/workflows/{desk.data.ready}", 404)["message"]
        assert here.ask(f"/workflows/{'0' * 20}", 404)["error"] == "UnknownJob"


def test_dead_letters_are_run_again_once(desk: Desk) -> None:
    with desk("operator") as here:
        assert here.do("/dead/retry", body={"ids": [desk.data.dead]}) == {"retried": 1}
        assert here.do("/dead/retry", body={"ids": [desk.data.dead]}) == {"retried": 0}
        drained(desk.app)
        assert here.do("/dead/retry", body={"all": True, "queue": "default"}) == {"retried": 1}
        assert here.do("/dead/retry", 422)["error"] == "OptionError"
        assert here.do("/dead/retry", 422, {"ids": [desk.data.dead], "all": True})["error"] == "OptionError"
        assert here.do("/dead/retry", 422, {"ids": ["short"]})["error"] == "OptionError"
        assert here.ask(f"/dead/{desk.data.dead}", 404)["message"].endswith(f"see /jobs/{desk.data.dead}")


@pytest.mark.parametrize("which", ["ids", "all"])
def test_dead_letters_are_forgotten_only_when_it_is_meant(desk: Desk, which: str) -> None:
    body: dict[str, Any] = {"ids": [desk.data.dead, desk.data.ready]} if which == "ids" else {"all": True}
    with desk("admin") as here:
        assert here.do("/dead/discard", body=body) == {"discarded": 1, "dry_run": True}
        assert len(here.ask("/dead")["items"]) == 1
        assert here.do("/dead/discard", body=body, dry_run=False) == {"discarded": 1, "dry_run": False}
        assert here.ask("/dead")["items"] == []
    assert deeds(desk.app) == [("dead.discard", "admin-ana", "http", 1)]


def test_dead_letters_are_found_by_what_they_have_in_common(desk: Desk) -> None:
    """R154"""
    with desk("operator") as here:
        (group,) = here.ask("/dead/groups")
        assert (group["count"], group["error"], group["tasks"]) == (1, "ValueError: no such invoice", ["charge"])
        alike = {"queue": "default", "task": "charge", "reason": "retries_exhausted", "group": group["fingerprint"]}
        found = here.ask("/dead", **alike, came_from="running", permanent="false", since="1h", text="4111-dead")
        assert [one["id"] for one in found["items"]] == [desk.data.dead] and found["next"] is None
        for other in ("task=double", "tenant=acme", "until=1h", "permanent=true"):
            assert here.ask(f"/dead?{other}")["items"] == []
        assert here.ask("/dead", since="2020-01-01T00:00:00Z")["items"]
        for wrong in ({"since": "yesterday"}, {"since": "2020-01-01T00:00:00"}, {"group": "x"}, {"queue": "mials"}):
            assert here.get("/api/v1/dead", params=wrong).status_code in (404, 422), wrong
        assert here.do("/dead/retry", body={"group": group["fingerprint"]}) == {"retried": 1}


def test_a_viewer_cannot_search_for_what_is_hidden(desk: Desk) -> None:
    with desk("viewer") as here:
        assert here.ask("/dead", task="charge")["items"]
        assert "operator" in here.ask("/dead", 403, text="4111")["message"]


def test_what_was_discarded_a_moment_ago_is_restored(desk: Desk) -> None:
    with desk("admin") as here:
        here.do("/dead/discard", body={"task": "charge"}, dry_run=False)
        assert here.ask("/dead")["items"] == []
        assert here.do("/dead/restore", body={"all": True}) == {"restored": 1}
        assert here.do("/dead/restore", body={"ids": [desk.data.dead]}) == {"restored": 0}
        assert [one["id"] for one in here.ask("/dead")["items"]] == [desk.data.dead]
    assert [what for what, *_ in deeds(desk.app)] == ["dead.restore", "dead.restore", "dead.discard"]


def test_a_dead_letter_runs_with_other_arguments(desk: Desk) -> None:
    path = f"/dead/{desk.data.dead}/edit"
    with desk("operator") as here:
        # What was shown is not sent back as if it were the value.
        assert "is no value" in here.do(path, 422, {"args": [7, "***"]})["message"]
        assert "is no value" in here.do(path, 422, {"kwargs": {"token": "***"}})["message"]
        assert here.do(path, 422, {"args": ["seven"]})["error"] == "PayloadError"
        assert here.do(path, 422, {})["error"] == "OptionError"
        job = here.do(path, body={"args": [7, "4111-edited"]})
        drained(desk.app)
        assert desk.app.job(job["id"]).status() is State.DONE
        assert here.do(path, 404, {"args": [7, "x"]})["error"] == "UnknownJob"
    (deed,) = desk.app.audit.list()
    assert (deed.what, deed.about["changed"]) == ("dead.edit", ["args"]) and "4111" not in str(deed.about)


def test_a_replay_goes_on_after_the_request_that_began_it(desk: Desk) -> None:
    for invoice in range(3):
        desk.app.tasks["charge"].enqueue(13, f"card-{invoice}")
    drained(desk.app)
    with desk("operator") as here:
        assert here.do("/dead/replays", 422, {})["error"] == "Invalid"
        begun = here.do("/dead/replays", body={"task": "charge", "rate": "2/s"})
        assert (begun["who"], begun["total"]) == ("operator-ana", 4)
        assert [one["id"] for one in here.ask("/dead/replays")] == [begun["id"]]
        assert here.do(f"/dead/replays/{begun['id']}/resume", 409)["error"] == "JobError"
        here.do(f"/dead/replays/{begun['id']}/stop")
        stopped = eventually(lambda: _unless_running(here, begun["id"]), what="it stops")
        assert stopped["state"] == "stopped" and stopped["retried"] < 4
        assert here.do(f"/dead/replays/{begun['id']}/stop", 409)["error"] == "Conflict"
        here.do(f"/dead/replays/{begun['id']}/resume")
        done = eventually(lambda: _unless_running(here, begun["id"]), what="it ends")
        assert (done.get("state"), done["retried"]) == ("done", 4)
        assert here.ask(f"/dead/replays/{'0' * 20}", 404)["error"] == "UnknownJob"
    assert [what for what, *_ in deeds(desk.app)] == ["dead.replay_resume", "dead.replay_stop", "dead.replay"]


def _unless_running(here: Here, id: str) -> Any:
    found = here.ask(f"/dead/replays/{id}")
    return found if found.get("state", "running") != "running" else None


def test_health_is_told_with_its_reasons(desk: Desk) -> None:
    """R153"""
    with desk("viewer") as here:
        health = here.ask("/queue/health")
        assert health["status"] == desk.app.health().status
        assert {one["name"] for one in health["queues"]} >= {"default"}
        assert here.ask("/queue/health", cached="true")["status"] == "unknown"  # no worker looks after it


def test_a_schedule_is_looked_after(desk: Desk) -> None:
    with desk("admin") as here:
        assert here.do("/schedules/nightly/pause") == {"changed": True}
        assert here.ask("/schedules/nightly")["next_ms"] is None
        assert here.do("/schedules/nightly/resume") == {"changed": True}
        job = here.do("/schedules/nightly/run")
        assert desk.app.job(job["id"]).status() is State.READY
        assert here.ask("/schedules/nightly/history")[0]["job"] == job["id"]
        edited = here.do("/schedules/nightly/edit", body={"every": "10m"})
        assert (edited["when"], edited["kwargs"]) == ("600s", {"password": "***"})
        assert here.do("/schedules/nightly/edit", 422, {"cron": "soon"})["error"] == "OptionError"
        assert here.do("/schedules/nightly/edit", 422, {"task": "x"})["message"].startswith("unknown name 'task'")
        assert "did you mean 'nightly'?" in here.do("/schedules/nihgtly/run", 404)["message"]
        assert here.do("/schedules/remove_stale") == {"removed": [], "comes_back": False}
        assert here.do("/schedules/nightly/remove") == {"removed": ["nightly"], "comes_back": False}
        assert here.ask("/schedules") == []
        assert here.do("/schedules/nightly/remove", 404)["error"] == "UnknownSchedule"
    assert [what for what, *_ in deeds(desk.app)] == [
        f"schedule.{verb}" for verb in ("remove", "remove_stale", "edit", "run", "resume", "pause")
    ]


def test_a_workflow_is_cancelled_and_run_again(desk: Desk) -> None:
    from relevo import chain

    double = desk.app.tasks["double"]
    flow = chain(double.s(1), double.s()).enqueue()
    with desk("operator") as here:
        assert here.do(f"/workflows/{flow.id}/cancel") == {"id": flow.id, "state": "cancelled", "jobs": 2}
        assert here.do(f"/workflows/{flow.id}/cancel", 409)["error"] == "Conflict"
        assert here.do(f"/workflows/{flow.id}/retry")["state"] == "running"
        assert here.do(f"/workflows/{desk.data.flow}/retry", 409)["error"] == "Conflict"


def test_what_a_task_left_is_cleaned_up_only_when_it_is_meant(desk: Desk) -> None:
    desk.app.service("ingestion").send("embedding.generate", {"text": "b"}, task="task_8")
    with desk("admin") as here:
        assert here.ask("/tasks/task_8")[0]["state"] == "ready"
        assert here.do("/tasks/task_8/cleanup")["living"] == 1
        assert deeds(desk.app) == []
        assert here.do("/tasks/task_8/cleanup", dry_run=False, dead=True)["dry_run"] is False
        assert here.do("/orphans/sweep")["dry_run"] is True
        assert here.do("/orphans/sweep", dry_run=False)["removed"] == 0
    assert [what for what, *_ in deeds(desk.app)] == ["orphans.sweep", "task.cleanup"]


def test_pauses_have_a_reason_an_author_and_an_end(desk: Desk) -> None:
    with desk("operator") as here:
        said = {"task": "charge", "reason": "the bank is down", "until": "2h"}
        assert here.do("/queues/default/pause", body=said) == {"changed": True}
        (paused,) = here.ask("/pauses")
        assert (paused["kind"], paused["name"], paused["reason"]) == ("task", "charge", "the bank is down")
        assert paused["by"] == "operator-ana"
        assert 7_190_000 < paused["until_ms"] - paused["since_ms"] <= 7_200_000
        here.do("/queues/default/pause", 422, {"until": "2 fortnights"})
        assert here.do("/queues/default/resume", body={"task": "charge"}) == {"changed": True}
        assert here.do("/queues/default/limits", body={"task": "charge", "rate": "10/s"})[0]["task"] == "charge"
        assert here.do("/queues/default/limits/remove", body={"task": "charge"}) == {"changed": True}
        assert here.do("/schedules/nightly/pause", body={"reason": "holiday", "until": "1h"}) == {"changed": True}
        (paused,) = here.ask("/pauses")
        assert (paused["kind"], paused["name"], paused["by"]) == ("schedule", "nightly", "operator-ana")
        assert here.do("/schedules/nightly/resume") == {"changed": True}


def test_the_purge_is_a_dry_run_unless_it_is_meant(desk: Desk) -> None:
    """R155 RB18"""
    double = desk.app.tasks["double"]
    stale = double.using(queue="stale").enqueue(1)
    desk.app.settings = msgspec.structs.replace(desk.app.settings, purge_ages={"ready": "1ms"})
    eventually(lambda: desk.app.purge(queue="stale").count == 1, what="it is a millisecond old")
    with desk("admin") as here, desk("operator") as operator:
        operator.do("/queue/purge", 403)
        dry = here.do("/queue/purge", queue="stale")
        assert (dry["dry_run"], dry["count"], dry["groups"][0]["reason"]) == (True, 1, "stale_ready")
        assert [one["id"] for one in dry["purged"]] == [stale.id]
        assert stale.status() is State.READY and deeds(desk.app) == []
        assert here.do("/queue/purge", queue="stale", dry_run=False)["count"] == 1
        here.do("/queue/purge", 404, queue="stail")
    assert stale.status() is not State.READY
    assert [what for what, *_ in deeds(desk.app)] == ["purge.run"]


def test_pools_are_told_with_their_entities_and_without_their_secrets(desk: Desk) -> None:
    pool = desk.app.pool("vms")
    pool.add("vm-1", ip="10.0.0.7", token="s3cret")
    with desk("viewer") as here:
        assert here.ask("/pools") == [{"name": "vms", "queue": pool.queue, "counts": {"pending": 1}}]
        (one,) = here.ask("/pools/vms/items", state="pending")["items"]
        assert (one["id"], one["metadata"]) == ("vm-1", {"ip": "10.0.0.7", "token": "***"})
        here.ask("/pools/vm/items", 404)
        here.ask("/pools/vms/items", 404, state="no state")
    assert pool.remove("vm-1")
