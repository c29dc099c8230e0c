"""Circuit breakers with real workers: a dependency that is down costs few attempts, and nothing is lost over it."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from relevo import Breaker, Cancel, Relevo, Retry, Snooze, metrics
from relevo.errors import OptionError, ServerUnavailable
from relevo.model.backoff import Backoff
from relevo.model.health import Status
from relevo.model.outcome import GiveBack
from relevo.store.limits import LimitInfo
from relevo.worker.trips import Trips
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, aeventually
from tests.servers import Server
from tests.system.timed import MINUTE, Times
from tests.working import drain, working

#: Opens after five failures, rests for a fifth of a second at first.
QUICK = Breaker.after(5, "10s", rest=0.2, longest=0.4)


class Bank:
    """What a task depends on; it may be down."""

    def __init__(self, app: Relevo, **options: Any) -> None:
        self.is_up = False
        self.calls = 0
        self.at_once = self.most_at_once = 0
        self.charged: list[int] = []
        options = {"retries": 3, "backoff": Backoff.fixed(0.05), "breaker": QUICK} | options

        @app.task(name="shop.charge", **options)
        async def charge(number: int, error: type[Exception] = ConnectionError) -> None:
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


async def test_a_dependency_that_is_down_makes_few_attempts_and_no_dead_letters(app: Relevo) -> None:
    """200 jobs wait for it instead, and all end well when it is back."""
    bank = Bank(app)
    await bank.charge.aenqueue_many([((number,), {}) for number in range(200)])
    async with working(app, concurrency=4):
        await aeventually(lambda: is_(app, "open"))
        await aeventually(lambda: _is_parked(app, 150))
        await aeventually(lambda: _is_idle(app), what="nothing is in hand")
        opened = bank.calls
        assert opened <= 5 + 2 * 4, "what was in hand when it opened, and no more"
        await aeventually(lambda: _has_called(bank, opened + 2))
        bank.most_at_once = 0
        await aeventually(lambda: _has_called(bank, opened + 4))
        assert bank.most_at_once <= 1, "one probe at a time"
        (row,) = [one for one in await app.apauses() if one.kind == "breaker"]
        assert (row.queue, row.name, row.by) == ("default", "shop.charge", "breaker")
        assert row.reason == "5 in 10s failed, last ConnectionError: the bank is down"
        assert row.until_ms is not None and row.until_ms > row.since_ms
        (why,) = [reason for reason in (await app.ahealth()).reasons if reason.measure == "breaker shop.charge"]
        assert why.status is Status.DEGRADED
        assert re.fullmatch(
            r"default: the breaker of task 'shop.charge' has been open for .*: 5 in 10s failed, last Connection.*",
            why.text,
        )
        text = await metrics.aexposition(app)
        assert b'relevo_queue_breakers_open{app="%s",queue="default"} 1' % app.name.encode() in text
        stats = await app.queue().astats()
        assert (stats.dead, stats.living) == (0, 200)
        bank.is_up = True
        await aeventually(lambda: _is_done(app, 200))
    assert sorted(bank.charged) == list(range(200))
    assert bank.calls - 200 < 30
    assert await app.queue().alimits() == []
    assert await app.apauses() == []
    assert not [reason for reason in (await app.ahealth()).reasons if reason.measure.startswith("breaker")]
    assert (await app.queue().astats()).dead == 0


async def _is_parked(app: Relevo, least: int) -> bool:
    found = await of_charge(app)
    return found is not None and found.parked >= least


async def _is_idle(app: Relevo) -> bool:
    return not (await app.queue().astats()).running


async def _has_called(bank: Bank, least: int) -> bool:
    return bank.calls >= least


async def _is_done(app: Relevo, count: int) -> bool:
    return (await app.queue().astats()).totals.get("done", 0) == count


async def test_other_tasks_of_the_queue_go_on(app: Relevo) -> None:
    bank = Bank(app, retries=0, breaker="1 in 1m")

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
        assert await app.queue().aresume(task=bank.charge) is True, "somebody closes it by hand"
        await second.aresult(timeout=PATIENCE)
    assert await app.queue().aresume(task="shop.charge") is False


async def test_it_rests_longer_each_time_and_is_closed_by_the_first_that_goes_well(app: Relevo) -> None:
    bank = Bank(app, retries=100, breaker=Breaker.after(1, "1m", rest=0.1, longest=0.2))
    async with working(app):
        await bank.charge.aenqueue(1)
        rests = []
        for _ in range(4):
            await aeventually(lambda: is_(app, "open"))
            (row,) = await app.apauses()
            assert row.until_ms is not None
            rests.append(row.until_ms)
            calls = bank.calls
            await aeventually(lambda calls=calls: _has_called(bank, calls + 1))  # type: ignore[misc]
            await aeventually(lambda rests=rests: _reopened(app, rests[-1]))  # type: ignore[misc]
        assert rests == sorted(set(rests))
        bank.is_up = True
        await aeventually(lambda: is_(app, ""))
    assert bank.charged == [1]


async def _reopened(app: Relevo, after_ms: int) -> bool:
    found = await app.apauses()
    return bool(found) and (found[0].until_ms or 0) > after_ms


@pytest.mark.parametrize("raised", [Snooze(60), Cancel("no"), KeyError("no such order")])
async def test_what_says_nothing_about_the_dependency_does_not_count(app: Relevo, raised: Exception) -> None:
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


async def test_a_retry_that_a_task_asks_for_and_a_time_out_count(app_factory: AppFactory) -> None:
    app = app_factory()

    @app.task(name="shop.charge", breaker="2 in 1m", timeout=0.05, retries=5)
    async def charge(slow: bool) -> None:
        if slow:
            await asyncio.sleep(60)
        raise Retry("not yet", delay=60)

    async with working(app):
        await charge.aenqueue(True)
        await charge.aenqueue(False)
        await aeventually(lambda: is_(app, "open"))


async def test_failures_that_are_far_apart_open_nothing(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    app, bank = times.app, Bank(times.app, retries=0, breaker="2 in 1m")
    for number in range(3):
        await bank.charge.aenqueue(number)
        await drain(app)  # the failure is counted before the worker ends
        times.move(2 * MINUTE)
    assert bank.calls == 3
    assert await app.queue().alimits() == []


WRONG = [
    ("often", "not a breaker: 'often'. Give text such as \"5 in 1m\""),
    ("0 in 1m", "1 to 100 failures open it, found 0"),
    ("101 in 1m", "1 to 100 failures"),
    ("5 in 60", "has no unit"),
    ("5 in 0s", "at least a millisecond"),
    (5, "not a breaker: 5"),
]


@pytest.mark.parametrize(("given", "wrong"), WRONG)
def test_a_breaker_that_makes_no_sense_is_refused(given: Any, wrong: str) -> None:
    with pytest.raises(OptionError, match=f"breaker: .*{wrong}"):
        Relevo("shop").task(name="x", breaker=given)(lambda: None)


def test_a_breaker_is_of_a_task_and_not_of_a_job(app: Relevo) -> None:
    @app.task(name="step", breaker="3 in 10s")
    def step() -> None: ...

    assert step.options.breaker == Breaker(3, 10.0, 30.0, 600.0)
    with pytest.raises(OptionError, match=r"an option of @app\.task"):
        step.using(breaker="1 in 1s")
    with pytest.raises(OptionError, match="no shorter than the first"):
        Breaker.after(1, 1, rest=10, longest=1)


async def test_what_fails_while_failures_are_told_counts_as_well(app: Relevo) -> None:
    """When a dependency goes, many fail at once: most of them while the first is being told."""
    breaker = Breaker.after(5, "10s")  # open for longer than it takes to look
    trips = Trips(app.keys_of("default"), "default", app.client.driver())
    trips.count("shop.charge", breaker, GiveBack())
    telling = asyncio.create_task(trips.tell())
    await asyncio.sleep(0)  # it waits for the server's answer now
    for _ in range(4):
        trips.count("shop.charge", breaker, GiveBack())
    await telling
    assert not trips.failed
    assert await is_(app, "open")


async def test_failures_that_cannot_be_told_are_told_later(app_factory: AppFactory) -> None:
    app = app_factory(url="redis://127.0.0.1:1/0")
    trips = Trips(app.keys_of("default"), "default", app.client.driver())
    for _ in range(3):
        trips.count("shop.charge", QUICK, GiveBack())
    with pytest.raises(ServerUnavailable):
        await trips.tell()
    assert trips.failed["shop.charge"][1] == 3
