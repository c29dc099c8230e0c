"""Calls that are made ahead of their answers may go to different nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from relevo import Relevo
from relevo.store import queues
from relevo.store.plan import Ahead, Steps
from tests.topologies import Cluster

NAMES = [f"q{n}" for n in range(9)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


def sizes(app: Relevo) -> Steps[list[int]]:
    found: list[queues.QueueStats] = yield Ahead(queues.count(app.keys_of(name), name) for name in NAMES)
    return [one.ready for one in found]


async def test_each_call_gets_its_own_answer_whichever_node_gives_it(cluster: Cluster) -> None:
    app = Relevo("nodes", url=cluster.url, env="test", call_timeout=2)
    task = app.task(name="t")(lambda: None)
    homes = {cluster.primary_of(app.keys_of(name).key("jobs").decode()).port for name in NAMES}
    assert len(homes) == 3, "the queues are on all nodes"
    for n, name in enumerate(NAMES):
        task.using(queue=name).enqueue_many([((), {})] * n)
    for _ in range(3):
        assert app.run(sizes(app)) == list(range(9))
        assert await app.arun(sizes(app)) == list(range(9))
        assert [app.queue(name).stats().ready for name in NAMES] == list(range(9)), "no answer was left over"
    app.close()
    await app.aclose()
