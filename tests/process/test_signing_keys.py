"""Changing the signing key of running processes: at no step is anything that an honest process says refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from relevo import Relevo, chain
from relevo.errors import BadSignature, RemoteError
from tests.eventually import PATIENCE
from tests.leaks import leaks
from tests.process.harness import Site, WorkerProcess
from tests.process.signed_services import build
from tests.servers import Server

OLD, NEW = "k1:0123456789abcdef", "k2:fedcba9876543210"
#: What every process has before the first step, and after each.
STEPS = ([OLD], [OLD, NEW], [NEW, OLD], [NEW])


class Keyed(Site):
    """A site of worker processes and callers that are given their keys one after the other."""

    def __init__(self, server: Server, directory: Path) -> None:
        self.prefix = f"b{uuid4().hex[:12]}"
        super().__init__(server, directory, prefix=self.prefix)
        self.app.close()
        self.numbers = iter(range(1, 1000))
        self.callers: list[Relevo] = []
        self.app = self.caller(STEPS[0])
        self.queue = self.app.queue()

    def caller(self, keys: list[str]) -> Relevo:
        """A process that enqueues, asks and waits."""
        settings = {"url": self.server.url, "env": "test", **self._settings}
        app = build(self.name, **settings, signing_keys=keys)
        self.callers.append(app)
        return app

    def serve(self, keys: list[str]) -> WorkerProcess:
        """A worker process, which serves and is called back."""
        target = "tests.process.signed_services:app"
        worker = self.start(target=target, variables={"RELEVO_SIGNING_KEYS": ",".join(keys)}, concurrency=5)
        self.wait_idle(worker)
        return worker

    def check(self, app: Relevo) -> None:  # type: ignore[override]  # of what is asked here, not of jobs by number
        """Everything that is signed goes there and back."""
        n, front = next(self.numbers), app.service("front")
        assert app.tasks["double"].enqueue(n).result(PATIENCE) == n * 2
        assert app.tasks["stepped"].enqueue(n).result(PATIENCE) == n
        assert app.schedules.get("often").run_now().result(PATIENCE) == 42
        flow = chain(app.tasks["double"].s(n), app.tasks["double"].s()).enqueue()
        assert flow.result(PATIENCE) == n * 4
        assert front.request("back.double", {"n": n}, timeout=PATIENCE) == n * 2
        front.send("back.double", {"n": n}, on_reply="doubled", timeout=PATIENCE)
        self.wait_effect("doubled", n * 2)


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[Keyed]:
    with Keyed(server, tmp_path) as site:
        yield site
        for worker in site.workers:
            if worker.is_running:
                worker.stop()
        site.app.schedules.get("often").remove()
        for caller in site.callers:
            caller.close()
        assert leaks(server, site.prefix) == []


def test_a_key_is_appended_then_promoted_then_dropped_and_nothing_is_refused(site: Keyed) -> None:
    site.app.schedule("often", site.app.tasks["double"].s(21), every="1h")
    worker, caller = site.serve(STEPS[0]), site.app
    site.check(caller)
    for number, keys in enumerate(STEPS[1:]):
        if number % 2:  # first those who answer, or first those who ask
            new_worker, new_caller = site.serve(keys), None
        else:
            new_worker, new_caller = None, site.caller(keys)
        for asks in (caller, new_caller or caller):
            for _ in range(3):  # both answer in turn
                site.check(asks)
        new_worker, new_caller = new_worker or site.serve(keys), new_caller or site.caller(keys)
        site.check(caller)
        site.check(new_caller)
        assert worker.stop() == 0
        site.check(new_caller)
        worker, caller = new_worker, new_caller
    assert caller.dead.list() == []


def test_a_key_that_signs_before_all_believe_it_breaks_results_and_answers(site: Keyed) -> None:
    site.app.schedule("often", site.app.tasks["double"].s(21), every="1h")
    site.serve([NEW, OLD])
    with pytest.raises(BadSignature, match="k2"):
        site.app.tasks["double"].enqueue(1).result(PATIENCE)
    with pytest.raises(RemoteError, match="k2"):
        site.app.service("front").request("back.double", {"n": 1}, timeout=PATIENCE)
