"""Child processes: what jobs do in them, and what is left when they are killed or crash."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import types
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest
import pytest_asyncio

from relevo import Cancel, Relevo, Retry, Snooze, Task
from relevo.engine.context import JobContext
from relevo.engine.job import Attempt, read_envelope
from relevo.engine.settle import Held
from relevo.worker.capture import Capture
from relevo.worker.executors.handover import Ended
from relevo.worker.executors.processes import Processes
from relevo.worker.run import Encoded, ProcessDied, RemoteFailure, Run
from tests.eventually import PATIENCE, aeventually
from tests.process import process_tasks as tasks
from tests.process.harness import children_of, is_gone
from tests.servers import Server
from tests.system.shell import command, environment

pytestmark = pytest.mark.asyncio(loop_scope="module")
needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def run_of(task: Task[..., Any], *args: Any, **kwargs: Any) -> Run:
    """A run as the worker makes it, without a worker."""
    fragment = task.signature.encode(args, kwargs, limit=1_000_000)
    body = b'{"t":"%b"' % task.target.encode() + (b"," + fragment if fragment else b"") + b"}"
    envelope = read_envelope(body)
    decoded = task.signature.decode(envelope.args, envelope.kwargs)
    held = Held(tasks.app.engine.new_id(), 1, body, envelope)
    context = JobContext(held.id, "default", task.target, attempt=2, history=(Attempt("failed"),), worker="me")
    kept = task.options.result_ttl if envelope.result_ttl is None else envelope.result_ttl
    return Run(cast(Any, None), held, task, *decoded, context, Capture(10_000), result_ttl=kept)


class Pool:
    """A pool, with the runs that it started and ended."""

    def __init__(self, size: int) -> None:
        self.started: list[Run] = []
        self.ended: dict[Run, asyncio.Future[Ended]] = {}
        self.processes = Processes(size, self.started.append, self._end)

    def _end(self, run: Run, result: Any, error: BaseException | None) -> None:
        asyncio.get_running_loop()  # called on the loop, else this raises
        self.ended[run].set_result((run, result, error))

    def submit(self, run: Run) -> None:
        self.ended[run] = asyncio.get_running_loop().create_future()
        self.processes.submit(run)

    async def end_of(self, run: Run) -> Ended:
        return await asyncio.wait_for(self.ended[run], PATIENCE)

    async def __call__(self, run: Run) -> Ended:
        self.submit(run)
        return await self.end_of(run)

    async def result(self, task: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
        run, encoded, error = await self(run_of(task, *args, **kwargs))
        assert error is None, error
        assert isinstance(encoded, Encoded)
        assert encoded.not_kept == ""
        return run.task.signature.decode_result(encoded.result)

    async def error(self, task: Task[..., Any], *args: Any) -> BaseException:
        _, result, error = await self(run_of(task, *args))
        assert result is None
        assert error is not None
        return error

    async def failure(self, task: Task[..., Any], *args: Any) -> RemoteFailure:
        error = await self.error(task, *args)
        assert isinstance(error, RemoteFailure), error
        return error


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[Pool]:
    made = Pool(1)
    yield made
    made.processes.close()


@pytest.fixture
def pool(shared: Pool) -> Pool:
    """A pool of one child, which other tests have used: to start one takes longer than most of these tests."""
    shared.started.clear()
    return shared


@pytest_asyncio.fixture(loop_scope="module")
async def fresh() -> AsyncIterator[Pool]:
    """A pool that has not started its child yet."""
    made = Pool(1)
    yield made
    made.processes.close()


@pytest_asyncio.fixture(loop_scope="module")
async def two() -> AsyncIterator[Pool]:
    made = Pool(2)
    yield made
    made.processes.close()


# what jobs do
async def test_function_runs_in_another_process_with_its_arguments(pool: Pool) -> None:
    assert await pool.result(tasks.add, 2, 3, factor=10) == 50
    assert await pool.result(tasks.add_slowly, 2, 3) == 5
    assert await pool.result(tasks.pid) != os.getpid()
    allowing = Relevo("plain", url="redis://127.0.0.1:1", allow=["tests.process.process_tasks"])
    assert await pool.result(allowing.function(tasks.plain), 4) == 8


async def test_child_is_used_again_and_nothing_is_started_for_an_idle_pool(two: Pool) -> None:
    assert [await two.result(tasks.count) for _ in range(3)] == [1, 2, 3]


async def test_job_knows_itself(pool: Pool) -> None:
    run = run_of(tasks.about_me)
    _, encoded, _ = await pool(run)
    found = tasks.about_me.signature.decode_result(encoded.result)
    assert found == [run.context.id, "default", "tests.process.process_tasks.about_me", 2, 1, "me", "", []]


async def test_runs_are_announced_when_they_begin(pool: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    first, second = run_of(tasks.wait_for_file, str(gate)), run_of(tasks.add, 1)
    pool.submit(first)
    pool.submit(second)
    await aeventually(lambda: pool.started)
    assert pool.started == [first]
    gate.touch()
    await pool.end_of(second)
    assert pool.started == [first, second]


async def test_two_children_run_at_the_same_time(two: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    runs = [run_of(tasks.wait_for_file, str(gate)) for _ in range(2)]
    for run in runs:
        two.submit(run)
    await aeventually(lambda: len(two.started) == 2)
    gate.touch()
    assert len({(await two.end_of(run))[1].result for run in runs}) == 2


# results
async def test_result_that_is_too_large_or_not_wanted_is_not_kept(pool: Pool) -> None:
    _, encoded, error = await pool(run_of(tasks.large))
    assert (error, encoded.result) == (None, b"")
    assert "the limit is 10,000" in encoded.not_kept
    _, encoded, error = await pool(run_of(tasks.unwanted))  # which cannot be encoded
    assert (encoded, error) == (Encoded(b""), None)


# errors
async def test_error_comes_with_its_type_message_and_traceback(pool: Pool) -> None:
    failure = await pool.failure(tasks.fail, "stock")
    assert failure.error == "tests.process.process_tasks.OutOfStock"
    assert failure.message == str(failure) == "none left"
    assert failure.traceback.startswith("Traceback (most recent call last):\n")
    assert "raise kinds[kind]" in failure.traceback
    assert "process_child" not in failure.traceback
    assert not failure.permanent


@pytest.mark.parametrize(
    ("task", "kind", "error"),
    [
        (tasks.fail, "system_exit", "SystemExit"),
        (tasks.fail, "interrupt", "KeyboardInterrupt"),
        (tasks.fail, "memory", "MemoryError"),
        (tasks.fail, "recursion", "RecursionError"),
        (tasks.fail, "cancelled", "asyncio.exceptions.CancelledError"),
        (tasks.fail, "grumpy", "tests.process.process_tasks.Grumpy"),
        (tasks.fail, "surrogate", "ValueError"),
        (tasks.fail_async, "system_exit", "SystemExit"),
        (tasks.fail_async, "interrupt", "KeyboardInterrupt"),
    ],
)
async def test_any_exception_of_a_task_is_a_failure_and_its_child_goes_on(
    pool: Pool, task: Task[..., Any], kind: str, error: str
) -> None:
    before = await pool.result(tasks.pid)
    assert (await pool.failure(task, kind)).error == error
    assert await pool.result(tasks.pid) == before


async def test_filters_of_the_task_are_applied_in_the_child(pool: Pool) -> None:
    assert (await pool.failure(tasks.sell, True)).permanent
    assert not (await pool.failure(tasks.sell, False)).permanent
    assert not (await pool.failure(tasks.restock, True)).permanent
    assert (await pool.failure(tasks.restock, False)).permanent
    assert (await pool.failure(tasks.hidden_in_a_call, True)).permanent, "its task has another name than its function"


async def test_verdicts_arrive_as_what_they_are(pool: Pool) -> None:
    retry, when = await pool.error(tasks.decide, "retry"), await pool.error(tasks.decide, "retry_when")
    snooze, cancel = await pool.error(tasks.decide, "snooze"), await pool.error(tasks.decide, "cancel")
    assert isinstance(retry, Retry) and (retry.reason, retry.delay) == ("busy", 7.0)
    assert isinstance(when, Retry) and when.delay is None
    assert isinstance(snooze, Snooze) and (snooze.reason, snooze.delay) == ("too early", 300.0)
    assert isinstance(cancel, Cancel) and cancel.reason == "not needed"


async def test_function_that_cannot_be_imported_is_refused_with_its_name(pool: Pool) -> None:
    def lonely() -> None: ...
    def inner() -> None: ...

    lonely.__module__, lonely.__qualname__ = "no_such_module", "lonely"
    script = types.FunctionType(tasks.plain.__code__, {"__name__": "__main__"}, "plain")
    for func, error, message in (
        (lonely, "ModuleNotFoundError", "no_such_module.lonely was not found"),
        (inner, "AttributeError", "<locals>.inner was not found"),
        (script, "", "move it to a module"),
    ):
        failure = await pool.failure(
            Task(tasks.app.engine, func, "lonely", tasks.add.options), *([1] if func is script else [])
        )
        assert message in failure.message
        assert failure.error == error or not error
    assert await pool.result(tasks.add, 1) == 2


# output and progress
async def test_print_and_log_are_captured(pool: Pool) -> None:
    run, _, _ = await pool(run_of(tasks.talk))
    text = run.capture.text()
    assert "said\ncomplained\n" in text
    assert "WARNING tests.process: logged 7" in text


async def test_much_output_arrives_in_order_and_bounded(pool: Pool) -> None:
    run, _, _ = await pool(run_of(tasks.talk_much, 20_000))
    text = run.capture.text()
    assert text.startswith("line 0\nline 1\n")
    assert "bytes left out" in text
    assert text.endswith("line 19998\nline 19999\n")


async def test_output_and_progress_are_there_while_the_job_runs_and_after_it_was_killed(pool: Pool) -> None:
    run = run_of(tasks.talk_then_hang)
    pool.submit(run)
    await aeventually(lambda: run.context._progress == (0.25, "a quarter"))
    assert run.capture.text() == "last words\n"
    pool.processes.interrupt(run)
    await pool.end_of(run)
    assert run.capture.text() == "last words\n"


async def test_last_progress_arrives_and_not_every_step(pool: Pool) -> None:
    run, _, _ = await pool(run_of(tasks.far))
    assert run.context._progress == (1.0, "step 1000")


async def test_output_of_a_thread_left_behind_is_not_captured_for_the_next_job(pool: Pool) -> None:
    first, _, _ = await pool(run_of(tasks.leave_a_talker))
    second, _, _ = await pool(run_of(tasks.wait_a_little))
    assert first.capture.text().startswith("mine\n")
    assert second.capture.text() == "mine too\n"
    assert second.context._progress is None


# killed and crashed
async def test_job_that_never_ends_is_killed_and_the_child_replaced(pool: Pool) -> None:
    before = await pool.result(tasks.pid)
    run = run_of(tasks.talk_then_hang)
    pool.submit(run)
    await aeventually(lambda: run.context._progress)
    pool.processes.interrupt(run)
    _, _, error = await pool.end_of(run)
    assert isinstance(error, ProcessDied)
    assert "killed by the worker" in str(error)
    assert await pool.result(tasks.pid) != before


async def test_job_is_killed_while_its_child_is_starting(fresh: Pool) -> None:
    run = run_of(tasks.burn, 60)
    fresh.submit(run)
    await aeventually(lambda: fresh.processes._children)
    fresh.processes.abandon(run)
    assert isinstance((await fresh.end_of(run))[2], ProcessDied)
    assert run not in fresh.started


async def test_other_child_goes_on_when_one_is_killed(two: Pool) -> None:
    hangs, computes = run_of(tasks.talk_then_hang), run_of(tasks.burn, 0.5)
    two.submit(hangs)
    two.submit(computes)
    await aeventually(lambda: len(two.started) == 2)
    two.processes.interrupt(hangs)
    assert isinstance((await two.end_of(hangs))[2], ProcessDied)
    assert (await two.end_of(computes))[2] is None


async def test_stopping_a_run_that_has_ended_or_waits_harms_no_other(pool: Pool, tmp_path: Path) -> None:
    before = await pool.result(tasks.pid)
    gate = tmp_path / "gate"
    done, busy, waits = run_of(tasks.add, 1), run_of(tasks.wait_for_file, str(gate)), run_of(tasks.add, 2)
    await pool(done)
    pool.submit(busy)
    pool.submit(waits)
    await aeventually(lambda: busy in pool.started)
    pool.processes.interrupt(done)
    pool.processes.interrupt(waits)
    assert isinstance((await pool.end_of(waits))[2], ProcessDied)
    gate.touch()
    assert (await pool.end_of(busy))[2] is None
    assert await pool.result(tasks.pid) == before
    assert waits not in pool.started


async def test_run_that_was_given_back_while_it_waited_is_skipped(pool: Pool, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    busy, given_back = run_of(tasks.wait_for_file, str(gate)), run_of(tasks.add, 1)
    pool.submit(busy)
    pool.submit(given_back)
    given_back.settled = True
    gate.touch()
    assert await pool.result(tasks.add, 1) == 2
    assert given_back not in pool.started
    assert not pool.ended[given_back].done()


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("segfault", "killed by signal 11 (SIGSEGV)"),
        ("exit", "ended with exit code 3"),
        ("kill", "killed by signal 9 (SIGKILL); was memory short?"),
    ],
)
async def test_crash_costs_one_attempt_and_the_jobs_behind_it_run(pool: Pool, how: str, text: str) -> None:
    crash, behind = run_of(tasks.crash, how), run_of(tasks.add, 1)
    pool.submit(crash)
    pool.submit(behind)
    _, _, error = await pool.end_of(crash)
    assert isinstance(error, ProcessDied)
    assert text in str(error)
    assert crash.capture.text() == "before the crash\n"
    assert (await pool.end_of(behind))[1] == Encoded(b"2")


async def test_child_that_died_idle_costs_no_attempt(pool: Pool) -> None:
    before = await pool.result(tasks.pid)
    os.kill(before, signal.SIGKILL)
    await aeventually(lambda: is_gone(before))
    assert await pool.result(tasks.pid) != before


async def test_child_ignores_the_signals_meant_for_its_parent(pool: Pool) -> None:
    assert await pool.result(tasks.receive_signals) == "still here"


async def test_signals_while_a_child_starts_do_not_end_it(fresh: Pool) -> None:
    run = run_of(tasks.add, 1)
    fresh.submit(run)
    (child,) = await aeventually(lambda: fresh.processes._children)
    os.kill(child._process.pid, signal.SIGTERM)
    os.kill(child._process.pid, signal.SIGHUP)
    assert (await fresh.end_of(run))[1] == Encoded(b"2")


async def test_programs_and_forks_that_a_job_starts_can_be_terminated_by_it(pool: Pool) -> None:
    assert await pool.result(tasks.end_a_program) == -signal.SIGTERM
    assert await pool.result(tasks.end_a_fork) == -signal.SIGTERM


@needs_linux
async def test_programs_that_a_job_started_are_killed_with_it(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    run = run_of(tasks.start_a_program, str(file))
    pool.submit(run)
    program = int(await aeventually(lambda: file.exists() and file.read_text()) or 0)
    assert not is_gone(program)
    pool.processes.interrupt(run)
    await pool.end_of(run)
    await aeventually(lambda: is_gone(program))


@needs_linux
async def test_crash_is_noticed_although_a_fork_of_the_job_lives_on(pool: Pool, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    error = await pool.error(tasks.fork_and_crash, str(file))
    assert isinstance(error, ProcessDied)
    await aeventually(lambda: is_gone(int(file.read_text())))


async def test_child_that_cannot_start_is_reported_and_the_next_one_runs(fresh: Pool, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert "no process could be started" in (await fresh.failure(tasks.add, 1)).message
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert "exit code 1 before it was ready" in (await fresh.failure(tasks.add, 1)).message
    monkeypatch.undo()
    assert await fresh.result(tasks.add, 1) == 2


# the end
@needs_linux
async def test_closing_leaves_no_child_behind() -> None:
    before = set(children_of(os.getpid()))
    pool = Pool(3)
    idle = run_of(tasks.pid)
    try:
        for run in (run_of(tasks.talk_then_hang), idle, run_of(tasks.burn, 60)):
            pool.submit(run)
        await pool.end_of(idle)
        await aeventually(lambda: len(pool.started) == 3)
        children = set(children_of(os.getpid())) - before
        assert len(children) == 3
    finally:
        pool.processes.close()
    assert not children & set(children_of(os.getpid()))
    assert not any(thread.is_alive() for thread in pool.processes._threads)


@needs_linux
async def test_children_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            """
            import asyncio
            from tests.process import process_tasks as tasks
            from tests.process.test_processes import Pool, run_of

            async def main():
                pool = Pool(2)
                busy, idle = run_of(tasks.talk_then_hang), run_of(tasks.pid)
                pool.submit(busy)
                await pool(idle)
                while busy.context._progress is None:
                    await asyncio.sleep(0.01)
                print("up", flush=True)
                await asyncio.sleep(600)

            asyncio.run(main())
            """
        )
    )
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([root, *sys.path])
    parent = subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    try:
        assert parent.stdout is not None
        while parent.stdout.readline() not in ("up\n", ""):
            pass
        children = children_of(parent.pid)
        assert len(children) == 2
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()
    await aeventually(lambda: all(is_gone(pid) for pid in children))


# Its environment

SECRETS = {
    "RELEVO_URL": "redis://default:hunter2@127.0.0.1:1/0",
    "RELEVO_SIGNING_KEYS": "k1:key-0123456789abcdef",
    "RELEVO_WEB_TOKENS": "admin:ana:tok-0123456789abcdef",
}


async def test_secrets_of_relevo_are_not_in_the_environment_of_a_child(
    fresh: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {**SECRETS, "RELEVO_ENV": "test", "SHOP_REGION": "es"}.items():
        monkeypatch.setenv(name, value)
    shown = await fresh.result(tasks.environment)
    assert "SHOP_REGION=es" in shown and "RELEVO_ENV=test" in shown
    for name, value in SECRETS.items():
        assert name not in shown and value not in shown

    monkeypatch.setenv("RELEVO_URL", "redis://127.0.0.1:1/0")
    other = Pool(1)
    try:
        assert "RELEVO_URL=redis://127.0.0.1:1/0" in await other.result(tasks.environment), "it holds no secret"
    finally:
        other.processes.close()


SHOP = """
import os, subprocess
from relevo import Relevo

app = Relevo("NAME")
URL = os.environ["RELEVO_URL"]  # programs read it for themselves


@app.task(executor="process", retries=0)
def order() -> list[str]:
    made_now = Relevo("NAME")
    made_now.task(name="tell")(print)
    keys = (*made_now.settings.signing_keys, *app.settings.signing_keys)
    return [tell.enqueue("a").id, made_now.tasks["tell"].enqueue("b").id, *keys]


@app.task(name="tell")
def tell(text: str) -> str:
    assert os.environ["RELEVO_URL"] == URL, "the worker itself has it"
    return text


if __name__ == "__main__":
    job = order.enqueue()
    one, other, *keys = job.result(timeout=90)
    print(app.job(one).result(timeout=90) + app.job(other).result(timeout=90), *keys)
"""


async def test_a_job_in_a_child_enqueues_others_with_the_settings_of_its_worker(
    server: Server, app: Relevo, tmp_path: Path
) -> None:
    """The URL and the keys for signing, which are not in its environment."""
    (tmp_path / "shop.py").write_text(SHOP.replace("NAME", app.name))
    url = server.url.replace("://", "://default:hunter2@", 1)
    given = {**SECRETS, "RELEVO_PREFIX": app.settings.prefix, "RELEVO_RESULT_TTL": "1m"}
    env = environment(None, **{**given, "RELEVO_URL": url})
    worker = subprocess.Popen(command("worker", "shop:app", "--processes", "1"), env=env, cwd=tmp_path)
    try:
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "shop.py"],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert done.stdout.split() == ["ab", SECRETS["RELEVO_SIGNING_KEYS"], SECRETS["RELEVO_SIGNING_KEYS"]], (
            done.stderr
        )
    finally:
        worker.terminate()
        worker.wait(PATIENCE)
