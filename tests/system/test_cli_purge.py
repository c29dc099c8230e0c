"""`relevo purge`: only shows by default, purges with --yes; exit code 1 if something needs attention."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.engine.leader import Leader
from tests.conftest import AppFactory
from tests.eventually import eventually
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
    aged(app)
    return app


def aged(app: Relevo) -> None:
    """Wait until what there is now is older than the ages of the table."""
    made_ms = app.engine.run(app.engine.now_ms())
    eventually(lambda: app.engine.run(app.engine.now_ms()) > made_ms + 10)


def purge(app: Relevo, server: Server, *options: str) -> Output:
    return relevo("purge", "--name", app.name, "--env", "test", *options, url=server.url, RELEVO_PURGE_AGES=AGES)


def test_purge_only_shows_without_yes(app: Relevo, server: Server) -> None:
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
    (deed,) = (deed for deed in app.audit.list(limit=1000) if deed.app == app.name)
    assert (deed.what, deed.via, deed.count) == ("purge.run", "cli", 2)
    after = purge(app, server, "--yes")
    assert (after.code, after.out.strip()) == (0, "nothing is too old")


def test_paused_queue_is_left_alone_without_a_warning(app: Relevo, server: Server) -> None:
    app.queue().pause(reason="maintenance")
    done = purge(app, server, "--queue", "default", "--yes")
    assert (done.code, done.out.splitlines()) == (
        0,
        ["left alone: 1 of queue default, ready: the queue is paused", "nothing else is too old"],
    )
    held = purge(app, server, "--json").json["held"]
    assert held == [{"kind": "queue", "name": "default", "state": "ready", "why": "the queue is paused", "count": 1}]
    app.queue().resume()
    app.queue().clear()
    app.pool("vms").remove("vm-17")


def test_queue_option_takes_a_queue_or_a_pool_that_exists(app: Relevo, server: Server) -> None:
    for name in ("vms", "default"):
        assert [one["name"] for one in purge(app, server, "--queue", name, "--json").json["purged"]] == [name]
    for name, meant in (("defualt", "default"), ("vmz", "vms")):
        seen = purge(app, server, "--queue", name)
        assert (seen.code, f"{name!r} in use, did you mean {meant!r}?" in seen.err) == (2, True)


def test_unknown_app_is_a_warning(app_factory: AppFactory, server: Server) -> None:
    """Its name may be misspelt, or its env."""
    unknown = app_factory()
    seen, report = purge(unknown, server), purge(unknown, server, "--json")
    assert (seen.code, f"nothing is known of app {unknown.name!r} in 'test'" in seen.out) == (1, True)
    assert (report.code, report.json["count"]) == (1, 0)


def test_jobs_of_unknown_age_and_a_purge_under_way_need_attention(app: Relevo, server: Server) -> None:
    (lease,) = app.queue().take(1)
    lease.give_back()
    seen = purge(app, server)
    assert (seen.code, "left alone: 1 of queue default, ready: of unknown age" in seen.out) == (1, True)
    app.engine.run(Leader(app.engine.keys_of("default"), "other").take())
    held = purge(app, server, "--yes")
    assert (held.code, "another process is purging default" in held.out) == (1, True)
    assert app.queue().clear() == 1
    app.engine.run(Leader(app.engine.keys_of("default"), "other").leave())
