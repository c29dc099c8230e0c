"""Wrong arguments of every public call are refused with an error that names them, and change nothing."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from relevo import Backoff, Cancel, JobContext, Queue, Relevo, Retry, Snooze
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
    context = JobContext("a", "b", "c")
    made = {"app": app, "task": task, "job": job, "lease": lease, "q": app.queue(), "other": other, "context": context}
    return SimpleNamespace(**made)


NAMES: dict[str, Any] = {
    "__name__": __name__,
    "Relevo": Relevo,
    "Worker": Worker,
    "Backoff": Backoff,
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
    Case("Relevo(None)", OptionError, "found None"),
    Case("Relevo('')", OptionError, "found ''"),
    Case("Relevo(['shop'])", OptionError, "found"),
    Case("Relevo('actions')", OptionError, "reserved word"),
    Case("Relevo(long)", OptionError, "the limit is 200"),
    Case("Relevo(broken)", OptionError, "lone surrogate"),
    Case("Relevo('shop', leese=1)", SettingsError, "did you mean 'lease'"),
    Case("Relevo('shop', lease='soon')", SettingsError, "not a duration: 'soon'"),
    Case("Relevo('shop', lease=0)", SettingsError, "at least 1ms"),
    Case("Relevo('shop', lease='24')", SettingsError, "has no unit"),
    Case("Relevo('shop', retries=-1)", SettingsError, "found -1"),
    Case("Relevo('shop', concurrency='many')", SettingsError, "whole number"),
    Case("Relevo('shop', max_payload='huge')", SettingsError, "a size"),
    Case("Relevo('shop', allow=['a b'])", SettingsError, "a module such as"),
    Case("Relevo('shop', allow=5)", SettingsError, "a list of modules"),
    Case("Relevo('shop', queue=5)", SettingsError, "queue"),
    Case("Relevo('shop', env=5)", SettingsError, "env"),
    Case("Relevo('shop', prefix=long)", SettingsError, "prefix"),
    Case("Relevo('shop', url=5)", SettingsError, "a URL such as redis://"),
    Case("Relevo('shop', url='localhost:6379')", SettingsError, "a URL such as redis://"),
    Case("Relevo('shop', url='http://localhost').queues()", SettingsError, "write redis://"),
    Case("Relevo('shop', url='rediss+sentinal://h').queues()", SettingsError, "did you mean 'rediss.sentinel'"),
    Case("Relevo('shop', url='redis://h:99999').queues()", SettingsError, "port"),
    Case("Relevo('shop', url='redis://h:1/two').queues()", SettingsError, "db"),
    Case("Relevo('shop', url='redis://[::1').queues()", SettingsError, "cannot be read"),
    Case("Relevo('shop', url='redis://h?timeout=1').queues()", SettingsError, "unknown option 'timeout'"),
    Case("Relevo('shop', url='redis://a,b').queues()", SettingsError, "redis.sentinel"),
    Case("Relevo('shop', url='redis+sentinel://a').queues()", SettingsError, "names the primary"),
    Case("Relevo('shop', url='unix://').queues()", SettingsError, "unix"),
    Case("Relevo('shop', env='prod').queues()", ConfigurationError, "set RELEVO_URL"),
]

TARGETS = [
    Case("d.app.task(5)", TargetError, "needs a function, found 5"),
    Case("d.app.task('counted')", TargetError, "needs a function"),
    Case("d.app.task(name=5)(counted)", TargetError, "text without colons and spaces, found 5"),
    Case("d.app.task(name='')(counted)", TargetError, "found ''"),
    Case("d.app.task(name='a b')(counted)", TargetError, "found 'a b'"),
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
    Case("d.app.function(Mailer.send)", TargetError, "a method"),
    Case("d.app.function(Mailer())", TargetError, "no import path"),
    Case("d.app.function(partial(counted))", TargetError, "no import path"),
    Case("d.app.function(counted)", TargetError, "add 'tests.system.test_nonsense' to the setting `allow`"),
    Case("d.app.function(math.sqrt)", TargetError, "not in a module this app allows"),
    Case("d.app.enqueue('counted')", TargetError, "no import path"),
    Case("d.app.enqueue(None)", TargetError, "no import path"),
    Case("d.app.enqueue(lambda: 1)", TargetError, "a lambda"),
    Case("d.app.enqueue(math.sqrt, 4)", TargetError, "allow"),
    Case("d.app.enqueue(d.other)", TargetError, "a task of the app"),
]

ARGUMENTS = [
    Case("d.task.enqueue('one')", PayloadError, "argument 'number': expected `int`, got `str`"),
    Case("d.task.enqueue(1, 2)", PayloadError, "too many positional arguments; it takes"),
    Case("d.task.enqueue(nmuber=1)", PayloadError, "unexpected keyword argument 'nmuber'"),
    Case("d.task.enqueue(object())", PayloadError, "cannot be sent as JSON"),
    Case("d.task.enqueue(nan)", PayloadError, "nan has no JSON form"),
    Case("d.task.enqueue(-math.inf)", PayloadError, "-inf has no JSON form"),
    Case("d.task.enqueue(10 ** 5000)", PayloadError, "4300 digits"),
    Case("d.task.enqueue(broken)", PayloadError, "lone surrogate"),
    Case("d.task.enqueue(10 ** 1100)", PayloadTooLarge, "bytes encoded, the limit is 1,024"),
    Case("d.task.delay('one')", PayloadError, "argument 'number'"),
    Case("d.task.enqueue_many(5)", PayloadError, r"a list of \(args, kwargs\) pairs, found 5"),
    Case("d.task.enqueue_many(None)", PayloadError, "found None"),
    Case("d.task.enqueue_many('ab')", PayloadError, "found 'a'"),
    Case("d.task.enqueue_many([1])", PayloadError, "such as .* found 1"),
    Case("d.task.enqueue_many([(1,)])", PayloadError, "pairs"),
    Case("d.task.enqueue_many([((1,), {}), (('one',), {})])", PayloadError, "argument 'number'"),
    Case("d.task.enqueue_many([((), {5: 1})])", PayloadError, "keywords must be strings"),
]

HANDLES = [
    Case("d.app.job(5)", UnknownJob, "5 is not the id of a job"),
    Case("d.app.job(None)", UnknownJob, "None is not the id"),
    Case("d.app.job([])", UnknownJob, "not the id"),
    Case("d.app.job('')", UnknownJob, "20 letters and digits"),
    Case("d.app.job('*' * 20)", UnknownJob, "20 letters and digits"),
    Case("d.app.job(id)", UnknownJob, "on any of 1 queues"),
    Case("d.app.job(id, queue='mail')", UnknownJob, "on mail"),
    Case("d.app.job(id, queue=5)", OptionError, "queue: .* found 5"),
    Case("d.app.job(id, queue=[])", OptionError, "queue: .* found"),
    Case("d.job.result('soon')", OptionError, "timeout: not a duration: 'soon'"),
    Case("d.job.result(-1)", OptionError, "zero or more, found -1"),
    Case("d.job.result(nan)", OptionError, "found nan"),
    Case("d.job.result(True)", OptionError, "not a duration: True"),
    Case("d.job.result('10')", OptionError, "has no unit"),
    Case("d.job.logs('first')", OptionError, "attempt: .* found 'first'"),
    Case("d.job.logs(0)", OptionError, "attempt: .* found 0"),
    Case("d.job.logs([])", OptionError, "attempt"),
    Case("d.context.progress('half')", OptionError, "a share from 0 to 1 is needed, found 'half'"),
    Case("d.context.progress(50)", OptionError, "found 50"),
    Case("d.context.progress(nan)", OptionError, "found nan"),
    Case("d.context.progress(None)", OptionError, "found None"),
]

QUEUES = [
    Case("d.app.queue(5)", OptionError, "queue: .* found 5"),
    Case("d.app.queue([])", OptionError, "queue"),
    Case("d.app.queue('')", OptionError, "queue"),
    Case("d.app.queue(long)", OptionError, "the limit is 200"),
    Case("d.app.queue(broken)", OptionError, "lone surrogate"),
    Case("d.app.queue('dead_letter')", OptionError, "reserved word"),
    Case("d.q.jobs('foo')", OptionError, "state: one of ready, .* found 'foo'"),
    Case("d.q.jobs('unknown')", OptionError, "state: one of"),
    Case("d.q.jobs(None)", OptionError, "state: one of"),
    Case("d.q.jobs([])", OptionError, "state: one of"),
    Case("d.q.jobs(limit=0)", OptionError, "1 to 1000 jobs, found 0 and 0"),
    Case("d.q.jobs(limit=1001)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(limit='all')", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(limit=1.5)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(limit=None)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(limit=True)", OptionError, "1 to 1000 jobs"),
    Case("d.q.jobs(offset=-1)", OptionError, "starts at 0 or later"),
    Case("d.q.jobs(offset='a')", OptionError, "starts at 0 or later"),
    Case("d.q.take(0)", OptionError, "1 to 1000 jobs at a time, found 0"),
    Case("d.q.take(-1)", OptionError, "found -1"),
    Case("d.q.take(1001)", OptionError, "found 1001"),
    Case("d.q.take('all')", OptionError, "found 'all'"),
    Case("d.q.take(1.5)", OptionError, "found 1.5"),
    Case("d.q.take(True)", OptionError, "found True"),
    Case("d.q.take(None)", OptionError, "found None"),
    Case("d.q.take(worker='a b')", OptionError, "without spaces, .* found 'a b'"),
    Case("d.q.take(worker='')", OptionError, "found ''"),
    Case("d.q.take(worker='wörker')", OptionError, "ASCII"),
    Case("d.q.take(worker='a\\nb')", OptionError, "ASCII"),
    Case("d.q.take(worker=5)", OptionError, "found 5"),
    Case("d.q.take(worker=long)", OptionError, "200 characters"),
    Case("d.q.take(lease='soon')", OptionError, "lease: not a duration"),
    Case("d.q.take(lease=-1)", OptionError, "lease: .* found -1"),
    Case("d.q.take(lease=0)", OptionError, "at least a millisecond"),
    Case("d.lease.done(object())", PayloadError, "result: an object cannot be sent"),
    Case("d.lease.done(nan)", PayloadError, "nan has no JSON form"),
    Case("d.lease.done((1, 2))", PayloadError, "a tuple would come back as a list"),
    Case("d.lease.done({1: 2})", PayloadError, "the key 1"),
    Case("d.lease.done(10 ** 1100)", PayloadTooLarge, "the limit is 1,024"),
    Case("d.lease.retry('soon')", OptionError, "not a duration: 'soon'"),
    Case("d.lease.retry(-1)", OptionError, "found -1"),
    Case("d.lease.retry(reason=5)", OptionError, "reason: .* found 5"),
    Case("d.lease.bury(5)", OptionError, "reason: .* found 5"),
    Case("d.lease.bury(None)", OptionError, "reason: .* found None"),
]

DEAD = [
    Case("d.app.dead.list(queue=5)", OptionError, "queue"),
    Case("d.app.dead.list(queue=[])", OptionError, "queue"),
    Case("d.app.dead.list(limit=0)", OptionError, "1 to 1000"),
    Case("d.app.dead.list(limit='all')", OptionError, "found 0 and 'all'"),
    Case("d.app.dead.list(limit=1.5)", OptionError, "1 to 1000"),
    Case("d.app.dead.list(offset=-1)", OptionError, "found -1"),
    Case("d.app.dead.list(error=5)", OptionError, "error: .* found 5"),
    Case("d.app.dead.list(error=ValueError)", OptionError, "error: a part of the error's text"),
    Case("d.app.dead.show(5)", UnknownJob, "5 is not the id"),
    Case("d.app.dead.show(id)", UnknownJob, "no job"),
    Case("d.app.dead.retry()", OptionError, "all=True"),
    Case("d.app.dead.retry([id], all=True)", OptionError, "not both"),
    Case("d.app.dead.retry(5)", OptionError, "a list of ids is needed, found 5"),
    Case("d.app.dead.retry(id)", OptionError, "a list of ids is needed"),
    Case("d.app.dead.retry([5])", OptionError, "5 is not the id of a job"),
    Case("d.app.dead.retry([None])", OptionError, "None is not the id of a job"),
    Case("d.app.dead.retry([id, 'x'])", OptionError, "'x' is not the id of a job"),
    Case("d.app.dead.retry(all=True, queue=5)", OptionError, "queue"),
    Case("d.app.dead.discard()", OptionError, "all=True"),
    Case("d.app.dead.discard(id)", OptionError, "a list of ids"),
    Case("d.app.dead.discard(['x'])", OptionError, "not the id of a job"),
]

VALUES = [
    Case("Backoff.fixed('soon')", OptionError, "backoff: not a duration"),
    Case("Backoff.fixed(1, jitter='much')", OptionError, "jitter .* found 'much'"),
    Case("Backoff.fixed(1, jitter=2)", OptionError, "found 2"),
    Case("Backoff.linear(1, cap='never')", OptionError, "backoff cap"),
    Case("Backoff.exponential(-1)", OptionError, "found -1"),
    Case("Backoff.of([])", OptionError, "an empty list"),
    Case("Backoff.of({})", OptionError, "backoff"),
    Case("Backoff.of(b'12')", OptionError, "backoff"),
    Case("Retry(delay='soon')", OptionError, r"Retry\(delay\): not a duration"),
    Case("Snooze('soon')", OptionError, r"Snooze\(delay\): not a duration"),
    Case("Snooze(-1)", OptionError, "found -1"),
    Case("Worker(5)", OptionError, "a worker needs an app"),
    Case("Worker(d.app, concurrency=0)", OptionError, "found 0"),
    Case("Worker(d.app, concurrency='many')", OptionError, "concurrency: .* found 'many'"),
    Case("Worker(d.app, concurrency=1.5)", OptionError, "found 1.5"),
    Case("Worker(d.app, threads='many')", OptionError, "threads: .* found 'many'"),
    Case("Worker(d.app, queues='mail')", OptionError, "a list of names is needed, such as .* found 'mail'"),
    Case("Worker(d.app, queues=5)", OptionError, "a list of names"),
    Case("Worker(d.app, queues=[5])", OptionError, "queue: .* found 5"),
    Case("Worker(d.app, max_jobs=0)", OptionError, "max_jobs"),
    Case("Worker(d.app, max_jobs='x')", OptionError, "max_jobs"),
    Case("Worker(d.app, queues=[f'q{n}' for n in range(300)])", OptionError, "at most 255 queues, found 300"),
]


def answer(case: Case, desk: SimpleNamespace | None = None) -> str:
    with pytest.raises(RelevoError, match=case.says) as refused:
        eval(case.call, {**NAMES, "d": desk})
        pytest.fail(f"{case.call} is taken")
    assert isinstance(refused.value, case.error), f"{case.call}: {refused.value!r}"
    return str(refused.value)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELEVO_URL", raising=False)
    monkeypatch.delenv("REDIS_URL", raising=False)


@pytest.mark.parametrize("case", APPS, ids=[case.call for case in APPS])
def test_wrong_arguments_of_an_app_are_refused(case: Case) -> None:
    answer(case)


TABLES = {
    "targets": TARGETS, "arguments": ARGUMENTS, "handles": HANDLES, "queues": QUEUES, "dead": DEAD, "values": VALUES,
}  # fmt: skip


@pytest.mark.parametrize("table", TABLES)
def test_wrong_arguments_are_refused_and_nothing_has_changed(table: str, desk: SimpleNamespace) -> None:
    queue: Queue = desk.q
    before = queue.stats()
    for case in TABLES[table]:
        answer(case, desk)
        assert queue.stats() == before, case.call


WRONG_OPTIONS: dict[str, list[Any]] = {
    "queue": [5, None, "", [], "x" * 300, LONE_SURROGATE, "dead_letter"],
    "priority": ["high", -1, 1024, 1.5, None, True],
    "retries": ["many", -1, 1.5, None, True, 10_001],
    "backoff": ["fast", -1, [], ["soon"], {}, None, object(), True],
    "retry_on": ["ValueError", ValueError(), 5, None, [ValueError, "x"]],
    "give_up_on": ["ValueError", ValueError(), 5, None],
    "timeout": ["soon", -1, 0, "30", True, [], math.nan],
    "result_ttl": ["soon", -1, None, "300", [], math.inf],
    "failure_ttl": ["soon", -1, None, []],
    "expires": ["soon", -1, "5", [], True],
    "max_crashes": [0, "x", None, 1.5],
    "on_failure": [5, "", [], counted, LONE_SURROGATE],
    "executor": ["fiber", None, 5, []],
    "tags": ["one", 5, None, [1], [""], {"a": 1}, [LONE_SURROGATE]],
    "group": [5, None, [], "x" * 201, "a\nb", LONE_SURROGATE],
    "tenant": [5, None],
    "weight": [0, -1, 65, "much", None, math.nan, True],
    "delay": ["soon", -1, "5", [], True, math.nan, 10**12],
    "countdown": ["soon", -1],
    "eta": ["tomorrow", 5, None, datetime(2030, 1, 1), datetime.max.replace(tzinfo=UTC)],
    "name": [5, None, [], "x" * 256, "a\nb", LONE_SURROGATE],
    "unique": ["sometimes", -1, 0, [], {}, "5", math.nan],
}
OF_TASKS = {"retry_on", "give_up_on", "max_crashes", "executor"}
OF_JOBS = {"delay", "countdown", "eta", "name"}


@pytest.mark.parametrize("option", WRONG_OPTIONS)
def test_wrong_values_of_options_are_refused_with_the_name_of_the_option(option: str, desk: SimpleNamespace) -> None:
    set_option: list[Callable[..., Any]] = []
    if option not in OF_TASKS:
        set_option.append(desk.task.using)
    if option not in OF_JOBS:
        set_option.append(lambda **given: desk.app.task(name="new", **given)(counted))
    for value in WRONG_OPTIONS[option]:
        for using in set_option:
            with pytest.raises(OptionError, match=option):
                using(**{option: value})
                pytest.fail(f"{option}={value!r} is taken")
    assert "new" not in desk.app.tasks


MISSPELT = {
    "retires": "retries", "piority": "priority", "timout": "timeout", "nmae": "name", "backof": "backoff",
    "expire": "expires", "result_tll": "result_ttl", "on_fail": "on_failure", "tenants": "tenant", "uniqe": "unique",
}  # fmt: skip


def test_unknown_options_are_refused_with_the_nearest_right_one(desk: SimpleNamespace) -> None:
    for misspelt, meant in MISSPELT.items():
        for using in (desk.task.using, desk.app.task):
            with pytest.raises(OptionError, match=f"unknown option '{misspelt}', did you mean '{meant}'"):
                using(**{misspelt: 1})(counted)


def test_options_of_jobs_and_of_tasks_are_not_mixed_up(desk: SimpleNamespace) -> None:
    for option in OF_JOBS - {"name"}:
        with pytest.raises(OptionError, match=rf"'{option}' is an option of \.using"):
            desk.app.task(**{option: 1})(counted)
    for option in OF_TASKS:
        with pytest.raises(OptionError, match=rf"'{option}' is an option of @app\.task"):
            desk.task.using(**{option: 1})


def test_delay_and_eta_are_not_given_together(desk: SimpleNamespace) -> None:
    with pytest.raises(OptionError, match="the same thing twice"):
        desk.task.using(delay=1, eta=datetime.now(UTC))


async def test_async_calls_refuse_the_same_nonsense(desk: SimpleNamespace) -> None:
    app, task, job, lease, queue = desk.app, desk.task, desk.job, desk.lease, desk.q
    calls: list[tuple[Callable[[], Any], type[RelevoError]]] = [
        (lambda: task.aenqueue("one"), PayloadError),
        (lambda: task.aenqueue_many(5), PayloadError),
        (lambda: app.aenqueue(lambda: 1), TargetError),
        (lambda: app.ajob(5), UnknownJob),
        (lambda: app.ajob(NO_SUCH_ID), UnknownJob),
        (lambda: job.aresult("soon"), OptionError),
        (lambda: job.alogs("first"), OptionError),
        (lambda: queue.ajobs("foo"), OptionError),
        (lambda: queue.ajobs(limit=0), OptionError),
        (lambda: queue.atake(0), OptionError),
        (lambda: queue.atake(worker="a b"), OptionError),
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
    job = desk.job
    desk.q.clear()
    assert desk.lease.done(1)
    desk.app.dead.discard(all=True)
    job = type(job)(desk.app, NO_SUCH_ID, "default")
    assert job.status() == "unknown"
    for call in (job.result, job.info, job.logs, job.cancel, job.retry):
        with pytest.raises(UnknownJob, match=NO_SUCH_ID):
            call()


def test_a_verdict_may_give_any_reason() -> None:
    # `raise Cancel(error)` is natural to write; what is stored is text.
    assert Cancel(ValueError("paid")).reason == "paid"  # type: ignore[arg-type]
    assert Retry(5).reason == "5"  # type: ignore[arg-type]


def script(text: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        input=text,
        cwd=cwd,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    return done.stdout + done.stderr


def test_functions_of_the_main_module_are_refused_unless_they_are_tasks_of_a_script(tmp_path: Path) -> None:
    """A worker imports `shop`, not `__main__`."""
    session = script("from relevo import Relevo\n@Relevo('shop').task\ndef f(): ...\n", "-", cwd=tmp_path)
    assert "relevo.errors.TargetError: f is defined in an interactive session" in session
    lines = (
        "from relevo import Relevo",
        "@Relevo('x').task\ndef f(): ...",
        "print(f.target)",
        "def g(): ...\nRelevo('shop').enqueue(g)",
    )
    (tmp_path / "shop.py").write_text("\n".join(lines))
    printed = script("", "shop.py", cwd=tmp_path)
    assert printed.startswith("shop.f\n")
    assert "relevo.errors.TargetError: g is in the script that is running" in printed
