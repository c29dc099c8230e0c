"""Tasks and records that do harm: each costs itself, never its worker for long and never the jobs beside it."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import pytest

from relevo import State
from relevo.engine.ids import Ids
from relevo.store.plan import Call
from relevo.worker.executors.quarantine import QUARANTINES
from tests.eventually import eventually
from tests.process.harness import Site, children_of
from tests.process.jobs import ERRORS
from tests.servers import Server


@pytest.mark.parametrize("poison", ["segfault", "vanish"])
def test_job_that_kills_its_worker_three_times_is_a_dead_letter(server: Server, tmp_path: Path, poison: str) -> None:
    """The jobs beside it die with it, again and again, and are not taken for poison."""
    with Site(server, tmp_path) as site:
        # Few, and on the event loop: started when they are claimed, so that the supervisor knows of all of them.
        site.enqueue_many("nap", range(5), 0.05)
        job = site.enqueue(poison, 100)
        site.enqueue_many("nap", range(200, 205), 0.05)
        supervisor = site.start(supervised=True)
        eventually(lambda: job.state() is State.DEAD, what="the job is given up")
        site.check(duplicates=30, ended={100: State.DEAD})
        dead = job.info()
        assert dead.reason == "poison"
        assert {attempt.how for attempt in dead.attempts} == {"lost"}
        assert 3 <= len(dead.attempts) == len(site.effects("start", 100)) <= 2 + deaths_in_quarantine(11)
        assert supervisor.log.count("died after") == 2  # the next times other processes die, and at last it dies alone
        eventually(lambda: len(children_of(supervisor.pid)) == 1, what="processes of suspects end with them")


def deaths_in_quarantine(suspects: int) -> int:
    """How often a process may die under one job: each time at most half as many share one, and at last it is alone."""
    return math.floor(math.log2(suspects)) + 1


def test_neighbours_of_a_poison_job_do_not_run_in_single_file(server: Server, tmp_path: Path) -> None:
    """The culprit is found by halves, while its hundred neighbours, none of which can end yet, all run at once."""
    neighbours = [*range(50), *range(200, 250)]
    with Site(server, tmp_path, concurrency="200", lease="20s") as site:
        site.enqueue_many("gated", range(50))
        poison = site.enqueue("segfault", 100)
        site.enqueue_many("gated", range(200, 250))
        supervisor = site.start(supervised=True)
        eventually(lambda: poison.state() is State.DEAD, what="the culprit is found")

        def newest() -> dict[int, int]:
            return {effect.n: effect.pid for effect in site.effects("start") if effect.n != 100}

        def all_run() -> bool:
            return len(found := newest()) == 100 and all(Path(f"/proc/{pid}").exists() for pid in set(found.values()))

        eventually(all_run, what="all neighbours run at the same time")
        assert site.effects("end") == []
        processes = set(newest().values())
        assert len(processes) <= QUARANTINES + 1

        site.open(*neighbours)
        starts = Counter(effect.n for effect in site.effects("start"))
        assert starts[100] <= 2 + deaths_in_quarantine(101)
        assert max(starts.values()) <= 2 + deaths_in_quarantine(101)
        # After each death half of those that are left are known to be innocent, so two extra runs each are plenty.
        assert sum(starts.values()) <= 101 * 6
        site.check(duplicates=100 * 5, ended={100: State.DEAD})
        assert supervisor.log.count("died after") == 2
        assert supervisor.log.count("half as many in a process") < deaths_in_quarantine(101)
        assert poison.info().reason == "poison"


def test_any_exception_of_a_task_is_a_failure_of_the_task(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        worker = site.start()
        raised: dict[int, str] = {}
        for task in ("raise_in_thread", "raise_on_loop"):
            for name in ERRORS:
                n = len(raised)
                raised[n] = name
                site.enqueue(task, n, name)
        site.enqueue("nap", 100)
        site.enqueue("work", 101)
        site.check(ended=dict.fromkeys(raised, State.DEAD))
        for n, name in raised.items():
            dead = site.acknowledged[n].info()
            assert dead.reason == "retries_exhausted", name
            assert [attempt.error.rpartition(".")[2] for attempt in dead.attempts] == [name]
        assert {effect.pid for effect in site.effects()} == {worker.pid}


def wait_renewals(site: Site, n: int, times: int) -> bool:
    """Until the lease of a running job has been renewed so often. False: the job has no lease any more."""
    key, ends = site.app.engine.keys_of(site.queue.name).key("running"), set[bytes | None]()

    def is_renewed() -> bool:
        ends.add(site.app.engine.run(Call[bytes | None]([b"ZSCORE", key, site.acknowledged[n].id])))
        return None in ends or len(ends) > times

    eventually(is_renewed, what=f"the lease of job {n} is renewed")
    return None not in ends


def test_job_that_blocks_the_event_loop_keeps_its_lease_and_the_worker_hands_back_the_others(
    server: Server, tmp_path: Path
) -> None:
    """Jobs that were claimed together with it do not wait for the loop, and do not run twice because of it."""
    with Site(server, tmp_path, lease="3s") as site:
        site.enqueue("block", 0)
        site.enqueue_many("nap", range(1, 10))
        site.start(wait=False)  # claims them all at once, and is blocked by the first
        site.wait_effect("start", 0)
        eventually(lambda: site.queue.stats().ready == 9, what="the others are ready for any worker")
        assert wait_renewals(site, 0, 2)
        assert [effect.n for effect in site.effects("start")] == [0]
        site.open(0)
        site.check()
        assert all(job.info().attempts == () for job in site.acknowledged.values())


def test_job_that_ended_keeps_its_lease_until_the_server_knows(server: Server, tmp_path: Path) -> None:
    """Else another worker would run it a second time."""
    with Site(server, tmp_path, lease="9s") as site:
        worker = site.start()
        for blocking in range(0, 20, 2):
            site.enqueue("block_after", blocking)
            site.enqueue("gated_before", blocking + 1)
            site.wait_effect("start", blocking + 1)
            site.wait_idle(worker)
            site.open(blocking + 1)
            site.wait_effect("start", blocking)
            has_lease = wait_renewals(site, blocking + 1, 2)
            site.open(blocking)
            if has_lease:
                break  # else the worker was sending in the moment in which the job ended: once more
        assert has_lease
        site.check()


def test_jobs_run_elsewhere_while_a_worker_is_blocked(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        blocked = site.start()
        site.wait_idle(blocked)
        site.enqueue("block", 0)
        site.wait_effect("start", 0)
        with site.working() as free:
            eventually(lambda: free.consumers and free.consumers[0].is_resting, what="the other worker is idle")
            site.enqueue_many("nap", range(1, 21))
            for n in range(1, 21):
                assert site.wait_effect("end", n).pid == os.getpid()
        site.open(0)
        site.check()
        assert site.wait_effect("end", 0).pid == blocked.pid


def test_job_that_holds_pythons_lock_keeps_its_lease_through_the_supervisor(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path, lease="6s") as site:
        supervisor = site.start(supervised=True)
        site.enqueue("hold_python", 1)
        site.wait_effect("start", 1)
        supervisor.wait_log("1 leases renewed for a process that is busy")
        assert wait_renewals(site, 1, 2)
        site.open(1)
        site.check()
        assert site.acknowledged[1].info().attempts == ()


def test_hung_jobs_are_ended_at_their_time_limit_and_the_others_go_on(server: Server, tmp_path: Path) -> None:
    hung = dict(enumerate(["wait_for_ever", "spin_for_ever", "sleep_for_ever", "spin_in_process"]))
    with Site(server, tmp_path) as site:
        worker = site.start(concurrency=8, threads=16)
        for n, task in hung.items():
            site.enqueue(task, n)
        with site.load("work", first=100, pause=0.02):
            eventually(lambda: site.queue.stats().dead == len(hung), what="they are given up")
        for n in hung:
            [attempt] = site.acknowledged[n].info().attempts
            assert (attempt.how, attempt.error) == ("timed_out", "TimeoutError")
        site.check(ended=dict.fromkeys(hung, State.DEAD))
        assert {effect.pid for effect in site.effects() if effect.n not in hung} == {worker.pid}


def test_job_that_blocks_the_event_loop_beyond_its_limit_is_ended(server: Server, tmp_path: Path) -> None:
    """Nothing inside its process can stop it, so the supervisor ends the process."""
    with Site(server, tmp_path, lease="2s") as site:
        # The supervisor gives the process 10 s to stop the job by itself: here one.
        supervisor = site.start(supervised=True, prelude="import relevo.worker.supervisor as s; s.HANGS_AFTER = 1.0")
        job = site.enqueue("block_for_ever", 1)
        eventually(lambda: job.state() is State.DEAD, what="the job is given up")
        site.enqueue("nap", 2)
        site.check(ended={1: State.DEAD})
        assert "hangs 1 s beyond its time limit" in supervisor.log


def test_worker_whose_threads_hang_starts_anew(server: Server, tmp_path: Path) -> None:
    """Threads cannot be killed, their process can."""
    with Site(server, tmp_path, grace="1s") as site:
        supervisor = site.start(supervised=True, threads=4)
        for n in range(2):
            site.enqueue("sleep_for_ever", n)
        hung = site.wait_effect("start", 0).pid
        eventually(lambda: len(supervisor.ids) > 1, what="another process begins")
        site.enqueue("work", 10)
        assert site.wait_effect("end", 10).pid != hung
        site.check(ended={0: State.DEAD, 1: State.DEAD})


_GARBAGE = (
    b"",
    b"\x00\xff\xfe garbage \x80",
    b'{"t":"nap","a":[1',
    b"[1,2,3]",
    b"null",
    b'"nap"',
    b'{"t":5}',
    b'{"a":[1]}',
    b'{"t":"nap","p":"high"}',
    b'{"t":"nap","x":"tomorrow"}',
    b'{"t":"nap","a":' + b"[" * 100_000,
    b'{"t":"nap","a":' + b"[" * 5000 + b"]" * 5000 + b"}",
    b'{"t":"nap","a":{"n":1}}',
    b'{"t":"nap","a":["one"]}',
    b'{"t":"nap","a":[1,2,3,4]}',
    b'{"t":"nap","a":[],"k":{"os":"system"}}',
    '{"t":"nap","a":["\ud800"]}'.encode("utf-8", "surrogatepass"),
    b'{"t":"nap","a":[NaN]}',
    b'{"t":"os:system","a":["touch FORGED"]}',
    b'{"t":"subprocess:call","a":[["touch","FORGED"]]}',
    b'{"t":"builtins:exec","a":["open(\'FORGED\',\'w\')"]}',
    b'{"t":"relevo.app:sys.exit","a":[1]}',
    b'{"t":":","a":[]}',
)
_UNKNOWN = (b'{"t":"os.system","a":["touch FORGED"]}', b'{"t":"renamed_long_ago","a":[1]}', b'{"t":""}')


def test_bad_records_at_the_head_of_a_queue_stop_nothing(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path) as site:
        keys, new_id = site.app.engine.keys_of(site.queue.name), Ids()
        bad = {new_id(): _GARBAGE[n % len(_GARBAGE)] for n in range(300)}
        unknown = {new_id(): body for body in _UNKNOWN}
        site.enqueue_many("nap", range(50))
        for score, (id, body) in enumerate((bad | unknown).items()):
            site.app.engine.run(Call([b"HSET", keys.key("jobs"), id, body]))
            site.app.engine.run(Call([b"ZADD", keys.key("ready"), score, id]))
        site.app.engine.run(Call([b"ZADD", keys.key("ready"), 0, new_id()]))  # without a body
        worker = site.start()
        eventually(lambda: site.queue.stats().dead == len(bad), what="the bad records are dead letters")
        eventually(lambda: site.queue.stats().scheduled == len(unknown), what="unknown tasks wait")
        for id in unknown:
            job = site.app.job(id, queue=site.queue.name)
            assert job.state() is State.SCHEDULED  # for a worker that knows it
            assert "no task" in job.info().attempts[0].message
        reasons = {row.id: row.reason for row in site.queue.jobs("dead", limit=1000)}
        assert set(reasons) == set(bad)
        assert set(reasons.values()) == {"unreadable", "bad_arguments", "forbidden_target"}
        assert site.queue.clear() == len(unknown)
        site.check()
        assert not list(tmp_path.rglob("FORGED"))
        assert "Traceback" not in worker.log


@pytest.mark.parametrize("broken", ["claim", "lost claim", "story", "tenant", "id"])
def test_broken_bookkeeping_of_one_job_does_not_touch_the_others(server: Server, tmp_path: Path, broken: str) -> None:
    with Site(server, tmp_path) as site:
        keys, run = site.app.engine.keys_of(site.queue.name), site.app.engine.run
        id: str | bytes = b"\xff\xfe garbage" if broken == "id" else Ids()()
        run(Call([b"HSET", keys.key("jobs"), id, b'{"t":"nap","a":[777]}']))
        match broken:
            case "claim":
                run(Call([b"HSET", keys.key("claims"), id, b"garbage"]))
            case "lost claim":
                run(Call([b"HSET", keys.key("claims"), id, b"garbage"]))
                run(Call([b"ZADD", keys.key("running"), 0, id]))
            case "story":
                run(Call([b"HSET", keys.key("claims"), id, b"1 worker 5"]))
                run(Call([b"HSET", keys.key("story"), id, b"{garbage"]))
            case "tenant":
                run(Call([b"HSET", keys.key("groups"), id, b"nosuchtenant"]))
        place = {"lost claim": "running", "tenant": "scheduled"}.get(broken, "ready")
        run(Call([b"ZADD", keys.key(place), 0, id]))
        site.enqueue_many("nap", range(20))
        with site.working():
            eventually(lambda: site.queue.stats().done >= 20, what="the others run")
            if broken == "id":  # no call can name it: what wrote it must remove it
                for name in ("jobs", "claims", "story"):
                    run(Call([b"HDEL", keys.key(name), id]))
                for name in ("ready", "running"):
                    run(Call([b"ZREM", keys.key(name), id]))
            else:
                site.wait_effect("end", 777)
                site.unsure.add(777)
            site.check()
