"""The leak check finds what it is there to find."""

from __future__ import annotations

import pytest

from relevo import Relevo
from tests.leaks import leaks
from tests.servers import Server
from tests.store.desk import Desk, moved


def test_living_jobs_and_what_belongs_to_them_are_no_leak(desk: Desk, app: Relevo, server: Server) -> None:
    desk.push("{}", "{}")
    desk.push_one(when="+60000", group="g")
    desk.push_one(name="n", scope="until_done")
    first = desk.claim()[0]
    desk.turn(0, moved(first, "retry", ms=60_000, text=b"{}"))
    desk.claim()
    assert leaks(server, app.name) == []


@pytest.mark.parametrize(
    ("command", "key", "args"),
    [
        ("HSET", "jobs", ("lost", "{}")),
        ("ZADD", "ready", (1, "lost")),
        ("ZADD", "scheduled", (1, "lost")),
        ("ZADD", "running", (1, "lost")),
        ("HSET", "claims", ("lost", "1 w 1")),
        ("HSET", "story", ("lost", "{}")),
        ("HSET", "groups", ("lost", "1 g")),
        ("HSET", "waiters", ("lost", "in")),
        ("HSET", "names", ("n", "lost")),
        ("HSET", "clock", ("100", "1")),
        ("HSET", "stats", ("enqueued", 1)),
        ("ZADD", "done", (1, "x")),
        ("SET", "ended:x", ("{}",)),
        ("RPUSH", "bell:w", ("",)),
        ("HSET", "notes:x", ("log", "")),
    ],
)
def test_what_belongs_to_no_living_job_is_a_leak(
    desk: Desk, app: Relevo, server: Server, command: str, key: str, args: tuple[str | int, ...]
) -> None:
    if key not in ("clock", "stats"):  # which a push would bring about, or give an end
        desk.push()
    desk.ask(command, key, *args)
    found = leaks(server, app.name)
    assert len(found) == 1
    assert f"}}:{key}" in found[0]
    assert "lost" in found[0] or "lost" not in args
    desk.ask("DEL", key) if key not in ("jobs", "ready") else desk.ask("HDEL" if key == "jobs" else "ZREM", key, "lost")
    assert leaks(server, app.name) == []


def test_a_key_of_the_app_outside_its_queues_needs_an_end(app: Relevo, server: Server) -> None:
    server.command("SET", app.keys.worker("w1"), "{}")
    assert len(leaks(server, app.name)) == 1
    server.command("EXPIRE", app.keys.worker("w1"), 10)
    assert leaks(server, app.name) == []


def test_a_paused_queue_is_no_leak(desk: Desk, app: Relevo, server: Server) -> None:
    app.queue().pause()
    assert leaks(server, app.name) == []
