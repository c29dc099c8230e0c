"""`relevo top`: queues, running jobs, failures and rates, refreshed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from relevo import Relevo
from relevo.cli.columns import fitted
from relevo.cli.top.look import FRONT, Look, Pace, QueueLook, looking, paces, together
from relevo.cli.top.view import _shares, bars
from relevo.engine.workers import listed
from relevo.queues.store import QueueStats
from tests.conftest import AppFactory
from tests.eventually import aeventually, eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.shell import Terminal, on_terminal, relevo
from tests.working import working


def look_of(now_ms: int, **totals: int) -> Look:
    stats = QueueStats(
        name="mails",
        ready=0,
        scheduled=0,
        running=0,
        waiting=0,
        done=0,
        dead=0,
        cancelled=0,
        expired=0,
        living=0,
        idle_workers=0,
        paused=False,
        next_due_ms=None,
        totals=totals,
    )
    return Look(
        app="shop",
        env="test",
        now_ms=now_ms,
        server="valkey",
        used_memory=0,
        clients=1,
        commands=0,
        queues=[QueueLook(stats, None)],
        workers=[],
        lost_workers=[],
        running=[],
        failures=[],
    )


def test_rates_are_what_happened_between_two_looks() -> None:
    before, after = look_of(1_000, enqueued=100, done=50), look_of(3_000, enqueued=120, done=150, retry=3, dead=1)
    assert paces(None, after) is None
    assert paces(before, before) is None, "no time has passed"
    found = paces(before, after)
    assert found == {"mails": Pace(10.0, 50.0, 2.0)}
    assert together(found) == Pace(10.0, 50.0, 2.0)
    anew = paces(look_of(1_000, done=100), look_of(2_000, done=3))
    assert anew == {"mails": Pace(0.0, 0.0, 0.0)}, "counters that began anew are no step back"


def test_bars_are_as_high_as_the_numbers() -> None:
    assert bars([0, 4, 8]) == "▁▄█"
    assert (bars([]), bars([0, 0])) == ("", "")


def test_each_table_gets_its_least_and_the_first_ones_what_is_left() -> None:
    assert _shares(60, [2, 1, 20, 20], least=[3, 1, 2, 2]) == [2, 1, 20, 20]
    assert sum(_shares(30, [50, 1, 20, 20], least=[3, 1, 2, 2])) == 18
    assert _shares(5, [50, 1, 20, 20], least=[3, 1, 2, 2]) == [3, 1, 2, 2]


def test_columns_give_way_where_there_is_no_room() -> None:
    wide = {"job": 20, "task": 30, "error": 100}
    of_room = {
        154: wide,
        100: {**wide, "error": 46},
        91: {**wide, "error": 40, "task": 27},
        66: {"job": 20, "error": 40},
        50: {"job": 20, "error": 28},
        5: {"job": 20},  # what never gives way is cut when drawn
    }
    for room, widths in of_room.items():
        assert fitted(wide, room, (("error", 40), ("task", 10), ("task", 0), ("error", 12), ("error", 0))) == widths


def busy(app: Relevo) -> None:
    """Something ran, something failed, something waits."""

    @app.task(retries=0)
    def charge(n: int) -> None:
        if n == 0:
            raise ConnectionError("the bank is away")

    charge.enqueue_many([((n,), {}) for n in range(5)])


def test_look_has_queues_failures_and_running_jobs_the_longest_first(app: Relevo) -> None:
    busy(app)
    (first, *_) = app.queue().take(1)
    first.bury("no stock")
    app.task(name="more")(lambda: None).using(queue="other").enqueue_many([((), {}) for _ in range(60)])
    (old,) = app.queue("other").take(1, worker="w1", lease="1h")  # as its worker renews it, its lease ends last
    started_ms = app.job(old.id).info().started_ms or 0
    eventually(lambda: app.engine.run(app.engine.now_ms()) > started_ms, what="the others start later")
    app.queue().take(3, worker="w2")
    app.queue("other").take(59, worker="w2")
    found = app.engine.run(looking(app))
    queue = next(one for one in found.queues if one.stats.name == "default")
    assert (queue.stats.ready, queue.stats.running, queue.stats.dead) == (1, 3, 1)
    assert queue.oldest_age_ms is not None and queue.oldest_age_ms >= 0
    assert [(job.id, job.reason) for job in found.failures] == [(first.id, "no stock")]
    assert len(found.running) == FRONT
    assert (found.running[0].id, found.running[0].task, found.running[0].worker) == (old.id, old.task, "w1")
    started = [job.started_ms or 0 for job in found.running]
    assert started == sorted(started) and started[0] < started[1]
    assert (found.running_in_all, found.running_looked_at) == (63, 63)


def test_number_of_running_jobs_that_were_not_looked_at_is_shown(
    server: Server, app: Relevo, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.task(name="more")(lambda: None).enqueue_many([((), {}) for _ in range(600)])
    for _ in range(6):
        app.queue().take(100, lease="1h")
    found = app.engine.run(looking(app))
    assert (found.running_in_all, found.running_looked_at, len(found.running)) == (600, 500, FRONT)
    seen = relevo("top", "--name", app.name, "--once", "--every", "0.1", url=server.url)
    assert "running, the longest of 500 looked at (20 of 600)" in seen.out, seen
    report = relevo("top", "--name", app.name, "--once", "--json", "--every", "0.1", url=server.url).json["look"]
    assert (report["running_in_all"], report["running_looked_at"], len(report["running"])) == (600, 500, FRONT)
    monkeypatch.setattr("relevo.queues.running.OF_ALL", 30)
    assert app.engine.run(looking(app)).running_looked_at == 30, "many busy queues have a share each"


async def test_worker_is_shown_with_its_current_load(app: Relevo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("relevo.worker.presence.Presence.interval", 0.05)
    started, may_end = asyncio.Event(), asyncio.Event()

    @app.task
    async def slow() -> None:
        started.set()
        await may_end.wait()

    async def loads() -> list[tuple[int, int, int]]:
        return [(one.running, one.done, one.concurrency) for one in (await app.engine.arun(looking(app))).workers]

    async with working(app, concurrency=7):
        await aeventually(lambda: _is(loads(), [(0, 0, 7)]))
        await slow.aenqueue()
        await started.wait()
        await aeventually(lambda: _is(loads(), [(1, 0, 7)]), what="the load of a busy worker")
        may_end.set()
        await aeventually(lambda: _is(loads(), [(0, 1, 7)]))
    assert await loads() == [], "a worker that stops unregisters"


async def test_worker_registers_again_with_a_server_that_lost_its_data(
    server: Server, app: Relevo, app_factory: AppFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart without its data, or a failover."""
    monkeypatch.setattr("relevo.worker.presence.Presence.interval", 0.05)

    async def workers() -> int:
        return len((await app.engine.arun(looking(app))).workers)

    with Proxy("127.0.0.1", server.port) as proxy:
        cut_off = app_factory(app.name, url=proxy.url)
        async with working(cut_off, queues=["default"]):
            await aeventually(lambda: _is(workers(), 1))
            server.command("DEL", app.engine.keys.workers, app.engine.keys.queues)
            assert await workers() == 0
            proxy.reset_all()
            await aeventually(lambda: _is(workers(), 1), what="it is listed anew")
            assert await app.aqueues() == ["default"], "and so is what it serves"


async def _is(found: Awaitable[object], wanted: object) -> bool:
    return await found == wanted


def test_lost_worker_is_listed_by_every_command(server: Server, app: Relevo) -> None:
    """Reading the list does not remove it: health counts it, too."""
    app.engine.run(listed(app.engine.keys, "w1"))  # and no sign of life of it
    for _ in range(2):
        seen = relevo("top", "--name", app.name, "--every", "0.1", url=server.url)
        assert "1 worker lost" in seen.out
    assert "worker w1 is lost" in relevo("status", "--name", app.name, url=server.url).out
    assert app.health().lost_workers == ("w1",)


def test_without_a_terminal_that_can_be_refreshed_one_report_is_printed(server: Server, app: Relevo) -> None:
    busy(app)
    seen = relevo("top", "--name", app.name, "--every", "0.1", url=server.url)
    assert seen.code == 0, seen
    assert "default" in seen.out and "workers: none" in seen.out and "\x1b" not in seen.out
    report = relevo("top", "--name", app.name, "--every", "0.1", "--json", url=server.url).json
    assert report["per_second"] == {"default": {"enqueued": 0.0, "done": 0.0, "failed": 0.0}}
    assert report["look"]["queues"][0]["stats"]["ready"] == 5
    assert report["seconds"] >= 0.1
    seen = on_terminal("top", "--name", app.name, "--every", "0.1", url=server.url, columns=60, TERM="dumb")
    assert seen.code == 0 and "a second" in seen.out and "\x1b" not in seen.out
    seen = relevo("top", "--name", "nope", "--every", "0.1", url=server.url)
    assert seen.code == 1 and "nothing is known of app 'nope'" in seen.out, seen


@pytest.mark.parametrize("keys", [b" q", b"\x1b[Aq"], ids=["the space bar before q", "an arrow before q"])
def test_on_a_terminal_it_refreshes_until_q_is_pressed(server: Server, app: Relevo, keys: bytes) -> None:
    busy(app)
    (first, *_) = app.queue().take(1)
    first.bury("no stock, " * 20)
    with Terminal("top", "--name", app.name, "--every", "0.1", url=server.url, columns=60, TERM="xterm") as terminal:
        terminal.shows("a second")  # the second look has rates
        assert "\x1b[?1049h" in terminal.seen, "on a screen of its own"
        assert first.id in terminal.seen and "no stock" in terminal.seen, "as much as there is room for"
        terminal.press(keys)
        assert terminal.ends() == 0
        assert "\x1b[?1049l" in terminal.seen, "the terminal is as it was"
