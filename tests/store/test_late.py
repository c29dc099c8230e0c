"""Requests that the network delivers late, or whose replies it loses: stored once, not after their callers gave up."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relevo.bus.delivery_store import Event, Recipient, put_events
from relevo.bus.event_store import ANYWHERE, publish
from relevo.bus.message_store import Asked, Place, ask, promise, send
from relevo.bus.subscription_store import Subscription, subscribe
from relevo.engine.push import NewJob, push_plain, push_rich
from relevo.errors import OutcomeUnknown, ServerUnavailable
from relevo.schedules.schedule import schedule_of
from relevo.schedules.store import Tick, enroll, fire
from relevo.store.call_numbers import KEPT, Numbers, ServerClock
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.store.replies import Late
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.store.desk import Desk, new_id
from tests.store.lines import OpenLine

INBOX = b"{relevo:test}:inbox:p1"
LEASE_MS = 30_000


def plain(keys: QueueKeys, id: str) -> Call[Any]:
    return push_plain(keys, [(id, b"{}")], 100, LEASE_MS)


def many(keys: QueueKeys, id: str) -> Call[Any]:
    return push_plain(keys, [(id, b"{}"), (new_id(), b"{}")], 100, LEASE_MS)


def rich(keys: QueueKeys, id: str) -> Call[Any]:
    return push_rich(keys, [NewJob(id, 100, b"{}", tenant="tenant")])


def message(keys: QueueKeys, id: str) -> Call[Any]:
    return send(keys, id, b'{"t":"a.b"', Place(100), lease_ms=LEASE_MS)


def request(keys: QueueKeys, id: str) -> Call[Any]:
    return send(keys, id, b'{"t":"a.b"', Place(100), lease_ms=LEASE_MS, waiter=INBOX, timeout_ms=60_000)


def requests(keys: QueueKeys, id: str) -> Call[Any]:
    return ask(keys, INBOX, [Asked(id, "", Place(100), 60_000, b'{"t":"a.b"')], lease_ms=LEASE_MS)


def callback(keys: QueueKeys, id: str) -> Call[Any]:
    return promise(keys, "default", id, Place(100), b"{}", timeout_ms=60_000, failure_ms=60_000)


def event(keys: QueueKeys, id: str) -> Call[Any]:
    sold = Event(id, "shop.sold", 1, b'{"t":"a.b"', (), ANYWHERE)
    return put_events(keys, Recipient("a:notifications", 10, "old", 60_000), [sold])


kinds = pytest.mark.parametrize("make", [plain, many, rich, message, request, requests, callback, event])


def enqueued(desk: Desk) -> int:
    return int(desk.ask("HGET", "stats", "enqueued") or 0)


def end_all(desk: Desk) -> None:
    """Remove what was stored, as the end of jobs does that leave no record."""
    for key in desk.server.command("KEYS", f"{{{desk.keys.address}}}:*"):
        if b"}:sent:" not in key and not key.endswith(b"}:stats"):
            desk.server.command("DEL", key)


def forget_sessions(desk: Desk) -> None:
    """As the server does after some time."""
    for name in desk.server.command("KEYS", f"{{{desk.keys.address}}}:sent:*"):
        desk.server.command("DEL", name)


@kinds
def test_a_request_that_comes_after_its_repetition_was_carried_out_is_refused(
    line: OpenLine, proxy: Proxy, desk: Desk, make: Callable[[QueueKeys, str], Call[Any]]
) -> None:
    store = line(proxy.url, call_timeout=0.5)
    store.run(make(desk.keys, new_id()))
    end_all(desk)
    before = enqueued(desk)
    proxy.hold_requests()
    store.run(make(desk.keys, new_id()))  # carried out when it is repeated on a new connection
    once = enqueued(desk)
    assert once > before
    end_all(desk)
    errors = late_replies(desk)
    proxy.let_requests_go()
    eventually(lambda: late_replies(desk) > errors, what="the first request reaches the server")
    assert enqueued(desk) == once
    assert desk.ask("HLEN", "jobs") == 0


def late_replies(desk: Desk) -> int:
    """How many calls of all queues the server refused as late."""
    stats: Any = desk.server.command("INFO", "errorstats")
    return int(stats["errorstat_LATE"]["count"]) if "errorstat_LATE" in stats else 0


@kinds
def test_a_request_whose_reply_was_lost_is_stored_once_although_nothing_is_left_of_it(
    line: OpenLine, proxy: Proxy, desk: Desk, make: Callable[[QueueKeys, str], Call[Any]]
) -> None:
    store = line(proxy.url)
    with ThreadPoolExecutor(1) as caller:
        caller.submit(store.run, make(desk.keys, new_id())).result()
        before = enqueued(desk)
        proxy.hold_replies()
        said = caller.submit(store.run, make(desk.keys, new_id()))
        eventually(lambda: enqueued(desk) > before, what="it is carried out")
        once = enqueued(desk)
        end_all(desk)
        proxy.reset_all()
        proxy.heal()
        said.result()
    assert enqueued(desk) == once
    assert desk.ask("HLEN", "jobs") == 0


@kinds
def test_a_request_that_comes_when_its_caller_has_given_up_is_refused(
    line: OpenLine, proxy: Proxy, desk: Desk, make: Callable[[QueueKeys, str], Call[Any]]
) -> None:
    store = line(proxy.url, call_timeout=0.3)
    store.run(make(desk.keys, new_id()))
    end_all(desk)
    once = enqueued(desk)
    proxy.hold_requests()
    proxy.refuse()
    with pytest.raises(OutcomeUnknown) as told:
        store.run(make(desk.keys, new_id()))
    assert not told.value.is_safe
    forget_sessions(desk)
    errors = late_replies(desk)
    proxy.let_requests_go()
    eventually(lambda: late_replies(desk) > errors, what="it reaches the server")
    assert (enqueued(desk), desk.ask("HLEN", "jobs")) == (once, 0)


def test_an_error_of_unknown_outcome_says_that_a_named_job_can_be_enqueued_again(
    line: OpenLine, proxy: Proxy, desk: Desk
) -> None:
    store = line(proxy.url, call_timeout=0.3)
    named = NewJob(new_id(), 100, b"{}", name="report", scope="60000")
    store.run(push_rich(desk.keys, [named]))
    proxy.hold_requests()
    proxy.refuse()
    with pytest.raises(OutcomeUnknown, match="can be repeated") as told:
        store.run(push_rich(desk.keys, [named]))
    assert told.value.is_safe


def test_a_request_that_never_left_is_no_unknown_outcome(line: OpenLine, desk: Desk) -> None:
    store = line(f"redis://127.0.0.1:{free_port()}", call_timeout=0.3)
    with pytest.raises(ServerUnavailable) as told:
        store.run(plain(desk.keys, new_id()))
    assert not isinstance(told.value, OutcomeUnknown)


@pytest.mark.parametrize("seconds", [-100_000, -60, 60, 100_000])
def test_steps_of_the_servers_clock_cost_one_repetition_and_surface_nowhere(
    line: OpenLine, desk: Desk, server: Server, seconds: int
) -> None:
    store = line(server.url)
    began_ms = desk.clock.now_ms
    for shift in (0, seconds, 0):
        desk.clock.set(began_ms + shift * 1000)
        forget_sessions(desk)
        for make in (plain, rich, requests):
            store.run(make(desk.keys, new_id()))
    assert desk.ask("HLEN", "jobs") == 9


def test_a_wrong_clock_of_the_caller_is_corrected_by_the_server(desk: Desk) -> None:
    clock = ServerClock()
    clock.learn(clock.now_ms() + 3_600_000)
    numbers = Numbers(clock, 5.0)
    call = plain(desk.keys, new_id())

    def run() -> Any:
        return desk.run(Call(call.command(numbers.next(call.route), text=True), call.decode))

    with pytest.raises(Late) as refused:
        run()
    numbers.refused(call.route, refused.value)
    assert run() == 1


def test_a_request_refused_in_mid_session_lets_none_behind_it_pass(desk: Desk) -> None:
    """Otherwise the counter would say of the refused one that it was carried out."""
    numbers = Numbers(ServerClock(), 5.0)
    calls = [plain(desk.keys, new_id()) for _ in range(3)]
    tries = [numbers.next(call.route) for call in calls]
    say = [Call(call.command(tried, text=True), call.decode) for call, tried in zip(calls, tries, strict=True)]
    assert desk.run(say[0]) == 1
    with pytest.raises(Late):
        desk.run(say[2])  # the second one was refused: out of memory, perhaps
    assert desk.run(say[1]) == 1
    assert desk.run(say[2]) == 1


def test_a_session_leaves_one_key_with_a_time_limit(desk: Desk) -> None:
    numbers = Numbers(ServerClock(), 5.0)
    for _ in range(5):
        call = plain(desk.keys, new_id())
        desk.run(Call(call.command(numbers.next(call.route), text=True), call.decode))
    (key,) = desk.server.command("KEYS", f"{{{desk.keys.address}}}:sent:*")
    assert 0 < desk.server.command("PTTL", key) <= 5000 * KEPT


def late_and_lost(call: Call[Any], desk: Desk) -> tuple[Any, Any]:
    """What is said to a call that is carried out and whose reply is lost, and to its repetition; then it comes late."""
    numbers = Numbers(ServerClock(), 5.0)
    numbers._clock.learn(desk.clock.now_ms)
    tried = numbers.next(*call.numbering)
    first = Call(call.command(tried, text=True), call.decode)
    said = desk.run(first)
    for name in ("jobs", "ready", "clock", "letters", "errands"):
        desk.ask("DEL", name)
    again = numbers.next(call.route, tried.name)
    repeated = desk.run(Call(call.command(again, text=True), call.decode))
    with pytest.raises(Late):
        desk.run(first)
    desk.clock.advance(60_000)
    with pytest.raises(Late):
        desk.run(Call(call.command(numbers.next(*call.numbering), text=True), call.decode))
    return said, repeated


def test_a_schedule_that_is_run_now_runs_once(desk: Desk) -> None:
    hourly = schedule_of(name="hourly", target="shop.report", every="1h")
    desk.run(enroll(desk.keys, hourly, desk.clock.now_ms + 3_600_000, ""))
    job = NewJob(new_id(), 100, b"{}")
    call = fire(desk.keys, hourly, [Tick(1, job)], due_ms=None, fail_ms=60_000)
    assert late_and_lost(call, desk) == ([job.id], [job.id])
    assert desk.ask("HLEN", "jobs") == 0


def test_an_event_whose_letter_was_delivered_is_not_published_again(desk: Desk) -> None:
    desk.run(subscribe(desk.keys, [Subscription(pattern="shop.*", service="mail", queue="mail:notifications:shop")]))
    call = publish(desk.keys, "shop.sold", new_id(), b'{"t":"x"')
    said, repeated = late_and_lost(call, desk)
    assert said.is_wanted
    assert not repeated.is_wanted
    assert desk.ask("HLEN", "letters") == 0
