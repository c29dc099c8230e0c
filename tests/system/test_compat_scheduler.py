"""The queue manager of a scheduler: ids in the right order, each to one manager, none lost. And examples/scheduler."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import relevo
from relevo import Relevo
from relevo.compat import QueueManager, configure, current
from relevo.errors import OptionError
from relevo.testing import TestKit, bind
from tests.eventually import PATIENCE, eventually
from tests.servers import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler" / "queue_manager.py"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
ENV["PYTHONPATH"] = str(Path(relevo.__file__).parents[1])


@pytest.fixture
def kit(server: Server) -> Iterator[TestKit]:
    with bind(Relevo("scheduler", url=server.url), url=server.url) as kit:
        yield kit


@pytest.fixture
def manager(kit: TestKit) -> QueueManager:
    return QueueManager(kit.app, worker="w1")


def emptied(manager: QueueManager) -> list[str]:
    """All ids that are due, in the order they come."""
    found = []
    while (job_id := manager.dequeue()) is not None:
        manager.mark_completed(job_id)
        found.append(job_id)
    return found


def test_critical_is_first_however_old_the_others_are(manager: QueueManager) -> None:
    for priority in ("LOW", "NORMAL", "HIGH", "CRITICAL"):
        for n in (1, 2):
            manager.enqueue(f"{priority}:{n}", priority)
    assert emptied(manager) == [f"{level}:{n}" for level in ("CRITICAL", "HIGH", "NORMAL", "LOW") for n in (1, 2)]
    assert manager.dequeue() is None


def test_delayed_jobs_come_when_they_are_due_with_their_priority(manager: QueueManager, kit: TestKit) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    manager.enqueueDelayed("later", in_an_hour, "NORMAL")
    manager.enqueueDelayed("urgent", in_an_hour, "CRITICAL")
    manager.enqueue("now", "NORMAL")
    assert emptied(manager) == ["now"]
    assert manager.getStats() == {"priority": 0, "delayed": 2, "processing": 0, "dlq": 0}
    kit.clock.move("1h")
    assert emptied(manager) == ["urgent", "later"]


def test_promoting_moves_what_is_due_and_counts_it(manager: QueueManager) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=30)
    manager.enqueueDelayed("a", soon, "LOW")
    manager.enqueueDelayed("b", soon, "HIGH")
    manager.enqueueDelayed("c", datetime.now(UTC) + timedelta(hours=1), "CRITICAL")
    promoted = itertools.accumulate(manager.promoteDelayedJobs() for _ in itertools.count())
    assert eventually(lambda: total if (total := next(promoted)) >= 2 else 0) == 2
    assert manager.promoteDelayedJobs() == 0
    assert manager.getStats() == {"priority": 2, "delayed": 1, "processing": 0, "dlq": 0}
    assert emptied(manager) == ["b", "a"]


def test_all_that_is_due_by_the_clock_of_the_server_is_promoted(manager: QueueManager, kit: TestKit) -> None:
    for n in range(1200):
        manager.enqueueDelayed(f"job{n}", datetime.now(UTC) + timedelta(hours=1), "LOW")
    assert manager.promoteDelayedJobs() == 0
    kit.clock.move("1h")  # of the server; that of this process says that nothing is due
    assert manager.promoteDelayedJobs() == 1200
    assert (manager.promoteDelayedJobs(), manager.getStats()["priority"]) == (0, 1200)
    kit.app.queue("jobs").clear()


def test_each_job_is_handed_out_once_beside_promoters(kit: TestKit) -> None:
    managers = [QueueManager(kit.app, worker=f"w{n}") for n in range(4)]
    soon = datetime.now(UTC) + timedelta(minutes=1)
    for n in range(1000):
        managers[0].enqueueDelayed(f"job{n}", soon, "LOW")
    kit.clock.move("1m")

    def consume(manager: QueueManager) -> list[str]:
        found = emptied(manager)
        while manager.getStats()["delayed"]:
            found += emptied(manager)
        return found + emptied(manager)

    with ThreadPoolExecutor(4) as pool:
        promoted = [pool.submit(manager.promoteDelayedJobs) for manager in managers[:2]]
        consumed = [pool.submit(consume, manager) for manager in managers[2:]]
        found = [job_id for one in consumed for job_id in one.result(PATIENCE)]
    assert sorted(found) == sorted(f"job{n}" for n in range(1000))
    assert sum(one.result() for one in promoted) <= 1000


def test_job_that_waits_moves_to_another_priority(manager: QueueManager) -> None:
    for job_id, priority in (("up", "LOW"), ("down", "CRITICAL"), ("first", "NORMAL"), ("second", "NORMAL")):
        manager.enqueue(job_id, priority)
    manager.enqueue("up", "CRITICAL")
    manager.enqueue("down", "LOW")
    manager.enqueue("first", "NORMAL")  # nothing new: it keeps its place
    assert emptied(manager) == ["up", "first", "second", "down"]


def test_delayed_job_moves_to_another_time_or_to_now(manager: QueueManager, kit: TestKit) -> None:
    now = datetime.now(UTC)
    for job_id in ("sooner", "later", "now", "after"):
        manager.enqueueDelayed(job_id, now + timedelta(hours=2), "NORMAL")
    manager.enqueueDelayed("sooner", now + timedelta(hours=1), "LOW")
    manager.enqueueDelayed("later", now + timedelta(hours=3), "CRITICAL")
    manager.enqueue("now", "HIGH")
    manager.enqueue("ready", "HIGH")
    manager.enqueueDelayed("ready", now + timedelta(hours=4), "HIGH")
    assert emptied(manager) == ["now"]
    orders = []
    for _ in range(4):
        kit.clock.move("61m")
        orders.append(emptied(manager))
    assert orders == [["sooner"], ["after"], ["later"], ["ready"]]


def test_job_that_was_requeued_moves_too(manager: QueueManager) -> None:
    manager.enqueue("job", "LOW")
    manager.enqueue("other", "NORMAL")
    assert manager.dequeue() == "other"
    manager.requeue("other", "LOW", 3_600_000)
    manager.enqueue("other", "CRITICAL")
    assert emptied(manager) == ["other", "job"]


def test_score_says_the_order(manager: QueueManager, kit: TestKit) -> None:
    then = datetime(2026, 1, 1, tzinfo=UTC)
    levels = [manager.calculateScore(level, then) for level in ("CRITICAL", "HIGH", "NORMAL", "LOW")]
    assert levels == sorted(levels)
    assert levels[0] == then.timestamp() * 1000
    assert manager.calculateScore("HIGH", then) < manager.calculateScore("HIGH", then + timedelta(milliseconds=1))
    assert manager.calculateScore("CRITICAL", then + timedelta(days=9999)) < manager.calculateScore("HIGH", then)
    before = manager.calculateScore("CRITICAL")
    kit.clock.move("1h")
    assert manager.calculateScore("CRITICAL") >= before + 3_600_000, "now is by the server's clock"
    with pytest.raises(OptionError, match="did you mean 'HIGH'"):
        manager.calculateScore("HIHG")
    with pytest.raises(OptionError, match="no time zone"):
        manager.calculateScore("HIGH", datetime(2026, 1, 1))


def test_a_job_in_process_is_with_its_worker(manager: QueueManager) -> None:
    manager.enqueue("job", "HIGH")
    job_id = manager.dequeue()
    assert job_id == "job"
    started = manager.processing()["job"]["startedAt"]
    assert manager.processing() == {"job": {"workerId": "w1", "startedAt": started}}
    manager.markProcessing(job_id, "worker-7")
    [(_, entry)] = manager.processing().items()
    assert (entry["workerId"], entry["startedAt"] >= started) == ("worker-7", True)
    assert manager.getStats() == {"priority": 0, "delayed": 0, "processing": 1, "dlq": 0}
    assert manager.markCompleted(job_id) is True
    assert manager.processing() == {}
    assert manager.markCompleted(job_id) is False
    with pytest.raises(LookupError, match="job is not being processed"):
        manager.markProcessing("job", "worker-7")
    manager.enqueue("job")
    with pytest.raises(LookupError, match="it was not dequeued"):
        manager.markProcessing("job")
    with pytest.raises(OptionError, match="without spaces"):
        manager.markProcessing("job", "worker 7")
    assert emptied(manager) == ["job"]


@pytest.mark.parametrize("how", ["done", "dead", "again", "later"])
def test_another_process_settles_a_job_by_its_id(manager: QueueManager, kit: TestKit, how: str) -> None:
    """The one that dequeued it may have ended."""
    for priority in ("NORMAL", "LOW"):
        manager.enqueue(priority, priority)
    assert manager.dequeue() == "NORMAL"
    other = QueueManager(kit.app, worker="w2")
    other.markProcessing("NORMAL", "w2")
    assert other.processing()["NORMAL"]["workerId"] == "w2"
    third = QueueManager(kit.app)
    match how:
        case "done":
            assert third.markCompleted("NORMAL")
        case "dead":
            assert third.moveToDLQ("NORMAL", "card was closed")
        case "again":
            assert third.requeue("NORMAL", "CRITICAL")
        case "later":
            assert third.requeue("NORMAL", "LOW", 60_000)
    assert other.markCompleted("NORMAL") is False, "it is settled"
    assert manager.markCompleted("NORMAL") is False
    ready = {"done": ["LOW"], "dead": ["LOW"], "again": ["NORMAL", "LOW"], "later": ["LOW"]}[how]
    assert emptied(manager) == ready
    kit.clock.move("1m")
    assert emptied(manager) == (["NORMAL"] if how == "later" else [])
    assert [one["jobId"] for one in manager.dlq()] == (["NORMAL"] if how == "dead" else [])


def test_what_nobody_processes_can_be_given_up_and_requeued(manager: QueueManager) -> None:
    manager.enqueue("job")
    assert manager.moveToDLQ("job", "not wanted any more")
    assert not manager.moveToDLQ("unknown", "why")
    assert manager.requeue("job", "HIGH", 0)
    assert emptied(manager) == ["job"]


def test_dead_letters_keep_their_reason_and_time(manager: QueueManager, kit: TestKit) -> None:
    manager.enqueue("bad", "NORMAL")
    assert manager.dequeue() == "bad"
    assert manager.moveToDLQ("bad", "card was closed") is True
    [row] = kit.app.dead.list()
    ended_ms = kit.app.job(row.id).info().ended_ms
    assert ended_ms
    failed_at = datetime.fromtimestamp(ended_ms / 1000, UTC).isoformat()
    assert manager.dlq() == [{"jobId": "bad", "reason": "card was closed", "failedAt": failed_at}]
    assert manager.getStats() == {"priority": 0, "delayed": 0, "processing": 0, "dlq": 1}
    kit.app.dead.retry([row.id])
    assert emptied(manager) == ["bad"]


@pytest.mark.parametrize("priority", ["NORMAL", "CRITICAL"])
def test_a_requeued_job_comes_back_after_its_delay_with_its_priority(
    manager: QueueManager, kit: TestKit, priority: str
) -> None:
    manager.enqueue("again", "NORMAL")
    assert manager.dequeue() == "again"
    assert manager.requeue("again", priority, 60_000) is True
    assert manager.getStats() == {"priority": 0, "delayed": 1, "processing": 0, "dlq": 0}
    manager.enqueue("high", "HIGH")
    assert manager.dequeue() == "high"
    manager.requeue("high", "HIGH")
    kit.clock.move("1m")
    assert emptied(manager) == (["high", "again"] if priority == "NORMAL" else ["again", "high"])


def test_an_id_is_queued_once(manager: QueueManager) -> None:
    for _ in range(3):
        manager.enqueue("job", "NORMAL")
    assert emptied(manager) == ["job"]
    manager.enqueue("job", "NORMAL")
    assert emptied(manager) == ["job"]


def test_the_job_of_a_killed_or_slow_manager_goes_to_another(kit: TestKit) -> None:
    code = """
import os, signal, sys
from relevo import Relevo
from relevo.compat import QueueManager
manager = QueueManager(Relevo("scheduler", url=sys.argv[1], prefix=sys.argv[2]), worker="doomed", lease=600)
print(manager.dequeue(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    manager = QueueManager(kit.app, worker="w1", lease=600)
    manager.enqueue("job", "NORMAL")
    settings = kit.app.settings
    assert settings.url is not None
    words = [sys.executable, "-c", code, settings.url, settings.prefix]
    killed = subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert killed.stdout == "job\n", killed.stderr
    assert manager.dequeue() is None
    kit.clock.move("601s")
    assert manager.dequeue() == "job"
    kit.clock.move("601s")
    quick = QueueManager(kit.app, worker="quick", lease=600)
    assert quick.dequeue() == "job"
    assert manager.markCompleted("job") is False, "it is that of another manager now"
    with pytest.raises(LookupError, match="lease has ended"):
        QueueManager(kit.app).markProcessing("unknown")
    assert quick.markCompleted("job") is True


def test_a_slow_manager_learns_that_its_lease_has_ended(kit: TestKit) -> None:
    slow, quick = (QueueManager(kit.app, worker=name, lease=600) for name in ("slow", "quick"))
    slow.enqueue("job")
    assert slow.dequeue() == "job"
    kit.clock.move("601s")
    assert quick.dequeue() == "job"
    with pytest.raises(LookupError, match="its lease has ended"):
        slow.markProcessing("job")
    assert quick.processing()["job"]["workerId"] == "quick"
    assert quick.markCompleted("job") is True


def test_the_app_that_was_configured_is_used(kit: TestKit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(current, "_current", current._Current())
    configure(kit.app)
    QueueManager().enqueue("job")
    assert emptied(QueueManager(kit.app)) == ["job"]


def test_the_demonstration_prints_what_the_readme_shows() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout in EXAMPLE.with_name("README.md").read_text()
