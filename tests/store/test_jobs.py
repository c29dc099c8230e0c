"""look, attach, cancel, revive, discard, note: what is done to one job, in each of its states."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from relevo.engine.dependents import follow, needs_of
from relevo.engine.edges import Edge, Report
from relevo.engine.job import Envelope, State, read_record
from relevo.engine.job_store import Claim, attach, cancel, discard, look, readable, revive
from relevo.engine.outbox import notify, relay
from relevo.engine.push import NewJob, push_plain, push_rich
from relevo.engine.turn import Note, note
from relevo.engine.whereabouts import of_ended
from relevo.queues.store import clear, page
from relevo.store.plan import Call
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id, plain

BODY = '{"t":"shop.charge","a":[7]}'
RECORD = b'{"state":"dead","reason":"permanent","target":"shop.charge","body":' + BODY.encode() + b"}"
UNKNOWN = new_id()


def end(desk: Desk, id: str, verb: str = "dead", *, token: int = 1, **more: Any) -> None:
    """Take the job and end it so."""
    assert id in desk.claim(10)
    record = RECORD.replace(b"dead", verb.encode())
    assert desk.turn(0, moved(id, verb, token, text=record, **more)).refused == []


# --- look


def test_a_job_that_was_never_stored_is_unknown(desk: Desk) -> None:
    seen = desk.run(look(desk.keys, UNKNOWN))
    assert (seen.id, seen.state, seen.body, seen.record) == (UNKNOWN, State.UNKNOWN, b"", None)


def test_a_look_at_a_living_job_shows_its_state_times_claim_and_story(desk: Desk) -> None:
    def seen(id: str) -> Any:
        found = desk.run(look(desk.keys, id))
        return found.state, found.due_ms, found.claim

    (id,) = desk.push(BODY)
    assert seen(id) == (State.READY, None, None)
    assert desk.run(look(desk.keys, id)).envelope.target == "shop.charge"
    due = desk.now_ms + 60_000
    assert seen(desk.push_one(BODY, when=str(due), priority=1023)) == (State.SCHEDULED, due, None)
    now = desk.turn(1, worker="w1", lease_ms=20_000).now_ms
    assert seen(id) == (State.RUNNING, now + 20_000, Claim(1, "w1", now))
    desk.turn(0, moved(id, "retry", ms=60_000, text=b'{"attempts":[{"how":"failed"}],"spent":1}'))
    assert seen(id) == (State.SCHEDULED, due, Claim(1, "w1", now))
    story = desk.run(look(desk.keys, id)).story
    assert (story.spent, story.attempts[0].how) == (1, "failed")


@pytest.mark.parametrize("verb", ["done", "dead", "cancelled", "expired"])
def test_a_look_at_a_job_that_has_ended_gives_its_record(desk: Desk, verb: str) -> None:
    (id,) = desk.push(BODY)
    end(desk, id, verb)
    seen = desk.run(look(desk.keys, id))
    assert (seen.state, seen.record.state, seen.body) == (State(verb), State(verb), BODY.encode())


def test_a_look_at_a_body_that_cannot_be_read(desk: Desk) -> None:
    for body in (b"", b"not json", b"[]", b'{"a":1}', b"\xff\xfe", b"[" * 5000):
        assert readable(body) is None
    (id,) = desk.push("not json")
    seen = desk.run(look(desk.keys, id))
    assert (seen.state, seen.envelope, seen.body) == (State.READY, None, b"not json")


# --- attach


def test_waiting_for_a_job_notes_each_inbox_once(desk: Desk) -> None:
    (id,) = desk.push()
    for inbox in (b"in1", b"in2", b"in1", b"in"):
        assert desk.run(attach(desk.keys, id, inbox)) is True
    assert desk.ask("HGET", "waiters", id) == b"in1 in2 in"


def test_waiting_for_an_ended_job_gives_its_record_and_for_an_unknown_one_leaves_nothing(desk: Desk) -> None:
    ended, gone = desk.push("{}", "{}")
    end(desk, ended)
    desk.finish([gone])
    record = desk.run(attach(desk.keys, ended, b"in"))
    assert (record.state, record.reason) == (State.DEAD, "permanent")
    for id in (gone, UNKNOWN):
        assert desk.run(attach(desk.keys, id, b"in")) is None
    assert desk.ask("EXISTS", "waiters") == 0


# --- cancel


def cancelling(desk: Desk, id: str, *, name: str = "", dead_max: int = 1000) -> str:
    """Cancel one job on which nothing depends; what was said of it."""
    (said,), posted = desk.run(cancel(desk.keys, [(id, 60_000, name)], dead_max))
    assert not posted
    return str(said)


@pytest.mark.parametrize("when", ["", "+60000"])
def test_a_job_that_has_not_started_is_cancelled_at_once(desk: Desk, when: str) -> None:
    id = desk.push_one(name="n", scope="until_done", tenant="g", when=when)
    assert cancelling(desk, id, name="n") == "cancelled"
    stats = desk.stats()
    assert (stats.living, stats.cancelled, stats.totals["cancelled"]) == (0, 1, 1)
    assert (desk.record(id) or b"").startswith(b'{"token":0,"state":"cancelled"')
    seen = desk.run(look(desk.keys, id))
    assert (seen.record.reason, seen.record.queue_from, seen.record.runs) == (
        "cancelled",
        "scheduled" if when else "ready",
        0,
    )
    assert seen.record.ended_ms > 0
    for key in ("jobs", "ready", "scheduled", "groups", "names", "clock"):
        assert desk.ask("EXISTS", key) == 0, key


def test_many_jobs_are_cancelled_in_one_call_and_each_is_answered(desk: Desk) -> None:
    running, ready = desk.push("{}", "{}")
    desk.claim(1)
    later = desk.push_one(when="+60000")
    rows = [(id, 60_000, "") for id in (running, UNKNOWN, ready, later, later)]
    assert desk.run(cancel(desk.keys, rows, 1000)) == (["asked", "unknown", "cancelled", "cancelled", "unknown"], False)
    stats = desk.stats()
    assert (stats.living, stats.cancelled, stats.totals["cancelled"]) == (1, 2, 2)
    assert desk.record(UNKNOWN) is None
    assert desk.run(cancel(desk.keys, [], 1000)) == ([], False)


STRANGE = {
    # bodies, also of other programs: whether they are envelopes
    "arguments": (BODY.encode(), True),
    "none": (b'{"t":"shop.charge"}', True),
    "characters": (b'{"t":"sh\xc3\xb3p","a":["\xe2\x82\xac","\xf0\x9f\x8e\x89"],"k":{"x":"\\"}"}}', True),
    "another order": (b'{"a":[1],"t":"late"}', True),
    "a quote": (b'{"t":"q\\"uote"}', True),
    "no name": (b'{"t":""}', True),
    "nothing": (b"", False),
    "one byte": (b"n", False),
    "text": (b"not json", False),
    "cut off": (b'{"t":"x"', False),
    "no utf-8": (b"\xff\xfe", False),
    "a name that is no utf-8": (b'{"t":"\xc3"}', False),
    "not a number": (b'{"t":"x","a":[NaN]}', False),
    "control characters": (b'{"t":"x","a":["\x01\x1f"]}', False),
    "a control character in the name": (b'{"t":"x\x02y"}', False),
    "zeros": (b"\0" * 100, False),
    "lines": (b'{"t":"x",\n "a":[1,\r\n 2]\n}\n', True),
    "only a line": (b"\n", False),
    "a record": (b'{"t":"x"}\n{"state":"dead"}', False),
    "two parts": (b'{"t":"x"}\x1e{"t":"y"}', False),
    "only the sign that parts": (b"\x1e", False),
    "the sign that parts in the name": (b'{"t":"x\x1ey"}', False),
    "deep": (b'{"t":"x","a":' + b"[" * 100_000, False),
    "arguments that are no utf-8": (b'{"t":"x","a":["\xff"]}', True),  # they are not read before the task runs
    "a large one": (b'{"t":"x","a":["' + b"y" * 2**20 + b'"]}', True),
    "large garbage": (bytes(range(256)) * 4096, False),
    "quotes": (b'{"t":"x\\"y","a":["\\"state\\":\\"done\\""]}', True),
}


@pytest.mark.parametrize("how", ["cancelled", "cut"])
@pytest.mark.parametrize("strange", STRANGE)
def test_whatever_the_body_is_its_job_is_cancelled_looked_at_and_brought_back_to_the_byte(
    desk: Desk, strange: str, how: str
) -> None:
    body, is_envelope = STRANGE[strange]
    if how == "cut":
        job = NewJob(new_id(), 100, body, needs=needs_of(1, 60_000))
        desk.run(push_rich(desk.keys, [job]))
        id = job.id
        desk.run(notify(desk.keys, [Report(id, "0" * 20, 2, "dead")], 1000))
    else:
        id = new_id()
        desk.run(push_plain(desk.keys, [(id, body)], 100, LEASE_MS))
        assert cancelling(desk, id) == "cancelled"
    for _ in range(2):
        seen = desk.run(look(desk.keys, id))
        (listed,) = desk.run(page(desk.keys, "cancelled", 0, 10))
        assert seen.state is State.CANCELLED
        assert seen.record.unreadable == listed.record.unreadable == (b"" if is_envelope else body)
        assert seen.body == listed.body == (body if is_envelope else b"")
        if is_envelope or strange == "cut off":
            envelope = readable(body)
            assert seen.record.target == (envelope.target if envelope else "x")
        assert desk.run(of_ended(desk.keys, [id]))[id].state is State.CANCELLED
        assert seen.record.runs == 0
        # dependents are kept in the record, before the body
        assert desk.run(follow(desk.keys, id, [Edge(new_id(), "default")])) == ("cancelled", 0)
    if how == "cut":
        desk.run(notify(desk.keys, [Report(id, "0" * 20, 3, "revived")], 1000))
        assert desk.ask("HGET", "jobs", id) == body
        desk.run(relay(lambda _: desk.keys, ["default"], 1000))


def test_the_worker_of_a_running_job_is_called_to_cancel_it(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim(worker="w1")
    assert cancelling(desk, id) == "asked"
    assert desk.bell("w1") == [b"c" + id.encode()]
    assert 0 < desk.ask("TTL", "bell:w1") <= 60
    claim = desk.ask("HGET", "claims", id)
    assert claim.endswith(b" c")
    seen = desk.run(look(desk.keys, id))
    assert (seen.state, seen.claim.cancel_asked) == (State.RUNNING, True)
    assert cancelling(desk, id) == "asked"
    assert desk.ask("HGET", "claims", id) == claim, "asking twice flags once"
    assert desk.finish([id]) == [], "a job that finished before it was stopped is done"


def test_a_job_that_waits_for_a_retry_is_cancelled_with_its_story(desk: Desk) -> None:
    (id,) = desk.push()
    desk.claim()
    story = b'{"attempts":[{"how":"failed","message":"\\"how\\":\\"x\\""}],"spent":1}'
    desk.turn(0, moved(id, "retry", ms=60_000, text=story, tenant="g"))
    assert cancelling(desk, id) == "cancelled"
    record = desk.run(look(desk.keys, id)).record
    assert (record.runs, record.story.spent, record.story.attempts[0].message) == (1, 1, '"how":"x"')
    for key in ("claims", "story", "groups", "jobs"):
        assert desk.ask("EXISTS", key) == 0, key


def test_a_cancel_frees_only_the_name_that_the_job_holds(desk: Desk) -> None:
    first = desk.push_one(name="n", scope="queued")
    desk.claim()
    second = desk.push_one(name="n", scope="queued")
    desk.turn(0, moved(first, "back"))
    assert cancelling(desk, first, name="n") == "cancelled"
    assert desk.ask("HGET", "names", "n") == second.encode()


def test_a_cancel_is_published_to_the_waiters(desk: Desk, server: Server) -> None:
    (id,) = desk.push()
    desk.run(attach(desk.keys, id, b"inbox-of-cancelled"))
    with redis.Redis.from_url(server.url, protocol=2) as client, client.pubsub() as sub:
        sub.subscribe("inbox-of-cancelled")
        sub.parse_response()
        cancelling(desk, id)
        heard = sub.parse_response()[2]
        assert heard[:20] == id.encode()
        assert read_record(heard[20:]).state is State.CANCELLED
    assert desk.ask("EXISTS", "waiters") == 0


def test_only_so_many_cancelled_jobs_are_kept(desk: Desk) -> None:
    ids = desk.push(*["{}"] * 4)
    for id in ids:
        cancelling(desk, id, dead_max=2)
    stats = desk.stats()
    assert (stats.cancelled, stats.totals["dropped"]) == (2, 2)
    assert sum(desk.record(id) is not None for id in ids) == 2


# --- revive


def reviving(desk: Desk, id: str, **envelope: Any) -> int:
    """Bring back a job on which nothing depends; 1, or 0 if it is not among the ended."""
    code, _ = desk.run(revive(desk.keys, id, Envelope("shop.charge", **envelope), BODY.encode(), 0))
    return int(code)


def reviving_again(desk: Desk, id: str, ended_ms: int) -> tuple[int, int]:
    """As a client does that lost the reply to its first call."""
    call = revive(desk.keys, id, Envelope("shop.charge"), BODY.encode(), ended_ms)
    said: tuple[int, int] = desk.run(Call(call.command(repeated=True, text=True), call.decode))
    return said


@pytest.mark.parametrize("state", ["ready", "running", "waited for"])
def test_a_revival_whose_reply_was_lost_counts_when_it_is_asked_again(desk: Desk, state: str) -> None:
    (id,) = desk.push(BODY)
    end(desk, id, "dead")
    reviving(desk, id)
    if state == "running":
        desk.turn(1)
    if state == "waited for":
        desk.ask("HSET", "waiters", id, f">c0:{new_id()}elsewhere")
    claim = desk.ask("HGET", "claims", id)
    said, number = reviving_again(desk, id, 0)
    assert said == (2 if state == "waited for" else 1)
    assert number == int(claim.split()[0]) * 2 - 1
    assert desk.stats().totals["revived"] == 1


def test_what_died_again_since_its_revival_stays_dead_when_that_is_asked_again(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    end(desk, id, "dead")
    reviving(desk, id)
    desk.claim(1)
    desk.turn(0, moved(id, "dead", 3, text=RECORD.replace(b',"body"', b',"ended_ms":7,"body"')))
    assert reviving_again(desk, id, 0) == (1, 5), "the number of the revival is one less than that of the end"
    assert (desk.members("dead"), desk.stats().totals["revived"]) == ([id], 1)


def test_a_revival_that_did_not_come_through_is_made_when_it_is_asked_again(desk: Desk) -> None:
    there, discarded = desk.push(BODY, BODY)
    desk.claim(2)
    for id in (there, discarded):
        desk.turn(0, moved(id, "dead", text=RECORD))
    desk.run(discard(desk.keys, [discarded]))
    assert reviving_again(desk, discarded, 0) == (0, 0)
    assert reviving_again(desk, there, 0)[0] == 1
    assert (desk.stats().ready, desk.stats().totals["revived"]) == (1, 1)


@pytest.mark.parametrize("verb", ["dead", "cancelled", "expired"])
def test_an_ended_job_is_revived_once_however_often_it_is_asked(desk: Desk, verb: str) -> None:
    """Replaying an entry twice runs it once."""
    (id,) = desk.push(BODY)
    end(desk, id, verb)
    assert reviving(desk, id) == 1
    assert reviving(desk, id) == 0
    assert desk.record(id) is None
    stats = desk.stats()
    assert (stats.ready, getattr(stats, verb), stats.totals["revived"]) == (1, 0, 1)
    found = desk.turn(10)
    assert (found.ids, found.bodies) == ([id.encode()], [BODY.encode()])


def test_a_revived_job_keeps_priority_and_tenant_and_calls_an_idle_worker(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    end(desk, id)
    for _ in range(3):
        desk.push_one(tenant="g", priority=7)
    desk.ask("ZADD", "idle", desk.now_ms + 60_000, "w1")
    reviving(desk, id, priority=7, tenant="other")
    assert desk.bell("w1") == [b""]
    assert id in desk.claim(2)


def test_a_job_that_is_done_lives_or_has_no_record_is_not_revived(desk: Desk) -> None:
    done, forgotten = desk.push(BODY, BODY)
    desk.claim(2)
    desk.turn(0, kept([done]))
    desk.turn(0, moved(forgotten, "dead", text=RECORD))
    desk.ask("DEL", f"ended:{forgotten}")
    (living,) = desk.push(BODY)
    for id in (done, forgotten, living, UNKNOWN):
        assert reviving(desk, id) == 0
    assert desk.record(done) == b'{"state":"done"}'
    assert (desk.stats().done, desk.stats().living) == (1, 1)


def test_a_worker_that_held_a_job_before_its_death_cannot_settle_its_second_life(desk: Desk) -> None:
    """Tokens go on growing, also over an end."""
    (id,) = desk.push(BODY)
    desk.claim(worker="zombie", lease_ms=1000)
    desk.advance(1001)
    assert desk.turn(1, worker="w2").lost
    desk.turn(0, moved(id, "dead", token=2, text=RECORD), worker="w2")
    assert reviving(desk, id) == 1
    found = desk.turn(1, worker="w3")
    assert found.ids == [id.encode()]
    claim, story = found.again[0]
    token = int(claim.split()[0])
    assert token == 4, "a revival counts as well as a delivery"
    assert story == b""
    for old in (1, 2, 3):
        assert desk.turn(0, plain([id], old), worker="zombie").refused == [id.encode()]
    assert desk.finish([id], token=token, worker="w3") == []


def test_tokens_grow_over_any_number_of_lives(desk: Desk) -> None:
    """Also when a job was cancelled while it waited, and however quickly lives follow each other."""
    (id,) = desk.push(BODY)
    tokens = []
    for life in range(6):
        found = desk.turn(1)
        tokens.append(int(found.again[0][0].split()[0]) if found.again else 1)
        if life % 2:
            desk.turn(0, moved(id, "retry", tokens[-1], ms=60_000))
            assert cancelling(desk, id) == "cancelled"
        else:
            desk.turn(0, moved(id, "dead", tokens[-1], text=RECORD))
        assert reviving(desk, id) == 1
    assert tokens == [1, 3, 5, 7, 9, 11], "each life and each delivery counts"


def test_a_job_cancelled_before_its_first_attempt_has_a_token_in_its_second_life(desk: Desk) -> None:
    """What depends on it tells its lives apart by it."""
    (id,) = desk.push(BODY)
    cancelling(desk, id)
    assert reviving(desk, id) == 1
    assert desk.ask("HGET", "claims", id).startswith(b"1 none 1"), "held by no worker, since now"
    found = desk.turn(1)
    assert found.ids == [id.encode()]
    claim, story = found.again[0]
    assert claim.startswith(b"2 w ")
    assert story == b""
    assert desk.finish([id], token=1) == [id.encode()], "no worker ever held token 1"
    assert desk.finish([id], token=2) == []


def test_the_token_in_a_record_is_not_taken_from_what_a_task_was_given(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    desk.claim()
    desk.turn(0, moved(id, "dead", text=b'{"state":"dead","reason":"{\\"token\\":99,"}'))
    seen = desk.run(look(desk.keys, id))
    assert (seen.state, seen.record.reason) == (State.DEAD, '{"token":99,')
    reviving(desk, id)
    assert desk.turn(1).again[0][0].startswith(b"3 ")


# --- discard


@pytest.mark.parametrize("verb", ["done", "dead", "cancelled", "expired"])
def test_a_discarded_job_is_forgotten(desk: Desk, verb: str) -> None:
    (id,) = desk.push()
    end(desk, id, verb)
    desk.run(note(desk.keys, [Note(id, "", "log:1", "text")], 60_000))
    assert desk.run(discard(desk.keys, [id, UNKNOWN])) == (1, False)
    assert desk.run(discard(desk.keys, [id, UNKNOWN])) == (0, False)
    assert desk.members(verb) == []
    assert desk.ask("EXISTS", f"notes:{id}") == 0
    assert desk.run(look(desk.keys, id)).state is State.UNKNOWN
    assert desk.stats().totals["discarded"] == 1


def test_a_living_job_is_not_discarded_and_keeps_its_notes(desk: Desk) -> None:
    (id,) = desk.push(BODY)
    end(desk, id)
    reviving(desk, id)
    ready = desk.push_one(priority=900)
    desk.claim(1)
    desk.run(note(desk.keys, [Note(id, "", "progress", "0.5")], 60_000))
    assert desk.run(discard(desk.keys, [id, ready])) == (0, False)
    assert desk.run(look(desk.keys, id)).notes == {"progress": "0.5"}
    assert desk.stats().living == 2


@pytest.mark.parametrize("how", ["cancel", "revive", "discard", "clear"])
def test_counters_that_were_born_in_any_call_have_an_end(desk: Desk, how: str) -> None:
    (id,) = desk.push(BODY)
    if how in ("revive", "discard"):
        end(desk, id)
    desk.ask("DEL", "stats")  # dead letters may be kept for longer than the counters
    match how:
        case "cancel":
            cancelling(desk, id)
        case "revive":
            reviving(desk, id)
        case "discard":
            desk.run(discard(desk.keys, [id]))
        case _:
            desk.run(clear(desk.keys))
    assert desk.ask("PTTL", "stats") > 0


# --- note


def test_a_note_is_written_for_its_time_by_the_holder_of_the_lease(desk: Desk) -> None:
    id, gone = desk.push(BODY, BODY)
    desk.claim(2)
    notes = [Note(id, 1, "progress", json.dumps({"done": 1})), Note(id, 1, "log:1", "hello")]
    for _ in range(2):
        assert desk.run(note(desk.keys, notes, 60_000)) == 2
    assert 0 < desk.ask("PTTL", f"notes:{id}") <= 60_000
    desk.finish([gone])
    lost = [Note(id, 2, "log:1", "x"), Note(id, 0, "log:1", "x"), Note(gone, 1, "log:1", "x")]
    assert desk.run(note(desk.keys, lost, 60_000)) == desk.run(note(desk.keys, [], 60_000)) == 0
    assert desk.ask("EXISTS", f"notes:{gone}") == 0
    desk.turn(0, moved(id, "dead", text=RECORD))
    assert desk.run(note(desk.keys, [Note(id, "", "log:2", "last words")], 60_000)) == 1, "also after the end"
    assert desk.run(look(desk.keys, id)).notes == {"progress": '{"done": 1}', "log:1": "hello", "log:2": "last words"}


@pytest.mark.parametrize("taken", [False, True])
def test_a_revived_job_takes_its_name_again_unless_it_is_in_use(desk: Desk, taken: bool) -> None:
    id = desk.push_one(BODY, name="only-one", scope="until_done")
    end(desk, id, name="only-one")
    owner = desk.push_one(BODY, name="only-one", scope="until_done") if taken else id
    assert reviving(desk, id, name="only-one") == 1
    assert desk.ask("HGET", "names", "only-one") == owner.encode()
    for left in desk.claim(10):
        desk.turn(0, moved(left, "done", 3 if left == id else 1, name="only-one"))
    assert desk.ask("EXISTS", "names") == 0
