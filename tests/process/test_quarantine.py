"""Suspects share child processes: each can be stopped, and the death of a process halves those that share the next."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from relevo import Task
from relevo.checkpoints.keeping import is_interruption
from relevo.engine.job import Story
from relevo.worker.executors.handover import Ended
from relevo.worker.executors.quarantine import QUARANTINES, Quarantine
from relevo.worker.run import Encoded, ProcessDied, RemoteFailure, Run
from tests.eventually import PATIENCE, aeventually
from tests.process import suspect_tasks as tasks
from tests.process.harness import is_gone
from tests.process.process_tasks import environment
from tests.process.test_processes import SECRETS, run_of
from tests.system import lifespan_tasks

pytestmark = pytest.mark.asyncio(loop_scope="function")


class Ward:
    """A quarantine, with the runs that it started and ended."""

    def __init__(self, *, concurrency: int = 100, threads: int = 10) -> None:
        self.started: list[Run] = []
        self.ended: dict[Run, asyncio.Future[Ended]] = {}
        self.quarantine = Quarantine(concurrency, threads, self.started.append, self._end)

    def _end(self, run: Run, result: Any, error: BaseException | None) -> None:
        asyncio.get_running_loop()  # called on the loop, else this raises
        run.settled = True
        self.ended[run].set_result((run, result, error))

    def submit(self, task: Task[..., Any], *args: Any, among: int = 0) -> Run:
        run = run_of(task, *args)
        run.held = msgspec.structs.replace(run.held, story=Story(crashes=2, among=among))
        self.ended[run] = asyncio.get_running_loop().create_future()
        self.quarantine.submit(run)
        return run

    async def end_of(self, run: Run) -> Ended:
        return await asyncio.wait_for(self.ended[run], PATIENCE)

    async def pid(self, run: Run) -> int:
        _, encoded, error = await self.end_of(run)
        assert isinstance(encoded, Encoded), error
        found: int = run.task.signature.decode_result(encoded.result)
        return found

    async def died(self, run: Run) -> ProcessDied:
        error = (await self.end_of(run))[2]
        assert isinstance(error, ProcessDied), error
        return error

    async def begun(self, *runs: Run) -> None:
        await aeventually(lambda: all(run in self.started for run in runs), what="they have begun")


@pytest_asyncio.fixture(loop_scope="function")
async def ward() -> AsyncIterator[Ward]:
    made = Ward()
    yield made
    made.quarantine.close()


async def test_suspects_share_two_processes_and_keep_their_output_apart(ward: Ward, tmp_path: Path) -> None:
    made = [(tasks.wait_on_loop, tasks.wait_in_thread)[n % 2] for n in range(8)]
    runs = [ward.submit(task, str(tmp_path / str(n))) for n, task in enumerate(made)]
    await aeventually(lambda: all(run.capture.text() for run in runs), what="they run at the same time")
    for n, run in enumerate(runs):
        assert run.capture.text() == f"waiting for {n}\n"
        assert run.context._progress == (None if n % 2 else (0.5, str(n)))
        (tmp_path / str(n)).touch()
    pids = [await ward.pid(run) for run in runs]
    assert len(set(pids)) == 2
    await aeventually(lambda: all(map(is_gone, set(pids))), what="the processes end with the last suspect")


async def test_a_process_that_dies_blames_none_of_several(ward: Ward, tmp_path: Path) -> None:
    go = tmp_path / "go"
    culprit = ward.submit(tasks.crash_on_loop, str(go), among=8)
    beside = [ward.submit(tasks.wait_on_loop, str(tmp_path / "never"), among=8) for _ in range(3)]
    apart = ward.submit(tasks.wait_in_thread, str(tmp_path / "end"), among=8)
    await ward.begun(culprit, *beside, apart)
    go.touch()
    assert {(await ward.died(run)).among for run in (culprit, *beside)} == {4}
    (tmp_path / "end").touch()
    assert await ward.pid(apart)  # a fifth would have been more than half of eight


async def test_a_job_that_is_alone_in_a_process_that_dies_is_to_blame(ward: Ward, tmp_path: Path) -> None:
    go = tmp_path / "go"
    go.touch()
    culprit = ward.submit(tasks.crash_on_loop, str(go), among=3)
    other = ward.submit(tasks.wait_on_loop, str(tmp_path / "end"), among=3)
    error = await ward.died(culprit)
    assert (error.among, "SIGSEGV" in str(error)) == (1, True)
    (tmp_path / "end").touch()
    assert await ward.pid(other)


@pytest.mark.parametrize("kind", ["wait_on_loop", "wait_in_thread"])
async def test_one_is_stopped_and_those_beside_it_go_on(ward: Ward, tmp_path: Path, kind: str) -> None:
    go = tmp_path / "go"
    runs = [ward.submit(getattr(tasks, kind), str(go), among=4) for _ in range(2)]
    await ward.begun(*runs)
    runs[0].stopped = "timeout"
    ward.quarantine.interrupt(runs[0])
    error = (await ward.end_of(runs[0]))[2]
    assert isinstance(error, RemoteFailure)
    go.touch()
    assert await ward.pid(runs[1])


async def test_one_that_does_not_stop_is_ended_with_its_process_and_the_others_are_handed_back(
    ward: Ward, tmp_path: Path
) -> None:
    hung = ward.submit(tasks.refuse_to_stop, str(tmp_path / "never"), among=4)
    beside = ward.submit(tasks.wait_on_loop, str(tmp_path / "never"), among=4)
    await ward.begun(hung, beside)
    hung.stopped = "timeout"
    ward.quarantine.interrupt(hung)
    ward.quarantine.abandon(hung)
    assert isinstance((await ward.end_of(hung))[2], ProcessDied)
    handed_back = (await ward.end_of(beside))[2]
    assert handed_back is not None and is_interruption(handed_back)


async def test_an_error_of_a_suspect_is_its_own(ward: Ward) -> None:
    error = (await ward.end_of(ward.submit(tasks.fail)))[2]
    assert isinstance(error, RemoteFailure)
    assert (error.error, error.message) == ("ValueError", "by itself")


async def test_those_that_find_no_process_wait_until_one_ends(ward: Ward, tmp_path: Path) -> None:
    alone = [ward.submit(tasks.wait_on_loop, str(tmp_path / str(n)), among=2) for n in range(QUARANTINES + 1)]
    await ward.begun(*alone[:QUARANTINES])
    assert alone[-1] not in ward.started
    for n in range(QUARANTINES + 1):
        (tmp_path / str(n)).touch()
    assert len({await ward.pid(run) for run in alone}) == QUARANTINES + 1


async def test_a_suspect_that_was_cancelled_while_it_waited_never_begins(tmp_path: Path) -> None:
    ward = Ward(threads=1)
    first = ward.submit(tasks.wait_in_thread, str(tmp_path / "go"))
    second = ward.submit(tasks.wait_in_thread, str(tmp_path / "go"))
    await ward.begun(first)
    second.settled = True
    (tmp_path / "go").touch()
    assert await ward.pid(first)
    assert await ward.pid(ward.submit(tasks.wait_in_thread, str(tmp_path / "go")))
    assert second not in ward.started
    ward.quarantine.close()


async def test_secrets_of_relevo_are_not_in_the_environment_of_suspects(
    ward: Ward, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    _, encoded, error = await ward.end_of(ward.submit(environment))
    assert isinstance(encoded, Encoded), error
    shown = environment.signature.decode_result(encoded.result)
    assert "PATH=" in shown
    assert all(name not in shown and value not in shown for name, value in SECRETS.items())


async def test_suspects_find_the_value_of_the_lifespan_and_their_process_leaves_it(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESPAN_FILE", str(tmp_path / "noted"))
    for task in (lifespan_tasks.on_loop, lifespan_tasks.in_thread):
        _, encoded, error = await ward.end_of(ward.submit(task))
        assert isinstance(encoded, Encoded), error
        assert encoded.result == b"true"
    await aeventually(lambda: lifespan_tasks.noted().count("left") == 2, what="both processes left it")


async def test_suspects_whose_lifespan_fails_have_failed(
    ward: Ward, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LIFESPAN_WORKS_IN", "no process")
    _, _, error = await ward.end_of(ward.submit(lifespan_tasks.in_thread))
    assert isinstance(error, RemoteFailure)
    assert "the database does not answer" in error.message
