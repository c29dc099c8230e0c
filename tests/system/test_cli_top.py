"""`relevo top`: what happens right now, as an operator sees it."""

from __future__ import annotations

import os
import pty
import subprocess
import time

from relevo import Relevo
from relevo.cli.top_look import Look, Pace, QueueLook, looking, paces, together
from relevo.cli.top_view import _shares, bars
from relevo.store.queues import QueueStats
from relevo.worker import Worker
from tests.eventually import eventually
from tests.servers import Server
from tests.system.shell import command, environment, relevo


def look_of(now_ms: int, **totals: int) -> Look:
    stats = QueueStats("mails", 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, False, None, totals)
    return Look("shop", "test", now_ms, "valkey", 0, 1, 0, [QueueLook(stats, None)], [], [], [])


def test_rates_are_what_happened_between_two_looks() -> None:
    before, after = look_of(1_000, enqueued=100, done=50), look_of(3_000, enqueued=120, done=150, retry=3, dead=1)
    assert paces(None, after) == {}
    assert paces(before, before) == {}, "no time has passed"
    assert paces(before, after) == {"mails": Pace(10.0, 50.0, 2.0)}
    assert together(paces(before, after)) == Pace(10.0, 50.0, 2.0)


def test_counters_that_began_anew_are_no_step_back() -> None:
    assert paces(look_of(1_000, done=100), look_of(2_000, done=3)) == {"mails": Pace(0.0, 0.0, 0.0)}


def test_bars_are_as_high_as_the_numbers() -> None:
    assert bars([0, 4, 8]) == "▁▄█"
    assert (bars([]), bars([0, 0])) == ("", "")


def test_each_table_gets_its_least_and_the_first_ones_what_is_left() -> None:
    assert _shares(60, [2, 1, 20, 20], least=[3, 1, 2, 2]) == [2, 1, 20, 20]
    assert sum(_shares(30, [50, 1, 20, 20], least=[3, 1, 2, 2])) == 18
    assert _shares(5, [50, 1, 20, 20], least=[3, 1, 2, 2]) == [3, 1, 2, 2]


def busy(app: Relevo) -> None:
    """Something ran, something failed, something waits."""

    @app.task(retries=0)
    def charge(n: int) -> None:
        if n == 0:
            raise ConnectionError("the bank is away")

    charge.enqueue_many([((n,), {}) for n in range(5)])


def test_a_look_tells_of_queues_running_jobs_and_failures(app: Relevo) -> None:
    busy(app)
    (first, *_) = app.queue().take(1)
    first.bury("no stock")
    (held, *_) = app.queue().take(1, worker="w7")
    found = app.run(looking(app))
    (queue,) = found.queues
    assert (queue.stats.ready, queue.stats.running, queue.stats.dead) == (3, 1, 1)
    assert queue.oldest_age_ms is not None and 0 <= queue.oldest_age_ms < 60_000
    assert [(job.id, job.worker, job.queue) for job in found.running] == [(held.id, "w7", "default")]
    assert [(job.id, job.reason) for job in found.failures] == [(first.id, "no stock")]


async def test_a_worker_is_shown_with_its_load(app: Relevo) -> None:
    worker = Worker(app, concurrency=7, burst=True)
    busy(app)
    await worker.run()
    assert (await app.arun(looking(app))).workers == [], "it said goodbye"


def test_without_a_terminal_one_report_is_printed(server: Server, app: Relevo) -> None:
    busy(app)
    seen = relevo("top", "--name", app.name, "--every", "0.1", url=server.url)
    assert seen.code == 0, seen
    assert "default" in seen.out and "workers: none" in seen.out and "\x1b" not in seen.out
    report = relevo("top", "--name", app.name, "--every", "0.1", "--json", url=server.url).json
    assert report["per_second"] == {"default": {"enqueued": 0.0, "done": 0.0, "failed": 0.0}}
    assert report["look"]["queues"][0]["stats"]["ready"] == 5
    assert report["seconds"] >= 0.1


def test_on_a_terminal_it_refreshes_until_q_is_pressed(server: Server, app: Relevo) -> None:
    busy(app)
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        command("top", "--name", app.name, "--every", "0.1"),
        env=environment(server.url, TERM="xterm", COLUMNS="120", LINES="40"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    seen = b""

    def shows(text: bytes) -> bool:
        nonlocal seen
        try:
            seen += os.read(ours, 65536)
        except BlockingIOError:
            time.sleep(0.01)
        return text in seen

    try:
        eventually(lambda: shows(b"a second"), timeout=20, what="the second look, with rates")
        assert b"\x1b[?1049h" in seen, "on a screen of its own"
        os.write(ours, b"q")
        assert started.wait(20) == 0
        eventually(lambda: shows(b"\x1b[?1049l"), what="and the terminal is as it was")
    finally:
        started.kill()
        os.close(ours)
