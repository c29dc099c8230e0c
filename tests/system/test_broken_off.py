"""Deeds that break off half-way: the audit trail says how far they came, and so does whoever was asked for them."""

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
from relevo.store import letters, purging
from tests.conftest import AppFactory
from tests.eventually import eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.shell import Output, environment
from tests.system.web import TOKENS, Here, served

LETTERS = 250
AGES = {"ready": "1ms"}
#: Letters and jobs that are dealt with at once; whoever did more has heard of these. So few that all of it takes some
#: seconds, in which it can be broken off, with a network that takes its time.
AT_ONCE, SLOW = 5, 0.05
#: The command, with that.
COMMAND = f"""\
import sys
from relevo.cli.main import main
from relevo.store import letters, purging
letters.CHUNK = purging.ACTS = {AT_ONCE}
sys.exit(main())
"""


class Deed(NamedTuple):
    """Something that is done to many, in many calls."""

    what: str
    path: str
    words: tuple[str, ...]
    body: dict[str, Any] | None
    query: dict[str, Any]
    #: To how many it is done.
    done: Callable[[Relevo], int]


DEEDS = [
    Deed(
        "dead.retry",
        "/dead/retry",
        ("dead", "retry", "--all", "--yes"),
        {"all": True},
        {},
        lambda app: app.queue("many").stats().ready,
    ),
    Deed(
        "dead.discard",
        "/dead/discard",
        ("dead", "discard", "--all", "--yes"),
        {"all": True},
        {"dry_run": False},
        lambda app: LETTERS - app.queue("many").stats().dead,
    ),
    Deed(
        "purge.run",
        "/queue/purge",
        ("purge", "--yes"),
        None,
        {"dry_run": False},
        lambda app: app.queue("old").stats().cancelled,
    ),
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
def test_over_http_it_is_told_and_written_down_when_the_server_is_back(
    bus_factory: AppFactory, app: Relevo, proxy: Proxy, deed: Deed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "CHUNK", AT_ONCE)
    monkeypatch.setattr(purging, "ACTS", AT_ONCE)
    behind = bus_factory("shop", url=proxy.url, web_tokens=TOKENS, call_timeout="2s", purge_ages=AGES)
    with served(behind) as url, Here(url, "admin") as here:
        here.ask("/queues")  # the connection is made
        proxy.delay(SLOW)
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(here.do(deed.path, 503, deed.body, **deed.query)))
        asking.start()
        eventually(lambda: deed.done(app) > AT_ONCE, timeout=30, what="some are done")
        proxy.black_hole_all()
        asking.join(30)
        count = how_far(found[0]["message"])
        assert 0 < count <= deed.done(app) <= count + AT_ONCE
        assert noted(app) == []
        proxy.heal()
        eventually(lambda: noted(app) == [(deed.what, count, True)], timeout=30, what="it is written down")
        (said,) = app.audit.list()
        assert (said.who, said.via, said.about.get("all")) == ("admin-ana", "http", (deed.body or {}).get("all"))


@pytest.mark.parametrize(
    ("deed", "how"),
    [*((deed, signal.SIGINT) for deed in DEEDS), (DEEDS[0], signal.SIGTERM), (DEEDS[2], signal.SIGHUP)],
    ids=lambda one: one.name if isinstance(one, signal.Signals) else one.what,
)
def test_a_command_that_is_interrupted_says_and_notes_how_far_it_came(
    app: Relevo, proxy: Proxy, deed: Deed, how: signal.Signals
) -> None:
    proxy.delay(SLOW)
    with running(app, proxy.url, *deed.words) as command:
        eventually(lambda: deed.done(app) > AT_ONCE, timeout=30, what="some are done")
        told = command.end(how)
    assert told.code == 130 and "Traceback" not in told.err, told
    assert noted(app) == [(deed.what, how_far(told.err), True)]


def test_a_command_that_loses_the_server_says_how_far_it_came_and_what_is_not_written_down(
    app: Relevo, proxy: Proxy
) -> None:
    deed = DEEDS[0]
    proxy.delay(SLOW)
    with running(app, proxy.url, *deed.words, RELEVO_CALL_TIMEOUT="2s") as command:
        eventually(lambda: deed.done(app) > AT_ONCE, timeout=30, what="some are done")
        proxy.close()
        told = command.end()
    assert told.code == 2 and how_far(told.err) > 0 and "could not be written down" in told.err, told


def test_an_export_that_nobody_reads_to_the_end_is_written_down(app: Relevo, server: Server) -> None:
    app.dead.discard(all=True, undo=False)
    app.queue("old").clear()
    filled(app, size=10_000)  # more than a pipe holds
    with running(app, server.url, "dead", "export") as command:
        assert command.process.stdout
        command.process.stdout.readline()
        command.process.stdout.close()
        assert command.process.wait(30) == 141
    ((what, count, is_broken),) = noted(app)
    assert (what, is_broken) == ("dead.export", True) and 0 < count < LETTERS


def test_an_export_to_a_full_disk_is_written_down_and_leaves_no_part(
    app: Relevo, server: Server, tmp_path: Path
) -> None:
    with running(app, server.url, "dead", "export", "-o", str(tmp_path / "letters"), most=10_000) as command:
        told = command.end()
    assert told.code == 2 and "cannot be written" in told.err, told
    assert [*tmp_path.iterdir()] == []
    assert noted(app) == [("dead.export", how_far(told.err), True)]
    with Path("/dev/full").open("wb") as full, running(app, server.url, "dead", "export", stdout=full) as command:
        told = command.end()
    assert told.code == 2 and "output cannot be written" in told.err and "Traceback" not in told.err, told


def test_an_import_that_is_interrupted_is_written_down(app: Relevo, server: Server) -> None:
    lines = [*app.dead.export()]
    app.dead.discard(all=True, undo=False)
    with running(app, server.url, "dead", "import", "-") as command:
        assert command.process.stdin
        command.process.stdin.writelines(lines[:250])
        command.process.stdin.flush()
        # The second hundred are on their way only once it knows of the first.
        eventually(lambda: app.queue("many").stats().dead > 100, timeout=30, what="some are filed")
        told = command.end(signal.SIGINT)
    assert told.code == 130, told
    filed = how_far(told.err)
    assert filed in (100, 200) and noted(app) == [("dead.import", filed, True)]


class running:
    """A command, for as long as the block lasts."""

    def __init__(
        self, app: Relevo, url: str, *words: str, most: int | None = None, stdout: Any = subprocess.PIPE, **more: str
    ) -> None:
        settings = {"PREFIX": app.settings.prefix, "PURGE_AGES": msgspec.json.encode(AGES).decode()}
        self.process = subprocess.Popen(
            [sys.executable, "-c", COMMAND, *words, "--name", app.name],
            env=environment(url, **{f"RELEVO_{name}": value for name, value in settings.items()}, **more),
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=subprocess.PIPE,
            preexec_fn=None if most is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        )

    def __enter__(self) -> running:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        for end in (self.process.stdin, self.process.stdout, self.process.stderr):
            if end is not None:
                end.close()
        self.process.wait(30)

    def end(self, signal: int = 0) -> Output:
        """Send it a signal, if one is said, and wait for its end."""
        if signal:
            self.process.send_signal(signal)
        self.process.wait(30)
        assert self.process.stderr
        return Output(self.process.returncode, "", self.process.stderr.read().decode())
