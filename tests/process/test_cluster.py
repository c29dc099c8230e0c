"""A real cluster, where every queue may be on another node and no step can touch two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Job, Relevo, State, Workflow, WorkflowProgress, group
from relevo.bus.bus import Bus
from relevo.errors import JobCancelled, JobFailed, UnknownJob
from relevo.queues import store as queues
from relevo.store.plan import Ahead, Call, Steps
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, aeventually, eventually
from tests.process import callback_services, jobs
from tests.topologies import Cluster
from tests.working import working

QUEUES = ("a", "b", "c", "d", "e")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        fail_over_after(cluster, 60_000)
        yield cluster


def fail_over_after(cluster: Cluster, ms: int) -> None:
    """A machine that stands still must not look like a lost node, but where a test is about one."""
    for node in cluster.nodes:
        node.command("CONFIG", "SET", "cluster-node-timeout", ms)


class Shop:
    """An app whose tasks are spread over the cluster."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.failing: set[int] = set()
        self.runs: list[int] = []
        self.calls: list[str] = []

        @app.task(name="step", retries=0)
        async def step(number: int, plus: int = 0) -> int:
            self.runs.append(number)
            if number in self.failing:
                raise ValueError(f"number {number}")
            return number + plus

        @app.task(name="total", queue="e", result_ttl=0)
        async def total(numbers: list[int]) -> int:
            return sum(numbers)

        @app.task(name="call", queue="d")
        async def call(what: str) -> None:
            self.calls.append(what)

        @app.task(name="grow", queue="b")
        async def grow(number: int) -> int:
            await (await app.aworkflow()).aadd(*(step.using(queue=queue).s(number) for queue in QUEUES))
            return 0

        self.step, self.total, self.call, self.grow = step, total, call, grow

    def on(self, number: int) -> Any:
        return self.step.using(queue=QUEUES[number % len(QUEUES)])

    async def is_idle(self) -> bool:
        for name in QUEUES:
            outbox: int = await self.app.engine.arun(Call([b"HLEN", self.app.engine.keys_of(name).key("letters")]))
            if outbox or (await self.app.queue(name).astats()).living:
                return False
        return True

    async def ended(self, flow: Workflow[Any]) -> State:
        async def has_ended() -> bool:
            return (await flow.astate()).has_ended

        await aeventually(has_ended, what="the workflow has ended")
        await aeventually(self.is_idle, what="and all that it caused")
        return await flow.astate()


async def test_workflows_and_dependencies_over_the_nodes_of_a_cluster(cluster: Cluster) -> None:
    app = Relevo("nodes", url=cluster.url, env="test", **PATIENT)
    shop = Shop(app)
    homes = {cluster.primary_of(app.engine.keys_of(name).key("jobs").decode()).port for name in QUEUES}
    assert len(homes) == 3, "the queues are on all nodes"

    # all that it can be, in one: over chains and groups, callbacks, and those that join
    members = group(shop.on(n).s(n) | shop.on(n + 1).s(100) for n in range(10))
    chords = members | group(shop.total.s(), shop.total.s()) | shop.total.s() | shop.on(2).s(1)
    whole = await chords.on_complete(shop.call.s("complete")).aenqueue()
    grown = await (group(shop.grow.s(7), shop.on(1).s(1)) | shop.total.s()).aenqueue()
    async with working(app, queues=QUEUES[:3]), working(app, queues=QUEUES[3:]):
        assert await whole.aresult(PATIENCE) == 2 * (1000 + 45) + 1
        assert await grown.aresult(PATIENCE) == 1 + 5 * 7
        assert await shop.ended(whole) is State.DONE
    assert shop.calls == ["complete"]

    # a failure, and what is retried
    shop.failing.add(-2)
    flow = (group(shop.on(n).s(-n) for n in range(1, 6)) | shop.total.s()).on_failure(shop.call.s("failure"))
    failed = await flow.on_success(shop.call.s("success")).aenqueue()
    async with working(app, queues=QUEUES[:3]), working(app, queues=QUEUES[3:]):
        with pytest.raises(JobFailed, match="number -2"):
            await failed.aresult(PATIENCE)
        assert await shop.ended(failed) is State.DEAD
    shop.failing.clear()
    assert await failed.aretry() == 1
    async with working(app, queues=QUEUES):
        assert await failed.aresult(PATIENCE) == -15
        assert await shop.ended(failed) is State.DONE
    assert sorted(shop.calls) == ["complete", "failure", "success"]
    assert sorted(n for n in shop.runs if n < 0) == [-5, -4, -3, -2, -2, -1]

    # cancelling
    lasting = await (shop.on(0).using(delay="1h").s(1) | group(shop.on(n).s() for n in range(20))).aenqueue()
    assert await lasting.acancel() == 21
    assert (await lasting.astate(), await lasting.aprogress()) == (State.CANCELLED, WorkflowProgress(21, 0, 21, 0))

    # dependencies
    shop.failing.add(1)
    parents = [await shop.on(n).aenqueue(n) for n in range(3)]
    children = [
        await shop.on(n).using(depends_on=[*parents[:n], *[(one, "run") for one in parents[n:]]]).aenqueue(10 + n)
        for n in (1, 2)
    ]
    async with working(app, queues=QUEUES):
        assert await children[0].aresult(PATIENCE) == 11
        with pytest.raises(JobCancelled, match="dependency_failed"):
            await children[1].aresult(PATIENCE)
    shop.failing.clear()
    assert await parents[1].aretry()
    assert await children[1].astate() is State.WAITING
    async with working(app, queues=QUEUES):
        assert await children[1].aresult(PATIENCE) == 12
    with pytest.raises(UnknownJob):
        await shop.on(1).using(depends_on=[parents[0], Job(app.engine, app.engine.new_id(), "c")]).aenqueue(1)

    await app.aclose()
    assert _without_end(cluster, "nodes") == []


def _without_end(cluster: Cluster, name: str) -> list[str]:
    """Keys of an app that have no time limit."""
    left = dict(cluster.keys())
    return [key for key in left if name in key and left[key] == -1]


# callbacks


def test_callbacks_find_their_way_over_the_nodes_of_a_cluster(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages and callbacks are on different nodes."""
    monkeypatch.setenv(jobs.EFFECTS, str(tmp_path / "effects"))
    settings: dict[str, Any] = {"url": cluster.url, "env": "test", "signing_keys": ["k1:0123456789abcdef"], **PATIENT}
    app = callback_services.build("called-back", prefix="called-back", **settings)
    service = app.service("ingestion")
    handlers: dict[str, Any] = {"on_reply": "ready", "on_timeout": "gave_up", "on_progress": "half"}
    with working(app):
        eventually(lambda: app.engine.part(Bus).worker, what="the worker runs")
        for n in range(12):
            text = "x" * (100_000 if n % 2 else 0)
            data = {"n": n, "fails": n % 3 == 0, "reports": 1, "text": text}
            service.send("embedding.generate", data, context=n, sticky=n % 4 == 0, **handlers)
        service.send("nowhere.at_all", context=12, timeout=0.2, **handlers)
        eventually(lambda: len(_effects(tmp_path, "called")) == 13, what="all were called back")
        eventually(lambda: not app.queue("ingestion:callbacks").stats().living, what="it is over")
    assert sorted(_effects(tmp_path, "called")) == list(range(13))
    assert sorted(_effects(tmp_path, "half")) == list(range(12))
    assert sorted(_effects(tmp_path, "failed")) == [0, 3, 6, 9]
    assert _effects(tmp_path, "late-timeout") == [12]
    app.close()


def _effects(directory: Path, what: str) -> list[int]:
    text = (directory / "effects").read_text() if (directory / "effects").exists() else ""
    return [int(line.split()[3]) for line in text.splitlines() if line.split()[2] == what]


# calls that are made ahead of their answers

NAMES = [f"q{n}" for n in range(9)]


def sizes(app: Relevo) -> Steps[list[int]]:
    found: list[queues.QueueStats] = yield Ahead(queues.count(app.engine.keys_of(name), name) for name in NAMES)
    return [one.ready for one in found]


async def test_each_call_gets_its_own_answer_whichever_node_gives_it(cluster: Cluster) -> None:
    app = Relevo("ahead", url=cluster.url, env="test", **PATIENT)
    task = app.task(name="t")(lambda: None)
    homes = {cluster.primary_of(app.engine.keys_of(name).key("jobs").decode()).port for name in NAMES}
    assert len(homes) == 3, "the queues are on all nodes"
    for n, name in enumerate(NAMES):
        task.using(queue=name).enqueue_many([((), {})] * n)
    for _ in range(3):
        assert app.engine.run(sizes(app)) == list(range(9))
        assert await app.engine.arun(sizes(app)) == list(range(9))
        assert [app.queue(name).stats().ready for name in NAMES] == list(range(9)), "no answer was left over"
    app.close()
    await app.aclose()


# a node that is lost


async def test_a_workflow_ends_although_a_node_was_lost(cluster: Cluster) -> None:
    fail_over_after(cluster, 1_000)
    app = Relevo("failover", url=cluster.url, env="test", lease="2s")
    shop = Shop(app)
    flow = group(shop.on(n).s(n) | shop.on(n + 1).s(0) | shop.on(n + 2).s(0) for n in range(30)) | shop.total.s()
    async with working(app, queues=QUEUES, concurrency=2):
        made = await flow.aenqueue()

        async def has_begun() -> bool:
            return (await made.aprogress()).done > 5

        async def has_ended() -> bool:
            return (await made.astate()).has_ended

        await aeventually(has_begun)
        cluster.kill_primary_of(app.engine.keys_of("c").key("jobs").decode())
        try:
            await aeventually(has_ended, timeout=10)
        except AssertionError:
            # A replica may lack the last writes of its primary, and what is lost with it does not come back. Cancelling
            # ends the rest.
            await made.acancel()
            await aeventually(has_ended, what="cancelling ends it")
    print(await made.aprogress())
    if await made.astate() is State.DONE:
        assert await made.aresult(PATIENCE) == sum(range(30))
    await app.aclose()
