"""A replay whose process or server is killed for real in the middle: it goes on, and no letter runs twice."""

from __future__ import annotations

import json
import signal
import subprocess
from functools import partial
from pathlib import Path

from tests.eventually import eventually
from tests.process.harness import Site
from tests.servers import Server
from tests.system.shell import command, environment, relevo

COUNT = 40


def test_a_replay_that_was_killed_is_resumed_and_runs_each_letter_once(server: Server, tmp_path: Path) -> None:
    with Site(server, tmp_path, lease="5s") as site:
        site.enqueue_many("nap", range(COUNT), 0.0)
        for lease in site.queue.take(COUNT, worker="undertaker", lease="5m"):
            assert lease.bury("outage")
        site.start()

        words = ("dead", "retry", "--all", "--yes", "--rate", "8/s", "--canary", "--name", site.name)
        victim = subprocess.Popen(
            command(*words), env=environment(server.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            eventually(
                lambda: [run for run in site.app.dead.runs() if run.retried >= 15], timeout=30, what="it is on its way"
            )
        finally:
            victim.kill()
            told = victim.communicate(timeout=10)
        assert victim.returncode == -signal.SIGKILL, told
        (run,) = site.app.dead.runs()
        assert run.state == "running" and 15 <= run.retried < COUNT
        assert f"relevo dead resume {run.id}" in told[1], "the command said how to go on"

        refused = relevo("dead", "resume", run.id, "--name", site.name, url=server.url)
        assert refused.code == 1 and "is led by another process" in refused.err
        key = site.app.own_keys.own("replay", run.id)
        server.command("HINCRBY", key, "beat", -60_000)  # as if it had been silent for a minute

        done = relevo("dead", "resume", run.id, "--name", site.name, "--json", url=server.url)
        assert (done.code, done.json["state"], done.json["id"]) == (0, "done", run.id)
        # What was retried in its last moment may not have been noted; it is not retried again.
        assert COUNT - 1 <= done.json["retried"] <= COUNT
        site.check()
        assert site.app.dead.list() == []
        assert len(site.effects("end")) == COUNT


def _went(site: Site, count: int) -> bool:
    return any(run.retried >= count for run in site.app.dead.runs())


def test_a_replay_outlasts_a_server_that_is_killed_and_comes_back(engine: str, tmp_path: Path) -> None:
    config = {"appendonly": "yes", "appendfsync": "always"}  # else a busy disk may hold a write back for two seconds
    with (
        Server(engine, directory=tmp_path / "mortal", config=config) as mortal,
        Site(mortal, tmp_path, lease="5s") as site,
    ):
        site.enqueue_many("nap", range(300), 0.0)
        for lease in site.queue.take(300, worker="undertaker", lease="5m"):  # each is a write to the disk
            assert lease.bury("outage")
        words = ("dead", "retry", "--all", "--yes", "--rate", "200/s", "--json", "--name", site.name)
        leader = subprocess.Popen(
            command(*words), env=environment(mortal.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            for went in (20, 120, 220):
                eventually(partial(_went, site, went), timeout=30, what=f"{went} went")
                mortal.kill()
                mortal.start()
            out, err = leader.communicate(timeout=60)
        finally:
            leader.kill()
        assert leader.returncode == 0, err
        run = json.loads(out)
        assert (run["state"], run["retried"], run.get("left", 0)) == ("done", 300, 0)
        site.start()
        site.check()
        assert len(site.effects("end")) == 300
