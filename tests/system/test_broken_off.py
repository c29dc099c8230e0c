"""Operations on many jobs that end half-way: the audit trail and the answer say how many were done."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from relevo import Relevo
from relevo.audit.trail import OUTLASTS
from relevo.dead import store as letters
from relevo.store import source
from relevo.upkeep import store as purging
from tests.conftest import AppFactory
from tests.eventually import PATIENCE, eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.shell import PATIENT_ENV, Output, environment
from tests.system.web import TOKENS, Here, served

LETTERS = 250
AGES = {"ready": "1ms"}
#: Letters and jobs per call, and the seconds that each reply takes: all of it takes some seconds, in which it is broken
#: off. The proxy that holds the replies back is in the test's process, and stands still when that does.
AT_ONCE, SLOW = 5, 0.05
#: The command with these, which waits long for a server that is slow and not for one that is gone.
COMMAND = f"""\
import sys
from relevo.cli.main import main
from relevo.dead import store as letters
from relevo.store import source
from relevo.upkeep import store as purging
letters.CHUNK = purging.ACTS = {AT_ONCE}
source.pauses = lambda patience: iter([0.0])  # a connection that is refused is tried once more, not for 30 s
sys.exit(main())
"""


class Deed(NamedTuple):
    """An operation on many jobs, in many calls."""

    what: str
    path: str
    words: tuple[str, ...]
    body: dict[str, Any] | None
    query: dict[str, Any]
    #: How many it has changed.
    done: Callable[[Relevo], int]


def many(app: Relevo) -> Any:
    return app.queue("many").stats()


def discarded(app: Relevo) -> int:
    return LETTERS - int(many(app).dead)


ALL: dict[str, Any] = {"all": True}
LIVE: dict[str, Any] = {"dry_run": False}
DEEDS = [
    Deed("dead.retry", "/dead/retry", ("dead", "retry", "--all", "--yes"), ALL, {}, lambda app: many(app).ready),
    Deed("dead.discard", "/dead/discard", ("dead", "discard", "--all", "--yes"), ALL, LIVE, discarded),
    Deed("purge.run", "/queue/purge", ("purge", "--yes"), None, LIVE, lambda app: app.queue("old").stats().cancelled),
]


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.port) as proxy:
        yield proxy


@pytest.fixture
def app(bus_factory: AppFactory) -> Relevo:
    """An app with many dead letters, and many jobs that are too old."""
    return filled(bus_factory("shop"))


def filled(app: Relevo, size: int = 10) -> Relevo:
    @app.task(name="charge")
    def charge(text: str) -> None: ...

    charge.using(queue="many").enqueue_many([(("x" * size,), {}) for _ in range(LETTERS)])
    while leases := app.queue("many").take(100):
        for lease in leases:
            lease.bury("no bank")
    charge.using(queue="old").enqueue_many([(("x",), {}) for _ in range(3 * LETTERS)])
    return app


@pytest.fixture(autouse=True)
def emptied(app: Relevo) -> Iterator[None]:
    yield
    for name in app.queues():
        app.queue(name).clear()


def noted(app: Relevo) -> list[tuple[str, int, bool]]:
    return [(deed.what, deed.count, deed.about.get("broken_off", False)) for deed in app.audit.list()]


def how_far(text: str) -> int:
    found = re.search(r"it broke off after ([\d,]+)", text)
    assert found, text
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize("deed", DEEDS, ids=lambda deed: deed.what)
def test_over_http_the_count_is_answered_and_audited_when_the_server_is_back(
    bus_factory: AppFactory, app: Relevo, proxy: Proxy, deed: Deed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "CHUNK", AT_ONCE)
    monkeypatch.setattr(purging, "ACTS", AT_ONCE)
    tries = source.pauses
    monkeypatch.setattr(source, "pauses", lambda patience: tries(patience) if patience == OUTLASTS else iter([0.0]))
    behind = bus_factory("shop", url=proxy.url, web_tokens=TOKENS, purge_ages=AGES)
    with served(behind) as url, Here(url, "admin") as here:
        here.ask("/queues")  # the connection is made
        proxy.delay(SLOW)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(here.do(deed.path, 503, deed.body, **deed.query)))
        asking.start()
        eventually(lambda: deed.done(app) > AT_ONCE, what="some are done")
        proxy.cut()
        asking.join(PATIENCE)
        count = how_far(found[0]["message"])
        assert 0 < count <= deed.done(app) <= count + AT_ONCE
        assert noted(app) == []
        proxy.heal()
        eventually(lambda: noted(app) == [(deed.what, count, True)], what="the entry of the audit trail")
        (entry,) = app.audit.list()
        assert (entry.who, entry.via, entry.about.get("all")) == ("admin-ana", "http", (deed.body or {}).get("all"))


@pytest.mark.parametrize(
    ("deed", "how"),
    [*zip(DEEDS, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP), strict=True)],
    ids=lambda one: one.name if isinstance(one, signal.Signals) else one.what,
)
def test_interrupted_command_prints_and_audits_the_count(
    app: Relevo, proxy: Proxy, deed: Deed, how: signal.Signals
) -> None:
    proxy.delay(SLOW)
    with running(app, proxy.url, *deed.words) as command:
        eventually(lambda: deed.done(app) > AT_ONCE, what="some are done")
        ended = command.end(how)
    assert ended.code == 130 and "Traceback" not in ended.err, ended
    assert noted(app) == [(deed.what, how_far(ended.err), True)]


def test_command_that_loses_the_server_prints_the_count_and_that_it_was_not_audited(app: Relevo, proxy: Proxy) -> None:
    deed = DEEDS[0]
    proxy.delay(SLOW)
    with running(app, proxy.url, *deed.words) as command:
        eventually(lambda: deed.done(app) > AT_ONCE, what="some are done")
        proxy.cut()
        ended = command.end()
    assert ended.code == 2 and how_far(ended.err) > 0 and '"stored":false' in ended.err, ended


def test_export_to_a_closed_pipe_is_audited(app: Relevo, server: Server) -> None:
    app.dead.discard(all=True, undo=False)
    app.queue("old").clear()
    filled(app, size=10_000)  # more than a pipe holds
    with running(app, server.url, "dead", "export") as command:
        assert command.process.stdout
        command.process.stdout.readline()
        command.process.stdout.close()
        assert command.process.wait(PATIENCE) == 141
    ((what, count, is_broken),) = noted(app)
    assert (what, is_broken) == ("dead.export", True) and 0 < count < LETTERS


def test_export_to_a_full_disk_is_audited_and_leaves_no_part(app: Relevo, server: Server, tmp_path: Path) -> None:
    with running(app, server.url, "dead", "export", "-o", str(tmp_path / "letters"), most=10_000) as command:
        ended = command.end()
    assert ended.code == 2 and "cannot be written" in ended.err, ended
    assert [*tmp_path.iterdir()] == []
    assert noted(app) == [("dead.export", how_far(ended.err), True)]
    with Path("/dev/full").open("wb") as full, running(app, server.url, "dead", "export", stdout=full) as command:
        ended = command.end()
    assert ended.code == 2 and "output cannot be written" in ended.err and "Traceback" not in ended.err, ended


def test_interrupted_import_is_audited(app: Relevo, server: Server) -> None:
    lines = [*app.dead.export()]
    app.dead.discard(all=True, undo=False)
    with running(app, server.url, "dead", "import", "-") as command:
        assert command.process.stdin
        command.process.stdin.writelines(lines[:250])
        command.process.stdin.flush()
        # The second hundred are on their way only once it knows of the first.
        eventually(lambda: many(app).dead > 100, what="some are filed")
        ended = command.end(signal.SIGINT)
    assert ended.code == 130, ended
    filed = how_far(ended.err)
    assert filed in (100, 200) and noted(app) == [("dead.import", filed, True)]


class running:
    """A command, for as long as the block lasts."""

    def __init__(self, app: Relevo, url: str, *words: str, most: int = 0, stdout: Any = subprocess.PIPE) -> None:
        settings = {"PREFIX": app.settings.prefix, "PURGE_AGES": msgspec.json.encode(AGES).decode()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words, "--name", app.name],
            env=environment(url, **{f"RELEVO_{name}": value for name, value in settings.items()}, **PATIENT_ENV),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            preexec_fn=(lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))) if most else None,
        )

    def __enter__(self) -> running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for end in (self.process.stdin, self.process.stdout, self.process.stderr):
            if end is not None:
                end.close()
        self.process.wait(PATIENCE)

    def end(self, signal: int = 0) -> Output:
        """Send it a signal, if one is given, and wait for its end."""
        if signal:
            self.process.send_signal(signal)
        self.process.wait(PATIENCE)
        assert self.process.stderr
        return Output(self.process.returncode, "", self.process.stderr.read().decode())
