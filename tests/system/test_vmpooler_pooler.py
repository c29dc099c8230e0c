"""The pooler of examples/vmpooler, step by step, against its provider: what is lost, left half done, or too old."""

from __future__ import annotations

import asyncio
import importlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from relevo.pools.pool import Pool
from relevo.testing import TestKit, bind
from tests.eventually import eventually
from tests.servers import Server

FOLDER = Path(__file__).parents[2] / "examples" / "vmpooler"
CONFIG = """\
:config:
  dlq_enabled: true
  vm_checktime: "30d"   # tests run the checks themselves
  vm_lifetime: "12h"
:pools:
  - {name: centos-7, template: templates/centos-7, size: 0}
  - {name: debian-12, template: templates/debian-12, size: 0, timeout: "5m"}
  - {name: windows-2012, template: templates/windows-2012, size: 0}
"""


class Example(NamedTuple):
    """The modules of the example, and its provider."""

    desk: Any
    estate: Any
    checks: Any

    def tell(self, do: str, **given: Any) -> Any:
        """Send a command to the provider."""
        return asyncio.run(self.estate.provider.ask(do, **given))


class Provider:
    """A process that a test may end and start again."""

    def __init__(self, socket: str) -> None:
        self.socket = socket
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "provider", self.socket]
        self._process = subprocess.Popen(command, cwd=FOLDER, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        assert b"is there" in self._process.stdout.readline()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def provider() -> Iterator[Provider]:
    with tempfile.TemporaryDirectory(prefix="vmp-") as place:  # the path of a socket must be short
        running = Provider(f"{place}/provider")
        yield running
        running.kill()


@pytest.fixture(scope="module")
def example(provider: Provider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    path = tmp_path_factory.mktemp("vmpooler") / "vmpooler.yaml"
    path.write_text(CONFIG, "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(FOLDER))
        patch.setenv("VMPOOLER_CONFIG", str(path))
        patch.setenv("VMPOOLER_PROVIDER", provider.socket)
        importlib.import_module("pooler.service")
        names = ("pooler.desk", "pooler.estate", "pooler.checks")
        example = Example(*(importlib.import_module(name) for name in names))
        for module in (example.estate, example.checks):
            patch.setattr(module, "SOON", 0.4)
        yield example
    for name in [name for name in sys.modules if name.partition(".")[0] in ("pooler", "provider", "config")]:
        del sys.modules[name]  # other code may use these names


@pytest.fixture
def kit(example: Example, server: Server) -> Iterator[TestKit]:
    example.tell("boot", seconds=0)
    with bind(example.estate.app, url=server.url) as kit:
        yield kit
        for pool in (*example.estate.vms, "odrequest", "poolsize"):
            for state in kit.app.pool(pool).counts():
                for entity in kit.app.pool(pool).items(state):
                    kit.app.pool(pool).remove(entity.id)
    for name in example.estate.vms:
        for vm in example.tell("inventory", pool=name):
            example.tell("forget", vm=vm)


def check(example: Example, kit: TestKit, times: int = 1) -> None:
    """Run what a schedule enqueues."""
    for _ in range(times):
        kit.drain()
        example.checks.check_pools.enqueue()
        kit.drain()


def stock_one(example: Example, kit: TestKit) -> None:
    """Have one machine of centos-7 in stock."""
    example.desk.resize("centos-7", 1)
    check(example, kit, times=2)


def pool_of(example: Example, name: str = "centos-7") -> Pool:
    pool: Pool = example.estate.vms[name]
    return pool


def places(pool: Pool) -> dict[str, int]:
    return {state: count for state, count in pool.counts().items() if count}


def test_a_lost_machine_of_a_request_is_replaced_and_the_request_is_filled(example: Example, kit: TestKit) -> None:
    """The dead letter names the request."""
    request = example.desk.ask_for("centos-7", 1)
    kit.drain()
    first = f"vm-{request}-1"
    example.tell("forget", vm=first)
    check(example, kit)
    (dead,) = pool_of(example).dead()
    assert (dead.entity, dead.queue_from, dead.error_class) == (first, "pending", "Unreachable")
    assert (dead.request_id, dead.retry_count) == (request, 0)
    assert example.desk.status(request)["status"] == "pending"
    check(example, kit)
    assert example.desk.status(request)["status"] == "ready"
    assert example.desk.status(request)["retry_count"] == 1
    assert example.desk.collect(request) == [f"{first}.1"]
    assert example.desk.collect(request) == [], "twice"
    assert places(pool_of(example)) == {"running": 1}


def test_a_request_whose_machines_fail_one_after_the_other_fails(example: Example, kit: TestKit) -> None:
    request = example.desk.ask_for("centos-7", 2)
    for tries in ("", ".1", ".2"):
        kit.drain()
        example.tell("forget", vm=f"vm-{request}-1{tries}")
        check(example, kit)
    known = example.desk.status(request)
    assert known["status"] == "failed" and "3 machines failed" in known["error_message"]
    assert len(pool_of(example).dead()) == 3
    check(example, kit)  # its other machine is not wanted any more
    check(example, kit)
    assert places(pool_of(example)) == {} and example.tell("inventory", pool="centos-7") == []
    assert kit.enqueued() == []


def test_a_machine_that_is_not_up_in_time_is_given_up(example: Example, kit: TestKit) -> None:
    example.tell("boot", seconds=3600)
    example.desk.resize("debian-12", 1)
    check(example, kit, times=2)
    assert places(pool_of(example, "debian-12")) == {"pending": 1}
    example.desk.resize("debian-12", 0)
    kit.clock.move("5m")
    check(example, kit)
    (dead,) = pool_of(example, "debian-12").dead()
    assert (dead.queue_from, dead.error_message) == ("pending", "not up within 300 s")


def test_an_unplugged_machine_is_not_handed_out(example: Example, kit: TestKit) -> None:
    stock_one(example, kit)
    (vm,) = pool_of(example).items("ready")
    example.tell("unplug", vm=vm.id)
    check(example, kit)
    assert example.desk.checkout("centos-7") is None
    assert [dead.error_message for dead in pool_of(example).dead()] == ["it does not answer"]


def test_a_missing_template_of_the_stock_is_one_dead_letter_until_it_is_discarded(
    example: Example, kit: TestKit
) -> None:
    example.desk.resize("windows-2012", 1)
    check(example, kit, times=3)
    (letter,) = kit.app.dead.list(queue="clone")
    assert letter.reason == "permanent" and "does not exist" in letter.error
    assert places(pool_of(example, "windows-2012")) == {}
    kit.app.dead.discard([letter.id])
    check(example, kit)
    assert [row.id for row in kit.app.dead.list(queue="clone")] not in ([], [letter.id])


async def test_a_stock_of_many_pages_is_kept_as_large_as_it_is_to_be(
    example: Example, kit: TestKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where machines of requests stand in front of it."""
    monkeypatch.setattr(example.checks, "MANY", 3)
    pool, kind = pool_of(example), example.estate.kinds["centos-7"]
    for number in range(4):
        await pool.aadd(f"asked-{number}", "ready", kind="ondemand")
    for number in range(8):
        await pool.aadd(f"stock-{number}", "ready" if number < 6 else "pending", kind="pool")
    await example.estate.sizes.aadd("centos-7", "set", size=8)
    await example.checks.keep_stock(kind)
    assert places(pool) == {"ready": 10, "pending": 2}

    await example.estate.sizes.aupdate("centos-7", size=10)
    await example.checks.keep_stock(kind)
    await example.checks.keep_stock(kind)
    assert places(pool) == {"ready": 10, "pending": 4}

    await example.estate.sizes.aupdate("centos-7", size=7)
    await example.checks.keep_stock(kind)
    assert [vm.id for vm in await pool.aitems("completed")] == ["stock-0", "stock-1", "stock-2"], "the oldest go"
    await example.estate.app.queue("clone").aclear()


async def test_a_missing_template_is_known_behind_those_of_other_kinds(
    example: Example, kit: TestKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(example.checks, "MANY", 2)
    clone_vm = importlib.import_module("pooler.cloning").clone_vm
    for name in ("windows-2012", *["debian-12"] * 3):
        await clone_vm.using(tenant=name).aenqueue("vm", name, "", 0)
        (lease,) = await example.estate.app.queue("clone").atake(1)
        await lease.abury("TemplateNotFound")
    kinds = example.estate.kinds
    assert await example.checks._has_no_template(kinds["windows-2012"])
    assert await example.checks._has_no_template(kinds["debian-12"])
    assert not await example.checks._has_no_template(kinds["centos-7"])


def test_what_a_crash_left_of_a_request_is_ordered_by_the_next_check(example: Example, kit: TestKit) -> None:
    example.estate.requests.add("req-cut", "requested", status="pending", pool="centos-7", count=2, retry_count=0)
    pool_of(example).add("vm-req-cut-1", "pending", kind="ondemand", request_id="req-cut")
    check(example, kit, times=2)
    assert sorted(example.desk.collect("req-cut")) == ["vm-req-cut-1", "vm-req-cut-2"]


def test_an_unknown_machine_at_the_provider_is_discovered_and_destroyed(example: Example, kit: TestKit) -> None:
    example.tell("clone", vm="vm-stray", template="templates/centos-7", pool="centos-7")
    check(example, kit)
    assert places(pool_of(example)) == {"discovered": 1}
    check(example, kit)
    assert example.tell("look", vm="vm-stray") is None
    assert places(pool_of(example)) == {}


def test_a_machine_that_is_destroyed_while_the_inventory_is_taken_is_not_discovered(
    example: Example, kit: TestKit
) -> None:
    """There would be nothing to destroy, and the next try would come after ten minutes."""
    vm, pool, ask = "vm-1", pool_of(example), example.estate.provider.ask
    example.tell("clone", vm=vm, template="templates/centos-7", pool="centos-7")
    pool.add(vm, "completed")
    example.tell("slow", seconds=0.3)  # it answers later than it acts

    async def race() -> None:
        inventory = asyncio.create_task(example.checks.take_inventory("centos-7"))
        destroyed = asyncio.create_task(ask("destroy", vm=vm))
        await pool.aremove(vm, "completed")
        await asyncio.gather(inventory, destroyed)
        await kit.app.aclose()

    asyncio.run(race())
    example.tell("slow", seconds=0)
    assert places(pool) == {}


def test_a_machine_is_handed_out_for_no_longer_than_its_lifetime(example: Example, kit: TestKit) -> None:
    stock_one(example, kit)
    vm = example.desk.checkout("centos-7")
    example.desk.resize("centos-7", 0)
    check(example, kit)
    assert places(pool_of(example)) == {"running": 1}
    kit.clock.move("12h")
    check(example, kit)
    assert example.tell("look", vm=vm) is None


def test_the_purge_leaves_alone_what_the_provider_does_not_answer_for(
    example: Example, kit: TestKit, provider: Provider
) -> None:
    pool_of(example).add("vm-stuck", "pending", kind="pool")
    kit.clock.move("3h")
    provider.kill()
    report = kit.app.purge(dry_run=False)
    assert report.count == 0 and [(one.state, one.count) for one in report.unknown] == [("pending", 1)]
    provider.start()
    report = kit.app.purge(dry_run=False)
    assert [(one.id, one.what, one.reason) for one in report.purged] == [("vm-stuck", "dead", "gone_pending")]


def test_requests_and_ready_machines_that_are_not_collected_end(example: Example, kit: TestKit) -> None:
    """24 hours on demand, 48 in stock."""
    example.desk.resize("centos-7", 1)
    request = example.desk.ask_for("centos-7", 1)
    check(example, kit, times=2)
    assert places(pool_of(example)) == {"ready": 2}
    late = example.desk.ask_for("windows-2012", 1)
    kit.clock.move("24h")
    purged = {one.id: one.what for one in kit.app.purge(dry_run=False).purged if one.kind == "pool"}
    assert purged == {f"vm-{request}-1": "completed", request: "expired", late: "expired"}
    kit.clock.move("24h")
    purged = {one.id: one.what for one in kit.app.purge(dry_run=False).purged if one.kind == "pool"}
    assert list(purged.values()).count("completed") == 1
    assert purged[request] == purged[late] == "removed"


def test_what_cannot_be_asked_for_is_refused(example: Example, kit: TestKit) -> None:
    for pool, count, words in (("centos-8", 1, "no machines 'centos-8'. There are: "), ("centos-7", 0, "1 to 40 mach")):
        with pytest.raises(ValueError, match=re.escape(words)):
            example.desk.ask_for(pool, count)
    assert places(example.estate.requests) == {}


def test_a_killed_provider_is_waited_for(example: Example, kit: TestKit, provider: Provider) -> None:
    stock_one(example, kit)
    provider.kill()
    check(example, kit)
    provider.start()
    assert places(pool_of(example)) == {"ready": 1} and kit.app.dead.list() == []
    eventually(lambda: (kit.drain(), not kit.enqueued("check_ready_vm"))[1])
    assert places(pool_of(example)) == {"ready": 1} and kit.app.dead.list() == []


def test_an_answer_that_takes_too_long_says_nothing_about_a_machine(
    example: Example, kit: TestKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    stock_one(example, kit)
    (vm,) = pool_of(example).items("ready")
    example.tell("unplug", vm=vm.id)
    example.tell("slow", seconds=0.3)
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules["provider.client"], "PATIENCE", 0.1)
        check(example, kit)
        assert places(pool_of(example)) == {"ready": 1}
    example.tell("slow", seconds=0)
    eventually(lambda: (kit.drain(), pool_of(example).dead())[1])
    assert places(pool_of(example)) == {}
