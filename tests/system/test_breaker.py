"""Circuit breakers with real workers: a dependency that is down costs few attempts, and nothing is lost over it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from relevo import Breaker, Cancel, Relevo, Retry, Snooze, metrics
from relevo.engine.backoff import Backoff
from relevo.engine.outcome import GiveBack
from relevo.errors import OptionError, ServerUnavailable
from relevo.health.status import Status
from relevo.limits.breaker_observer import BreakerObserver
from relevo.limits.store import LimitInfo
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.timed import MINUTE, Times
from tests.working import drain, working

#: Opens after five failures, rests for ten minutes at first.
QUICK = Breaker.after(5, "1h", rest="10m", longest="20m")


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


class Bank:
    """What a task depends on; it may be down."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.is_up = False
        self.calls = 0
        self.at_once = self.most_at_once = 0
        self.charged: list[int] = []
        options = {"retries": 3, "backoff": Backoff.fixed(0.05), "breaker": QUICK} | options

        @app.task(name="shop.charge", **options)
        async def charge(number: int) -> None:
            self.calls += 1
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            await asyncio.sleep(0.005)
            self.at_once -= 1
            if not self.is_up:
                raise ConnectionError("the bank is down")
            self.charged.append(number)

        self.charge = charge


async def of_charge(app: Relevo) -> LimitInfo | None:
    found = [one for one in await app.queue().alimits() if one.task == "shop.charge"]
    return found[0] if found else None


async def is_(app: Relevo, breaker: str) -> bool:
    found = await of_charge(app)
    return (found.breaker if found else "") == breaker


async def test_a_dependency_that_is_down_costs_few_attempts_and_no_dead_letters(times: Times) -> None:
    """Its jobs wait, one at a time probes it after each rest, and all are done when it is back."""
    app = times.app
    bank = Bank(app)
    await bank.charge.aenqueue_many([((number,), {}) for number in range(50)])
    await drain(app, concurrency=4)
    assert 5 <= bank.calls <= 5 + 2 * 4, "those in hand when it opened, and no more"
    assert await is_(app, "open")
    assert await _is_parked(app, 30)
    (row,) = [one for one in await app.apauses() if one.kind == "breaker"]
    assert (row.queue, row.name, row.by) == ("default", "shop.charge", "breaker")
    assert row.reason == "5 in 1h failed, last ConnectionError: the bank is down"
    assert row.until_ms is not None and row.until_ms > row.since_ms
    (why,) = [reason for reason in (await app.ahealth()).reasons if reason.measure == "breaker shop.charge"]
    assert why.status is Status.DEGRADED
    assert re.fullmatch(
        r"default: the breaker of task 'shop.charge' has been open for .*: 5 in 1h failed, last Connection.*",
        why.text,
    )
    text = await metrics.aexposition(app)
    assert b'relevo_queue_breakers_open{app="%s",queue="default"} 1' % app.name.encode() in text
    for _ in range(2):
        times.move(30 * MINUTE)
        calls = bank.calls
        await asyncio.gather(*(Worker(app, burst=True).run() for _ in range(2)))
        assert bank.calls == calls + 1, "one probe of all workers together"
    stats = await app.queue().astats()
    assert (stats.dead, stats.living) == (0, 50)
    bank.is_up = True
    failed = bank.calls
    times.move(30 * MINUTE)
    await drain(app)  # the probe closes it
    times.move(30 * MINUTE)
    await drain(app)  # retries that were not due
    assert sorted(bank.charged) == list(range(50))
    assert bank.calls == failed + 50
    assert await app.queue().alimits() == []
    assert await app.apauses() == []
    assert not [reason for reason in (await app.ahealth()).reasons if reason.measure.startswith("breaker")]
    assert (await app.queue().astats()).dead == 0
    await app.aclose()


async def _is_parked(app: Relevo, least: int) -> bool:
    found = await of_charge(app)
    return found is not None and found.parked >= least


async def test_other_tasks_of_the_queue_go_on(app: Relevo) -> None:
    bank = Bank(app, retries=0, breaker="1 in 1h")

    @app.task(name="shop.mail")
    async def mail(number: int) -> int:
        return number

    async with working(app):
        first = await bank.charge.aenqueue(1)
        await aeventually(lambda: is_(app, "open"))
        second = await bank.charge.aenqueue(2)
        assert await (await mail.aenqueue(7)).aresult(timeout=PATIENCE) == 7
        await aeventually(lambda: _is_parked(app, 1))
        assert bank.calls == 1
        assert (await first.ainfo()).reason == "retries_exhausted"
        bank.is_up = True
        assert await app.queue().aresume(task=bank.charge) is True, "an operator closes it"
        await second.aresult(timeout=PATIENCE)
    assert await app.queue().aresume(task="shop.charge") is False


async def test_a_breaker_rests_longer_each_time_and_is_closed_by_a_success(times: Times) -> None:
    app = times.app
    bank = Bank(app, retries=100, breaker=Breaker.after(1, "1m", rest="10m", longest="30m"))
    await bank.charge.aenqueue(1)
    for minutes in (10, 20, 30, 30):
        before_ms, calls = times.now_ms(), bank.calls
        await drain(app)
        assert bank.calls == calls + 1
        (row,) = await app.apauses()
        assert before_ms + minutes * MINUTE <= (row.until_ms or 0) <= times.now_ms() + minutes * MINUTE
        times.move_to((row.until_ms or 0) + 1)
    bank.is_up = True
    await drain(app)
    assert await is_(app, "")
    assert bank.charged == [1]
    await app.aclose()


@pytest.mark.parametrize("raised", [Snooze(60), Cancel("no"), KeyError("no such order")])
async def test_snoozes_cancels_and_permanent_errors_do_not_count(app: Relevo, raised: Exception) -> None:
    @app.task(name="shop.charge", breaker="1 in 1m", give_up_on=KeyError)
    async def charge() -> None:
        raise raised

    async with working(app):
        await charge.aenqueue()
        await aeventually(lambda: _has_left(app))
    assert await app.queue().alimits() == []


async def _has_left(app: Relevo) -> bool:
    stats = await app.queue().astats()
    return not stats.ready and not stats.running


async def test_a_retry_that_a_task_asks_for_and_a_time_out_count(app: Relevo) -> None:
    @app.task(name="shop.charge", breaker="2 in 1h", timeout=0.05, retries=5)
    async def charge(slow: bool) -> None:
        if slow:
            await asyncio.Event().wait()
        raise Retry("not yet", delay=60)

    async with working(app):
        await charge.aenqueue(True)
        await charge.aenqueue(False)
        await aeventually(lambda: is_(app, "open"))


def test_a_breaker_is_of_a_task_and_not_of_a_job(app: Relevo) -> None:
    @app.task(name="step", breaker="3 in 10s")
    def step() -> None: ...

    assert step.options.breaker == Breaker(3, 10.0, 30.0, 600.0)
    with pytest.raises(OptionError, match=r"an option of @app\.task"):
        step.using(breaker="1 in 1s")
    with pytest.raises(OptionError, match="no shorter than the first"):
        Breaker.after(1, 1, rest=10, longest=1)


async def test_failures_during_the_report_of_others_are_reported_with_the_next(app: Relevo) -> None:
    """When a dependency goes, many fail at once: most of them while the first is being reported."""
    breaker = Breaker.after(5, "1h", rest="1h", longest="1h")
    trips = BreakerObserver(Worker(app), "default")
    trips.count("shop.charge", breaker, GiveBack())
    reporting = asyncio.create_task(app.engine.arun(trips.report()))
    await asyncio.sleep(0)  # it waits for the server's answer now
    for _ in range(4):
        trips.count("shop.charge", breaker, GiveBack())
    await reporting
    assert not trips.failed
    assert await is_(app, "open")


async def test_failures_that_cannot_be_reported_are_kept(app_factory: AppFactory) -> None:
    app = app_factory(url="redis://127.0.0.1:1/0")
    trips = BreakerObserver(Worker(app), "default")
    for _ in range(3):
        trips.count("shop.charge", QUICK, GiveBack())
    with pytest.raises(ServerUnavailable):
        await app.engine.client.arun(trips.report(), patience=0)
    assert trips.failed["shop.charge"][1] == 3
