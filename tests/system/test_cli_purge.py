"""`relevo purge`: shows by default, acts when told so, and its exit code says whether somebody should look."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from relevo import Relevo, State
from relevo.store import purging as store
from relevo.store.locks import unlock
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.shell import Output, relevo

AGES = '{"queues": {"*": {"ready": "10ms", "done": "never"}}, "pools": {"*": {"pending": "10ms"}}}'


@pytest.fixture
def app(app_factory: AppFactory) -> Relevo:
    """An app with a job and an entity that are too old, by the table of the commands below."""
    app = app_factory()

    @app.task(name="mail")
    def mail(n: int) -> None: ...

    mail.enqueue(1)
    app.pool("vms").add("vm-17", template="centos-7")
    time.sleep(0.02)
    return app


def purge(app: Relevo, server: Server, *options: str) -> Output:
    return relevo("purge", "--name", app.name, "--env", "test", *options, url=server.url, RELEVO_PURGE_AGES=AGES)


def test_it_only_shows_unless_told_to_act(app: Relevo, server: Server) -> None:
    """A dry run by default, and the same list."""
    shown = purge(app, server)
    assert shown.code == 0, shown
    assert "2 entries would be purged: say --yes" in shown.out
    assert "stale_ready" in shown.out and "stale_pending" in shown.out and "vm-17" in shown.out
    assert app.queue().stats().ready == 1
    dry = purge(app, server, "--dry-run", "--json").json
    done = purge(app, server, "--yes", "--json").json
    for one in (*dry["purged"], *done["purged"]):
        assert one.pop("age_ms") >= 10
    assert dry["purged"] == done["purged"]
    assert (dry["dry_run"], done["dry_run"], done["count"]) == (True, False, 2)
    assert done["bytes"] == sum(one["bytes"] for one in done["purged"]) > 0
    assert app.queue().stats().cancelled == 1
    assert [one.entity for one in app.pool("vms").dead()] == ["vm-17"]
    after = purge(app, server, "--yes")
    assert (after.code, after.out.strip()) == (0, "nothing is too old")


def test_what_is_paused_is_left_alone_and_needs_nobody(app: Relevo, server: Server) -> None:
    app.queue().pause(reason="maintenance")
    done = purge(app, server, "--queue", "default", "--yes")
    assert (done.code, done.out.splitlines()) == (
        0,
        ["left alone: 1 of queue default, ready: the queue is paused", "nothing else is too old"],
    )
    told = purge(app, server, "--json").json["held"]
    assert told == [{"name": "default", "state": "ready", "why": "the queue is paused", "count": 1}]
    app.queue().resume()
    app.queue().clear()
    app.pool("vms").remove("vm-17")


def test_what_was_done_is_in_the_audit_trail(bus_factory: AppFactory, server: Server) -> None:
    app = bus_factory("shop")
    app.pool("vms").add("vm-1")
    time.sleep(0.02)
    prefix = app.settings.prefix
    for option in ("--dry-run", "--yes"):
        arguments = ("purge", "--name", "shop", "--env", "test", option)
        done = relevo(*arguments, url=server.url, RELEVO_PREFIX=prefix, RELEVO_PURGE_AGES=AGES)
        assert done.code == 0, done
    (deed,) = app.audit.list()
    assert (deed.what, deed.via, deed.count) == ("purge.run", "cli", 1)


def test_one_queue_or_pool_is_meant(app: Relevo, server: Server) -> None:
    assert [one["name"] for one in purge(app, server, "--queue", "vms", "--json").json["purged"]] == ["vms"]
    assert [one["name"] for one in purge(app, server, "--queue", "default", "--json").json["purged"]] == ["default"]


def test_misspelt_queue_is_refused_with_the_nearest(app: Relevo, server: Server) -> None:
    """It has nothing that is too old either, which must not look like good news."""
    for name, meant in (("defualt", "default"), ("vmz", "vms")):
        seen = purge(app, server, "--queue", name)
        assert (seen.code, f"{name!r} in use, did you mean {meant!r}?" in seen.err) == (2, True)


def test_app_that_nobody_knows_is_no_good_news(app_factory: AppFactory, server: Server) -> None:
    """Its name may be misspelt, or its env."""
    nobody = app_factory()
    seen, told = purge(nobody, server), purge(nobody, server, "--json")
    assert (seen.code, f"nothing is known of app {nobody.name!r} in 'test'" in seen.out) == (1, True)
    assert (told.code, told.json["count"]) == (1, 0)


def test_exit_code_says_that_somebody_should_look(app: Relevo, server: Server) -> None:
    (lease,) = app.queue().take(1)
    lease.give_back()
    seen = purge(app, server)
    assert (seen.code, "left alone: 1 of queue default, ready: of unknown age" in seen.out) == (1, True)
    app.run(store.lock(app.keys_of("default"), "other"))
    held = purge(app, server, "--yes")
    assert (held.code, "somebody else is purging default" in held.out) == (1, True)
    assert app.queue().clear() == 1
    app.run(unlock(app.keys_of("default"), "other"))


def test_wrong_usage_and_no_server_are_critical(app: Relevo, server: Server, tmp_path: Path) -> None:
    both = purge(app, server, "--yes", "--dry-run")
    assert (both.code, "leave one of them out" in both.err) == (2, True)
    away = relevo("purge", "--name", "shop", url="redis://127.0.0.1:1/0", RELEVO_CALL_TIMEOUT="100ms")
    assert away.code == 2
    wrong = relevo("purge", "--name", "shop", url=server.url, RELEVO_PURGE_AGES='{"redy": "1h"}')
    assert (wrong.code, "did you mean 'ready'" in wrong.err) == (2, True)
    assert app.job(app.queue().jobs()[0].id).status() is State.READY
