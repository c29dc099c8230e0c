"""The test kit that users get: apps bound to a test, jobs run on demand, time that can be moved."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import ANY
from uuid import uuid4

import pytest

import relevo.testing
from relevo import Relevo, State
from relevo.errors import OptionError
from relevo.store.plan import Call
from relevo.testing import Drained, TestKit, bind
from relevo.testing.leaks import leaks
from tests.eventually import PATIENCE, eventually
from tests.servers import Server

DOCS = Path(__file__).parents[2] / "docs" / "testing.md"
SOURCES = Path(relevo.__file__).parents[1]

shop = Relevo("shop", url="redis://127.0.0.1:1/0")  # no server listens there: only a binding makes it work
ran: list[object] = []


@shop.task(queue="mail", retries=2)
def mail(to: str, *, subject: str = "hello") -> str:
    ran.append(to)
    return f"{subject} {to}"


@shop.task(retries=1, backoff="10s")
async def breaks() -> None:
    ran.append("breaks")
    raise ValueError("as always")


@shop.task
def spreads() -> None:
    mail.using(queue="elsewhere").enqueue("from a job")


@shop.task
def named(name: str, *, when: datetime | None = None, sizes: tuple[int, ...] = ()) -> None:
    ran.append(name)


@pytest.fixture
def kit(server: Server) -> Iterator[TestKit]:
    ran.clear()
    with bind(shop, url=server.url) as kit:
        yield kit


def test_a_bound_app_uses_the_server_of_the_test_alone_and_leaves_nothing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = shop.settings
    queue = shop.queue("mail")
    monkeypatch.setenv("RELEVO_TEST_URL", server.url)
    with bind(shop):
        job = mail.enqueue("ana")
        assert shop.settings.url == server.url
        assert queue.stats().ready == 1, "a queue made before follows"
        assert shop.settings.prefix != before.prefix
        assert job.state() is State.READY
        prefix = shop.settings.prefix
    assert shop.settings is before
    assert str(queue).startswith("<Queue relevo:dev:shop")
    with bind(shop, url=server.url) as kit:
        assert kit.enqueued() == []
    assert [key for key in server.command("KEYS", "*") if prefix.encode() in key] == []


def test_drain_runs_ready_jobs_of_all_queues_and_those_they_enqueue(kit: TestKit) -> None:
    mail.enqueue("ana")
    mail.using(queue="other").enqueue("bob")
    spreads.enqueue()
    assert kit.drain() == Drained(done=4)
    assert sorted(map(str, ran)) == ["ana", "bob", "from a job"]
    assert kit.drain() == Drained()


async def test_drain_works_inside_an_event_loop_and_on_it(server: Server) -> None:
    async with bind(shop, url=server.url) as kit:
        await mail.aenqueue("ana")
        assert kit.drain().done == 1
        job = await mail.aenqueue("bob")
        assert (await kit.adrain()).done == 1
        assert await job.aresult(timeout=PATIENCE) == "hello bob"
        assert shop.engine._client is not None
        loops = shop.engine._client._loops
        assert len(loops) == 1
    assert len(loops) == 0, "its connections are closed"


def test_drain_counts_failures_and_raises_none(kit: TestKit) -> None:
    job = breaks.enqueue()
    assert kit.drain() == Drained(failed=1)
    assert kit.drain() == Drained(), "its retry is not due"
    kit.clock.move("1m")
    assert kit.drain() == Drained(failed=1, dead=(job.id,))


def test_drain_makes_no_more_attempts_than_asked(kit: TestKit) -> None:
    for n in range(3):
        mail.enqueue(str(n))
        named.enqueue(str(n))
    assert kit.drain(max_jobs=2).done == 2
    assert len(ran) == 2
    assert kit.drain(max_jobs=10).done == 4
    with pytest.raises(OptionError, match="at least 1 job"):
        kit.drain(max_jobs=0)


def test_moving_the_clock_makes_delayed_jobs_due_and_others_expire(kit: TestKit) -> None:
    mail.using(delay="1h").enqueue("later")
    mail.using(eta=datetime.now(UTC) + timedelta(days=1)).enqueue("tomorrow")
    late = mail.using(expires="10m").enqueue("too late")
    kit.clock.move("59m")
    kit.drain()
    assert ran == []
    assert late.state() is State.EXPIRED
    mail.using(expires="10m").enqueue("in time")  # ten minutes of the moved time
    kit.clock.move("1m")
    kit.drain()
    assert sorted(map(str, ran)) == ["in time", "later"]
    kit.clock.move(timedelta(days=1))
    assert kit.drain().done == 1


def test_time_is_one_for_bindings_inside_each_other(server: Server) -> None:
    other = Relevo("other", url="redis://127.0.0.1:1/0")
    with bind(shop, url=server.url) as outer:
        outer.clock.move("1h")
        with bind(other, url=server.url) as inner:
            assert "1h" in repr(inner.clock)
            inner.clock.move("1h")
            assert "2h" in repr(outer.clock)
        assert "1h" in repr(outer.clock)
    with bind(shop, url=server.url) as kit:
        assert "0s" in repr(kit.clock)


def test_enqueued_jobs_are_found_by_a_part_of_their_arguments(kit: TestKit) -> None:
    when = datetime(2031, 5, 6, tzinfo=UTC)
    job = mail.using(priority=7, name="m-1").enqueue("ana", subject="hi")
    named.enqueue("ana", when=when, sizes=(1, 2))
    assert kit.assert_enqueued(mail).id == job.id
    assert kit.assert_enqueued(mail, "ana", queue="mail", priority=7, name="m-1", state="ready").kwargs == {
        "subject": "hi"
    }
    kit.assert_enqueued(mail, to="ana")
    mail.enqueue("eve")
    kit.assert_enqueued(mail, "eve", subject="hello")  # a default counts as given
    kit.assert_enqueued(mail.target, "ana")
    kit.assert_enqueued(named, ANY, when=when, sizes=(1, 2))
    kit.assert_enqueued(named, name="ana")  # its own argument, which is called like an option
    kit.assert_enqueued(named, sizes=(1, 2))
    kit.assert_not_enqueued(named, "bob")
    kit.assert_not_enqueued(breaks)
    assert [row.task for row in kit.enqueued(named)] == [named.target]


def test_a_failed_assertion_lists_what_waits(kit: TestKit) -> None:
    mail.using(delay="1h", name="m-1").enqueue("ana", subject="hi")
    with pytest.raises(AssertionError) as missed:
        kit.assert_enqueued(mail, "bob", priority=3)
    assert re.sub(r"[\w.]*\.mail", "mail", str(missed.value)) == (
        "not enqueued: mail('bob'), priority 3\n"
        "1 job waits:\n"
        "  mail('ana', subject='hi') on mail, scheduled, priority 100, name 'm-1'"
    )
    with pytest.raises(AssertionError, match=r"enqueued, and should not be: .*mail\('ana'\)"):
        kit.assert_not_enqueued(mail, "ana")
    kit.drain()
    kit.clock.move("1h")
    kit.drain()
    with pytest.raises(AssertionError, match="nothing waits"):
        kit.assert_enqueued(mail)


def test_an_argument_the_task_does_not_take_is_refused(kit: TestKit) -> None:
    with pytest.raises(OptionError, match=r"'subjekt' is neither an argument of .*did you mean 'subject'"):
        kit.assert_enqueued(mail, subjekt="hi")
    mail.enqueue("ana")
    with pytest.raises(OptionError, match="too many positional arguments"):
        kit.assert_enqueued(mail, "ana", "bob")


def test_keys_without_expiry_fail_the_test(server: Server) -> None:
    seen = pytest.raises(AssertionError, match=r"left on the server without an end: .*:story\[gone\]")
    with seen, bind(shop, url=server.url) as kit:
        mail.enqueue("ana")
        assert kit.leaks() == [], "living jobs are no leak"
        shop.engine.run(Call([b"HSET", shop.engine.keys_of("mail").key("story"), "gone", "{}"]))
    with bind(shop, url=server.url):
        assert shop.queues() == []


def test_error_of_a_failing_test_is_not_hidden_by_its_leaks(server: Server) -> None:
    with pytest.raises(ZeroDivisionError), bind(shop, url=server.url):
        shop.engine.run(Call([b"SET", shop.engine.keys_of("mail").key("jobs") + b":odd", "1"]))
        raise ZeroDivisionError


def test_every_kind_of_leak_is_found(app: Relevo, server: Server) -> None:
    kinds = {
        "ready": ("ZADD", "[x]"), "running": ("ZADD", "[x]"), "jobs": ("HSET", "[x]"), "names": ("HSET", "[x of x]"),
        "clock": ("HSET", ""), "new": ("SET", ""),
    }  # fmt: skip
    values: dict[str, tuple[str | int, ...]] = {"ZADD": (1, "x"), "HSET": ("x", "x"), "SET": (1,)}
    for name, (verb, entry) in kinds.items():
        address = f"{{{app.settings.prefix}:test:{app.name}:actions:{uuid4().hex}}}"
        server.command(verb, f"{address}:{name}", *values[verb])
        found = leaks(app.engine.run, f"{address}*")
        server.command("DEL", f"{address}:{name}")
        assert found == [f"{address}:{name}{entry}"]


def test_many_bindings_leave_no_threads_and_no_scripts_of_their_own(server: Server) -> None:
    def threads() -> int:
        return sum(thread.name.startswith("relevo") for thread in threading.enumerate())

    def scripts() -> int:
        return int(server.command("INFO", "memory")["number_of_cached_scripts"])

    def once() -> None:
        with bind(shop, url=server.url) as kit:
            job = mail.enqueue("ana")
            kit.drain()
            job.result(timeout=PATIENCE)

    once()
    cached = scripts()
    for _ in range(5):
        once()
    assert scripts() == cached
    gc.collect()
    eventually(lambda: threads() == 0, what="listening threads that end")


def test_a_server_is_started_where_none_is_given_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELEVO_TEST_URL", raising=False)
    with relevo.testing.server() as url:
        assert url.startswith("unix://")
        path = Path(re.sub(r"^unix://|\?.*$", "", url))
        assert path.is_socket()
        with bind(shop, url=url) as kit:
            mail.enqueue("ana")
            assert kit.drain().done == 1
    assert not path.exists()


def run_pytest(folder: Path, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """A test run of another project."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "PYTEST_"))}
    plugins = ("-p", "no:cacheprovider", "-p", "relevo.testing.plugin", "-p", "pytest_asyncio.plugin")
    of_asyncio = ("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function")
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", *plugins, *of_asyncio],
        cwd=folder,
        env={**clean, "PYTHONPATH": str(SOURCES), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def test_the_example_of_the_docs_runs(tmp_path: Path) -> None:
    """Every file shown in docs/testing.md, in a project of its own, with warnings as errors."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert {name for name, _ in blocks} == {"shop.py", "test_shop.py"}
    for name, text in blocks:
        (tmp_path / name).write_text(text)
    seen = run_pytest(tmp_path)
    assert seen.returncode == 0, seen.stdout + seen.stderr
    assert "3 passed" in seen.stdout
    assert not (tmp_path / ".relevo").exists(), "the app's own server was not started"


def test_plugin_imports_and_starts_nothing_until_asked(tmp_path: Path) -> None:
    (tmp_path / "test_quiet.py").write_text(
        "import sys\n"
        "def test_nothing():\n"
        "    assert 'relevo.testing.plugin' in sys.modules\n"
        "    assert 'relevo.worker' not in sys.modules and 'relevo.testing.kit' not in sys.modules\n"
    )
    seen = run_pytest(tmp_path, env={"RELEVO_SERVER_BIN": "/no"})
    assert seen.returncode == 0, seen.stdout + seen.stderr


def test_relevo_does_not_need_pytest() -> None:
    code = "import sys, relevo.testing; relevo.testing.bind; assert not {'pytest', '_pytest'} & sys.modules.keys()"
    env = {**os.environ, "PYTHONPATH": str(SOURCES)}
    subprocess.run([sys.executable, "-c", code], env=env, check=True, timeout=PATIENCE)
