"""`relevo health` as monitors and people meet it: exit codes, JSON, text."""

from __future__ import annotations

import msgspec
import pytest

from relevo import Relevo
from relevo.model.ids import Ids, _text
from relevo.store.health import keep_snapshot
from relevo.store.plan import Call
from relevo.store.push import push_plain
from relevo.store.workers import WorkerInfo, listed, present
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.shell import Output, relevo

MINUTE = 60_000


def ask(server: Server, app: Relevo, *options: str, limits: str = "") -> Output:
    return relevo("health", "--name", app.name, *options, url=server.url, RELEVO_HEALTH_LIMITS=limits)


def alive(app: Relevo, *queues: str) -> None:
    app.run(present(app.keys, WorkerInfo("w1", "here", 1, queues or ("default",), 1, 1)))
    app.run(listed(app.keys, "w1"))


def push_old(app: Relevo, ago_ms: int, count: int = 1, queue: str = "default") -> None:
    now_ms = app.run(app.now_ms())
    rows = [(_text(now_ms - ago_ms, 9) + id[9:], b'{"t":"shop.mail"}') for id in Ids().many(count)]
    app.run(app.list_queue(queue))
    app.run(push_plain(app.keys_of(queue), rows, 100, 1000))


def test_a_healthy_app_ends_with_0(server: Server, app: Relevo) -> None:
    push_old(app, 0, 3)
    alive(app)
    told = ask(server, app)
    assert told.code == 0, told
    assert told.out.startswith(f"✓ healthy  app {app.name} in test\n")
    assert "QUEUE      READY  OLDEST  RUNNING  STUCK  DEAD  WORKERS  IN/MIN  OUT/MIN  FAILED/MIN  CLEARS IN" in told.out
    assert "✓ default      3" in told.out and "\n1 worker\n" in told.out


def test_a_queue_without_a_worker_ends_with_1_and_after_a_minute_with_2(server: Server, app: Relevo) -> None:
    """No worker"""
    push_old(app, 1_000, 2)
    told = ask(server, app)
    assert told.code == 1, told
    assert "▶ default: 2 jobs due and no worker serves it" in told.out
    push_old(app, 2 * MINUTE)
    told = ask(server, app)
    assert told.code == 2 and told.out.startswith("✗ unhealthy"), told


def test_a_worker_that_is_stuck_with_its_jobs_ends_with_1(server: Server, app: Relevo) -> None:
    """A stuck worker"""
    push_old(app, 0)
    app.queue().take(1, worker="stuck", lease="1ms")
    keys = app.keys_of("default")
    ids: list[bytes] = app.run(Call([b"ZRANGE", keys.key("running"), 0, -1]))
    app.run(Call([b"ZADD", keys.key("running"), app.run(app.now_ms()) - MINUTE, *ids]))
    alive(app)
    told = ask(server, app)
    assert told.code == 1, told
    assert "1 job of workers that fell silent, and nobody takes them over" in told.out


def test_a_server_that_is_down_ends_with_2(app: Relevo) -> None:
    """Redis down"""
    told = relevo("health", "--name", app.name, "--json", url="redis://127.0.0.1:1/0")
    assert told.code == 2 and told.json["error"] == "ServerUnavailable" and "127.0.0.1:1" in told.err


def test_an_app_that_nobody_knows_ends_with_2(server: Server, app: Relevo) -> None:
    told = ask(server, app)
    assert told.code == 2 and told.out.startswith("○ unknown") and "nothing is known of app" in told.out


def test_json_is_all_of_it(server: Server, app: Relevo) -> None:
    push_old(app, 5 * MINUTE, 2)
    told = ask(server, app, "--json")
    assert told.code == 2
    assert (told.json["status"], told.json["reasons"][0]["measure"]) == ("unhealthy", "unserved")
    (queue,) = told.json["queues"]
    assert queue["vitals"]["states"]["ready"]["size"] == 2
    assert set(queue["vitals"]["rates"]) == {"1m", "5m", "15m"}


def test_limits_come_from_the_settings(server: Server, app: Relevo) -> None:
    push_old(app, 40_000, queue="mail")
    alive(app, "mail")
    told = ask(server, app, limits='{"mail": {"slo": "30s"}}')
    assert told.code == 1 and "over its 30s target" in told.out and "TARGET" in told.out
    told = ask(server, app, limits='{"mail": {"slow": "30s"}}')
    assert told.code == 2 and "unknown limit 'slow', did you mean 'slo'?" in told.err


def test_tasks_are_shown_when_asked_for(server: Server, app: Relevo) -> None:
    push_old(app, 0, 150)
    alive(app)
    told = ask(server, app, "--tasks")
    assert "default  shop.mail        0  ~150" in told.out
    assert "~ estimated from 64 jobs of each state, at random" in told.out
    assert "~" not in ask(server, app).out


def test_what_was_kept_is_shown_with_its_age_and_is_unknown_when_stale(server: Server, app: Relevo) -> None:
    told = ask(server, app, "--cached")
    assert told.code == 2 and "no worker has looked of late" in told.out
    alive(app)
    found = msgspec.structs.replace(app.health(), every_s=300.0)
    app.run(keep_snapshot(app.keys, found))
    told = ask(server, app, "--cached")
    assert told.code == 0 and "as found" in told.out and " ago" in told.out, told
    old = msgspec.structs.replace(found, checked_at_ms=found.checked_at_ms - 11 * MINUTE)
    app.run(keep_snapshot(app.keys, old))
    told = ask(server, app, "--cached")
    assert told.code == 2 and "one every 5m is expected" in told.out


@pytest.mark.parametrize("options", [("--watch", "--json"), ("--watch", "3")])
def test_watching_needs_a_terminal(server: Server, app: Relevo, options: tuple[str, ...]) -> None:
    told = ask(server, app, *options)
    assert told.code == 2 and "--watch refreshes a terminal" in told.err


def test_a_paused_queue_is_told(server: Server, app_factory: AppFactory) -> None:
    app = app_factory()
    push_old(app, 0)
    alive(app)
    app.queue().pause()
    told = ask(server, app)
    assert told.code == 1 and "default: paused, and 1 job due" in told.out and "paused: default" in told.out
    app.queue().resume()
