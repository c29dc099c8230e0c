"""enroll, suspend, unenroll, tick, errands: schedules as the server keeps them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from relevo import Relevo
from relevo.engine.job_store import cancel, look
from relevo.engine.outbox import RESERVED_MS, Taken, relay, take_outbox
from relevo.engine.push import NewJob
from relevo.schedules import store
from relevo.schedules.schedule import Schedule, schedule_of
from relevo.schedules.store import RUNS_MAX, RUNS_MS, Ran, Standing, Tick
from tests.leaks import leaks
from tests.servers import Server
from tests.store.desk import Desk, moved, new_id, plain

HOUR = 3_600_000
BODY = b'{"t":"shop.report"}'


def made(name: str = "nightly", **options: Any) -> Schedule:
    if not {"cron", "every"} & options.keys():
        options["every"] = "1h"
    return schedule_of(name=name, target="shop.report", body=msgspec.Raw(BODY), **options)


def enroll(desk: Desk, schedule: Schedule, due_ms: int, code: str = "") -> str:
    said: str = desk.run(store.enroll(desk.keys, schedule, due_ms, code))
    return said


def fire(
    desk: Desk, schedule: Schedule, *ticks: int, due: int | None, next: int = 0, dropped: int = 0, **job: Any
) -> list[str] | None:
    """Fire ticks, each with a job of its own."""
    job = {"priority": 100, "when": "", **job}
    rows = [Tick(tick, NewJob(new_id(), body=BODY, **job)) for tick in ticks]
    ids: list[str] | None = desk.run(
        store.fire(desk.keys, schedule, rows, due_ms=due, next_ms=next, dropped=dropped, fail_ms=60_000)
    )
    return ids


def one(desk: Desk, schedule: Schedule, tick: int, **job: Any) -> str:
    """Fire the one tick that is waited for; an hour later comes the next."""
    (id,) = fire(desk, schedule, tick, due=tick, next=tick + HOUR, **job) or [""]
    return id


def standing(desk: Desk, name: str = "nightly") -> Standing:
    (found,) = desk.run(store.look(desk.keys, [name]))
    assert isinstance(found, Standing)
    return found


def history(desk: Desk, limit: int = RUNS_MAX) -> list[Ran]:
    ran: list[Ran] = desk.run(store.history(desk.keys, "nightly", limit))
    return ran


def everything(desk: Desk) -> list[Any]:
    """All that a script about schedules may write."""
    return [
        sorted(desk.ask("HGETALL", "schedules").items()),
        sorted(desk.ask("HGETALL", "ticks").items()),
        desk.ask("ZRANGE", "errands", 0, -1, "WITHSCORES"),
        desk.ask("LRANGE", "runs:nightly", 0, -1),
        sorted(desk.ask("HGETALL", "jobs").items()),
        [desk.members(key) for key in ("ready", "scheduled", "waiting")],
        sorted(desk.ask("HGETALL", "waiters").items()),
    ]


# --- enroll


def test_a_new_schedule_waits_for_its_first_tick(desk: Desk) -> None:
    schedule = made(cron="30 2 * * *", tz="Europe/Madrid", priority=7, overlap="queue")
    assert enroll(desk, schedule, 5000) == "new"
    assert desk.score("errands", "@nightly") == 5000
    assert standing(desk) == Standing(schedule=schedule, due_ms=5000)


@pytest.mark.parametrize("code", ["", "digest"])
def test_a_schedule_enrolled_many_times_is_one_and_keeps_its_tick(desk: Desk, code: str) -> None:
    schedule = made()
    assert enroll(desk, schedule, 5000, code) == "new"
    before = everything(desk)
    for n in range(100):
        assert enroll(desk, schedule, 6000 + n, code) == "same"
    if code:  # but when it was named is noted
        first = standing(desk).seen_ms or 0
        desk.advance(60_000)
        assert enroll(desk, schedule, 9000, code) == "same"
        assert (standing(desk).seen_ms or 0) >= first + 60_000
        desk.ask("HSET", "ticks", "seen:nightly", dict(before[1])[b"seen:nightly"])
    assert everything(desk) == before


@pytest.mark.parametrize("code", ["", "one"])
def test_other_times_bring_another_tick_and_other_options_do_not(desk: Desk, code: str) -> None:
    enroll(desk, made(), 5000)
    assert standing(desk).seen_ms is None, "a call does not name it for good"
    if code:
        assert enroll(desk, made(), 6000, code) == "same"
        assert standing(desk).due_ms == 5000
        assert standing(desk).seen_ms is not None
    changed = made(priority=3, overlap="allow", missed="all", jitter="5m")
    assert enroll(desk, changed, 7000) == "changed"
    assert enroll(desk, changed, 8000) == "same"
    assert standing(desk).schedule == changed
    assert standing(desk).due_ms == desk.score("errands", "@nightly") == 5000
    changed = made(every="10m")
    assert enroll(desk, changed, 7000) == "changed"
    assert enroll(desk, changed, 8000) == "same"
    assert not code or enroll(desk, made(), 8000, code) == "same", "the code has not changed since"
    assert standing(desk).due_ms == desk.score("errands", "@nightly") == 7000


def test_what_was_changed_at_run_time_stands_until_the_code_changes(desk: Desk) -> None:
    of_code, edited = made(origin="code"), made(every="10m", origin="code")
    assert enroll(desk, of_code, 5000, "one") == "new"
    assert enroll(desk, edited, 6000) == "changed"
    for _ in range(2):
        assert enroll(desk, of_code, 7000, "one") == "same"
        assert standing(desk).schedule == edited
        assert standing(desk).due_ms == 6000
    newer = made(every="20m", origin="code")
    assert enroll(desk, newer, 8000, "two") == "changed"
    assert standing(desk).schedule == newer
    assert enroll(desk, newer, 9000, "two") == "same"
    assert standing(desk).due_ms == 8000


def test_a_clock_that_was_set_back_far_is_not_waited_for(desk: Desk) -> None:
    """Up to ten minutes, the ticks that come again were fired already; beyond that, the clock was wrong."""
    assert enroll(desk, made(origin="code"), 10 * HOUR, "one") == "new"
    assert enroll(desk, made(origin="code"), 10 * HOUR - 600_000, "one") == "same"
    assert standing(desk).due_ms == 10 * HOUR
    assert enroll(desk, made(origin="code"), 9 * HOUR, "one") == "same"
    assert standing(desk).due_ms == desk.score("errands", "@nightly") == 9 * HOUR
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    enroll(desk, made(origin="code"), HOUR, "one")
    assert desk.members("errands") == []


def test_a_schedule_whose_pause_is_over_waits_for_its_new_tick(desk: Desk) -> None:
    """The note of a pause that ended by itself stays until the next tick: it is no pause."""
    enroll(desk, made(), 5000)
    desk.run(store.suspend(desk.keys, "nightly", pause=True, due_ms=9_000_000, ends_ms=1))
    assert enroll(desk, made(every="10m"), 6000) == "changed"
    assert standing(desk).due_ms == desk.score("errands", "@nightly") == 6000


def test_a_paused_schedule_that_changes_stays_paused(desk: Desk) -> None:
    enroll(desk, made(), 5000)
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    assert enroll(desk, made(every="10m"), 6000) == "changed"
    assert desk.members("errands") == []
    found = standing(desk)
    assert (found.due_ms, found.schedule.paused) == (None, True)
    assert found.paused_ms is not None
    assert b'"paused":false' in desk.ask("HGET", "schedules", "nightly"), "said in one place only"


def test_an_idle_worker_is_called_if_the_schedule_is_what_comes_next(desk: Desk) -> None:
    desk.wait("w1")
    enroll(desk, made(), 5000)
    assert desk.bell("w1") == [b""]
    desk.wait("w2")
    enroll(desk, made("later"), 6000)
    assert desk.bell("w2") == [], "a worker that waits for the first finds this one then"
    enroll(desk, made("sooner"), 4000)
    assert desk.bell("w2") == [b""]
    desk.wait("w3")
    enroll(desk, made("sooner"), 4000)
    assert desk.bell("w3") == []


# --- suspend


def test_a_paused_schedule_waits_for_nothing_until_it_is_resumed_or_its_pause_gets_an_end(desk: Desk) -> None:
    def suspend(pause: bool, due_ms: int = 0, ends_ms: int = 0) -> bool:
        before = everything(desk)
        is_changed: bool = desk.run(store.suspend(desk.keys, "nightly", pause=pause, due_ms=due_ms, ends_ms=ends_ms))
        assert is_changed or ends_ms or everything(desk) == before
        return is_changed

    enroll(desk, made(), 5000)
    assert suspend(True)
    assert (standing(desk).paused_ms, standing(desk).due_ms, desk.members("errands")) == (desk.now_ms, None, [])
    assert not suspend(True)
    desk.wait("w1")
    assert suspend(False, 9000)
    assert desk.bell("w1") == [b""]
    assert not suspend(False, 9900)
    assert standing(desk).due_ms == desk.score("errands", "@nightly") == 9000
    assert suspend(True)
    desk.ask("DEL", "bell:w1")
    desk.wait("w1")
    ends_ms = desk.now_ms + 60_000
    assert not suspend(True, ends_ms + 1, ends_ms)
    assert desk.bell("w1") == [b""]
    assert desk.score("errands", "@nightly") == ends_ms + 1


def test_a_schedule_that_is_not_there_cannot_be_paused_and_fires_nothing(desk: Desk) -> None:
    for pause in (True, False, True):
        assert desk.run(store.suspend(desk.keys, "nightly", pause=pause, due_ms=1)) is None
    desk.ask("ZADD", "errands", 1000, "@nightly")
    for due in (1000, None):
        assert fire(desk, made(), 1000, due=due, next=2000) is None
    assert everything(desk) == [[], [], [], [], [], [[], [], []], []]


# --- unenroll


def test_a_removed_schedule_leaves_nothing_but_its_jobs(desk: Desk, app: Relevo, server: Server) -> None:
    schedule = made()
    enroll(desk, schedule, 1000, "digest")
    id = one(desk, schedule, 1000)
    fire(desk, schedule, 1000 + HOUR, due=1000 + HOUR, next=9 * HOUR, dropped=3)
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    assert set(desk.ask("HKEYS", "ticks")) == {
        f"{part}:nightly".encode()
        for part in ("times", "due", "code", "paused", "seen", "job", "fired", "skipped", "dropped")
    }, "all that can be there"
    enroll(desk, made("other"), 1000)
    assert desk.run(store.unenroll(desk.keys, "nightly")) is True
    assert desk.run(store.unenroll(desk.keys, "nightly")) is False
    assert desk.run(store.look(desk.keys, ["nightly"])) == []
    assert standing(desk, "other").due_ms == 1000
    assert desk.run(store.unenroll(desk.keys, "other")) is True
    for key in ("schedules", "ticks", "errands", "runs:nightly"):
        assert desk.ask("EXISTS", key) == 0, key
    assert desk.claim() == [id]
    desk.finish([id])
    assert leaks(server, app.name) == []


# --- tick


def test_the_tick_that_is_waited_for_fires_once_however_many_try(desk: Desk) -> None:
    """Each tick fires once."""
    schedule = made()
    enroll(desk, schedule, 1000)
    id = one(desk, schedule, 1000, priority=7)
    assert (desk.members("ready"), desk.ask("HGET", "jobs", id)) == ([id], BODY)
    assert desk.score("errands", "@nightly") == 1000 + HOUR
    assert standing(desk) == Standing(schedule=schedule, due_ms=1000 + HOUR, job=id, fired=1)
    before = everything(desk)
    for _ in range(20):
        assert fire(desk, schedule, 1000, due=1000, next=1000 + HOUR) is None
        assert fire(desk, schedule, 999, due=999, next=1000 + HOUR) is None
        assert fire(desk, schedule, 5 * HOUR, due=5 * HOUR, next=6 * HOUR) is None
    assert everything(desk) == before
    assert desk.stats().totals == {"enqueued": 1}


def test_a_tick_is_skipped_as_long_as_the_job_before_it_lives(desk: Desk) -> None:
    schedule = made(overlap="skip")
    enroll(desk, schedule, 0 + HOUR)
    first = one(desk, schedule, HOUR)
    assert one(desk, schedule, 2 * HOUR) == "", "ready"
    desk.claim()
    assert one(desk, schedule, 3 * HOUR) == "", "running"
    desk.turn(0, moved(first, "retry", ms=60_000, text=b"{}"))
    assert one(desk, schedule, 4 * HOUR) == "", "it will be tried again"
    assert standing(desk).due_ms == 5 * HOUR
    assert (standing(desk).fired, standing(desk).skipped, standing(desk).job) == (1, 3, first)
    desk.run(cancel(desk.keys, [(first, 60_000, "")], 1000))
    second = one(desk, schedule, 5 * HOUR)
    assert second and (standing(desk).fired, standing(desk).skipped) == (2, 3)
    assert [(ran.tick_ms // HOUR, ran.job, ran.what) for ran in history(desk)] == [
        (5, second, "fired"),
        (4, first, "skipped"),
        (3, first, "skipped"),
        (2, first, "skipped"),
        (1, first, "fired"),
    ]


def test_of_several_ticks_at_once_one_fires_unless_they_may_overlap(desk: Desk) -> None:
    for overlap, fired, skipped, places in (("skip", 1, 2, (1, 0)), ("allow", 3, 0, (3, 0)), ("queue", 3, 0, (1, 2))):
        schedule = made(f"by-{overlap}", overlap=overlap)
        enroll(desk, schedule, 1000)
        ids = fire(desk, schedule, 1000, 2000, 3000, due=1000, next=4000)
        assert ids is not None and len(ids) == fired
        found = standing(desk, f"by-{overlap}")
        assert (found.fired, found.skipped, found.job, found.due_ms) == (fired, skipped, ids[-1], 4000)
        assert (desk.stats().ready, desk.stats().waiting) == places
        while desk.stats().living:
            desk.drain()
            desk.run(relay(lambda _: desk.keys, ["default"], 1000))


@pytest.mark.parametrize(
    "ending", ["done", "done without a trace", "dead", "cancelled", "expired", "cancelled at once"]
)
def test_a_queued_tick_waits_for_the_job_before_it_however_that_ends(desk: Desk, ending: str) -> None:
    schedule = made(overlap="queue")
    enroll(desk, schedule, HOUR)
    first = one(desk, schedule, HOUR, priority=7)
    second = one(desk, schedule, 2 * HOUR, priority=7)
    third = one(desk, schedule, 3 * HOUR, priority=7)
    assert (desk.members("ready"), desk.members("waiting")) == ([first], [second, third])
    assert desk.run(look(desk.keys, second)).state.value == "waiting"
    if ending == "cancelled at once":
        desk.run(cancel(desk.keys, [(first, 60_000, "")], 1000))
    else:
        assert desk.claim() == [first]
        word = ending.split()[0]
        desk.turn(0, plain([first]) if ending == "done without a trace" else moved(first, word, text=b'{"state":"x"}'))
    assert desk.members("waiting") == [second, third], "an outbox message reports it"
    for _ in range(2):
        desk.run(relay(lambda _: desk.keys, ["default"], 1000))
        assert (desk.members("ready"), desk.members("waiting")) == ([second], [third])
    assert desk.claim() == [second]
    desk.finish([second])
    desk.run(relay(lambda _: desk.keys, ["default"], 1000))
    assert desk.members("ready") == [third]
    assert one(desk, schedule, 4 * HOUR) in desk.members("waiting")
    desk.claim()
    desk.finish([third])
    desk.run(relay(lambda _: desk.keys, ["default"], 1000))
    desk.drain()
    assert one(desk, schedule, 5 * HOUR) in desk.members("ready"), "nothing is before it"


@pytest.mark.parametrize("overlap", ["allow", "queue"])
def test_a_job_of_a_schedule_has_its_priority_tenant_and_time(desk: Desk, overlap: str) -> None:
    """Also after it waited for the job before it."""
    schedule = made(overlap=overlap)
    enroll(desk, schedule, HOUR)
    later_ms = desk.now_ms + 60_000
    first = one(desk, schedule, HOUR)
    if overlap == "allow":
        urgent = one(desk, schedule, 2 * HOUR, priority=0)
        overdue = one(desk, schedule, 3 * HOUR, priority=200, when="1000")
        assert desk.members("ready") == [urgent, first, overdue]
    tick = standing(desk).due_ms or 0
    later = one(desk, schedule, tick, priority=3, when=str(later_ms), tenant="acme", weight=2.0)
    if overlap == "queue":
        assert desk.claim() == [first]
        desk.finish([first])
        desk.run(relay(lambda _: desk.keys, ["default"], 1000))
    assert desk.members("scheduled") == [later]
    assert desk.score("scheduled", later) == later_ms * 1024 + 3
    assert desk.ask("HGET", "groups", later) in (b"2 acme", b"2.0 acme")


def test_dropped_ticks_are_counted_and_listed(desk: Desk) -> None:
    schedule = made()
    enroll(desk, schedule, 500)
    assert fire(desk, schedule, due=500, next=1000) == [], "it moves on without a job"
    assert standing(desk) == Standing(schedule=schedule, due_ms=1000)
    assert (history(desk), desk.ask("EXISTS", "runs:nightly")) == ([], 0)
    (id,) = fire(desk, schedule, 9000, due=1000, next=9000 + HOUR, dropped=7) or [""]
    assert fire(desk, schedule, due=9000 + HOUR, next=3 * HOUR, dropped=2) == []
    assert standing(desk).dropped == 9
    assert [(ran.tick_ms, ran.job, ran.what) for ran in history(desk)] == [
        (9000 + HOUR, "", "dropped 2"),
        (9000, id, "fired"),
        (1000, "", "dropped 7"),
    ]
    assert {ran.at_ms for ran in history(desk)} == {desk.now_ms}


def test_the_history_is_short_and_ends_by_itself(desk: Desk) -> None:
    schedule = made(overlap="allow")
    enroll(desk, schedule, 1000)
    ticks = range(1000, 61_000, 1000)
    ids = fire(desk, schedule, *ticks, due=1000, next=61_000)
    assert ids is not None and len(ids) == 60
    assert [ran.job for ran in history(desk)] == ids[:9:-1]
    assert [ran.job for ran in history(desk, 3)] == ids[:-4:-1]
    assert desk.ask("LLEN", "runs:nightly") == RUNS_MAX == 50
    assert RUNS_MS // 2 < desk.ask("PTTL", "runs:nightly") <= RUNS_MS
    desk.ask("PEXPIRE", "runs:nightly", 600_000)
    one(desk, schedule, 61_000)
    assert desk.ask("LLEN", "runs:nightly") == RUNS_MAX
    assert desk.ask("PTTL", "runs:nightly") > 600_000, "renewed by each tick"


def test_a_tick_wakes_as_many_idle_workers_as_there_are_jobs(desk: Desk) -> None:
    schedule = made(overlap="allow")
    enroll(desk, schedule, 1000)
    for worker in ("w1", "w2", "w3"):
        desk.wait(worker)
    one(desk, schedule, 1000)
    assert sorted(len(desk.bell(worker)) for worker in ("w1", "w2", "w3")) == [0, 0, 1]
    fire(desk, schedule, 2000, 3000, 4000, due=1000 + HOUR, next=9 * HOUR)
    assert [desk.bell(worker) for worker in ("w1", "w2", "w3")] == [[b""]] * 3
    for worker in ("w1", "w2"):
        desk.ask("DEL", f"bell:{worker}")
    desk.drain()
    desk.wait("w1")
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    fire(desk, schedule, due=9 * HOUR, next=10 * HOUR)
    assert desk.bell("w1") == [], "nothing was queued"


def test_run_now_is_not_a_tick(desk: Desk) -> None:
    schedule = made(overlap="skip")
    enroll(desk, schedule, HOUR)
    desk.wait("w1")
    (first,) = fire(desk, schedule, 777, due=None) or [""]
    assert desk.bell("w1") == [b""]
    (second,) = fire(desk, schedule, 888, due=None) or [""]
    assert desk.members("ready") == [first, second], "a worker that asks need not wait"
    assert standing(desk) == Standing(schedule=schedule, due_ms=HOUR, job=second, fired=2)
    assert desk.score("errands", "@nightly") == HOUR
    assert [(ran.tick_ms, ran.job, ran.what) for ran in history(desk)] == [(0, second, "fired"), (0, first, "fired")]
    assert one(desk, schedule, HOUR) == "", "but a tick heeds it"
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    assert len(fire(desk, schedule, 777, due=None) or []) == 1, "also of a paused schedule, which stays paused"
    assert (desk.members("errands"), standing(desk).paused_ms) == ([], desk.now_ms)


def test_a_worker_that_took_a_tick_before_the_pause_does_not_fire_it_and_ends_no_pause(desk: Desk) -> None:
    schedule = made()
    enroll(desk, schedule, 1000)
    assert taken(desk).ids == ["@nightly"]
    desk.run(store.suspend(desk.keys, "nightly", pause=True))
    before = everything(desk)
    assert fire(desk, schedule, 1000, due=1000, next=HOUR) is None
    assert everything(desk) == before
    assert desk.members("errands") == []
    desk.run(store.suspend(desk.keys, "nightly", pause=False, due_ms=HOUR))
    assert fire(desk, schedule, 1000, due=1000, next=HOUR) is None, "nor does it end the wait for the next one"
    assert one(desk, schedule, HOUR)


# --- errands


def taken(desk: Desk, *, ticks: bool = True) -> Taken:
    found: Taken = desk.run(take_outbox(desk.keys, ticks=ticks))
    return found


def test_a_schedule_is_given_out_when_its_tick_has_come(desk: Desk) -> None:
    schedule = made()
    now = desk.now_ms
    enroll(desk, schedule, now + 5000)
    enroll(desk, made("later"), now + 60_000)
    found = taken(desk)
    assert (found.ids, found.texts, found.next_ms) == ([], [], now + 5000)
    desk.advance(5000)
    assert taken(desk, ticks=False).ids == [], "not to a call that only takes outbox messages"
    found = taken(desk)
    assert found.ids == ["@nightly"]
    due, _, record = found.texts[0].partition(b"\n")
    assert (int(due), record) == (now + 5000, desk.ask("HGET", "schedules", "nightly"))
    assert found.now_ms >= now + 5000


def test_a_tick_taken_by_a_dead_worker_is_free_after_a_moment_and_fired_once(desk: Desk) -> None:
    schedule, now = made(), desk.now_ms
    enroll(desk, schedule, now)
    first = taken(desk)
    assert first.ids == ["@nightly"]
    assert first.next_ms == first.now_ms + RESERVED_MS
    assert taken(desk).ids == []
    desk.advance(RESERVED_MS)
    again = taken(desk)
    assert (again.ids, again.texts) == (first.ids, first.texts)
    assert fire(desk, schedule, now, due=now, next=now + HOUR)
    assert fire(desk, schedule, now, due=now, next=now + HOUR) is None
    assert desk.score("errands", "@nightly") == now + HOUR
    desk.advance(HOUR // 2 - RESERVED_MS)
    assert taken(desk).ids == []
    desk.advance(HOUR // 2)
    assert taken(desk).ids == ["@nightly"]


def test_outbox_messages_and_ticks_are_given_out_together(desk: Desk) -> None:
    now = desk.now_ms
    enroll(desk, made(), now)
    desk.ask("HSET", "letters", "x.2", "done 2 x\n\n")
    desk.ask("ZADD", "errands", now - 1, "x.2")
    assert taken(desk).ids == ["x.2", "@nightly"]
    left = desk.run(take_outbox(desk.keys, ["x.2"], ticks=True))
    assert (left.ids, desk.members("errands")) == ([], ["@nightly"])
    assert desk.ask("EXISTS", "letters") == 0


# --- look, and where a schedule is kept


def test_several_schedules_are_looked_at_together(desk: Desk) -> None:
    for n, name in enumerate(("a", "b", "c")):
        enroll(desk, made(name), 1000 * n)
    desk.ask("HSET", "schedules", "b", b"not json")
    newer = {**msgspec.json.decode(msgspec.json.encode(made("newer"))), "when": {"kind": "moon"}}
    desk.ask("HSET", "schedules", "newer", msgspec.json.encode(newer))
    found = desk.run(store.look(desk.keys, ["c", "gone", "b", "a", "newer"]))
    assert [(one.schedule.name, one.due_ms) for one in found] == [("c", 2000), ("a", 0)]
    assert desk.run(store.look(desk.keys, [])) == []
    for name in ("a", "b", "c", "newer"):
        desk.run(store.unenroll(desk.keys, name))


def test_the_app_knows_the_queue_of_each_schedule(app: Relevo) -> None:
    run, keys = app.engine.run, app.engine.keys
    assert run(store.homes(keys)) == {}
    assert run(store.home(keys, "nightly")) is None
    run(store.settle_in(keys, "nightly", "reports"))
    run(store.settle_in(keys, "täglich", "größe"))
    run(store.settle_in(keys, "nightly", "mails"))
    assert run(store.homes(keys)) == {"nightly": "mails", "täglich": "größe"}
    assert run(store.home(keys, "täglich")) == "größe"
    for _ in range(2):
        run(store.move_out(keys, "nightly"))
        assert run(store.homes(keys)) == {"täglich": "größe"}
