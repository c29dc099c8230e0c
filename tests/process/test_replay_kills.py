"""A replay whose process or server is killed for real in the middle: it goes on, and no dead letter runs twice."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from pathlib import Path
from typing import Any

from relevo import State
from tests.eventually import PATIENCE, eventually
from tests.process import jobs
from tests.process.harness import Site
from tests.servers import Server
from tests.system.shell import command, environment, relevo
from tests.working import working


class DeadSite(Site):
    """A site with dead letters."""

    def __init__(self, server: Server, directory: Path, letters: int) -> None:
        super().__init__(server, directory)
        self.enqueue_many("nap", range(letters), 0.0)
        for lease in self.queue.take(letters, worker="undertaker", lease="5m"):
            assert lease.bury("outage")

    def replay(self, *options: str) -> subprocess.Popen[str]:
        """A process that leads a replay of all."""
        line, env = ("dead", "retry", "--all", "--yes", "--name", self.name, *options), environment(self.server.url)
        pipe = subprocess.PIPE
        return subprocess.Popen(command(*line), env=env, stdout=pipe, stderr=pipe, text=True)

    def has_retried(self, count: int) -> bool:
        return any(run.retried >= count for run in self.app.dead.runs())


def test_a_replay_that_was_killed_is_resumed_and_runs_each_letter_once(server: Server, tmp_path: Path) -> None:
    with DeadSite(server, tmp_path, 40) as site:
        victim = site.replay("--canary")
        try:
            (first,) = eventually(lambda: site.queue.take(1), what="the first canary runs")
            assert first.done()
            eventually(lambda: site.has_retried(11), what="ten canaries more are to run, and no worker does")
        finally:
            victim.kill()
            printed = victim.communicate(timeout=PATIENCE)
        assert victim.returncode == -signal.SIGKILL, printed
        (run,) = site.app.dead.runs()
        assert (run.state, run.retried) == ("running", 11)
        assert f"relevo dead resume {run.id}" in printed[1], "the command prints how to go on"

        refused = relevo("dead", "resume", run.id, "--name", site.name, url=server.url)
        assert refused.code == 1 and "is led by another process" in refused.err
        key = site.app.engine.own_keys.own("replay", run.id)
        server.command("HINCRBY", key, "beat", -600_000)  # as if it had been silent for ten minutes

        with working(site.app):
            variables: dict[str, Any] = {jobs.EFFECTS: str(site._effects)}  # the worker reads it, too
            done = relevo("dead", "resume", run.id, "--name", site.name, "--json", url=server.url, **variables)
            assert (done.code, done.json["state"], done.json["id"]) == (0, "done", run.id)
            assert done.json["retried"] == 40
            eventually(lambda: site.queue.stats().living == 0, what="no job is left")
        assert site.app.dead.list() == []
        assert {job.state() for job in site.acknowledged.values()} == {State.DONE}
        ran = [effect.n for effect in site.effects("end")]
        assert len(ran) == len(set(ran)) == 39, "each ran once, but for the first canary"


def test_a_replay_outlasts_a_server_that_is_killed_and_comes_back(mortal: Server, tmp_path: Path) -> None:
    with DeadSite(mortal, tmp_path, 150) as site:
        leader = site.replay("--rate", "100/s", "--json")
        try:
            for retried in (20, 60, 100):
                eventually(partial(site.has_retried, retried), what=f"{retried} were retried")
                mortal.kill()
                mortal.start()
            out, err = leader.communicate(timeout=PATIENCE)
        finally:
            leader.kill()
        assert leader.returncode == 0, err
        run = json.loads(out)
        assert (run["state"], run["retried"], run.get("left", 0)) == ("done", 150, 0)
        with working(site.app):
            site.check()
        assert len(site.effects("end")) == 150
