"""The queue manager of examples/scheduler: ids in the right order, each to one manager, none lost."""

from __future__ import annotations

import importlib.util
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import relevo
from relevo import Relevo
from relevo.testing import TestKit, bind
from tests.eventually import PATIENCE, eventually
from tests.servers import Server

EXAMPLE = Path(__file__).parents[2] / "examples" / "scheduler" / "queue_manager.py"
ENV = {name: value for name, value in os.environ.items() if not name.startswith("RELEVO_")}
ENV["PYTHONPATH"] = str(Path(relevo.__file__).parents[1])


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("queue_manager", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def kit(server: Server) -> Iterator[TestKit]:
    with bind(Relevo("scheduler", url=server.url), url=server.url) as kit:
        yield kit


@pytest.fixture
def manager(example: Any, kit: TestKit) -> Any:
    return example.QueueManager(kit.app, worker="w1")


def emptied(manager: Any) -> list[str]:
    """All ids that are due, in the order they come."""
    found = []
    while (job_id := manager.dequeue()) is not None:
        manager.mark_completed(job_id)
        found.append(job_id)
    return found


def test_critical_is_first_however_old_the_others_are(manager: Any) -> None:
    for priority in ("LOW", "NORMAL", "HIGH", "CRITICAL"):
        for n in (1, 2):
            manager.enqueue(f"{priority}:{n}", priority)
    assert emptied(manager) == [f"{level}:{n}" for level in ("CRITICAL", "HIGH", "NORMAL", "LOW") for n in (1, 2)]
    assert manager.dequeue() is None


def test_delayed_jobs_come_when_they_are_due_with_their_priority(manager: Any, kit: TestKit) -> None:
    in_an_hour = datetime.now(UTC) + timedelta(hours=1)
    manager.enqueueDelayed("later", in_an_hour, "NORMAL")
    manager.enqueueDelayed("urgent", in_an_hour, "CRITICAL")
    manager.enqueue("now", "NORMAL")
    assert emptied(manager) == ["now"]
    assert manager.getStats() == {"priority": 0, "delayed": 2, "processing": 0, "dlq": 0}
    kit.clock.move("1h")
    assert emptied(manager) == ["urgent", "later"]


def test_promoting_moves_what_is_due_and_counts_it(manager: Any) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=30)
    manager.enqueueDelayed("a", soon, "LOW")
    manager.enqueueDelayed("b", soon, "HIGH")
    manager.enqueueDelayed("c", datetime.now(UTC) + timedelta(hours=1), "CRITICAL")
    promoted = itertools.accumulate(manager.promoteDelayedJobs() for _ in itertools.count())
    assert eventually(lambda: total if (total := next(promoted)) >= 2 else 0) == 2
    assert manager.promoteDelayedJobs() == 0
    assert manager.getStats() == {"priority": 2, "delayed": 1, "processing": 0, "dlq": 0}
    assert emptied(manager) == ["b", "a"]


def test_a_job_in_process_is_with_its_worker(manager: Any) -> None:
    manager.enqueue("job", "HIGH")
    job_id = manager.dequeue()
    manager.markProcessing(job_id, "w1")
    assert manager.processing() == {"job": "w1"}
    assert manager.getStats() == {"priority": 0, "delayed": 0, "processing": 1, "dlq": 0}
    assert manager.markCompleted(job_id) is True
    assert manager.processing() == {}
    with pytest.raises(LookupError, match="not dequeued by this manager"):
        manager.markCompleted(job_id)
    with pytest.raises(ValueError, match="works as 'w1'"):
        manager.markProcessing("job", "w2")


def test_dead_letters_keep_their_reason_and_time(manager: Any, kit: TestKit) -> None:
    manager.enqueue("bad", "NORMAL")
    assert manager.moveToDLQ(manager.dequeue(), "card was closed") is True
    assert manager.dlq() == {"bad": "card was closed"}
    [row] = kit.app.dead.list()
    assert row.ended_ms
    assert manager.getStats() == {"priority": 0, "delayed": 0, "processing": 0, "dlq": 1}
    kit.app.dead.retry([row.id])
    assert emptied(manager) == ["bad"]


@pytest.mark.parametrize("priority", ["NORMAL", "CRITICAL"])
def test_a_requeued_job_comes_back_after_its_delay_with_its_priority(manager: Any, kit: TestKit, priority: str) -> None:
    manager.enqueue("again", "NORMAL")
    assert manager.requeue(manager.dequeue(), priority, 60_000) is True
    assert manager.getStats() == {"priority": 0, "delayed": 1, "processing": 0, "dlq": 0}
    manager.enqueue("high", "HIGH")
    assert manager.dequeue() == "high"
    manager.requeue("high", "HIGH")
    kit.clock.move("1m")
    assert emptied(manager) == (["high", "again"] if priority == "NORMAL" else ["again", "high"])


def test_an_id_is_queued_once(manager: Any) -> None:
    for _ in range(3):
        manager.enqueue("job", "NORMAL")
    assert emptied(manager) == ["job"]
    manager.enqueue("job", "NORMAL")
    assert emptied(manager) == ["job"]


def test_the_job_of_a_killed_or_slow_manager_goes_to_another(example: Any, kit: TestKit) -> None:
    code = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from queue_manager import QueueManager
from relevo import Relevo
manager = QueueManager(Relevo("scheduler", url=sys.argv[2], prefix=sys.argv[3]), worker="doomed", lease=600)
print(manager.dequeue(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    manager = example.QueueManager(kit.app, worker="w1", lease=600)
    manager.enqueue("job", "NORMAL")
    settings = kit.app.settings
    assert settings.url is not None
    words = [sys.executable, "-c", code, str(EXAMPLE.parent), settings.url, settings.prefix]
    killed = subprocess.run(words, env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert killed.stdout == "job\n", killed.stderr
    assert manager.dequeue() is None
    kit.clock.move("601s")
    assert manager.dequeue() == "job"
    kit.clock.move("601s")
    quick = example.QueueManager(kit.app, worker="quick", lease=600)
    assert quick.dequeue() == "job"
    with pytest.raises(LookupError, match="another manager may have it"):
        manager.markProcessing("job")
    assert quick.markCompleted("job") is True


def test_the_demonstration_prints_what_the_readme_shows() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], env=ENV, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stdout in EXAMPLE.with_name("README.md").read_text()
