"""Slots of a worker that serves several queues: no queue takes all of them, and some have a number of their own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo, State
from relevo.bus.catalogue import catalogue, concerns
from relevo.errors import OptionError, SettingsError
from relevo.worker import Worker, slots_duty
from relevo.worker.capacity import AHEAD_MOST
from relevo.worker.presence import Presence
from relevo.worker.slots_duty import SlotsDuty
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.shell import relevo
from tests.working import drain, working

SLOW = 300


class Slow:
    """Jobs that stand until they are released, on the loop or in threads."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.lock = threading.Lock()
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()

    def enter(self, name: str, by: int) -> None:
        with self.lock:
            self.running[name] += by
            self.most[name] = max(self.most[name], self.running[name])

    async def on_the_loop(self, name: str) -> None:
        self.enter(name, 1)
        try:
            while not self.released.is_set():
                await asyncio.sleep(0.01)
        finally:
            self.enter(name, -1)

    def in_a_thread(self, name: str) -> None:
        self.enter(name, 1)
        assert self.released.wait(PATIENCE)
        self.enter(name, -1)


@pytest.fixture
def slow() -> Any:
    found = Slow()
    yield found
    found.released.set()


@pytest.mark.parametrize("kind", ["loop", "threads", "both"])
async def test_slow_events_do_not_silence_the_service(bus_factory: AppFactory, slow: Slow, kind: str) -> None:
    """Handlers of 300 events stand still, and requests to the same service are answered."""
    app, shop = bus_factory("games"), bus_factory("shop")
    games = app.service("games")

    if kind == "threads":

        @games.on("shop.sold")
        def heard(n: int) -> None:
            slow.in_a_thread("events")
    else:

        @games.on("shop.sold")
        async def aheard(n: int) -> None:
            await slow.on_the_loop("events")

    if kind == "loop":

        @games.action("score", retries=0)
        async def ascore(n: int) -> int:
            return n + 1
    else:

        @games.action("score", retries=0)
        def score(n: int) -> int:
            return n + 1

    async with working(app) as worker:
        await aeventually(lambda: worker.is_registered)
        seller = shop.service("shop")
        for n in range(SLOW):
            await seller.apublish("sold", {"n": n})
        await aeventually(lambda: slow.running["events"] >= 20)
        answers = [await seller.arequest("games.score", {"n": n}, timeout=PATIENCE) for n in range(5)]
        assert answers == [1, 2, 3, 4, 5]
        assert slow.running["events"] >= 20
        slow.released.set()
        await aeventually(lambda: slow.running["events"] == 0)
    await shop.aclose()


@pytest.mark.parametrize("kind", ["coroutine", "thread"])
async def test_a_queue_with_slots_takes_so_many_and_has_them(app: Relevo, slow: Slow, kind: str) -> None:
    task = app.task(name="step", result_ttl=0)(slow.on_the_loop if kind == "coroutine" else slow.in_a_thread)
    for queue in ("bulk", "mail", "rest"):
        await task.using(queue=queue).aenqueue_many([((queue,), {})] * 40)
    async with working(app, queues=["bulk:10", "mail:5", "rest"], concurrency=20, threads=20):
        await aeventually(lambda: slow.running == {"bulk": 10, "mail": 5, "rest": 5})
        slow.released.set()
        await aeventually(lambda: not (slow.running.total()))
    assert (slow.most["bulk"], slow.most["mail"]) == (10, 5)
    assert slow.most.total() <= 20 + 10 + 5


@pytest.mark.parametrize("end", ["done", "retry", "dead"])
async def test_claims_of_several_queues_stay_bounded(app: Relevo, end: str) -> None:
    """A killed worker's claims run again, so there must not be more of them than documented."""

    @app.task(result_ttl=0, retries=int(end == "retry"), backoff=3600)
    async def step(number: int) -> None:
        if end != "done":
            raise ValueError(number)

    queues = ["one", "two", "three:10"]
    for queue in ("one", "two", "three"):
        await step.using(queue=queue).aenqueue_many([((number,), {}) for number in range(1_500)])
    most = looks = 0
    async with working(app, queues=queues, concurrency=50) as worker:
        while worker.done + worker.failed < 4_500:
            most, looks = max(most, worker.in_hand if worker.is_registered else 0), looks + 1
            await asyncio.sleep(0)
    assert looks > 10
    assert most <= 50 + AHEAD_MOST + len(queues)  # each idle queue may be handed one


async def test_all_queues_with_slots_need_no_concurrency(app: Relevo) -> None:
    assert Worker(app, queues=["default:150", "mail:30"]).concurrency == 180
    assert Worker(app, queues=["mail:30"]).concurrency == 30
    assert Worker(app, queues=["default", "mail:30"]).concurrency == 100
    for wrong, text in ((["a:80", "b:30"], "110 slots"), (["a:100", "b"], "'b' needs some")):
        with pytest.raises(OptionError, match=text):
            Worker(app, queues=wrong, concurrency=100)


async def test_queues_and_slots_may_stand_in_the_settings(app_factory: AppFactory, slow: Slow) -> None:
    app = app_factory("shop", queues=["bulk:2", "mail"])
    task = app.task(name="step", result_ttl=0)(slow.on_the_loop)
    assert Worker(app).queues == ("bulk", "mail")
    assert Worker(app, queues=["other"]).queues == ("other",)
    await task.using(queue="bulk").aenqueue_many([(("bulk",), {})] * 5)
    async with working(app):
        await aeventually(lambda: slow.running["bulk"] == 2)
        slow.released.set()
        await aeventually(lambda: not (slow.running.total()))
    assert slow.most["bulk"] == 2
    with pytest.raises(SettingsError, match="slots are a number"):
        app_factory("shop", queues=["bulk:0"])


async def test_jobs_that_wait_for_a_place_can_be_cancelled_and_end(app: Relevo, slow: Slow) -> None:
    """Slots of jobs that end in any way are free again."""
    task = app.task(name="step", result_ttl=0, retries=0)(slow.on_the_loop)
    jobs = await task.using(queue="bulk").aenqueue_many([(("bulk",), {})] * 6)
    async with working(app, queues=["bulk:3", "mail:3"], concurrency=6):
        await aeventually(lambda: slow.running["bulk"] == 3)
        for job in jobs:
            await job.acancel()
        later = await task.using(queue="bulk").aenqueue_many([(("late",), {})] * 3)
        await aeventually(lambda: slow.running["late"] == 3)
        slow.released.set()
        await aeventually(lambda: not slow.running.total())
    assert len(later) == 3


async def test_a_burst_of_several_queues_ends(app: Relevo) -> None:
    @app.task(result_ttl=0)
    async def step(number: int) -> None: ...

    @app.task(result_ttl=0)
    def plain(number: int) -> None: ...

    for queue in ("one", "two", "three"):
        for task in (step, plain):
            await task.using(queue=queue).aenqueue_many([((number,), {}) for number in range(200)])
    worker = await drain(app, queues=["one:2", "two", "three"], concurrency=4, threads=3)
    assert worker.done == 1_200


# slots that are all taken


@contextmanager
def warned(caplog: pytest.LogCaptureFixture) -> Iterator[list[str]]:
    lines: list[str] = []
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="relevo.worker"):
        yield lines
    lines += [record.getMessage() for record in caplog.records if "slots are taken" in record.getMessage()]


@pytest.mark.parametrize("queues", [["bulk"], ["bulk", "mail"]])
async def test_slots_that_are_all_taken_are_logged_once_and_shown(
    app_factory: AppFactory, slow: Slow, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch,
    queues: list[str],
) -> None:  # fmt: skip
    app = app_factory(health_limits={"full_age": "1ms"})
    task = app.task(name="step", result_ttl=0)(slow.on_the_loop)
    most = 4 if len(queues) == 1 else 3
    with warned(caplog) as lines:
        async with working(app, queues=queues, concurrency=4) as worker:
            await task.using(queue="bulk").aenqueue_many([(("bulk",), {})] * most)
            await aeventually(lambda: slow.running["bulk"] == most)
            duty = next(one for one in worker.duties if isinstance(one, SlotsDuty))
            monkeypatch.setattr(slots_duty, "FULL_AFTER", 0.0)
            for _ in range(3):
                assert await duty.run_once() == {}, "no job waits"
            await task.using(queue="bulk").aenqueue_many([(("bulk",), {})] * 7)
            await aeventually(lambda: worker.capacity.in_hand == most)
            for _ in range(3):
                assert (await duty.run_once()).keys() == {"bulk"}
            await Presence(worker).run_once()
            found = await app.ahealth()
            (reason,) = [one for one in found.reasons if one.measure == "slots"]
            assert reason.text.startswith("bulk: no free slot on 1 worker for ")
            assert ", 7 jobs due: more slots (-c, -Q) or workers" in reason.text
            slow.released.set()
            await aeventually(lambda: worker.done == most + 7)
            assert await duty.run_once() == {}
    mine = [
        line for line in lines if line.startswith(f"bulk: all of its {most} slots are taken, no job has ended for ")
    ]
    assert len(mine) == 1
    assert ("-Q bulk:N" in mine[0]) is (len(queues) > 1)


async def test_services_show_that_no_slot_is_free(bus_factory: AppFactory, slow: Slow, monkeypatch: Any) -> None:
    app, shop = bus_factory("games"), bus_factory("shop")

    @app.service("games").on("shop.sold")
    async def heard(n: int) -> None:
        await slow.on_the_loop("events")

    @app.service("games").action("score")
    async def score(n: int) -> int:
        return n

    async with working(app, concurrency=4) as worker:
        await aeventually(lambda: worker.is_registered)
        for n in range(20):
            await shop.service("shop").apublish("sold", {"n": n})
        await aeventually(lambda: slow.running["events"] == 3)
        monkeypatch.setattr(slots_duty, "FULL_AFTER", 0.0)
        duty = next(one for one in worker.duties if isinstance(one, SlotsDuty))

        async def is_full() -> bool:
            return bool(await duty.run_once())

        await aeventually(is_full)
        worker.register_again()
        queue = "games:notifications:shop.sold"

        async def text() -> str | None:
            found = concerns(await app.engine.arun(catalogue(app.engine)))
            return next((one for one in found if one.startswith(f"queue {queue!r}: ")), None)

        shown = await aeventually(text)
        assert "messages wait, and no process has had a free slot for " in shown
        slow.released.set()
        await aeventually(lambda: not slow.running.total() and worker.done >= 20)
    await shop.aclose()


# the command line


def test_queues_of_several_options_add_up(app: Relevo, server: Server, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(f"""
from relevo import Relevo, State

app = Relevo({app.name!r}, env="test")


@app.task
async def step(number: int) -> int:
    return number
""")
    step = app.task(name="shop.step")(lambda number: number)
    queues = ("one", "two", "three", "four")
    jobs = {queue: step.using(queue=queue).enqueue(1) for queue in queues}
    options = ("-Q", "one,two", "-Q", "three:5")
    ran = relevo("worker", "shop:app", *options, "--burst", cwd=tmp_path, url=server.url)
    assert ran.code == 0, ran.err
    assert "queues one, two, three:5, 100 at once" in ran.err
    assert [jobs[queue].result(timeout=PATIENCE) for queue in queues[:3]] == [1, 1, 1]
    assert jobs["four"].state() is State.READY
    jobs["four"].cancel()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-Q", "one:80,two:40", "-c", "100"), "120 slots are given to queues, of 100"),
        (("-Q", "one:0"), "slots are a number from 1"),
        (("-Q", "one:5", "-Q", "one:6"), "queue 'one' has one number of slots, found 5 and 6"),
    ],
)
def test_slots_that_do_not_fit_are_refused_at_once(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    ran = relevo("worker", "shop:app", *options, cwd=tmp_path)
    assert ran.code == 2
    assert message in ran.err
