"""The example files of `deploy/` are fit for use: a real server runs with them, systemd and the settings read them."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shutil
import signal
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from relevo import Relevo, Reply, State, current_job, metrics
from relevo.bus.subscription_store import subscriptions
from relevo.errors import ServerRefused, UnknownJob
from relevo.health.thresholds import NAMES, Limits, limits_of
from relevo.settings import Settings, load
from relevo.store.plan import Call
from relevo.upkeep.deadlines import expiring
from relevo.upkeep.rules import POOL_RULES, QUEUE_RULES, ages_of
from relevo.web.serving import GRACE
from relevo.worker import Worker
from relevo.worker.supervisor import KILL_AFTER
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, aeventually, eventually
from tests.servers import available, free_port
from tests.system.shell import relevo
from tests.working import drain

DEPLOY = Path(__file__).parents[2] / "deploy"

#: How deploy/users.acl was made.
USERS = (
    "--env prod",
    "--env prod --app shop",
    "--env prod --app ingestion --service ingestion --calls embedding",
    "--env prod --app embedding --service embedding --called-by ingestion",
)
#: A service that has nothing to do with those.
BILLING = "--env prod --app billing --service invoices"


def users(*asked: str) -> str:
    """What `relevo server acl` prints."""
    return "".join(relevo("server", "acl", "--placeholders", *words.split()).out for words in asked)


class Shipped:
    """A real server with the shipped configuration; only its paths and its port are other ones."""

    def __init__(self, engine: str, directory: Path) -> None:
        binary = available(engine)
        assert binary is not None
        self._binary = binary
        self.port = free_port()
        text = (DEPLOY / "redis.conf").read_text()
        for there, here in (
            ("port 6379", f"port {self.port}"),
            ("dir /var/lib/redis", f"dir {directory}"),
            ("aclfile /etc/redis/users.acl", f"aclfile {directory}/users.acl"),
            ("logfile /var/log/redis/redis-server.log", f"logfile {directory}/log"),
            ("pidfile /run/redis/redis-server.pid", f"pidfile {directory}/pid"),
        ):
            assert text.count(f"\n{there}\n") == 1, there
            text = text.replace(f"\n{there}\n", f"\n{here}\n")
        self._conf = directory / "redis.conf"
        self._conf.write_text(text)
        (directory / "users.acl").write_text((DEPLOY / "users.acl").read_text() + users(BILLING))
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self._process = subprocess.Popen([self._binary, str(self._conf)])
        eventually(self._answers, what="the server answers", errors=(redis.RedisError,))

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, "the server ended"
        with redis.Redis.from_url(self.url("operator"), protocol=2) as client:
            return bool(client.ping())

    def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(PATIENCE)

    def url(self, user: str) -> str:
        return f"redis://{user}:{quote(f'CHANGE-ME-{user}')}@127.0.0.1:{self.port}/0"


@pytest.fixture
def shipped(engine: str, tmp_path: Path) -> Iterator[Shipped]:
    server = Shipped(engine, tmp_path)
    server.start()
    yield server
    server.end(signal.SIGTERM)


def shop(url: str) -> Relevo:
    """The app that the rights are for."""
    app = Relevo("shop", env="prod", url=url, health=True, health_every="1s", **PATIENT)

    @app.task(name="charge", retries=1, backoff="10ms", on_failure="tell")
    def charge(invoice: int) -> str:
        print("charging", invoice)
        current_job().progress(0.5)
        if invoice == 13:
            raise ValueError("no such invoice")
        return f"invoice {invoice}"

    @app.task(name="tell")
    def tell(failure: dict[str, Any]) -> None:
        charge.using(name="again", delay="1h").enqueue(14).cancel()

    return app


# The server


def test_doctor_finds_nothing_wrong_with_the_shipped_configuration(shipped: Shipped) -> None:
    """Also no warning, although the machine of a test is no server."""
    printed = relevo("doctor", "--json", url=shipped.url("operator"))
    levels = {check["name"]: check["level"] for check in printed.json["checks"]}
    assert levels.pop("latency") in ("ok", "warning")  # not the configuration's doing
    assert set(levels.values()) == {"ok"}, printed.out
    with pytest.raises(ServerRefused, match="password"):  # a client without a user name
        shop(f"redis://127.0.0.1:{shipped.port}/0").tasks["charge"].enqueue(7)


async def _is_empty(app: Relevo) -> bool:
    return (await app.queue().astats()).living == 0


async def test_each_role_can_do_its_work_and_no_more(shipped: Shipped) -> None:
    producer, worker, monitor = (shop(shipped.url(user)) for user in ("shop-producer", "shop-worker", "monitor"))
    charge = producer.tasks["charge"]
    good, bad = await charge.aenqueue(7), await charge.aenqueue(13)
    runner = Worker(worker)
    running = asyncio.create_task(runner.run())
    try:
        assert await good.aresult(timeout=PATIENCE) == "invoice 7"
        with pytest.raises(Exception, match="no such invoice"):
            await bad.aresult(timeout=PATIENCE)
        await aeventually(lambda: _is_empty(worker), what="its failure handler has run, too")
    finally:
        runner.stop()
        await running
    assert (await bad.astate()) is State.DEAD

    an_hour_ago = (
        await worker.engine.arun(worker.engine.now_ms()) - 3_600_000
    )  # a worker fell silent, and no other has lived since
    await worker.engine.arun(Call([b"ZADD", worker.engine.keys.workers, an_hour_ago, b"lost"]))
    seen = relevo("status", "--name", "shop", "--env", "prod", "--json", url=shipped.url("monitor"))
    assert seen.json["queues"][0]["dead"] == 1
    assert relevo("dead", "list", "--name", "shop", "--env", "prod", url=shipped.url("monitor")).code == 0
    seen = relevo("health", "--name", "shop", "--env", "prod", "--json", url=shipped.url("monitor"))
    assert (seen.code, seen.json["queues"][0]["vitals"]["states"]["dead"]["size"]) == (0, 1), seen.json["reasons"]
    assert (await monitor.ahealth()).is_healthy, "although it may keep nothing"

    with redis.Redis.from_url(shipped.url("operator")) as client:
        writes = {name.decode() for name in client.execute_command("ACL", "CAT", "write")}
    line = next(line for line in (DEPLOY / "users.acl").read_text().splitlines() if line.startswith("user monitor "))
    assert not set(re.findall(r"\+(\w+)", line)) & writes, "a monitor can change nothing, also without our scripts"

    for app in (worker, monitor):
        assert b'relevo_up{app="shop"} 1' in await metrics.aexposition(app)

    for forbidden in (producer.queue().atake(1), monitor.tasks["charge"].aenqueue(7)):
        with pytest.raises(ServerRefused, match=r"ACL|can't run this command"):
            await forbidden
    for app in (producer, worker, monitor):
        await app.aclose()


async def test_services_can_talk_to_each_other_and_no_more(shipped: Shipped) -> None:
    ingestion, embedding = (
        Relevo(name, env="prod", url=shipped.url(f"{name}-service"), **PATIENT) for name in ("ingestion", "embedding")
    )
    billing = Relevo("billing", env="prod", url=shipped.url("billing-service"), **PATIENT)
    waiting = await billing.service("invoices").asend("invoices.pay")  # out of reach for the other two
    got: list[str] = []
    svc, me = embedding.service("embedding", keep_events="1h"), ingestion.service("ingestion")

    @svc.action("generate")
    async def generate(text: str) -> str:
        await svc.areport("half")
        await svc.apublish("generated", {"text": text})
        return text.upper()

    @me.action("ready")
    async def ready(reply: Reply[str]) -> None:
        got.append(f"{reply.status} {reply.result}")

    @me.on("embedding.*")
    async def generated(text: str) -> None:
        got.append(f"event {text}")

    workers = [Worker(ingestion), Worker(embedding)]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        known = subscriptions(ingestion.engine.bus_keys)
        await aeventually(lambda: ingestion.engine.arun(known), what="ingestion listens to events")
        asked = me.arequest("embedding.generate", {"text": "a"}, wait=True, timeout=600, conversation="t")
        assert await asked == "A"
        large = "x" * 100_000
        await me.asend("embedding.generate", {"text": large}, on_reply="ready", on_progress="ready", timeout="10m")
        await me.asend(
            "embedding.generate", {"text": "b"}, on_reply="ready", conversation="t", tenant="acme", tier="free"
        )
        await aeventually(lambda: len(got) >= 6, what="callbacks, a report and events have come")
        assert await me.acatch_up("embedding.*", since="1h") == 3
        assert (await ingestion.conversations.aclean("t")).dry_run is False
        monitor = Relevo("ingestion", env="prod", url=shipped.url("monitor"), **PATIENT)
        await aeventually(lambda: monitor.conversations.atrace("t"), what="its trace is stored")
        await monitor.aclose()
        assert (await ingestion.asweep(dry_run=False)).count == 0
        assert (await ingestion.engine.arun(expiring(ingestion.engine, {}))).count == 0
        hasty = Relevo("ingestion", env="prod", url=shipped.url("ingestion-service"), orphan_age="1ms", **PATIENT)
        assert "invoices:actions" not in [orphan.name for orphan in (await hasty.asweep()).purged]
        await hasty.aclose()
        for app in (ingestion, embedding):

            async def is_listed(app: Relevo = app) -> bool:  # a worker lists itself beside its work
                line = f'relevo_queue_workers{{queue="{app.name}:actions",kind="actions"}} 1'
                return line.encode() in await metrics.aexposition(app)

            await aeventually(is_listed, what=f"the worker of {app.name} is known")
        with pytest.raises(ServerRefused, match=r"ACL|can't run this command|can't access"):
            await ingestion.engine.arun(Call([b"KEYS", b"*"]))
        for look in ("status", "health", "top --once", "dead list", "dead error-groups", "limits", "trace t", "audit"):
            words = (*look.split(), "--name", "ingestion", "--env", "prod")
            seen = await asyncio.to_thread(relevo, *words, url=shipped.url("monitor"))
            assert (seen.code, seen.err) == (0, ""), look
        assert await waiting.acancel()
        seen = await asyncio.to_thread(relevo, "services", "--env", "prod", url=shipped.url("monitor"))
        assert (seen.code, seen.err) == (0, "")
    finally:
        for worker in workers:
            worker.stop()
        await asyncio.gather(*running)
        for app in (ingestion, embedding, billing):
            await app.aclose()


def test_users_of_apps_and_services_do_not_reach_what_is_others(shipped: Shipped) -> None:
    """What they may do to what they do reach is not decided by rights: the server checks commands inside of scripts."""
    reach: dict[str, tuple[list[str], list[str]]] = {
        "shop-producer": (
            ["shop:actions:default", "shop", "x:notifications"],
            ["shop:actions", "shopping:actions:default"],
        ),
        "shop-worker": (["shop:actions:default", "shop"], ["shop:actions", "embedding:actions", "embedding"]),
        "ingestion-service": (
            [
                "ingestion:actions",
                "ingestion:callbacks",
                "ingestion:t:actions",
                "embedding:actions",
                "embedding:t:actions",
            ],
            [
                "embedding",
                "embedding:callbacks",
                "embedding:actions:default",
                "invoices:actions",
                "shop:actions:default",
            ],
        ),
        "embedding-service": (
            ["embedding:actions", "ingestion:callbacks", "ingestion:notifications:embedding.made"],
            ["ingestion", "ingestion:actions", "ingestion:actions:default", "invoices:actions", "shop:actions:default"],
        ),
    }
    for user, (own, others) in reach.items():
        with redis.Redis.from_url(shipped.url(user)) as client:
            for address in (*own, ""):
                client.zadd(f"{{{f'relevo:prod:{address}'.removesuffix(':')}}}:queues", {"x": 1})
            for address in others:
                for key in ("jobs", "ready", "ended:x"):
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        client.hget(f"{{relevo:prod:{address}}}:{key}", "x")
            for command in (
                "XTRIM {relevo:prod}:audit MAXLEN 0",
                "XADD {relevo:prod}:audit * d x",
            ):  # a forged or no trail
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())
            for command in (
                "KEYS *",
                "SCAN 0",
                "FLUSHALL",
                "CONFIG GET dir",
                "MODULE LIST",
                "REPLICAOF a 1",
            ):
                with pytest.raises(redis.exceptions.NoPermissionError):
                    client.execute_command(*command.split())
    with redis.Redis.from_url(shipped.url("ingestion-service")) as client:
        for app, is_ours in (("ingestion", True), ("embedding", False), ("shop", False)):
            with client.pubsub() as inbox:
                inbox.subscribe(f"{{relevo:prod:{app}}}:inbox:1")
                if is_ours:
                    assert inbox.get_message(timeout=PATIENCE)
                else:
                    with pytest.raises(redis.exceptions.NoPermissionError):
                        inbox.get_message(timeout=PATIENCE)


async def test_an_app_is_not_kept_from_its_own_by_services_of_others(shipped: Shipped) -> None:
    """Their queues are out of reach for its workers; that must not hide its own."""
    mine, other = shop(shipped.url("shop-worker")), Relevo("billing", env="prod", url=shipped.url("billing-service"))

    @other.service("invoices").action("pay", retries=0)
    async def pay() -> None:
        raise ValueError("no money")

    message = await other.service("invoices").asend("invoices.pay")
    await drain(other)
    bad = await mine.tasks["charge"].using(retries=0).aenqueue(13)
    await drain(mine)
    assert b'relevo_up{app="shop"} 1' in await metrics.aexposition(mine)
    assert [one.id for one in await mine.dead.alist()] == [bad.id]
    assert await mine.apauses() == []
    assert (await mine.ajob(bad.id)).queue == "default"
    for unknown in (mine.engine.new_id(), message.id):
        with pytest.raises(UnknownJob, match="more are out of reach"):
            await mine.ajob(unknown)
    await mine.aclose()
    await other.aclose()


def test_no_acknowledged_job_is_lost_when_the_shipped_server_is_killed(shipped: Shipped) -> None:
    """Redis 7.0 also lost them all at a restart when the default user, which is off, had no rights."""
    app = shop(shipped.url("shop-producer"))
    operator = redis.Redis.from_url(shipped.url("operator"))
    for kill in range(1, 4):
        app.tasks["charge"].enqueue_many([((n,), {}) for n in range(500)])
        # A server whose disk is busy with the sync before holds writes back, for two seconds at the most.
        eventually(lambda: operator.info("persistence")["aof_buffer_length"] == 0, what="written")
        shipped.end(signal.SIGKILL)
        shipped.start()
        assert shop(shipped.url("operator")).queue().stats().ready == kill * 500
    app.close()


def test_the_shipped_users_are_those_that_the_command_prints() -> None:
    assert (DEPLOY / "users.acl").read_text() == users(*USERS)


def test_each_user_gets_a_password_of_its_own() -> None:
    made = [re.findall(r" >(\S+) ", relevo("server", "acl", "--app", "shop").out) for _ in range(2)]
    assert len({*made[0], *made[1]}) == 4
    assert min(map(len, made[0])) == 48


def test_names_of_others_match_no_pattern_of_an_app() -> None:
    """Names may hold what stands for anything in a pattern."""
    printed = relevo("server", "acl", "--app", "s*[p]?", "--env", "prod").out
    assert r"~{relevo:prod:s\*\[p\]\?:actions:*}:*" in printed
    for words in ("--service a", "--app a --calls b"):
        assert relevo("server", "acl", *words.split()).code == 2


# The worker


def unit(name: str = "relevo-worker.service") -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(DEPLOY / name)
    return parser


def test_unit_of_the_http_api_is_hardened_and_has_time_to_stop() -> None:
    parsed = unit("relevo-web.service")
    service = parsed["Service"]
    assert int(service["TimeoutStopSec"]) > GRACE
    # With the code, it knows what tasks mark as secret.
    assert " web shop.jobs:app --host 127.0.0.1" in service["ExecStart"]
    assert (service["Restart"], service["ProtectSystem"]) == ("always", "strict")
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == service["ProtectHome"] == "true"
    assert {"EnvironmentFile", "User", "WorkingDirectory", "SyslogIdentifier"} <= {*service}
    assert "Requires" not in parsed["Unit"]


@pytest.mark.parametrize("name", ["relevo-worker.service", "ifdb-worker.service"])
def test_unit_says_what_a_worker_needs(name: str) -> None:
    parsed = unit(name)
    service = parsed["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > Settings().lease * 3  # what the supervisor itself calls healthy
    assert int(service["TimeoutStopSec"]) > Settings().grace + KILL_AFTER
    assert (service["Restart"], service["KillMode"]) == ("always", "mixed")
    assert "ExecReload" not in service
    needed = {"EnvironmentFile", "User", "WorkingDirectory", "SyslogIdentifier", "RestartSec", "ProtectSystem"}
    assert needed <= {*service}
    assert service["NoNewPrivileges"] == service["PrivateTmp"] == "true"
    assert "redis-server.service" in parsed["Unit"]["Wants"]
    assert "Requires" not in parsed["Unit"]
    assert "network-online.target" in parsed["Unit"]["After"]


def test_unit_of_the_site_waits_for_its_database_and_runs_its_command() -> None:
    parsed = unit("ifdb-worker.service")
    assert {"redis-server.service", "postgresql.service"} <= {*parsed["Unit"]["After"].split()}
    assert parsed["Service"]["ExecStart"].endswith("manage.py ifdbworker")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
@pytest.mark.parametrize(
    "name", ["relevo-worker.service", "relevo-web.service", "ifdb-worker.service", "ifdb-check.service"]
)
def test_systemd_accepts_the_unit(tmp_path: Path, name: str) -> None:
    text = (DEPLOY / name).read_text()
    copy = tmp_path / name
    copy.write_text(re.sub("ExecStart=[^ ]+", "ExecStart=/bin/sh", text))  # must exist to be accepted
    done = subprocess.run(["systemd-analyze", "verify", str(copy)], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_example_settings_are_read_and_show_true_defaults(tmp_path: Path) -> None:
    text = (DEPLOY / "relevo.toml").read_text()
    (tmp_path / "relevo.toml").write_text(text)
    assert load(directory=tmp_path, environ={}).env == "prod"
    shown = re.sub(r"^# (\w+ = .*|\[.*\])$", r"\1", text, flags=re.MULTILINE)
    (tmp_path / "relevo.toml").write_text(shown)
    found, true = load(directory=tmp_path, environ={}), Settings()
    without_default = {"pool", "server_check"}
    assert tomllib.loads(shown).keys() == set(Settings.__struct_fields__) - without_default, "every setting is there"
    assert found.health_limits.keys() == set(NAMES) and limits_of(found.health_limits, "mail") == Limits()
    ages = ages_of(found.purge_ages)
    assert (ages.of_queue("mail"), ages.of_pool("vms")) == (QUEUE_RULES, POOL_RULES)
    assert (ages.queues["*"].keys(), ages.pools["*"].keys()) == (QUEUE_RULES.keys(), POOL_RULES.keys())
    for name in set(Settings.__struct_fields__) - {"env", "url", "health_limits", "purge_ages"}:
        assert getattr(found, name) == getattr(true, name), name
    examples = re.sub(r"^#   ((\w+ = .*|\[.*\]))$", r"\1", text, flags=re.MULTILINE)
    (tmp_path / "relevo.toml").write_text(examples)
    found = load(directory=tmp_path, environ={})
    assert (found.pool, found.server_check, found.health_limits["mail"]["slo"]) == (4, "warn", 30)
    assert found.schedules["nightly"]["task"] == "shop.report"
    assert found.purge_ages["queues"]["mails"]["ready"]["classes"] == {"shop.newsletter": "12h"}


@pytest.mark.parametrize(
    ("units", "status", "code", "word"),
    [
        ("active", 0, 0, "OK"),
        ("active", 1, 1, "WARNING"),
        ("active", 2, 2, "CRITICAL"),
        ("failed", 0, 2, "CRITICAL: ifdb-worker is failed"),
    ],
)
def test_check_of_the_site_exits_with_what_it_found(
    tmp_path: Path, units: str, status: int, code: int, word: str
) -> None:
    for name, body in {"systemctl": f"echo {units}", "python": f"echo report; exit {status}"}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    variables = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SITE": str(tmp_path),
        "PYTHON": str(tmp_path / "python"),
    }
    done = subprocess.run([DEPLOY / "ifdb-check.sh"], env=variables, capture_output=True, text=True)
    assert (done.returncode, done.stdout.startswith(word)) == (code, True)
