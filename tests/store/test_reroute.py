"""Jobs that one worker does not know, or refuses, go to a live worker that takes them."""

from __future__ import annotations

from typing import Any

import pytest

from relevo.engine import job_store as store_jobs
from relevo.engine.job import Envelope, write
from relevo.engine.offers_store import STAY_MS, Known, retire, serve_tasks, stay
from relevo.engine.turn import Settled, Turn, rest
from relevo.health.vitals_store import keep_minute, vitals
from relevo.limits import store as limits
from relevo.limits.limit import limit_of
from relevo.queues import store as queues
from tests.store.desk import LEASE_MS, Desk, knows, moved

TASK = "shop.charge"
DAY_MS = 86_400_000
OLD, NEW, NEWER = "a" * 10, "b" * 10, "c" * 10
#: Builds: one that does not know the task, and versions of it.
BEFORE, FIRST, SECOND = knows("shop.other"), knows(**{TASK: OLD}), knows(**{TASK: NEW})


def lives(desk: Desk, worker: str, known: Known) -> None:
    """A worker says what it knows."""
    desk.run(serve_tasks(desk.keys, worker, known))


def passed_on(
    desk: Desk, *ids: str, verb: str = "reroute", refusals: str = "-", worker: str = "old", ms: int = DAY_MS, **row: Any
) -> Turn:
    """A worker says that it cannot take jobs that it holds."""
    rows = [
        moved(id, verb, row.pop("token", 1), ms=ms, text=b"{}", name=f"{TASK}\n{refusals}", **row).moved[0]
        for id in ids
    ]
    return desk.turn(0, Settled(moved=rows), worker=worker)


def body(**options: Any) -> str:
    return write(Envelope(TASK, **options)).decode()


def held(desk: Desk, count: int = 1, worker: str = "old") -> list[str]:
    """Jobs that a worker claimed; their ids."""
    ids = desk.push(*[body()] * count)
    assert desk.claim(count, worker) == ids
    return ids


def left(desk: Desk) -> set[str]:
    """What is kept of jobs that were rerouted."""
    keys = desk.server.ask("KEYS", f"*{{{desk.keys.address}}}:*")
    names = {key.decode().split("}:")[1].split("\n")[0] for key in keys}
    return {name for name in names if name.startswith(("rerouted", "sought", "parked", "scheduled", "groups"))}


def test_a_job_goes_at_once_to_an_idle_worker_that_knows_it(desk: Desk) -> None:
    ids = held(desk, 3)
    for worker, known in (("old", BEFORE), ("idle old", BEFORE), ("new", FIRST), ("idle new", FIRST)):
        lives(desk, worker, known)
    for worker in ("idle old", "idle new"):
        desk.wait(worker)
    assert passed_on(desk, *ids).refused == []
    assert (desk.bell("idle new"), desk.bell("idle old")) == ([b""], [])
    assert desk.stats().scheduled == 3
    assert desk.claim(10, "idle old") == []
    got = desk.turn(2, worker="idle new")
    assert [id.decode() for id in got.ids] == ids[:2]
    assert {claim.split()[0] for claim, _ in got.again.values()} == {b"2"}
    assert desk.claim(10, "new") == ids[2:]
    assert desk.stats().totals["rerouted"] == 3
    assert left(desk) == set()


def test_a_worker_that_starts_later_is_called_for_what_it_knows(desk: Desk) -> None:
    passed_on(desk, *held(desk))
    desk.wait("new")
    assert desk.bell("new") == []
    lives(desk, "new", FIRST)
    assert desk.bell("new") == [b""]
    assert len(desk.claim(1, "new")) == 1


def test_a_worker_whose_call_was_lost_finds_what_waits_for_it(desk: Desk) -> None:
    ids = held(desk)
    lives(desk, "new", FIRST)
    desk.wait("new")
    passed_on(desk, *ids)
    desk.ask("ZADD", "idle", desk.now_ms + 30_000, "new")  # as if the call had gone to another one, which died
    assert desk.run(rest(desk.keys, "new", LEASE_MS, 30_000))[2] is False
    lives(desk, "old", BEFORE)
    desk.wait("old")
    assert desk.run(rest(desk.keys, "old", LEASE_MS, 30_000))[2] is True


def test_arguments_are_offered_to_another_version_and_never_again_to_one_that_refused(desk: Desk) -> None:
    (id,) = held(desk)
    for worker, known in (("old", FIRST), ("old 2", FIRST), ("new", SECOND)):
        lives(desk, worker, known)
    assert passed_on(desk, id, verb="offer", refusals=f"!{OLD}").unwanted == []
    assert desk.claim(1, "old 2") == desk.claim(1, "old") == []
    assert desk.claim(1, "new") == [id]
    lives(desk, "newer", knows(**{TASK: NEWER}))
    assert passed_on(desk, id, verb="offer", refusals=f"!{OLD},{NEW}", worker="new", token=2).unwanted == []
    assert desk.claim(1, "new") == []
    assert desk.claim(1, "newer") == [id]
    refusals = f"!{OLD},{NEW},{NEWER}"
    assert passed_on(desk, id, verb="offer", refusals=refusals, worker="newer", token=3).unwanted == [id.encode()]
    assert desk.stats().running == 1, "whoever refused it last still has it, to refuse it for good"
    assert left(desk) == set()


@pytest.mark.parametrize("how", ["never there", "went", "silent", "another task"])
def test_what_no_live_worker_would_take_stays_with_the_one_that_refused_it(desk: Desk, how: str) -> None:
    (id,) = held(desk)
    lives(desk, "old", FIRST)
    if how != "never there":
        lives(desk, "new", BEFORE if how == "another task" else SECOND)
    if how == "went":
        desk.run(retire(desk.keys, "new"))
    if how == "silent":
        desk.advance(STAY_MS + 1)
    for _ in range(2):  # also when the reply to the first was lost
        found = passed_on(desk, id, verb="offer", refusals=f"!{OLD}")
        assert (found.unwanted, found.refused) == ([id.encode()], [])
    assert desk.turn(0, moved(id, "dead", text=b'{"state":"dead"}')).refused == []


def test_all_workers_are_believed_for_a_while_after_an_outage_or_a_step_of_the_clock(desk: Desk) -> None:
    (id,) = held(desk)
    lives(desk, "old", FIRST)
    lives(desk, "new", SECOND)
    desk.jump(STAY_MS * 2)
    lives(desk, "old", FIRST)  # the first that comes back
    assert passed_on(desk, id, verb="offer", refusals=f"!{OLD}").unwanted == []
    lives(desk, "new", SECOND)
    assert desk.claim(1, "new") == [id]


def test_an_idle_worker_lives_though_it_did_not_say_so_of_late(desk: Desk) -> None:
    lives(desk, "new", SECOND)
    desk.advance(STAY_MS * 2)
    (id,) = held(desk)
    desk.wait("new")
    assert passed_on(desk, id, verb="offer", refusals=f"!{OLD}").unwanted == []
    lives(desk, "another", BEFORE)  # removes who is silent
    assert desk.claim(1, "new") == [id]


def test_a_worker_says_with_one_command_that_it_stays(desk: Desk) -> None:
    assert desk.run(stay(desk.keys, "new", desk.now_ms)) is False, "nothing is known of it"
    lives(desk, "new", FIRST)
    desk.advance(20_000)
    call = stay(desk.keys, "new", desk.now_ms)
    assert sum(desk.commands(lambda: desk.run(call)).values()) == 1
    desk.advance(STAY_MS - 1)
    (id,) = held(desk)
    assert passed_on(desk, id, verb="offer", refusals=f"!{NEW}").unwanted == []
    assert desk.run(retire(desk.keys, "new")) == 0
    assert desk.ask("EXISTS", "offers") == desk.ask("EXISTS", "instances") == 0


@pytest.mark.parametrize("how", ["went", "silent", "silent, seen by another"])
def test_a_refused_job_is_ready_again_when_its_last_taker_is_gone(desk: Desk, how: str) -> None:
    ids = held(desk, 3)
    lives(desk, "old", FIRST)
    lives(desk, "new", SECOND)
    passed_on(desk, *ids, verb="offer", refusals=f"!{OLD}", tenant="a", weight=2.0)
    desk.run(keep_minute(desk.keys))
    assert desk.claim(3, "old") == []
    desk.wait("old")
    if how == "went":
        desk.run(retire(desk.keys, "new"))
    else:
        desk.advance(STAY_MS + 1)
        desk.wait("old")
        if how == "silent":
            desk.run(keep_minute(desk.keys))
        else:
            lives(desk, "old", FIRST)
    assert desk.bell("old") == [b""]
    assert desk.claim(3, "old") == ids
    assert left(desk) == set()


def test_what_nobody_knows_waits_until_its_time_has_come(desk: Desk) -> None:
    ids = held(desk, 3)
    lives(desk, "old", BEFORE)
    passed_on(desk, *ids[:2], ms=60_000, tenant="a", weight=2.0)
    passed_on(desk, *ids[2:], ms=90_000)
    assert desk.wait("old").wake_ms == desk.now_ms + 60_000, "an idle worker hears of it"
    desk.run(keep_minute(desk.keys))
    assert desk.claim(3, "old") == []
    desk.advance(60_000)
    assert desk.claim(3, "old") == ids[:2]
    desk.advance(30_000)
    assert desk.claim(3, "old") == ids[2:]
    assert left(desk) == set()


@pytest.mark.parametrize("how", ["cancel", "clear", "both"])
def test_a_job_that_is_removed_leaves_nothing(desk: Desk, how: str) -> None:
    ids = held(desk, 4)
    passed_on(desk, *ids[:2])
    passed_on(desk, *ids[2:], verb="reroute", refusals=OLD, tenant="a", weight=2.0)
    if how != "clear":
        row = [(id, 1000, "") for id in (ids if how == "cancel" else ids[:3])]
        assert desk.run(store_jobs.cancel(desk.keys, row, 1000))[0] == ["cancelled"] * len(row)
    if how != "cancel":
        desk.run(queues.clear(desk.keys))
    assert desk.stats().living == 0
    assert left(desk) == set()


def test_urgent_jobs_go_first_and_what_is_left_waits_on_in_its_line(desk: Desk) -> None:
    ids = held(desk, 3)
    passed_on(desk, *ids, tenant="a", weight=2.0)
    urgent = desk.push(body(), body(), priority=1)
    later = desk.push(body(), body(), priority=200)
    lives(desk, "new", FIRST)
    assert desk.claim(1, "new") == urgent[:1]
    assert desk.claim(1, "old") == urgent[1:], "the others are not for this one"
    assert desk.claim(2, "new") == ids[:2]
    assert desk.claim(1, "old") == later[:1]
    assert desk.stats().scheduled == 1
    assert desk.claim(9, "new") == [ids[2], later[1]]
    assert left(desk) == set()


def test_limits_and_pauses_hold_for_a_job_that_was_rerouted(desk: Desk) -> None:
    ids = held(desk, 3)
    lives(desk, "new", FIRST)
    passed_on(desk, *ids)
    desk.run(queues.pause(desk.keys, True))
    assert desk.claim(3, "new") == []
    desk.run(queues.pause(desk.keys, False))
    desk.run(limits.limit(desk.keys, "q:", limit_of(concurrency=1)))
    first = desk.turn(3, worker="new", idle_ms=30_000)
    assert [id.decode() for id in first.ids] == ids[:1]
    assert first.wake_ms and first.wake_ms <= desk.now_ms + 1_000, "nobody else would come for what is left"
    assert desk.claim(3, "old") == []
    desk.run(limits.limit(desk.keys, f"t:{TASK}", limit_of(concurrency=1)))
    desk.run(limits.unlimit(desk.keys, "q:"))
    assert desk.claim(3, "new") == []
    assert desk.stats().waiting == 2, "parked by the limit of their task"
    assert desk.turn(0, moved(ids[0], "done", 2)).refused == []
    assert desk.claim(1, "new") == ids[1:2]


def test_tasks_that_no_live_worker_knows_are_named(desk: Desk) -> None:
    ids = held(desk, 3)
    lives(desk, "old", FIRST)
    passed_on(desk, *ids[:2])
    assert seen(desk, ids[0]) == ({}, {}, 1)
    passed_on(desk, ids[2], refusals=OLD)
    assert seen(desk, ids[2]) == ({TASK: 1}, {TASK: 1}, 0)
    desk.run(retire(desk.keys, "old"))
    assert seen(desk, ids[0]) == ({TASK: 3}, {TASK: 3}, 0)
    lives(desk, "new", SECOND)
    assert seen(desk, ids[0]) == ({}, {}, 1)
    assert desk.claim(3, "new") == ids
    assert seen(desk, ids[0]) == ({}, {}, None)


def test_functions_that_no_live_worker_knows_are_named_by_the_first_of_their_jobs(desk: Desk) -> None:
    ids = held(desk, 2)
    for id in ids:
        desk.turn(0, moved(id, "reroute", ms=DAY_MS, name=f"*\n{OLD}"), worker="old")
    assert seen(desk, ids[1]) == ({TASK: 2}, {TASK: 2}, 0)


def seen(desk: Desk, id: str) -> tuple[dict[str, int], dict[str, int], int | None]:
    """Tasks that no live worker knows, as status and health tell them, and how many workers take one job."""
    look = desk.run(vitals(desk.keys, "default"))
    return desk.stats().unknown_tasks, look.unknown_tasks, desk.run(store_jobs.look(desk.keys, id)).takers


def test_only_the_holder_of_a_job_may_pass_it_on(desk: Desk) -> None:
    (id,) = held(desk)
    assert passed_on(desk, id, token=7).refused == [id.encode()]
    passed_on(desk, id)
    assert passed_on(desk, id).refused == [id.encode()], "told twice, it counts once"
    assert desk.stats().totals["rerouted"] == 1


def test_a_queue_without_such_jobs_asks_nothing_more(desk: Desk) -> None:
    desk.wait("w")
    desk.push(*[body()] * 2)
    desk.turn(1)
    without = desk.commands(lambda: desk.turn(1))
    lives(desk, "new", FIRST)
    ids = held(desk)
    passed_on(desk, *ids)
    assert desk.claim(1, "new") == ids
    assert desk.turn(0, moved(ids[0], "done", 2)).refused == []
    desk.push(*[body()] * 2)
    assert desk.claim(1, "w")
    assert desk.commands(lambda: desk.turn(1)) == without


def test_many_targets_and_forged_ones_do_not_hide_a_line(desk: Desk) -> None:
    ids = held(desk, 300)
    for n, id in enumerate(ids):
        row = moved(id, "reroute", ms=DAY_MS, name=f"forged.{n}\n-" if n < 299 else f"{TASK}\n-")
        desk.turn(0, row)
    lives(desk, "new", knows(*(f"known.{n}" for n in range(2500)), **{TASK: OLD}))
    assert desk.claim(10, "new") == ids[299:]
    desk.run(queues.clear(desk.keys))
    assert left(desk) == set()


def test_a_line_entry_without_a_job_is_dropped(desk: Desk) -> None:
    ids = held(desk, 2)
    lives(desk, "new", FIRST)
    passed_on(desk, *ids)
    desk.ask("ZREM", "scheduled", ids[0])
    desk.ask("HDEL", "jobs", ids[0], ids[1])
    assert desk.claim(2, "new") == []
    assert left(desk) == set()
    desk.ask("DEL", "claims")
    desk.ask("DEL", "story")
