"""letters, groups, discard, restore, replace, bury, lead: the scripts of dead letters, every answer, twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from relevo.bus.conversation_store import clean
from relevo.dead import replay_store as replays
from relevo.dead import store as letters
from relevo.dead.replay import SILENT_MS, Replay
from relevo.dead.store import Place
from relevo.engine.dependents import follow, needs_of
from relevo.engine.edges import Edge
from relevo.engine.ids import Ids
from relevo.engine.job import Attempt, Envelope, Record, State, Story, read_record, write
from relevo.engine.job_store import discard, look, revive
from relevo.engine.outbox import relay
from relevo.engine.push import NewJob, push_rich
from relevo.engine.settle import of_dead
from relevo.engine.turn import Note, note
from relevo.queues.store import clear
from tests.store.desk import Desk, moved, new_id

HOUR, DAY = 3_600_000, 86_400_000
BODY = b'{"t":"shop.charge","a":[7],"g":"acme"}'
ENVELOPE = Envelope("shop.charge", Raw(b"[7]"), tenant="acme")
UNKNOWN = new_id()


def record_of(
    error: str = "ValueError", *, at_ms: int = 1_800_000_000_000, body: bytes = BODY, task: str = "shop.charge"
) -> bytes:
    attempt = Attempt(
        "failed", "w", error=error, message="no stock", traceback=f'  File "/a/{error}.py", line 1, in f\n'
    )
    record = Record(
        State.DEAD,
        task,
        queue_from="running",
        reason="retries_exhausted",
        ended_ms=at_ms,
        story=Story((attempt,)),
        body=Raw(body),
    )
    return write(of_dead(record, ENVELOPE))


def kind_of(record: bytes) -> str:
    return read_record(record).fingerprint


VALUE, KEY = kind_of(record_of("ValueError")), kind_of(record_of("KeyError"))


def die(desk: Desk, *errors: str, ttl_ms: int = 7 * DAY, **limits: Any) -> list[str]:
    """Jobs that died of these errors, one after the other."""
    ids = []
    for error in errors:
        (id,) = desk.push(BODY.decode())
        assert desk.claim(10) == [id]
        settled = moved(id, "dead", text=record_of(error), ms=ttl_ms)
        assert desk.turn(0, settled, **limits).refused == []
        ids.append(id)
    return ids


def ids_of(desk: Desk, **asked: Any) -> list[str]:
    found: letters.Part = desk.run(letters.part(desk.keys, **asked))
    return found.ids


def alike(desk: Desk, kind: str) -> letters.Alike:
    found: list[letters.Alike] = desk.run(letters.alike(desk.keys, [kind]))
    return found[0]


def in_group(desk: Desk, kind: str) -> list[str]:
    return desk.members(f"alike:{kind}")


def bury(desk: Desk, *rows: tuple[str, int, bytes], ttl_ms: int = DAY, dead_max: int = 1000) -> list[bool]:
    said, *_ = desk.run(
        letters.bury(desk.keys, [letters.Arrival(*row) for row in rows], ttl_ms=ttl_ms, dead_max=dead_max)
    )
    return list(said)


# --- letters


def test_dead_letters_are_listed_newest_first_or_oldest_first_from_any_cursor(desk: Desk) -> None:
    ids = sorted(new_id() for _ in range(7))
    bury(desk, *((id, 1000 + n, record_of()) for n, id in enumerate(ids)))
    assert ids_of(desk, oldest=True) == ids
    assert ids_of(desk) == ids[::-1]
    for n, id in enumerate(ids):
        place = Place(1000 + n, id)
        assert ids_of(desk, place=place) == ids[:n][::-1]
        assert ids_of(desk, place=place, oldest=True) == ids[n + 1 :]
        with_it = Place(1000 + n, id, with_it=True)
        assert ids_of(desk, place=with_it) == ids[: n + 1][::-1]
        assert ids_of(desk, place=with_it, oldest=True) == ids[n:]
    assert ids_of(desk, since_ms=1002, until_ms=1004) == ids[2:5][::-1]
    assert ids_of(desk, since_ms=1002, until_ms=1004, place=Place(1004, ids[4])) == ids[2:4][::-1]
    assert ids_of(desk, since_ms=2000) == []
    desk.run(discard(desk.keys, [ids[2]]))
    place = Place(1002, ids[2])
    assert ids_of(desk, place=place) == ids_of(desk, place=Place(1002, ids[2], with_it=True)) == ids[:2][::-1]
    assert ids_of(desk, place=place, oldest=True) == ids[3:], "a cursor stays valid after its dead letter is gone"


def test_many_deaths_of_one_moment_are_paged_through_without_a_gap(desk: Desk) -> None:
    ids = sorted(new_id() for _ in range(250))
    bury(desk, *((id, 1000, record_of()) for id in ids))
    for oldest, expected in ((False, ids[::-1]), (True, ids)):
        seen: list[str] = []
        place, behind = None, 1
        while behind:
            part: letters.Part = desk.run(letters.part(desk.keys, place=place, oldest=oldest, limit=60))
            seen += part.ids
            place, behind = part.place, part.behind
        assert seen == expected


def test_a_part_holds_no_more_bytes_than_a_call_should(desk: Desk) -> None:
    large = record_of(body=b'{"t":"x","a":["' + b"y" * 400_000 + b'"]}')
    bury(desk, *((new_id(), 1000, large) for _ in range(6)))
    part: letters.Part = desk.run(letters.part(desk.keys))
    assert (len(part.ids), part.behind) == (3, 3)


def test_dead_letters_whose_record_has_expired_are_skipped_and_malformed_ones_shown(desk: Desk) -> None:
    first, second, third = die(desk, "ValueError", "ValueError", "KeyError")
    desk.ask("DEL", f"ended:{first}")
    assert ids_of(desk, kind=VALUE) == [second]
    assert ids_of(desk) == [third, second]
    assert desk.members("dead") == [first, second, third], "a look changes nothing"
    desk.ask("SET", f"ended:{second}", "nonsense", "PX", 60_000)
    part: letters.Part = desk.run(letters.part(desk.keys))
    assert part.ids == [third, second]
    assert (part.records[1].reason, part.records[1].unreadable) == ("unreadable", b"nonsense")


# --- groups


def test_dead_letters_with_one_fingerprint_are_counted_together(desk: Desk) -> None:
    first, _, last = die(desk, "ValueError", "KeyError", "ValueError")
    assert sorted(desk.run(letters.kinds(desk.keys))) == sorted([VALUE, KEY])
    for _ in range(2):
        found = alike(desk, VALUE)
        assert (found.count, found.recent, found.before) == (2, 2, 0)
        assert found.first_ms == desk.score("dead", first)
        assert found.last_ms == desk.score("dead", last)
        assert [(head.target, head.tenant, head.error) for head in found.newest] == [
            ("shop.charge", "acme", "ValueError: no stock")
        ] * 2
        assert found.head is not None and found.head.reason == "retries_exhausted"
    assert alike(desk, "0" * 16).count == 0
    for key in ("kinds", f"alike:{VALUE}"):
        assert 6 * DAY < desk.ask("PTTL", key) <= 7 * DAY


def test_the_trend_counts_the_last_hour_and_the_day_before(desk: Desk) -> None:
    for ms, count in ((0, 3), (20 * HOUR, 2), (4 * HOUR + HOUR // 2, 4)):
        desk.advance(ms)
        die(desk, *["ValueError"] * count)
    found = alike(desk, VALUE)
    assert (found.count, found.recent, found.before) == (9, 4, 5)
    desk.advance(HOUR)
    assert (alike(desk, VALUE).recent, alike(desk, VALUE).before) == (0, 6)


def test_an_error_group_follows_what_becomes_of_its_dead_letters(desk: Desk) -> None:
    retried, discarded, replaced, cleaned, stays = die(desk, *["ValueError"] * 5)
    assert desk.run(revive(desk.keys, retried, ENVELOPE, BODY, 0))[0] == 1
    assert in_group(desk, VALUE) == [discarded, replaced, cleaned, stays]
    desk.run(discard(desk.keys, [discarded]))
    assert in_group(desk, VALUE) == [replaced, cleaned, stays]
    assert desk.run(letters.replace(desk.keys, replaced, new_id(), ENVELOPE, BODY)) == 1
    assert in_group(desk, VALUE) == [cleaned, stays]
    desk.ask("ZADD", "made:task", 1, cleaned)
    desk.ask("PEXPIRE", "made:task", 60_000)
    desk.run(clean(desk.keys, "task", dead=True, dry_run=False))
    assert in_group(desk, VALUE) == [stays]
    assert alike(desk, VALUE).count == 1


def test_dead_letters_dropped_for_newer_ones_leave_their_error_group(desk: Desk) -> None:
    ids = die(desk, *["ValueError", "KeyError"] * 3, dead_max=2)
    assert desk.members("dead") == ids[-2:]
    assert (in_group(desk, VALUE), in_group(desk, KEY)) == ([ids[-2]], [ids[-1]])
    assert desk.stats().totals["dropped"] == 4


def test_a_kind_that_comes_back_after_a_retry_is_not_new(desk: Desk) -> None:
    (id,) = die(desk, "ValueError")
    first = alike(desk, VALUE).first_ms
    desk.run(revive(desk.keys, id, ENVELOPE, BODY, 0))
    assert alike(desk, VALUE).count == 0
    desk.claim(1)
    desk.turn(0, moved(id, "dead", 3, text=record_of()))
    assert (alike(desk, VALUE).first_ms, alike(desk, VALUE).count) == (first, 1)


def test_expired_dead_letters_do_not_count_in_their_error_group_and_leave_it_with_the_next(desk: Desk) -> None:
    """An error that never stops, of dead letters that are kept for a moment."""
    ids = die(desk, *["ValueError"] * 3)
    for id in ids[:2]:
        desk.ask("DEL", f"ended:{id}")
    assert alike(desk, VALUE).count == 1
    ids += die(desk, "ValueError")
    assert in_group(desk, VALUE)[0] == ids[2], "those that come take them off"
    for n in range(6):
        for id in ids:
            desk.ask("DEL", f"ended:{id}")
        assert alike(desk, VALUE).count == 0
        ids = die(desk, *["ValueError"] * 10)
        assert len(in_group(desk, VALUE)) <= 10 + 9, n


def test_there_are_500_kinds_at_the_most_and_the_newest_stay(desk: Desk) -> None:
    rows = [(new_id(), 1000 + n, record_of(f"Error{n}")) for n in range(600)]
    for start in range(0, 600, 100):
        bury(desk, *rows[start : start + 100])
    assert desk.ask("HLEN", "kinds") == 500
    kept = set(desk.run(letters.kinds(desk.keys)))
    assert {kind_of(record) for _, _, record in rows[-50:]} <= kept
    assert len(desk.members("dead")) == 600


def test_a_fingerprint_inside_arguments_is_not_taken_for_that_of_the_record(desk: Desk) -> None:
    (id,) = desk.push('{"t":"x","k":{"fingerprint":"0123456789abcdef"}}')
    desk.claim(1)
    reason = b'"\\"fingerprint\\":\\"0123456789abcdef\\""'
    record = b'{"state":"dead","reason":' + reason + b',"body":{"t":"x","k":{"fingerprint":"0123456789abcdef"}}}'
    desk.turn(0, moved(id, "dead", text=record))
    assert desk.run(letters.kinds(desk.keys)) == []
    assert desk.ask("EXISTS", "alike:0123456789abcdef") == 0


# --- discard and restore


def test_a_discarded_dead_letter_can_be_restored_once_and_unchanged(desk: Desk) -> None:
    first, second = die(desk, "ValueError", "ValueError")
    before = (desk.record(first), desk.ask("PTTL", f"ended:{first}"))
    desk.ask("HSET", f"notes:{first}", "log:1", "hello")
    desk.ask("PEXPIRE", f"notes:{first}", DAY)
    assert desk.run(discard(desk.keys, [first], undo_ms=60_000)) == (1, False)
    assert desk.run(discard(desk.keys, [first], undo_ms=60_000)) == (0, False)
    assert desk.run(look(desk.keys, first)).state is State.UNKNOWN
    assert (desk.members("dead"), in_group(desk, VALUE)) == ([second], [second])
    for key in ("bin", f"binned:{first}", f"notes:{first}"):
        assert 0 < desk.ask("PTTL", key) <= 60_000
    assert desk.run(letters.discarded(desk.keys)) == [first]

    assert desk.run(letters.restore(desk.keys, [first, UNKNOWN], 1000)) == (1, False, 0)
    assert desk.run(letters.restore(desk.keys, [first], 1000)) == (0, False, 0)
    assert desk.record(first) == before[0]
    assert before[1] - 60_000 < desk.ask("PTTL", f"ended:{first}") <= before[1]
    assert desk.ask("PTTL", f"notes:{first}") > 60_000
    assert set(desk.members("dead")) == {first, second} == set(in_group(desk, VALUE))
    assert desk.run(letters.discarded(desk.keys)) == []
    assert (desk.stats().totals["discarded"], desk.stats().totals["restored"]) == (1, 1)
    assert desk.run(revive(desk.keys, first, ENVELOPE, BODY, 0))[0] == 1


def test_a_dead_letter_that_expired_in_the_bin_or_whose_id_is_in_use_is_not_restored(desk: Desk) -> None:
    gone, expired, used = die(desk, *["ValueError"] * 3, ttl_ms=30_000)
    assert desk.run(discard(desk.keys, [gone])) == (1, False)
    assert desk.run(letters.restore(desk.keys, [gone], 1000)) == (0, False, 0), "without undo nothing stays"
    assert desk.ask("EXISTS", "bin") == 0
    desk.run(discard(desk.keys, [expired], undo_ms=600_000))
    desk.run(discard(desk.keys, [used], undo_ms=20_000))
    assert desk.ask("PTTL", f"binned:{expired}") <= 30_000
    assert bury(desk, (used, 1, record_of())) == [False], "nor is it imported again"
    desk.push_one(id=used)
    assert desk.run(letters.restore(desk.keys, [used], 1000)) == (0, False, 0)
    assert desk.run(look(desk.keys, used)).state is State.READY
    assert desk.claim() == [used]
    desk.advance(40_000)
    assert desk.run(letters.restore(desk.keys, [expired], 1000)) == (0, False, 0)
    assert desk.members("dead") == []
    desk.finish([used])
    (new,) = die(desk, "ValueError")
    desk.run(discard(desk.keys, [new], undo_ms=60_000))
    assert desk.run(letters.discarded(desk.keys)) == [new], "what was discarded long ago leaves the bin"


def test_a_dead_letter_for_which_there_is_no_room_stays_in_the_bin(desk: Desk) -> None:
    (old,) = die(desk, "ValueError")
    record = desk.record(old) or b""
    desk.ask("SET", f"ended:{old}", record.replace(b'"state"', b'"ended_ms":5,"state"', 1), "KEEPTTL")
    desk.run(discard(desk.keys, [old], undo_ms=60_000))
    die(desk, *["ValueError"] * 3)
    assert desk.run(letters.restore(desk.keys, [old], 3)) == (0, False, 1)
    assert desk.run(letters.discarded(desk.keys)) == [old]
    assert desk.run(letters.restore(desk.keys, [old], 4)) == (1, False, 0)
    assert desk.members("dead")[0] == old
    assert "dropped" not in desk.stats().totals


@pytest.mark.parametrize("policy", ["w", "c"])
def test_jobs_that_wait_for_a_discarded_dead_letter_are_restored_with_it(desk: Desk, policy: Any) -> None:
    """The loss is reported to it at once, and the restored dead letter as another end."""
    (parent,) = desk.push(BODY.decode())
    child = new_id()
    desk.run(push_rich(desk.keys, [NewJob(child, 100, b"{}", needs=needs_of(1, DAY))]))
    desk.run(follow(desk.keys, parent, [Edge(child, "default", policy)]))
    desk.claim(1)
    desk.turn(0, moved(parent, "dead", text=record_of()))

    def settle() -> State:
        desk.run(relay(lambda _: desk.keys, ["default"], 1000))
        seen: State = desk.run(look(desk.keys, child)).state
        return seen

    waits = State.WAITING if policy == "w" else State.CANCELLED
    assert settle() is waits
    gone, posted = desk.run(discard(desk.keys, [parent], undo_ms=60_000))
    assert (gone, posted) == (1, policy == "w")
    assert settle() is State.CANCELLED
    back, posted, _ = desk.run(letters.restore(desk.keys, [parent], 1000))
    assert (back, posted) == (1, True)
    assert settle() is waits
    assert desk.run(revive(desk.keys, parent, ENVELOPE, BODY, 0))[0] == 2
    assert settle() is State.WAITING
    assert desk.claim(1) == [parent]
    desk.turn(0, moved(parent, "done", int(desk.run(look(desk.keys, parent)).claim.token), text=b'{"state":"done"}'))
    assert settle() is State.READY


# --- replace


def test_a_dead_letter_is_replaced_once_and_names_its_replacement(desk: Desk) -> None:
    (id,) = die(desk, "ValueError")
    ttl = desk.ask("PTTL", f"ended:{id}")
    new, late = new_id(), new_id()
    envelope = Envelope("shop.charge", Raw(b"[8]"), name="charge-8")
    for _ in range(2):  # a repeated call answers the same
        assert desk.run(letters.replace(desk.keys, id, new, envelope, b'{"t":"shop.charge","a":[8]}')) == 1
    assert desk.run(letters.replace(desk.keys, id, late, envelope, b"{}")) == 0
    assert desk.run(letters.replace(desk.keys, UNKNOWN, late, envelope, b"{}")) == 0
    seen = desk.run(look(desk.keys, id))
    assert (seen.state, seen.record.replaced_by, seen.record.reason) == (State.DEAD, new, "retries_exhausted")
    assert ttl - 60_000 < desk.ask("PTTL", f"ended:{id}") <= ttl
    assert desk.run(revive(desk.keys, id, ENVELOPE, BODY, 0))[0] == 0, "it has a successor"
    assert (desk.stats().ready, desk.stats().dead, desk.stats().totals["replaced"]) == (1, 0, 1)
    assert desk.ask("HGET", "names", "charge-8").decode() == new
    desk.ask("HDEL", "names", "charge-8")
    assert desk.drain() == [new]


def test_a_dead_letter_that_jobs_wait_for_is_not_replaced(desk: Desk) -> None:
    (parent,) = desk.push(BODY.decode())
    child = new_id()
    desk.run(push_rich(desk.keys, [NewJob(child, 100, b"{}", needs=needs_of(1, DAY))]))
    desk.run(follow(desk.keys, parent, [Edge(child, "default", "w")]))
    desk.claim(1)
    desk.turn(0, moved(parent, "dead", text=record_of()))
    for _ in range(2):
        assert desk.run(letters.replace(desk.keys, parent, new_id(), ENVELOPE, BODY)) == -1
    assert desk.members("dead") == [parent]
    desk.run(discard(desk.keys, [parent]))
    desk.run(relay(lambda _: desk.keys, ["default"], 1000))


# --- bury


def test_imported_dead_letters_are_filed_each_once_up_to_the_limit(desk: Desk) -> None:
    (dead,) = die(desk, "ValueError")
    (living,) = desk.push("{}")
    rows = [(new_id(), 5000 + n, record_of()) for n in range(3)]
    assert bury(desk, *rows, (living, 1, record_of()), (dead, 1, record_of())) == [True] * 3 + [False] * 2
    assert bury(desk, *rows) == [False] * 3
    assert desk.score("dead", rows[0][0]) == 5000
    assert set(in_group(desk, VALUE)) == {dead, *(row[0] for row in rows)}
    assert desk.stats().totals["imported"] == 3
    assert 0 < desk.ask("PTTL", f"ended:{rows[0][0]}") <= DAY
    more = [(new_id(), 6000 + n, record_of()) for n in range(3)]
    bury(desk, *more, dead_max=5)
    assert desk.members("dead") == [*(row[0] for row in (*rows[2:], *more)), dead] == in_group(desk, VALUE)


def test_data_carried_by_an_imported_dead_letter_expires_with_it(desk: Desk) -> None:
    (living,) = desk.push("{}")
    desk.ask("HSET", f"carried:{living}", "claim", "its own")
    desk.ask("PEXPIRE", f"carried:{living}", DAY)
    rows = [letters.Arrival(new_id(), 5000, record_of(), {f"#{i}": str(i) for i in range(n)}) for n in (2, 0, 1)]
    taken = letters.Arrival(living, 1, record_of(), {"claim": "another's"})
    for new in (True, False):
        said, *_ = desk.run(letters.bury(desk.keys, [rows[0], taken, *rows[1:]], ttl_ms=DAY, dead_max=100))
        assert said == [new, False, new, new]
        for row in rows:
            kept = desk.ask("HGETALL", f"carried:{row.id}")
            known = {"life": "freed", "open": "0", "bad": "0"} if row.carried else {}
            found = {name.decode(): value.decode() for name, value in kept.items()}
            assert found == {**known, **row.carried}
        assert 0 < desk.ask("PTTL", f"carried:{rows[0].id}") <= DAY
        assert desk.ask("HGET", f"carried:{living}", "claim") == b"its own"


# --- lead


def lead(desk: Desk, verb: Any, run: Replay, owner: str = "me") -> tuple[bool, bool, Replay | None]:
    said: tuple[bool, bool, Replay | None] = desk.run(replays.lead(desk.keys, verb, run, owner))
    return said


def test_a_replay_is_led_by_one_process_at_a_time(desk: Desk) -> None:
    run = Replay(id=Ids()(), total=9)
    assert lead(desk, "note", run) == (False, False, None), "it was not taken"
    assert lead(desk, "take", run) == (True, False, None)
    assert lead(desk, "take", run)[0], "again"
    assert lead(desk, "take", run, "other") == (False, False, run)
    assert lead(desk, "note", Replay(id=run.id, total=9, retried=1))[0]
    assert not lead(desk, "note", run, "other")[0]
    desk.advance(SILENT_MS)
    said, _, before = lead(desk, "take", run, "other")
    assert said and before is not None and before.retried == 1, "the last note of the silent one counts"
    assert not lead(desk, "note", run)[0], "a worker taken for dead leads no more"
    found = desk.run(replays.one(desk.keys, run.id))
    assert (found.retried, found.is_led) == (1, True)
    assert lead(desk, "end", Replay(id=run.id, state="stopped"), "other")[0]
    assert not desk.run(replays.one(desk.keys, run.id)).is_led
    assert lead(desk, "take", run)[0], "one that ended can be taken at once"


def test_a_request_to_stop_a_replay_reaches_its_leader_once(desk: Desk) -> None:
    run = Replay(id=Ids()())
    assert lead(desk, "stop", run, "") == (False, False, None)
    lead(desk, "take", run)
    for _ in range(2):
        assert lead(desk, "stop", run, "")[:2] == (True, True)
    assert lead(desk, "note", run)[1]
    lead(desk, "end", run)
    assert not lead(desk, "stop", run, "")[1], "there is no leader"
    assert lead(desk, "take", run)[:2] == (True, False)
    assert not lead(desk, "note", run)[1], "a new start forgets old wishes"


def test_replays_are_remembered_for_a_week_the_newest_hundred(desk: Desk) -> None:
    made = Ids()
    ids = [made() for _ in range(103)]
    for id in ids:
        lead(desk, "take", Replay(id=id))
    assert desk.ask("ZCARD", "replays") == replays.MOST
    for key in ("replays", f"replay:{ids[-1]}"):
        assert 6 * DAY < desk.ask("PTTL", key) <= 7 * DAY
    newest = desk.run(replays.newest(desk.keys, 5))
    assert len(newest) == 5 and {run.id for run in newest} <= set(ids)
    desk.ask("HSET", f"replay:{UNKNOWN}", "text", json.dumps({"id": 5}))
    desk.ask("PEXPIRE", f"replay:{UNKNOWN}", 60_000)
    assert desk.run(replays.one(desk.keys, UNKNOWN)) is None, "a malformed entry is none"


def test_what_a_letter_logged_goes_with_it(desk: Desk) -> None:
    """Notes end with the record that is dropped because there are too many, and with a job that is cleared."""
    old, new = desk.push("{}", "{}")
    for id in (old, new):
        assert id in desk.claim(1)
        desk.run(note(desk.keys, [Note(id, 1, "log:1", "hello")], 600_000))
        desk.turn(0, moved(id, "dead", text=b'{"state":"dead"}'), dead_max=1)
    assert [desk.ask("EXISTS", f"notes:{id}") for id in (old, new)] == [0, 1]
    waiting = desk.push_one(when="+60000")
    desk.run(note(desk.keys, [Note(waiting, "", "log:1", "hello")], 600_000))
    desk.run(clear(desk.keys))
    assert desk.ask("EXISTS", f"notes:{waiting}") == 0
