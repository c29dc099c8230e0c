"""`relevo health`: exit codes, JSON, text."""

from __future__ import annotations

import msgspec

from relevo import Relevo
from relevo.engine.ids import Ids, _text
from relevo.engine.push import push_plain
from relevo.engine.workers import WorkerInfo, listed, present
from relevo.health.store import keep_snapshot
from tests.servers import Server
from tests.system.shell import Output, relevo

MINUTE = 60_000


def ask(server: Server, app: Relevo, *options: str, limits: str = "") -> Output:
    return relevo("health", "--name", app.name, *options, url=server.url, RELEVO_HEALTH_LIMITS=limits)


def alive(app: Relevo, *queues: str) -> None:
    app.engine.run(
        present(
            app.engine.keys,
            WorkerInfo(id="w1", host="here", pid=1, queues=queues or ("default",), concurrency=1, started_ms=1),
        )
    )
    app.engine.run(listed(app.engine.keys, "w1"))


def push_old(app: Relevo, ago_ms: int, count: int = 1, queue: str = "default") -> None:
    now_ms = app.engine.run(app.engine.now_ms())
    rows = [(_text(now_ms - ago_ms, 9) + id[9:], b'{"t":"shop.mail"}') for id in Ids().many(count)]
    app.engine.run(app.engine.list_queue(queue))
    app.engine.run(push_plain(app.engine.keys_of(queue), rows, 100, 1000))


def test_a_healthy_app_ends_with_0(server: Server, app: Relevo) -> None:
    push_old(app, 0, 3)
    alive(app)
    seen = ask(server, app)
    assert seen.code == 0, seen
    assert seen.out.startswith(f"✓ healthy  app {app.name} in test\n")
    assert "QUEUE      READY  OLDEST  RUNNING  STUCK  DEAD  WORKERS  IN/MIN  OUT/MIN  FAILED/MIN  CLEARS IN" in seen.out
    assert "✓ default      3" in seen.out and "\n1 worker\n" in seen.out


def test_a_queue_without_a_worker_ends_with_1_or_2_and_a_paused_one_with_1(server: Server, app: Relevo) -> None:
    push_old(app, 1_000, 2)
    seen = ask(server, app)
    assert seen.code == 1, seen
    assert "▶ default: 2 jobs due and no worker serves it" in seen.out
    push_old(app, 2 * MINUTE)
    seen = ask(server, app)
    assert seen.code == 2 and seen.out.startswith("✗ unhealthy"), seen
    report = ask(server, app, "--json").json
    assert (report["status"], report["reasons"][0]["measure"]) == ("unhealthy", "unserved")
    (queue,) = report["queues"]
    assert queue["vitals"]["states"]["ready"]["size"] == 3
    assert set(queue["vitals"]["rates"]) == {"1m", "5m", "15m"}
    alive(app)
    app.queue().pause()
    seen = ask(server, app)
    assert seen.code == 1 and "default: paused, and 3 jobs due" in seen.out and "paused: default" in seen.out, seen
    app.queue().resume()


def test_unknown_app_ends_with_2(server: Server, app: Relevo) -> None:
    seen = ask(server, app)
    assert seen.code == 2 and seen.out.startswith("○ unknown") and "nothing is known of app" in seen.out


def test_limits_come_from_the_settings(server: Server, app: Relevo) -> None:
    push_old(app, 40_000, queue="mail")
    alive(app, "mail")
    seen = ask(server, app, limits='{"mail": {"slo": "30s"}}')
    assert seen.code == 1 and "over its 30s target" in seen.out and "TARGET" in seen.out
    seen = ask(server, app, limits='{"mail": {"slow": "30s"}}')
    assert seen.code == 2 and "unknown limit 'slow', did you mean 'slo'?" in seen.err


def test_tasks_are_shown_when_asked_for(server: Server, app: Relevo) -> None:
    push_old(app, 0, 150)
    alive(app)
    seen = ask(server, app, "--tasks")
    assert "default  shop.mail        0  ~150" in seen.out
    assert "~ estimated from 64 jobs of each state, at random" in seen.out
    assert "~" not in ask(server, app).out


def test_cached_report_is_shown_with_its_age_and_is_unknown_when_stale(server: Server, app: Relevo) -> None:
    seen = ask(server, app, "--cached")
    assert seen.code == 2 and "no worker has looked recently" in seen.out
    alive(app)
    found = msgspec.structs.replace(app.health(), every_s=300.0)
    app.engine.run(keep_snapshot(app.engine.keys, found))
    seen = ask(server, app, "--cached")
    assert seen.code == 0 and "as found" in seen.out and " ago" in seen.out, seen
    old = msgspec.structs.replace(found, checked_at_ms=found.checked_at_ms - 11 * MINUTE)
    app.engine.run(keep_snapshot(app.engine.keys, old))
    seen = ask(server, app, "--cached")
    assert seen.code == 2 and "one every 5m is expected" in seen.out
