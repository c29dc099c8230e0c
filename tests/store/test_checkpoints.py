"""checkpoint: the progress that a running job keeps, which worker may write it, and what ends it."""

from __future__ import annotations

import pytest

from relevo.checkpoints.store import Kind, keep, kept
from relevo.engine.job import Envelope
from relevo.engine.job_store import cancel, discard, revive
from relevo.engine.turn import abandon
from relevo.queues.store import clear
from tests.store.desk import Desk, moved, new_id

BODY = '{"t":"shop.charge"}'
RECORD = b'{"state":"dead","reason":"permanent","target":"shop.charge","body":' + BODY.encode() + b"}"


@pytest.fixture
def held(desk: Desk) -> str:
    """A job held with token 1."""
    (id,) = desk.push(BODY)
    assert desk.claim() == [id]
    return id


def write(desk: Desk, id: str, token: int = 1, value: bytes = b"7", *, kind: Kind = "s", name: str = "fetch") -> bool:
    done: bool = desk.run(keep(desk.keys, id, token, kind, name, value))
    return done


def read(desk: Desk, id: str, kind: Kind = "s", name: str = "fetch") -> bytes | None:
    found: bytes | None = desk.run(kept(desk.keys, id, kind, name))
    return found


def is_there(desk: Desk, id: str) -> bool:
    return bool(desk.ask("EXISTS", f"carried:{id}"))


# --- the right to write


def test_checkpoints_of_the_lease_holder_are_kept_and_may_be_repeated(desk: Desk, held: str) -> None:
    assert read(desk, held) is None
    for _ in range(2):
        assert write(desk, held, value=b'{"a":[1]}')
    assert read(desk, held) == b'{"a":[1]}'
    assert desk.ask("HLEN", f"carried:{held}") == 1
    assert write(desk, held, value=b"8")
    assert read(desk, held) == b"8"
    desk.turn(0, moved(held, "done"))


def test_steps_and_loops_of_one_name_are_two_things(desk: Desk, held: str) -> None:
    name = "files of Núria: 1"
    assert write(desk, held, value=b"1", name=name)
    assert write(desk, held, value=b"2", kind="p", name=name)
    assert (read(desk, held, "s", name), read(desk, held, "p", name)) == (b"1", b"2")
    desk.turn(0, moved(held, "done"))


def test_another_token_is_refused_and_a_job_that_does_not_run(desk: Desk, held: str) -> None:
    (ready,) = desk.push(BODY)
    for id, token in ((held, 0), (held, 2), (held, 11), (ready, 0), (ready, 1), (new_id(), 1)):
        assert not write(desk, id, token)
        assert not is_there(desk, id)
    desk.finish([held])


@pytest.mark.parametrize("verb", ["back", "retry"])
def test_a_worker_that_handed_the_job_back_cannot_write(desk: Desk, held: str, verb: str) -> None:
    """Its token stays with the job until another worker takes it, and must not count in between."""
    desk.turn(0, moved(held, verb, ms=60_000))
    assert not write(desk, held)
    assert not is_there(desk, held)
    desk.run(clear(desk.keys))


def test_only_the_worker_that_holds_the_lease_can_write(desk: Desk, held: str) -> None:
    assert write(desk, held, value=b"1")
    desk.run(abandon(desk.keys, [(held, 1)]))
    assert write(desk, held, value=b"2"), "no worker has taken it back yet"
    assert desk.turn(1, worker="w2").lost[0][0].decode() == held
    assert not write(desk, held, 1, b"3")
    assert read(desk, held) == b"2"
    assert write(desk, held, 2, b"4")
    desk.turn(0, moved(held, "done", 2))


@pytest.mark.parametrize("verb", ["done", "dead", "cancelled", "expired"])
def test_nothing_can_be_written_after_the_end(desk: Desk, held: str, verb: str) -> None:
    desk.turn(0, moved(held, verb, text=RECORD))
    assert not write(desk, held)
    assert not is_there(desk, held)


# --- what ends it


@pytest.mark.parametrize("how", ["done", "dead", "cancelled", "expired", "discarded", "cleared", "cancelled before"])
def test_checkpoints_live_as_long_as_the_job_or_its_record(desk: Desk, held: str, how: str) -> None:
    write(desk, held)
    desk.turn(0, moved(held, "back"))
    assert read(desk, held) == b"7"
    match how:
        case "cleared":
            desk.run(clear(desk.keys))
        case "cancelled before":
            desk.run(cancel(desk.keys, [(held, 500_000, "")], 10))
        case _:
            assert desk.claim() == [held]
            assert write(desk, held, 2, b"8")
            verb = "dead" if how == "discarded" else how
            desk.turn(0, moved(held, verb, 2, text=RECORD, ms=500_000))
            if how == "discarded":
                desk.run(discard(desk.keys, [held]))
    if how in ("done", "discarded", "cleared"):
        assert not is_there(desk, held)
    else:
        assert 400_000 < desk.ask("PTTL", f"carried:{held}") <= 500_000


def test_a_job_that_is_brought_back_has_its_checkpoints_without_a_time_limit(desk: Desk, held: str) -> None:
    write(desk, held)
    desk.turn(0, moved(held, "dead", text=RECORD, ms=500_000))
    assert desk.run(revive(desk.keys, held, Envelope("shop.charge"), BODY.encode(), 0))[0] == 1
    assert desk.ask("PTTL", f"carried:{held}") == -1
    assert read(desk, held) == b"7"
    assert not write(desk, held), "the token of its former life"
    token = int(desk.turn(1).again[0][0].split()[0])
    assert write(desk, held, token, b"8")
    desk.turn(0, moved(held, "done", token))
    assert not is_there(desk, held)


# --- a full server


def test_a_server_without_memory_still_keeps_how_far_running_jobs_are(own_desk: Desk) -> None:
    """Else an hour of work would be lost for the sake of some bytes."""
    (id,) = own_desk.push(BODY)
    own_desk.claim()
    own_desk.server.command("CONFIG", "SET", "maxmemory", 1)
    assert write(own_desk, id)
    assert read(own_desk, id) == b"7"
