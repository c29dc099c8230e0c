"""A slot of a cluster moves to another node while calls are made: they wait, follow, and are carried out once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
import redis

from relevo.bus.message_store import lay_beside
from relevo.engine.push import push_plain
from relevo.errors import ServerRefused, ServerUnavailable
from relevo.store.call_numbers import Numbers, ServerClock
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Call, Steps
from tests.eventually import PATIENCE, eventually
from tests.proxy import Proxy
from tests.servers import Server
from tests.store.desk import LEASE_MS, new_id
from tests.store.lines import OpenLine
from tests.topologies import Cluster, SlotMove


@pytest.fixture(scope="module")
def cluster(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), engine) as cluster:
        yield cluster


@pytest.fixture
def keys() -> QueueKeys:
    return QueueKeys(f"relevo:test:moves{new_id()}:actions:default")


@pytest.fixture
def caller() -> Iterator[ThreadPoolExecutor]:
    """Makes calls that wait."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def one_job(keys: QueueKeys, id: str | None = None) -> Call[int]:
    return push_plain(keys, [(id or new_id(), b"{}")], 100, LEASE_MS)


def begin(cluster: Cluster, keys: QueueKeys) -> SlotMove:
    return cluster.move_slot_of(keys.key("jobs").decode())


def wait_refused(move: SlotMove, call: Future[Any], times: int = 3) -> None:
    """Until the nodes have refused a call some times more, and it goes on trying."""
    enough = move.refused() + times
    eventually(lambda: move.refused() >= enough or call.done(), what="the nodes refuse the call")
    assert not call.done(), call.result()


def enqueued(node: Server, keys: QueueKeys) -> int:
    return int(node.command("HGET", keys.key("stats"), "enqueued") or 0)


def test_a_call_waits_until_the_slot_has_moved(
    line: OpenLine, cluster: Cluster, keys: QueueKeys, caller: ThreadPoolExecutor
) -> None:
    store = line(cluster.url)
    assert store.run(one_job(keys)) == 1
    move = begin(cluster, keys)
    call = caller.submit(store.run, one_job(keys))
    wait_refused(move, call)
    move.carry(keys.key("jobs"), keys.key("stats"))
    wait_refused(move, call)
    move.finish()
    assert call.result(PATIENCE) == 1
    assert enqueued(move.target, keys) == 2


def test_calls_that_are_made_ahead_wait_too_and_keep_their_order(
    line: OpenLine, cluster: Cluster, keys: QueueKeys, caller: ThreadPoolExecutor
) -> None:
    store, ids = line(cluster.url), [new_id() for _ in range(60)]
    move: list[SlotMove] = []

    def tens() -> Iterator[Call[int]]:
        for start in range(0, len(ids), 10):
            if start == 30:
                move.append(begin(cluster, keys))
            yield push_plain(keys, [(id, b"{}") for id in ids[start : start + 10]], 100, LEASE_MS)

    def steps() -> Steps[list[int]]:
        answers: list[int] = yield Ahead(tens(), 2)
        return answers

    call = caller.submit(store.run, steps())
    eventually(lambda: move)
    wait_refused(move[0], call)
    move[0].finish()
    call.result(PATIENCE)
    stored = move[0].target.command("ZRANGE", keys.key("ready"), 0, -1)
    assert [id.decode() for id in stored] == ids


def test_a_call_whose_patience_ends_first_was_not_carried_out(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    store = line(cluster.url)
    store.run(one_job(keys))
    move = begin(cluster, keys)
    with pytest.raises(ServerUnavailable, match="slot of this queue moves"):
        store.run(one_job(keys), patience=0.1)
    move.finish()
    assert enqueued(move.target, keys) == 1


def test_a_key_that_has_moved_already_is_found_on_its_new_node(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    store, stats = line(cluster.url), keys.key("stats")
    store.run(one_job(keys))
    move = begin(cluster, keys)
    move.carry(stats)
    assert store.run(Call([b"HGET", stats, b"enqueued"]), patience=0) == b"1"
    assert store.run(Call([b"HSET", stats, b"more", 2]), patience=0) == 1
    move.finish()
    assert store.run(Call([b"HGET", stats, b"more"]), patience=0) == b"2"


def test_a_script_of_one_key_runs_where_its_key_is(line: OpenLine, cluster: Cluster, keys: QueueKeys) -> None:
    """Written on both nodes, the key could not move any more."""
    store = line(cluster.url)
    for id in ("stays", "goes"):
        store.run(lay_beside(keys, id, b"1"))
    move = begin(cluster, keys)
    move.carry(keys.own("carried", "goes"))
    for id in ("stays", "goes"):
        store.run(lay_beside(keys, id, b"2"), patience=0)
    move.finish()
    for id in ("stays", "goes"):
        assert store.run(Call([b"HGET", keys.own("carried", id), b"claim"])) == b"2"


def test_a_slot_that_has_moved_is_followed_at_once_without_a_new_map(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    seed = cluster.nodes[0]
    with Proxy("127.0.0.1", seed.port) as proxy:
        store = line(proxy.url.removesuffix("/0").replace("redis:", "redis+cluster:"))
        store.run(one_job(keys))
        begin(cluster, keys).finish()
        asked = proxy.accepted
        assert store.run(one_job(keys), patience=0) == 1
        assert proxy.accepted == asked


def sent_by_hand(keys: QueueKeys, id: str) -> tuple[tuple[Any, ...], Call[int]]:
    """A push as a connection sends it, and as the call is repeated when its reply was lost."""
    call = one_job(keys, id)
    tried = Numbers(ServerClock(), PATIENCE).next(call.route)
    return call.command(tried, text=True), msgspec.structs.replace(call, before=tried.name)


def refusal_by(node: Server, command: tuple[Any, ...]) -> str:
    with pytest.raises(redis.ResponseError) as error:
        node.command(*command)
    return type(error.value).__name__ if isinstance(error.value, redis.exceptions.MovedError) else str(error.value)


def test_a_push_is_stored_once_if_its_slot_moves_between_the_lost_reply_and_the_repetition(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    store = line(cluster.url)
    command, repeated = sent_by_hand(keys, new_id())
    home = cluster.primary_of(keys.key("jobs").decode())
    assert home.command(*command) == 1
    move = begin(cluster, keys)
    move.finish()
    assert store.run(repeated) == 0
    assert enqueued(move.target, keys) == 1
    assert [refusal_by(node, command)[:5] for node in (move.source, move.target)] == ["Moved", "LATE "]


def test_a_push_that_arrives_after_its_slot_moved_and_it_was_repeated_is_refused(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    store = line(cluster.url)
    command, repeated = sent_by_hand(keys, new_id())
    move = begin(cluster, keys)
    move.finish()
    assert store.run(repeated) == 1
    assert [refusal_by(node, command)[:5] for node in (move.source, move.target)] == ["Moved", "LATE "]
    back = begin(cluster, keys)
    back.finish()
    assert refusal_by(back.target, command)[:5] == "LATE "
    assert enqueued(back.target, keys) == 1


def test_a_node_of_a_cluster_taken_for_a_single_server_is_an_error_that_says_so(
    line: OpenLine, cluster: Cluster, keys: QueueKeys
) -> None:
    home = cluster.primary_of(keys.key("jobs").decode())
    other = next(node for node in cluster.nodes if node is not home)
    with pytest.raises(ServerRefused, match=r"redis\+cluster://"):
        line(other.url).run(one_job(keys))
