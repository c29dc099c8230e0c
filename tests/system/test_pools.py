"""Pools: entities with metadata move through named states, one step at a time, and what fails is a dead letter."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from relevo import Relevo
from relevo.dead.export import Imported
from relevo.errors import JobError, OptionError, PayloadError
from relevo.health.status import Status
from relevo.pools.pool import Entity, Pool
from relevo.pools.store import revive_entity
from relevo.store.plan import Call
from relevo.text.names import is_pool_name, parse, pool_name
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.timed import HOUR, MINUTE, Times

STATES = ("pending", "ready", "running", "completed", "discovered", "migrating")


@pytest.fixture
def times(server: Server, app_factory: AppFactory) -> Times:
    return Times(server, app_factory)


@pytest.fixture
def vms(times: Times) -> Pool:
    """A pool in a time that the test moves."""
    return times.app.pool("vms", states=STATES)


def places(pool: Pool) -> dict[str, int]:
    """The states that hold some."""
    return {state: count for state, count in pool.counts().items() if count}


def test_entity_moves_through_its_states_with_its_metadata(vms: Pool, times: Times) -> None:
    """States, and metadata in a hash."""
    assert vms.add("vm-1", template="centos-7", cores=4)
    first = vms.get("vm-1")
    assert first is not None
    assert (first.id, first.pool, first.state) == ("vm-1", "vms", "pending")
    assert first.metadata == {"template": "centos-7", "cores": 4}
    assert abs(first.since_ms - times.now_ms()) < MINUTE
    times.move(MINUTE)
    assert vms.move("vm-1", "pending", "ready", ip="10.0.0.7", cores=None)
    later = vms.get("vm-1")
    assert later is not None and later.state == "ready"
    assert later.metadata == {"template": "centos-7", "ip": "10.0.0.7"}
    assert later.since_ms - first.since_ms >= MINUTE
    assert places(vms) == {"ready": 1}
    assert vms.counts().keys() == set(STATES)


def test_entity_is_moved_only_from_where_it_is(vms: Pool) -> None:
    vms.add("vm-1")
    assert not vms.move("vm-1", "ready", "running", ip="x")
    assert not vms.move("vm-2", "pending", "ready")
    assert places(vms) == {"pending": 1}
    assert vms.get("vm-1").metadata == {}  # type: ignore[union-attr]
    assert vms.get("vm-2") is None


def test_entity_is_added_once(vms: Pool) -> None:
    assert vms.add("vm-1", size=1)
    assert not vms.add("vm-1", "ready", size=2)
    assert vms.get("vm-1").metadata == {"size": 1}  # type: ignore[union-attr]


def test_one_of_many_concurrent_moves_of_an_entity_wins(app: Relevo) -> None:
    pool = app.pool("vms")
    pool.add("vm-1")

    async def race() -> list[bool]:
        moves = (pool.amove("vm-1", "pending", f"taken-{n}") for n in range(20))
        won = await asyncio.gather(*moves)
        await app.aclose()
        return won

    assert sum(asyncio.run(race())) == 1
    assert sum(pool.counts().values()) == 1
    (state,) = pool.counts()
    assert pool.remove("vm-1", state)


def test_an_error_that_cannot_be_printed_is_a_reason_as_well(vms: Pool, app: Relevo) -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise KeyError("no words")

    vms.add("vm-1")
    assert vms.fail("vm-1", Mute())
    (letter,) = app.dead.list(queue=vms.queue)
    assert letter.error == "Mute: (its text could not be had: KeyError)"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        *((text.encode(), text) for text in ("by hand", "12 apples", "{", '"\\', "10.0.0.7", "2026-11-16", "007")),
        *((text.encode(), text) for text in ("1-2", "1,2", "[0x10]", "[NaN]", "nan")),
        (b"", ""),
        (b"caf\xe9", "caf\ufffd"),
        (b'"caf\xe9"', "caf\ufffd"),
        (b'"\xed\xa0\x80"', "\ufffd"),
        ('"café 🦊"'.encode(), "café 🦊"),
        (b"-1.5e3", -1500.0),
        (b"12345678901234567890", 12345678901234567890),
        (b"null", None),
        (b'{"a": []}', {"a": []}),
    ],
)
def test_fields_that_other_programs_wrote_into_an_entity_are_kept(
    vms: Pool, server: Server, written: bytes, read: Any
) -> None:
    """Not all of it is JSON, nor even text: neither a look nor a dead letter may break of it."""
    ours: dict[str, Any] = {"cores": 4, "tags": ["a"], "is_up": True, "size": -1.5e300}
    vms.add("vm-1", **ours)
    server.command("HSET", vms.keys.own("entity", "vm-1"), "theirs", written, b"caf\xe9", "1")
    assert [one.id for one in vms.items("pending")] == ["vm-1"]
    letter = vms.fail("vm-1", "no ip") or ""
    assert vms.dead()[0].metadata == {**ours, "theirs": read, "caf\ufffd": 1}
    assert vms.retry(letter)
    assert vms.get("vm-1").metadata == {**ours, "theirs": read, "caf\ufffd": 1}  # type: ignore[union-attr]


def test_expired_dead_letters_of_a_pool_do_not_count(vms: Pool, times: Times, server: Server) -> None:
    for n in range(150):
        vms.add(f"vm-{n}")
        letter = vms.fail(f"vm-{n}", "no ip") or ""
        if n < 149:
            server.command("DEL", vms.keys.own("ended", letter))
    (health,) = times.app.health().pools
    assert (health.vitals.dead, health.status) == (1, Status.HEALTHY)


def test_the_counters_of_a_pool_live_as_long_as_it_is_used(vms: Pool, server: Server) -> None:
    vms.add("vm-1")
    key = vms.keys.key("stats")
    server.command("PEXPIRE", key, 1000)
    vms.add("vm-2")
    assert server.command("PTTL", key) > 60_000


def test_failed_entity_is_a_dead_letter_with_its_metadata(vms: Pool, times: Times) -> None:
    """Entity, pool, state, error, time, retries, request, alias, and all metadata."""
    vms.add("vm-1", template="centos-7", request_id="req-123456", alias="centos-7", nested={"a": [1, 2.5, None]})
    times.move(MINUTE)
    try:
        raise LookupError("template does not exist")
    except LookupError as error:
        letter = vms.fail("vm-1", error, ip="10.0.0.7")
    assert letter is not None
    (dead,) = vms.dead()
    assert (dead.id, dead.entity, dead.pool, dead.queue_from) == (letter, "vm-1", "vms", "pending")
    assert (dead.error_class, dead.error_message) == ("LookupError", "template does not exist")
    assert "raise LookupError" in dead.traceback
    assert abs(dead.failed_at_ms - times.now_ms()) < MINUTE
    assert (dead.retry_count, dead.request_id, dead.alias) == (0, "req-123456", "centos-7")
    assert dead.metadata["nested"] == {"a": [1, 2.5, None]} and dead.metadata["ip"] == "10.0.0.7"
    assert places(vms) == {}
    left = vms.get("vm-1")
    assert left is not None and left.state == "" and left.metadata["ip"] == "10.0.0.7"
    assert vms.fail("vm-1", "again") is None


def test_dead_letters_of_a_pool_are_listed_shown_and_discarded_as_those_of_queues(vms: Pool, times: Times) -> None:
    """One structure for all."""
    app = times.app
    vms.add("vm-1", ip=[None], size=7)
    vms.add("vm-2")
    letter = vms.fail("vm-1", TimeoutError("no ip address"), "pending")
    assert letter is not None
    for rows in (app.dead.list(queue=vms.queue), app.dead.list()):
        (row,) = rows
        assert (row.id, row.queue, row.task, row.reason) == (letter, vms.queue, "pool:vms", "failed")
        assert (row.name, row.error) == ("vm-1", "TimeoutError: no ip address")
    shown = app.dead.show(letter)
    assert shown.attempts[0].error == "TimeoutError"
    assert (shown.name, shown.kwargs) == ("vm-1", {"ip": [None], "size": 7})
    with pytest.raises(JobError, match="retry it, and update its metadata"):
        app.dead.edit(letter, args=[1])
    with pytest.raises(JobError, match="relevo dead retry"):
        app.job(letter).retry()
    assert app.dead.discard([letter]) == 1
    assert vms.dead() == []
    vms.remove("vm-2")


def test_dead_letters_of_a_pool_are_limited_and_the_oldest_go_first(app_factory: AppFactory) -> None:
    app = app_factory(dead_max=3)
    pool = app.pool("vms")
    for n in range(5):
        pool.add(f"vm-{n}")
        pool.fail(f"vm-{n}", "broken")
    assert [one.entity for one in pool.dead()] == ["vm-4", "vm-3", "vm-2"]
    assert app.queue(pool.queue).stats().totals["dropped"] == 2


def test_dead_letter_of_a_pool_ends_by_itself(app_factory: AppFactory, server: Server) -> None:
    """Per entry, not for all at once."""
    app = app_factory(failure_ttl="1h")
    pool = app.pool("vms", data_ttl="2h")
    pool.add("vm-1")
    letter = pool.fail("vm-1", "broken") or ""
    assert 3_000_000 < server.command("PTTL", pool.keys.own("ended", letter)) <= 3_600_000
    assert 6_600_000 < server.command("PTTL", pool.keys.own("entity", "vm-1")) <= 7_200_000


def test_entity_comes_back_from_its_dead_letter_once(vms: Pool) -> None:
    vms.add("vm-1", template="centos-7", size=7)
    letter = vms.fail("vm-1", "no ip") or ""
    assert vms.retry(letter)
    assert not vms.retry(letter)
    back = vms.get("vm-1")
    assert back is not None
    assert (back.state, back.metadata, back.retries) == ("pending", {"template": "centos-7", "size": 7}, 1)
    again = vms.fail("vm-1", "no ip") or ""
    assert vms.dead()[0].retry_count == 1
    assert vms.retry(again, to="discovered")
    assert places(vms) == {"discovered": 1}
    assert vms.dead() == []


def test_a_return_whose_reply_was_lost_counts_when_it_is_asked_again(vms: Pool, times: Times) -> None:
    vms.add("vm-1")
    letter = vms.fail("vm-1", "no ip") or ""
    call = revive_entity(vms.keys, letter, "vm-1", "ready", 1, {})
    again = Call(call.command(repeated=True, text=True), call.decode)
    assert [times.app.engine.run(one) for one in (again, again, call)] == [1, 1, 0]
    assert places(vms) == {"ready": 1}


@pytest.mark.parametrize("road", ["ids", "filter", "replay", "canary"])
def test_entities_are_restored_with_the_calls_of_all_dead_letters(vms: Pool, times: Times, road: str) -> None:
    """Each to the state it came from, once; one whose name is taken is left and reported."""
    dead = times.app.dead
    vms.add("vm-1", "ready", size=7)
    vms.add("vm-2")
    ids = [vms.fail("vm-1", "unreachable") or "", vms.fail("vm-2", "no ip") or ""]
    if road in ("ids", "filter"):
        assert (dead.retry(ids) if road == "ids" else dead.retry(queue=vms.queue, error="n")) == 2
    else:
        run = dead.replay(all=True, queue=vms.queue, canary=road == "canary")
        assert (run.state, run.retried, run.left) == ("done", 2, 0)
    assert (places(vms), dead.list()) == ({"pending": 1, "ready": 1}, [])
    back = vms.get("vm-1")
    assert back is not None
    assert (back.metadata, back.retries) == ({"size": 7}, 1)
    assert dead.retry(ids) == 0, "once"

    taken = vms.fail("vm-1", "unreachable") or ""
    vms.add("vm-1")
    why = f"{taken} cannot come back: pool vms has an entity 'vm-1' already"
    for wish in ({"ids": [taken]}, {"queue": vms.queue, "error": "n"}):
        with pytest.raises(JobError, match=why):
            dead.retry(**wish)
    assert not vms.retry(taken)
    run = dead.replay(all=True, queue=vms.queue)
    assert (run.retried, run.left) == (0, 1)
    assert why in run.why
    for id in ("vm-1", "vm-2"):
        vms.remove(id)


def test_metadata_of_a_removed_entity_expires(vms: Pool, server: Server) -> None:
    vms.add("vm-1", ip="10.0.0.7")
    key = vms.keys.own("entity", "vm-1")
    assert server.command("TTL", key) == -1
    assert not vms.remove("vm-1", "ready")
    assert vms.remove("vm-1")
    assert not vms.remove("vm-1")
    assert 600_000 < server.command("TTL", key) <= 604_800
    assert vms.add("vm-1"), "one that left can come again"
    assert vms.get("vm-1").metadata == {}  # type: ignore[union-attr]
    assert server.command("TTL", key) == -1


def test_pages_of_a_state_begin_with_the_oldest_entity(vms: Pool, times: Times) -> None:
    for n in range(7):
        vms.add(f"vm-{n}", number=n)
        times.move(HOUR)
    vms.move("vm-0", "pending", "ready")
    assert [one.id for one in vms.items("pending", limit=3)] == ["vm-1", "vm-2", "vm-3"]
    assert [one.id for one in vms.items("pending", limit=3, offset=3)] == ["vm-4", "vm-5", "vm-6"]
    assert [one.id for one in vms.items("pending", older_than="3h30m")] == ["vm-1", "vm-2", "vm-3"]
    assert vms.items("completed") == []
    assert [one.metadata["number"] for one in vms.items("ready")] == [0]


def test_update_changes_metadata_where_it_is(vms: Pool) -> None:
    vms.add("vm-1", a=1, b=2)
    assert vms.update("vm-1", b=None, c="x")
    assert vms.get("vm-1").metadata == {"a": 1, "c": "x"}  # type: ignore[union-attr]
    assert not vms.update("vm-2", a=1)
    assert vms.get("vm-2") is None


def test_unknown_state_is_refused_with_the_nearest(vms: Pool, app: Relevo) -> None:
    with pytest.raises(OptionError, match=r"pool vms has no state 'pendng', did you mean 'pending'\?"):
        vms.add("vm-1", "pendng")
    with pytest.raises(OptionError, match="pool vms has no state 'zzz': pending, ready"):
        vms.move("vm-1", "pending", "zzz")
    free = app.pool("free")
    assert free.add("x", "whatever") and free.counts() == {"whatever": 1}
    free.remove("x")


@pytest.mark.parametrize("state", ["", "two words", "a:b", "@x", None, 7, "x" * 51])
def test_state_with_a_wrong_name_is_refused(app: Relevo, state: Any) -> None:
    with pytest.raises(OptionError, match="a state is a word"):
        app.pool("p").add("x", state)


@pytest.mark.parametrize("id", ["", "a\nb", None, 7, "x" * 201])
def test_id_that_is_no_text_is_refused(app: Relevo, id: Any) -> None:
    with pytest.raises(OptionError, match="an entity's id"):
        app.pool("p").add(id)


def test_metadata_that_cannot_be_kept_is_refused(app: Relevo) -> None:
    pool = app.pool("p")
    with pytest.raises(PayloadError, match="'it' cannot be kept as JSON"):
        pool.add("x", it=object())
    with pytest.raises(PayloadError, match="the limit is 100 fields"):
        pool.add("x", it="y" * 2_000_000)
    with pytest.raises(OptionError, match="does not begin with @"):
        pool.add("x", **{"@state": "ready"})
    assert pool.counts() == {}


def test_the_number_of_fields_is_that_of_the_entity_and_not_of_a_call(app: Relevo) -> None:
    pool = app.pool("p")
    pool.add("x", "pending", **{f"a{n}": n for n in range(60)})
    assert pool.update("x", **{f"b{n}": n for n in range(40)})
    full = pool.get("x")
    for refused in (
        lambda: pool.update("x", one_more=1),
        lambda: pool.update("x", a0=None, one_more=1, and_another=1),
        lambda: pool.move("x", "pending", "ready", one_more=1),
        lambda: pool.fail("x", "it broke", one_more=1),
    ):
        with pytest.raises(PayloadError, match="more than 100 fields of metadata"):
            refused()
    assert pool.get("x") == full, "nothing was done by halves"

    assert pool.update("x", a0=None, b0="other", one_more=1)
    assert pool.move("x", "pending", "ready", one_more=2)
    letter = pool.fail("x", "it broke", b1=None, last=1)
    assert letter is not None and pool.retry(letter)
    assert not pool.update("unknown", **{f"c{n}": n for n in range(100)})


async def test_an_entity_with_too_many_fields_is_no_prisoner(app: Relevo, server: Server) -> None:
    """By another program's hand, it may have any number: it moves, dies, is taken elsewhere, and comes back."""
    pool = app.pool("p")
    pool.add("x")
    server.command("HSET", pool.keys.own("entity", "x"), *(word for n in range(300) for word in (f"f{n}", "1")))
    assert pool.move("x", "pending", "ready") and pool.update("x", f0=2)
    assert await pool.aupdate("x", f0=None, other=2)
    with pytest.raises(PayloadError, match="more than 100 fields"):
        await pool.aupdate("x", one_more=1)
    letter = pool.fail("x", "it broke")
    assert letter is not None
    lines = list(app.dead.export(queue=pool.queue))
    assert app.dead.discard([letter], undo=False) == 1
    assert app.dead.load(lines) == Imported(1, 0)
    assert pool.retry(letter)
    back = pool.get("x")
    assert back is not None and len(back.metadata) == 300


def test_pool_has_a_bounded_number_of_states(app: Relevo) -> None:
    pool = app.pool("p")
    for n in range(100):
        assert pool.add(f"e{n}", f"s{n}")
    with pytest.raises(OptionError, match="100 states already"):
        pool.add("one more", "s100")
    assert pool.add("one more", "s7")
    with pytest.raises(OptionError, match="100 states already"):
        pool.move("one more", "s7", "s100")
    assert pool.move("e1", "s1", "s2")
    assert pool.move("e2", "s2", "s100"), "a state that holds nothing is none"


def test_pools_are_listed_and_apart_from_queues_and_each_other(app: Relevo) -> None:
    app.pool("a").add("x")
    app.pool("b").add("x", "ready")
    assert app.pools() == ["a", "b"]
    assert app.queues() == [], "a pool is no queue until it has dead letters"
    assert app.pool("a").counts() == {"pending": 1}
    assert app.pool("a").queue != app.pool("b").queue


def test_options_of_a_pool_hold_wherever_it_is_named(app: Relevo) -> None:
    said = app.pool("vms", states=STATES, data_ttl="1h")
    assert app.pool("vms") is said
    assert app.pool("other").states == ()


@pytest.mark.parametrize("pool", ["vms", "a:b", "50%", "{x}", "pool", "actions", "größe"])
def test_address_of_a_pool_reads_back_and_is_no_queues(app: Relevo, pool: str) -> None:
    name = pool_name("shop", pool)
    address = parse(name, prefix=False, env=False)
    assert (address.service, address.kind, address.detail) == ("shop", "actions", ("pool", pool))
    assert str(address) == name and is_pool_name(name)
    assert app.engine.keys_of(pool_name(app.name, pool)).address != app.engine.keys_of(pool).address


def test_an_entity_without_a_record_is_listed_and_moved(vms: Pool, server: Server) -> None:
    vms.add("vm-1")
    server.command("DEL", vms.keys.own("entity", "vm-1"))
    assert vms.items("pending") == [
        Entity(id="vm-1", pool="vms", state="pending", since_ms=vms.items("pending")[0].since_ms)
    ]
    assert vms.move("vm-1", "pending", "ready"), "the sets are what counts"
    assert vms.get("vm-1").state == "ready"  # type: ignore[union-attr]


def test_unreadable_dead_letter_does_not_hide_the_others(vms: Pool, times: Times, server: Server) -> None:
    for id in ("vm-1", "vm-2"):
        vms.add(id)
    bad, good = vms.fail("vm-1", "broken"), vms.fail("vm-2", "broken")
    assert bad is not None
    server.command("SET", vms.keys.own("ended", bad), b"\xff{", "EX", 60)
    assert [letter.id for letter in vms.dead()] == [good]
    assert not vms.retry(bad)
    assert {(row.id, row.reason) for row in times.app.dead.list(queue=vms.queue)} == {
        (bad, "unreadable"),
        (good, "failed"),
    }


async def test_pools_serve_async_code(app: Relevo) -> None:
    pool = app.pool("vms")
    assert await pool.aadd("vm-1", size=1)
    assert await pool.amove("vm-1", "pending", "ready")
    assert await pool.aupdate("vm-1", size=2)
    assert (await pool.aitems("ready"))[0].metadata == {"size": 2}
    assert await pool.acounts() == {"ready": 1}
    letter = await pool.afail("vm-1", "broken")
    assert [one.entity for one in await pool.adead()] == ["vm-1"]
    assert await pool.aretry(letter or "")
    assert await pool.aremove("vm-1")
    assert (await pool.aget("vm-1")).state == ""  # type: ignore[union-attr]
    assert await app.apools() == ["vms"]
    await app.aclose()
