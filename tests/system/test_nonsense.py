"""Wrong arguments of every public call are refused with an error that names them, and change nothing."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from relevo import Cancel, JobContext, Queue, Relevo, Retry, Snooze
from relevo.errors import (
    ConfigurationError,
    OptionError,
    PayloadError,
    PayloadTooLarge,
    RelevoError,
    SettingsError,
    TargetError,
    UnknownJob,
)
from relevo.worker import Worker
from tests.conftest import AppFactory
from tests.eventually import PATIENCE
from tests.system.shell import environment

NO_SUCH_ID = "01k9q4w2zhq3mf7d0a2f"
LONE_SURROGATE = "\ud800"


class Case(NamedTuple):
    """A call, the error it is answered with, and what its message holds. `d` is `desk`."""

    call: str
    error: type[RelevoError]
    says: str


class Mailer:
    def send(self) -> None: ...

    def __call__(self) -> None: ...


def counted(number: int = 0) -> int:
    return number


def generated() -> Any:
    yield 1


@pytest.fixture
def desk(app_factory: AppFactory) -> SimpleNamespace:
    """Everything a call can be made on. Loosely typed, since all these calls are wrong."""
    app = app_factory(max_payload="1KiB")
    task = app.task(counted)
    job = task.enqueue(1)
    task.enqueue(2)
    (lease,) = app.queue().take(1)
    other = app_factory().task(name="other")(counted)
    return SimpleNamespace(
        app=app, task=task, job=job, lease=lease, q=app.queue(), other=other, context=JobContext("a", "b", "c")
    )


NAMES: dict[str, Any] = {
    "__name__": __name__,
    "Relevo": Relevo,
    "Worker": Worker,
    "Retry": Retry,
    "Snooze": Snooze,
    "Mailer": Mailer,
    "counted": counted,
    "generated": generated,
    "partial": functools.partial,
    "math": math,
    "nan": math.nan,
    "id": NO_SUCH_ID,
    "broken": LONE_SURROGATE,
    "long": "x" * 300,
}

APPS = [
    Case("Relevo(5)", OptionError, "an app needs a name .* found 5"),
    Case("Relevo('')", OptionError, "found ''"),
    Case("Relevo('actions')", OptionError, "reserved word"),
    Case("Relevo(long)", OptionError, "the limit is 200"),
    Case("Relevo(broken)", OptionError, "lone surrogate"),
    Case("Relevo('shop', leese=1)", SettingsError, "did you mean 'lease'"),
    Case("Relevo('shop', lease='soon')", SettingsError, "not a duration: 'soon'"),
    Case("Relevo('shop', url='http://localhost').queues()", SettingsError, "write redis://"),
    Case("Relevo('shop', env='prod').queues()", ConfigurationError, "set RELEVO_URL"),
]

TARGETS = [
    Case("d.app.task(5)", TargetError, "needs a function, found 5"),
    Case("d.app.task(name=5)(counted)", TargetError, "text without colons and spaces, found 5"),
    Case("d.app.task(name='os:system')(counted)", TargetError, "colon"),
    Case("d.app.task(name='a\\nb')(counted)", TargetError, "a task's name"),
    Case("d.app.task(lambda: 1)", TargetError, "a lambda .* name="),
    Case("d.app.task(Mailer().send)", TargetError, "a bound method .* name="),
    Case("d.app.task(Mailer())", TargetError, "an object without a name .* name="),
    Case("d.app.task(partial(counted, 1))", TargetError, "name="),
    Case("d.app.task(generated)", TargetError, "generator"),
    Case("d.app.task(d.task)", TargetError, "a task already"),
    Case("d.app.task(name='twice')(counted), d.app.task(name='twice')(generated)", ConfigurationError, "two tasks"),
    Case("d.app.function(5)", TargetError, "5 has no import path"),
    Case("d.app.function(lambda: 1)", TargetError, "a lambda .* write a function"),
    Case("d.app.function(Mailer().send)", TargetError, "a method"),
    Case("d.app.function(counted)", TargetError, "add 'tests.system.test_nonsense' to the setting `allow`"),
    Case("d.app.function(math.sqrt)", TargetError, "not in a module this app allows"),
    Case("d.app.enqueue(lambda: 1)", TargetError, "a lambda"),
    Case("d.app.enqueue(math.sqrt, 4)", TargetError, "allow"),
    Case("d.app.enqueue(d.other)", TargetError, "a task of the app"),
]

ARGUMENTS = [
    Case("d.task.enqueue('one')", PayloadError, "argument 'number': expected `int`, got `str`"),
    Case("d.task.enqueue(10 ** 1100)", PayloadTooLarge, "bytes encoded, the limit is 1,024"),
    Case("d.task.delay('one')", PayloadError, "argument 'number'"),
    Case("d.task.enqueue_many(5)", PayloadError, r"a list of \(args, kwargs\) pairs, found 5"),
    Case("d.task.enqueue_many('ab')", PayloadError, "found 'a'"),
    Case("d.task.enqueue_many([1])", PayloadError, "such as .* found 1"),
    Case("d.task.enqueue_many([(1,)])", PayloadError, "pairs"),
    Case("d.task.enqueue_many([((1,), {}), (('one',), {})])", PayloadError, "argument 'number'"),
    Case("d.task.enqueue_many([((), {5: 1})])", PayloadError, "keywords must be strings"),
]

HANDLES = [
    Case("d.app.job(5)", UnknownJob, "5 is not the id of a job"),
    Case("d.app.job('*' * 20)", UnknownJob, "20 letters and digits"),
    Case("d.app.job(id)", UnknownJob, r"on any of \d+ queues"),
    Case("d.app.job(id, queue='mail')", UnknownJob, "on mail"),
    Case("d.app.job(id, queue=5)", OptionError, "queue: .* found 5"),
    Case("d.job.result('soon')", OptionError, "timeout: not a duration: 'soon'"),
    Case("d.job.result(-1)", OptionError, "zero or more, found -1"),
    Case("d.job.logs('first')", OptionError, "attempt: .* found 'first'"),
    Case("d.job.logs(0)", OptionError, "attempt: .* found 0"),
    Case("d.context.progress(50)", OptionError, "found 50"),
    Case("d.context.progress(nan)", OptionError, "found nan"),
]

QUEUES = [
    Case("d.app.queue(5)", OptionError, "queue: .* found 5"),
    Case("d.app.queue('dead_letter')", OptionError, "reserved word"),
    Case("d.q.jobs('foo')", OptionError, "state: one of ready, .* found 'foo'"),
    Case("d.q.jobs('unknown')", OptionError, "state: one of"),
    Case("d.q.jobs(limit=0)", OptionError, "1 to 1000 jobs, found 0 and 0"),
    Case("d.q.jobs(limit=1001)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(limit=True)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(offset=-1)", OptionError, "starts at 0 or later"),
    Case("d.q.take(0)", OptionError, "1 to 1000 jobs at a time, found 0"),
    Case("d.q.take(1001)", OptionError, "found 1001"),
    Case("d.q.take('all')", OptionError, "found 'all'"),
    Case("d.q.take(True)", OptionError, "found True"),
    Case("d.q.take(worker='a b')", OptionError, "without spaces, .* found 'a b'"),
    Case("d.q.take(worker='wörker')", OptionError, "ASCII"),
    Case("d.q.take(worker=long)", OptionError, "200 characters"),
    Case("d.q.take(lease='soon')", OptionError, "lease: not a duration"),
    Case("d.q.take(lease=0)", OptionError, "at least a millisecond"),
    Case("d.lease.done(object())", PayloadError, "result: an object cannot be sent"),
    Case("d.lease.done(10 ** 1100)", PayloadTooLarge, "the limit is 1,024"),
    Case("d.lease.retry('soon')", OptionError, "not a duration: 'soon'"),
    Case("d.lease.retry(reason=5)", OptionError, "reason: .* found 5"),
    Case("d.lease.bury(None)", OptionError, "reason: .* found None"),
]

DEAD = [
    Case("d.app.dead.list(queue=5)", OptionError, "queue"),
    Case("d.app.dead.list(limit=0)", OptionError, "1 to 1000"),
    Case("d.app.dead.list(offset=-1)", OptionError, "found -1"),
    Case("d.app.dead.list(error=ValueError)", OptionError, "error: a part of the error's text"),
    Case("d.app.dead.show(5)", UnknownJob, "5 is not the id"),
    Case("d.app.dead.show(id)", UnknownJob, "no job"),
    Case("d.app.dead.retry()", OptionError, "all=True"),
    Case("d.app.dead.retry([id], all=True)", OptionError, "not both"),
    Case("d.app.dead.retry(5)", OptionError, "a list of ids is needed, found 5"),
    Case("d.app.dead.retry(id)", OptionError, "a list of ids is needed"),
    Case("d.app.dead.retry([id, 'x'])", OptionError, "'x' is not the id of a job"),
    Case("d.app.dead.discard()", OptionError, "all=True"),
]

VALUES = [
    Case("Retry(delay='soon')", OptionError, r"Retry\(delay\): not a duration"),
    Case("Snooze('soon')", OptionError, r"Snooze\(delay\): not a duration"),
    Case("Worker(5)", OptionError, "a worker needs an app"),
    Case("Worker(d.app, concurrency=0)", OptionError, "found 0"),
    Case("Worker(d.app, concurrency='many')", OptionError, "concurrency: .* found 'many'"),
    Case("Worker(d.app, threads='many')", OptionError, "threads: .* found 'many'"),
    Case("Worker(d.app, queues='mail')", OptionError, "a list of names is needed, such as .* found 'mail'"),
    Case("Worker(d.app, queues=[5])", OptionError, "queues: .* found 5"),
    Case("Worker(d.app, max_jobs=0)", OptionError, "max_jobs"),
    Case("Worker(d.app, queues=[f'q{n}' for n in range(300)])", OptionError, "at most 255 queues, found 300"),
]


def answer(case: Case, desk: SimpleNamespace) -> None:
    with pytest.raises(RelevoError, match=case.says) as refused:
        eval(case.call, {**NAMES, "d": desk})
        pytest.fail(f"{case.call} is taken")
    assert isinstance(refused.value, case.error), f"{case.call}: {refused.value!r}"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("RELEVO_URL", "REDIS_URL"):
        monkeypatch.delenv(name, raising=False)


TABLES = {
    "apps": APPS, "targets": TARGETS, "arguments": ARGUMENTS, "handles": HANDLES, "queues": QUEUES, "dead": DEAD,
    "values": VALUES,
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_wrong_arguments_are_refused_and_nothing_has_changed(table: str, desk: SimpleNamespace) -> None:
    queue: Queue = desk.q
    before = queue.stats()
    for case in TABLES[table]:
        answer(case, desk)
        assert queue.stats() == before, case.call


def test_wrong_options_of_jobs_and_of_tasks_are_refused(desk: SimpleNamespace) -> None:
    """What each option takes: tests/unit/test_options.py."""
    wrong: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
        (desk.task.using, {"priority": -1}, "^priority"),
        (desk.task.using, {"retires": 1}, "unknown option 'retires', did you mean 'retries'"),
        (desk.task.using, {"executor": "thread"}, r"'executor' is an option of @app\.task"),
        (desk.app.task, {"timeout": "soon"}, "^timeout"),
        (desk.app.task, {"retires": 1}, "unknown option 'retires', did you mean 'retries'"),
        (desk.app.task, {"delay": 1}, r"'delay' is an option of \.using"),
    ]
    for using, option, says in wrong:
        with pytest.raises(OptionError, match=says):
            using(**option)(counted)


async def test_async_calls_refuse_the_same_nonsense(desk: SimpleNamespace) -> None:
    app, task, job, lease, queue = desk.app, desk.task, desk.job, desk.lease, desk.q
    calls: list[tuple[Callable[[], Any], type[RelevoError]]] = [
        (lambda: task.aenqueue("one"), PayloadError),
        (lambda: task.aenqueue_many(5), PayloadError),
        (lambda: app.aenqueue(lambda: 1), TargetError),
        (lambda: app.ajob(5), UnknownJob),
        (lambda: job.aresult("soon"), OptionError),
        (lambda: job.alogs("first"), OptionError),
        (lambda: queue.ajobs("foo"), OptionError),
        (lambda: queue.atake(0), OptionError),
        (lambda: lease.adone(object()), PayloadError),
        (lambda: lease.aretry("soon"), OptionError),
        (lambda: lease.abury(5), OptionError),
        (lambda: app.dead.alist(limit=0), OptionError),
        (lambda: app.dead.aretry(5), OptionError),
        (lambda: app.dead.adiscard("x"), OptionError),
    ]
    for call, error in calls:
        with pytest.raises(error):
            await call()
    await app.aclose()


def test_calls_on_a_job_that_is_not_there_say_so(desk: SimpleNamespace) -> None:
    job = type(desk.job)(desk.app.engine, NO_SUCH_ID, "default")
    assert job.state() == "unknown"
    for call in (job.result, job.info, job.logs, job.cancel, job.retry):
        with pytest.raises(UnknownJob, match=NO_SUCH_ID):
            call()


def test_a_verdict_may_give_any_reason() -> None:
    # `raise Cancel(error)` is natural to write; what is stored is text.
    assert Cancel(ValueError("paid")).reason == "paid"  # type: ignore[arg-type]
    assert Retry(5).reason == "5"  # type: ignore[arg-type]


def script(text: str, *arguments: str, cwd: Path) -> str:
    words, env = [sys.executable, *arguments], environment(None)
    done = subprocess.run(words, input=text, cwd=cwd, env=env, capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout + done.stderr


def test_functions_of_the_main_module_are_refused_unless_they_are_tasks_of_a_script(tmp_path: Path) -> None:
    """A worker imports `shop`, not `__main__`."""
    session = script("from relevo import Relevo\n@Relevo('shop').task\ndef f(): ...\n", "-", cwd=tmp_path)
    assert "relevo.errors.TargetError: f is defined in an interactive session" in session
    app = "from relevo import Relevo\n@Relevo('x').task\ndef f(): ...\nprint(f.target)\n"
    (tmp_path / "shop.py").write_text(f"{app}def g(): ...\nRelevo('shop').enqueue(g)")
    printed = script("", "shop.py", cwd=tmp_path)
    assert printed.startswith("shop.f\n")
    assert "relevo.errors.TargetError: g is in the script that is running" in printed
