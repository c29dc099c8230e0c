"""The leak check finds what it is there to find."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.engine.dependents import follow, forget, gate_of, needs_of
from relevo.engine.edges import Edge
from relevo.engine.outbox import notify
from relevo.engine.push import NewJob, push_rich
from tests.leaks import leaks
from tests.servers import Server
from tests.store.desk import Desk, moved, new_id


def test_living_jobs_schedules_pauses_and_what_belongs_to_them_are_no_leak(
    desk: Desk, app: Relevo, server: Server
) -> None:
    desk.push("{}", "{}")
    desk.push_one(when="+60000", tenant="g")
    desk.push_one(name="n", scope="until_done")
    first = desk.claim()[0]
    desk.turn(0, moved(first, "retry", ms=60_000, text=b"{}"))
    desk.claim()
    desk.ask("HSET", "schedules", "nightly", "{}")
    desk.ask("ZADD", "errands", 1, "@nightly")
    desk.ask("HSET", "ticks", "due:nightly", 1)
    app.queue().pause()
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
        ("ZADD", "waiting", (1, "lost")),
        ("HSET", "waiters", ("lost", "in")),
        ("ZADD", "errands", (1, "lost")),
        ("ZADD", "errands", (1, "@lost")),
        ("HSET", "letters", ("lost", "done 2 x\n\n")),
        ("HSET", "ticks", ("due:lost", 1)),
        ("HSET", "carried:lost", ("life", "waits")),
        ("HSET", "carried:lost", ("life", "closed")),
        ("ZADD", "flows", (1, "x")),
        ("HSET", "names", ("n", "lost")),
        ("HSET", "clock", ("100", "1")),
        ("HSET", "stats", ("enqueued", 1)),
        ("ZADD", "done", (1, "x")),
        ("SET", "ended:x", ("{}",)),
        ("RPUSH", "bell:w", ("",)),
        ("HSET", "notes:x", ("log", "")),
        ("ZADD", "entities", (1, "lost")),
        ("ZADD", "states", (1, "lost")),
        ("ZADD", "placed:pending", (1, "lost")),
        ("HSET", "entity:lost", ("@state", "")),
        ("ZADD", "strays", (1, "x")),
        ("SET", "walk", (1,)),
        ("SET", "walk:held", ("{}",)),
        ("SET", "leader", ("w",)),
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
    assert "lost" in found[0] or not {"lost", "@lost", "due:lost"} & set(args)
    desk.ask("DEL", key) if key not in ("jobs", "ready") else desk.ask("HDEL" if key == "jobs" else "ZREM", key, "lost")
    assert leaks(server, app.name) == []


def test_what_waits_for_another_job_is_no_leak(desk: Desk, app: Relevo, server: Server) -> None:
    (parent,) = desk.push()
    child = desk.push_one(needs=needs_of(1, 60_000, takes="one"))
    assert desk.run(follow(desk.keys, parent, [Edge(child, "default", index=0)])) == ("", 0)
    assert leaks(server, app.name) == []
    desk.ask("ZREM", "waiting", child)
    assert len(leaks(server, app.name)) == 1, "nothing will ever read it"
    desk.ask("ZADD", "waiting", 1, child)


def test_an_open_workflow_and_its_waiters_are_no_leak(desk: Desk, app: Relevo, server: Server) -> None:
    flow = desk.push_one(needs="f 1 60000 60000", edges=str(Edge(new_id(), "default")))
    assert leaks(server, app.name) == []
    desk.ask("HSET", f"carried:{flow}", "life", "closed")
    assert [leak.partition("}:")[2] for leak in leaks(server, app.name)] == [f"carried:{flow}", f"waiters[{flow}]"]
    desk.ask("HSET", f"carried:{flow}", "life", "open")


@pytest.mark.parametrize(("ago_ms", "is_leak"), [(-60_000, False), (0, False), (60_000, True)])
def test_an_overdue_outbox_message_is_a_leak(
    desk: Desk, app: Relevo, server: Server, ago_ms: int, is_leak: bool
) -> None:
    desk.ask("HSET", "letters", "x.2", "done 2 x\n\n")
    desk.ask("ZADD", "errands", desk.turn(0).now_ms - ago_ms, "x.2")
    assert [leak.partition("}:")[2] for leak in leaks(server, app.name)] == ["letters[x.2]"] * is_leak
    desk.ask("DEL", "letters")
    assert len(leaks(server, app.name)) == 1, "an errand without its letter"
    desk.ask("DEL", "errands")


def test_a_closed_gate_is_a_leak_once_nothing_is_behind_it(desk: Desk, app: Relevo, server: Server) -> None:
    first, second = (NewJob(new_id(), 100, b"{}", needs=needs_of(0, 60_000, gated=True)) for _ in range(2))
    desk.run(push_rich(desk.keys, [first, second], "default"))
    assert leaks(server, app.name) == []
    desk.run(forget(desk.keys, [first]))
    assert leaks(server, app.name) == []
    desk.run(forget(desk.keys, [second]))
    assert [leak.partition("}:")[2] for leak in leaks(server, app.name)] == [f"letters[{gate_of(first.id)}]"]
    desk.run(notify(desk.keys, [], 1000, [gate_of(first.id)]))
    assert leaks(server, app.name) == []


def test_a_key_of_the_app_outside_its_queues_needs_an_end(app: Relevo, server: Server) -> None:
    server.command("SET", app.engine.keys.worker("w1"), "{}")
    assert len(leaks(server, app.name)) == 1
    server.command("EXPIRE", app.engine.keys.worker("w1"), 10)
    assert leaks(server, app.name) == []
