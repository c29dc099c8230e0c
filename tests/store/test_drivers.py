"""Both drivers, blocking and asyncio, on connections that break in every known way.

Each test with the fixture `line` runs twice: with the blocking driver, and with the asyncio one.
"""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import os
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import relevo
from relevo.engine.push import push_plain
from relevo.engine.turn import Limits, Settled, turn
from relevo.errors import OutOfMemory, ServerRefused, ServerUnavailable, StoreError
from relevo.store.aio import AsyncDriver
from relevo.store.blocking import BlockingDriver
from relevo.store.keys import QueueKeys
from relevo.store.plan import Ahead, Ask, Call, Steps
from relevo.store.replies import ConnectionLost, NotNow, ScriptMissing, SlotMoving, WrongNode, refusal
from relevo.store.server_time import server_time
from relevo.store.source import Source
from tests.eventually import PATIENCE, eventually
from tests.proxy import Proxy
from tests.servers import Server, free_port
from tests.store.desk import LEASE_MS, new_id
from tests.store.lines import AsyncLine, BlockingLine, Line, OpenLine, patient
from tests.topologies import Cluster, SentinelGroup

LIMITS = Limits(LEASE_MS, 0, 10, 10)


@pytest.fixture
def own_server(engine: str, tmp_path: Path) -> Iterator[Server]:
    """A server that may be killed: it keeps what it has acknowledged."""
    config = {"appendonly": "yes", "appendfsync": "always"}
    with Server(engine, directory=tmp_path / "server", config=config) as server:
        yield server


@pytest.fixture(scope="module")
def lasting_server(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for those tests of this module that change its settings or count what it does."""
    with Server(engine, directory=tmp_path_factory.mktemp("lasting")) as server:
        yield server


@pytest.fixture
def keys() -> QueueKeys:
    return QueueKeys(f"relevo:test:drivers{new_id()}:actions:default")


def one_job(keys: QueueKeys, id: str | None = None) -> Call[int]:
    return push_plain(keys, [(id or new_id(), b"{}")], 100, LEASE_MS)


def a_turn(keys: QueueKeys, want: int = 1) -> Call[Any]:
    return turn(keys, "w", LIMITS, want, Settled())


def waiting(server: Server, keys: QueueKeys) -> int:
    return int(server.command("ZCARD", keys.key("ready")))


# --- restarts and crashes


def test_a_call_after_a_restart_of_the_server_succeeds(line: OpenLine, own_server: Server, keys: QueueKeys) -> None:
    store = line(own_server.url)
    assert store.run(one_job(keys)) == 1
    own_server.stop()
    own_server.start()
    assert store.run(one_job(keys)) == 1
    assert waiting(own_server, keys) == 2


def test_a_call_is_repeated_for_as_long_as_its_patience_while_the_server_is_away(
    line: OpenLine, own_server: Server
) -> None:
    store = line(own_server.url, call_timeout=3600.0)  # would hang this test if it were used in place of the patience
    assert store.run(server_time()) > 0
    own_server.kill()
    with pytest.raises(ServerUnavailable):
        store.run(server_time(), patience=0.2)
    starting = threading.Thread(target=own_server.start)
    starting.start()
    assert store.run(server_time(), patience=PATIENCE) > 0
    starting.join()


def test_jobs_acknowledged_while_the_server_is_killed_are_there_once(own_server: Server, keys: QueueKeys) -> None:
    """Four threads enqueue during three kill -9."""
    driver = BlockingDriver(patient(own_server.url, own_server.directory))
    acknowledged: list[str] = []
    over = threading.Event()

    def enqueue() -> None:
        while not over.is_set():
            id = new_id()
            assert driver.perform(one_job(keys, id), patience=PATIENCE) in (0, 1)
            acknowledged.append(id)

    with ThreadPoolExecutor(4) as threads:
        busy = [threads.submit(enqueue) for _ in range(4)]
        for _ in range(3):
            enough = len(acknowledged) + 50
            eventually(lambda enough=enough: len(acknowledged) >= enough)  # type: ignore[misc]
            own_server.kill()
            own_server.start()
        over.set()
        for one in busy:
            one.result()
    driver.close()
    stored = [id.decode() for id in own_server.command("ZRANGE", keys.key("ready"), 0, -1)]
    assert sorted(stored) == sorted(acknowledged)


async def test_tasks_share_one_connection_through_a_kill(own_server: Server, keys: QueueKeys) -> None:
    driver = AsyncDriver(patient(own_server.url, own_server.directory))
    ids = [new_id() for _ in range(600)]

    async def enqueue(some: list[str]) -> None:
        for id in some:
            assert await driver.perform(one_job(keys, id), patience=PATIENCE) in (0, 1)

    async with asyncio.TaskGroup() as group:
        for start in range(0, 600, 6):
            group.create_task(enqueue(ids[start : start + 6]))
        await asyncio.sleep(0)
        await asyncio.to_thread(own_server.kill)
        await asyncio.to_thread(own_server.start)
    driver.close()
    stored = [id.decode() for id in own_server.command("ZRANGE", keys.key("ready"), 0, -1)]
    assert sorted(stored) == sorted(ids)


# --- networks


@pytest.fixture
def proxy(lasting_server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", lasting_server.port) as proxy:
        yield proxy


def test_a_black_holed_connection_is_noticed_and_the_call_repeated(
    line: OpenLine, proxy: Proxy, lasting_server: Server, keys: QueueKeys
) -> None:
    store = line(proxy.url, call_timeout=0.3)
    store.run(one_job(keys), patience=PATIENCE)
    proxy.black_hole()
    store.run(one_job(keys), patience=PATIENCE)
    assert proxy.accepted >= 2
    assert waiting(lasting_server, keys) == 2
    proxy.black_hole_all()
    with pytest.raises(ServerUnavailable):
        store.run(server_time())
    proxy.heal()
    for _ in range(3):
        proxy.reset_all()
        assert store.run(server_time(), patience=PATIENCE) > 0


@pytest.mark.parametrize("trouble", ["black hole", "lost reply"])
def test_a_turn_whose_reply_was_lost_is_not_repeated(
    line: OpenLine, proxy: Proxy, lasting_server: Server, keys: QueueKeys, trouble: str
) -> None:
    """It may have handed out jobs, whose leases bring them back."""
    store = line(proxy.url, call_timeout=0.3 if trouble == "black hole" else PATIENCE)
    store.run(one_job(keys), patience=PATIENCE)
    store.run(a_turn(keys, 0), patience=PATIENCE)  # so that the server knows the script
    if trouble == "black hole":
        proxy.black_hole()
    else:
        proxy.drop_replies(1)
    with pytest.raises(ConnectionLost) as lost:
        store.run(a_turn(keys))
    assert lost.value.sent
    assert waiting(lasting_server, keys) == (trouble == "black hole")

    def claimed() -> bool:
        store.run(a_turn(keys))
        return waiting(lasting_server, keys) == 0

    eventually(claimed, what="a turn on a new connection", errors=(ConnectionLost,))
    assert lasting_server.command("ZCARD", keys.key("running")) == 1


def test_a_lost_reply_of_a_push_makes_one_job(
    line: OpenLine, proxy: Proxy, lasting_server: Server, keys: QueueKeys
) -> None:
    store = line(proxy.url)
    store.run(one_job(keys))  # so that the server knows the script
    proxy.drop_replies(1)
    id = new_id()
    assert store.run(one_job(keys, id)) == 0, "the second try finds what the first has stored"
    assert proxy.replies_to_drop == 0
    assert lasting_server.command("ZRANGE", keys.key("ready"), 0, -1)[1:] == [id.encode()]
    assert lasting_server.command("HGET", keys.key("stats"), "enqueued") == b"2"


def in_advance(keys: QueueKeys, ids: list[str], depth: int) -> Generator[Ahead[int], list[int], list[int]]:
    """Pushes of ten jobs each, of which the next is made while the server works on the one before."""
    tens = (ids[start : start + 10] for start in range(0, len(ids), 10))
    return (yield Ahead((push_plain(keys, [(id, b"{}") for id in ten], 100, 1000) for ten in tens), depth))


far_ahead = pytest.mark.parametrize("depth", [1, 7, 100])


@far_ahead
@pytest.mark.parametrize("trouble", ["none", "lost reply", "flushed scripts"])
def test_calls_made_ahead_are_all_made_once_and_in_order(
    line: OpenLine, proxy: Proxy, lasting_server: Server, keys: QueueKeys, trouble: str, depth: int
) -> None:
    store, ids = line(proxy.url), [new_id() for _ in range(200)]
    store.run(one_job(keys, ids[0]))
    steps = in_advance(keys, ids[1:], depth)
    if trouble == "lost reply":
        proxy.drop_replies(1)
    if trouble == "flushed scripts":
        lasting_server.command("SCRIPT", "FLUSH")
    lost = 10 * (depth + 1) if trouble == "lost reply" else 0  # stored by calls whose replies were lost
    assert 199 - lost <= sum(store.run(steps)) <= 199
    assert lasting_server.command("ZRANGE", keys.key("ready"), 0, -1) == [id.encode() for id in ids]


def test_no_call_made_ahead_is_left_out_while_the_server_is_away(
    line: OpenLine, own_server: Server, keys: QueueKeys
) -> None:
    """Also not the one that finds the connection closed and the server away."""
    store, ids = line(own_server.url), [new_id() for _ in range(200)]
    back = threading.Timer(0.2, own_server.start)

    def tens() -> Iterator[list[str]]:
        for start in range(0, len(ids), 10):
            if start == 10:  # nothing is under way
                own_server.kill()
                back.start()
                if isinstance(store, AsyncLine):
                    store.driver.forget()  # as another call does that found the connection silent
            yield ids[start : start + 10]

    def steps() -> Generator[Ahead[int], list[int], list[int]]:
        return (yield Ahead(push_plain(keys, [(id, b"{}") for id in ten], 100, 1000) for ten in tens()))

    assert len(store.run(steps(), patience=PATIENCE)) == 20
    back.join()
    assert own_server.command("ZRANGE", keys.key("ready"), 0, -1) == [id.encode() for id in ids]


@far_ahead
def test_a_server_that_is_full_refuses_calls_made_ahead_and_leaves_the_line_in_order(
    line: OpenLine, lasting_server: Server, keys: QueueKeys, depth: int
) -> None:
    store = line(lasting_server.url)
    store.run(one_job(keys))
    lasting_server.command("CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(OutOfMemory):
        store.run(in_advance(keys, [new_id() for _ in range(50)], depth))
    lasting_server.command("CONFIG", "SET", "maxmemory", "0")
    assert sum(store.run(in_advance(keys, [new_id() for _ in range(50)], depth))) == 50


def test_a_thread_that_is_stopped_between_question_and_answer_gets_its_own_answers_afterwards(
    server: Server, tmp_path: Path
) -> None:
    """A worker stops a plain function by an exception, which may be raised at any line."""

    class Stop(BaseException):
        pass

    store = BlockingLine(patient(server.url, tmp_path))
    asked = stopped = 0
    wrong: list[tuple[int, bytes]] = []
    is_over = threading.Event()

    def ask() -> None:
        nonlocal asked, stopped
        while not is_over.is_set():
            try:
                asked += 1
                answer: bytes = store.run(Call([b"ECHO", asked]))
                if answer != b"%d" % asked:
                    wrong.append((asked, answer))
            except Stop:
                stopped += 1

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    interrupt = ctypes.pythonapi.PyThreadState_SetAsyncExc
    for n in range(1, 61):
        interrupt(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(Stop))
        eventually(lambda n=n: stopped >= n or not thread.is_alive())  # type: ignore[misc]
    is_over.set()
    thread.join(PATIENCE)
    store.close()
    assert (wrong, stopped) == ([], 60)


def test_a_connection_that_breaks_while_greeting_has_sent_nothing(
    line: OpenLine, proxy: Proxy, keys: QueueKeys
) -> None:
    """A turn that never left is repeated: only the SELECT before it was lost."""
    store = line(proxy.url.replace("/0", "/1"))
    proxy.drop_replies(1)
    assert store.run(a_turn(keys)).ids == []
    assert proxy.replies_to_drop == 0


def test_a_connection_that_fails_is_an_error_that_names_the_address(line: OpenLine) -> None:
    for host in (f"127.0.0.1:{free_port()}", "no-such-host.invalid:6379"):
        with pytest.raises(ServerUnavailable, match=host.partition(":")[0] if "such" in host else host) as error:
            line(f"redis://:secret@{host}/0", call_timeout=0.1).run(server_time())
        assert "secret" not in str(error.value)


# --- refusals


@pytest.mark.parametrize(
    ("message", "kind", "says"),
    [
        ("LOADING Redis is loading the dataset in memory", NotNow, "LOADING"),
        ("READONLY You can't write against a read only replica.", NotNow, "READONLY"),
        ("ERR Error running script (call to f_1): @user_script:9: -READONLY You can't write", NotNow, "READONLY"),
        ("MASTERDOWN Link with MASTER is down", NotNow, "MASTERDOWN"),
        ("CLUSTERDOWN The cluster is down", NotNow, "CLUSTERDOWN"),
        ("TRYAGAIN Multiple keys request during rehashing of slot", SlotMoving, "TRYAGAIN"),
        ("BUSY Redis is busy running a script", NotNow, "BUSY"),
        ("NOREPLICAS Not enough good replicas to write.", NotNow, "NOREPLICAS"),
        ("ASK 3999 127.0.0.1:6381", WrongNode, "ASK"),
        ("MOVED 3999 127.0.0.1:6381", WrongNode, "MOVED"),
        ("MOVED 3999 ::1:6381", WrongNode, "MOVED"),
        ("MOVED 3999 :6381", WrongNode, "MOVED"),
        ("MOVED to nowhere", ServerRefused, "MOVED"),
        ("NOSCRIPT No matching script.", ScriptMissing, "NOSCRIPT"),
        ("OOM command not allowed when used memory > 'maxmemory'.", OutOfMemory, "memory limit"),
        (
            "ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed when used memory",
            OutOfMemory,
            "memory limit",
        ),
        ("NOAUTH Authentication required.", ServerRefused, "password"),
        ("WRONGPASS invalid username-password pair or user is disabled.", ServerRefused, "password"),
        ("ERR invalid password", ServerRefused, "password"),
        ("NOPERM this user has no permissions to run the 'evalsha' command", ServerRefused, "ACL"),
        ("MISCONF Errors writing to the AOF file: No space left on device", ServerRefused, "disk"),
        ("DENIED Redis is running in protected mode", ServerRefused, "protected mode"),
        ("ERR value is not an integer or out of range", ServerRefused, "refused: ERR value"),
    ],
)
def test_each_refusal_has_an_error_class_and_advice(message: str, kind: type[StoreError], says: str) -> None:
    error = refusal(message)
    assert type(error) is kind
    assert says in str(error)


def test_a_password_is_used_and_a_wrong_one_refused(line: OpenLine, engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "locked", config={"requirepass": "s3cret@:%"}) as server:
        assert line(server.url).run(server_time()) > 0
        for url in (f"redis://:wrong@127.0.0.1:{server.port}/0", f"redis://127.0.0.1:{server.port}/0"):
            with pytest.raises(ServerRefused, match="password"):
                line(url, call_timeout=3600.0).run(server_time())  # is not repeated: that would take an hour


def test_an_acl_user_is_let_in_and_held_to_its_rights(line: OpenLine, lasting_server: Server, keys: QueueKeys) -> None:
    lasting_server.command("ACL", "SETUSER", "shop", "on", ">pw", "~{relevo:*", "&*", "+@all", "-@dangerous")
    lasting_server.command("ACL", "SETUSER", "guest", "on", ">pw", "~nothing", "+@all")
    address = f"127.0.0.1:{lasting_server.port}/0"
    assert line(f"redis://shop:pw@{address}").run(one_job(keys)) == 1
    with pytest.raises(ServerRefused, match="ACL"):
        line(f"redis://guest:pw@{address}").run(one_job(keys))
    with pytest.raises(ServerRefused, match="password"):
        line(f"redis://shop:no@{address}").run(server_time())


def test_a_plan_can_do_without_what_it_is_refused(line: OpenLine, lasting_server: Server) -> None:
    def asking(steps: Callable[[], Call[Any] | Ahead[Any]]) -> Generator[Call[Any] | Ahead[Any], Any, bool]:
        try:
            yield steps()
        except ServerRefused:
            return bool((yield Call([b"PING"])))  # and gets its own answer
        raise AssertionError("it was not refused")

    driver = line(lasting_server.url)
    assert driver.run(asking(lambda: Call([b"GET"])))
    assert driver.run(asking(lambda: Ahead(iter([Call([b"PING"]), Call([b"GET"]), Call([b"PING"])]))))

    def careless() -> Generator[Call[Any], Any, None]:
        yield Call([b"GET"])

    with pytest.raises(ServerRefused):
        driver.run(careless())


def test_a_plan_may_ask_user_code_and_cleans_up_when_that_fails(line: OpenLine, lasting_server: Server) -> None:
    key = f"asked-{new_id()}".encode()

    class Interrupted(BaseException):
        pass

    def ask() -> str:
        raise Interrupted

    async def ask_async() -> str:
        raise Interrupted

    async def answer() -> str:
        return "yes"

    def asking(question: Ask[str]) -> Steps[str]:
        yield Call([b"SET", key, b"1", b"PX", 60_000])
        try:
            answered: str = yield question
            return answered
        finally:
            yield Call([b"DEL", key])

    driver = line(lasting_server.url)
    assert driver.run(asking(Ask(lambda: "yes", answer))) == "yes"
    with pytest.raises(Interrupted):
        driver.run(asking(Ask(ask, ask_async)))
    assert lasting_server.command("EXISTS", key) == 0


def test_databases_of_one_server_are_apart(line: OpenLine, lasting_server: Server, keys: QueueKeys) -> None:
    line(lasting_server.url.replace("/0", "/3")).run(one_job(keys))
    assert waiting(lasting_server, keys) == 0
    assert len(line(lasting_server.url.replace("/0", "?db=3")).run(a_turn(keys)).ids) == 1


def test_a_url_may_name_a_unix_socket(line: OpenLine, engine: str, tmp_path: Path, keys: QueueKeys) -> None:
    with Server(engine, directory=tmp_path / "unix", unix=True) as server:
        store = line(server.url)
        assert store.run(one_job(keys)) == 1
        server.kill()
        with pytest.raises(ServerUnavailable, match=r"server\.sock"):
            store.run(server_time(), patience=0)


# --- TLS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A self-signed certificate for localhost, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@pytest.fixture
def tls_port(lasting_server: Server, certificate: tuple[Path, Path]) -> Iterator[int]:
    """Where TLS is decrypted for a server that was built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)

    async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError):
                while data := await source.read(65536):
                    target.write(data)
        finally:
            target.transport.abort()

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection("127.0.0.1", lasting_server.port)
        with suppress(asyncio.CancelledError):  # by the end of the test; asyncio would log it
            await asyncio.gather(copy(reader, server_writer), copy(server_reader, writer))

    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    listening = asyncio.start_server(join, "127.0.0.1", 0, ssl=context)
    listener = asyncio.run_coroutine_threadsafe(listening, loop).result()
    yield listener.sockets[0].getsockname()[1]

    async def end() -> None:
        listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    asyncio.run_coroutine_threadsafe(end(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_tls_is_checked_against_the_given_authority(
    line: OpenLine, tls_port: int, certificate: tuple[Path, Path], keys: QueueKeys
) -> None:
    store = line(f"rediss://localhost:{tls_port}/0?ssl_ca_certs={certificate[0]}")
    assert store.run(one_job(keys)) == 1
    assert len(store.run(a_turn(keys)).ids) == 1
    assert line(f"rediss://127.0.0.1:{tls_port}/0?ssl_cert_reqs=none").run(server_time()) > 0, "left unchecked"
    for url in (f"rediss://localhost:{tls_port}/0", f"rediss://127.0.0.1:{tls_port}/0?ssl_ca_certs={certificate[0]}"):
        with pytest.raises(ServerUnavailable, match=r"(?i)certificate"):
            line(url, call_timeout=0.1).run(server_time())
    with pytest.raises(StoreError):  # plain text to a TLS port
        line(f"redis://127.0.0.1:{tls_port}/0", call_timeout=0.1).run(server_time())


# --- threads, forks, imports


def test_50_threads_share_a_driver(lasting_server: Server, keys: QueueKeys) -> None:
    driver = BlockingDriver(patient(lasting_server.url, lasting_server.directory))
    together = threading.Barrier(50)

    def enqueue(_: int) -> int:
        together.wait()
        return sum(driver.perform(one_job(keys)) for _ in range(5))

    with ThreadPoolExecutor(50) as threads:
        assert sum(threads.map(enqueue, range(50))) == 250
    driver.close()
    assert waiting(lasting_server, keys) == 250


def test_a_forked_child_opens_its_own_connection(lasting_server: Server, keys: QueueKeys) -> None:
    """Parent and child go on talking, each on its own socket."""
    driver = BlockingDriver(patient(lasting_server.url, lasting_server.directory))
    assert driver.perform(one_job(keys)) == 1
    child = os.fork()
    if not child:
        failed = 1
        try:
            failed = int(sum(driver.perform(one_job(keys)) for _ in range(50)) != 50)
        finally:
            os._exit(failed)
    assert sum(driver.perform(one_job(keys)) for _ in range(50)) == 50
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    driver.close()
    assert waiting(lasting_server, keys) == 101


def test_importing_relevo_opens_no_connection(own_server: Server) -> None:
    """Nor does making an app and its tasks."""
    code = """
import socket
def refuse(*a, **k): raise AssertionError("a socket was opened")
socket.socket.connect = refuse
import relevo
app = relevo.Relevo("quiet")
@app.task(name="work")
def work(n: int) -> int: return n
work.using(delay="5m", priority=3)
app.queue("default")
app.close()
"""
    source = str(Path(relevo.__file__).parents[1])
    environ = {**os.environ, "RELEVO_URL": own_server.url, "PYTHONPATH": source}
    before = own_server.command("INFO", "stats")["total_connections_received"]
    subprocess.run([sys.executable, "-c", code], check=True, env=environ, cwd=own_server.directory, timeout=PATIENCE)
    assert own_server.command("INFO", "stats")["total_connections_received"] == before + 1


# --- topologies


@contextmanager
def both(source: Source) -> Iterator[tuple[Line, Line]]:
    """Both drivers."""
    blocking, on_loop = BlockingLine(source), AsyncLine(source)
    yield blocking, on_loop
    blocking.close()
    on_loop.close()


@pytest.mark.slow
def test_a_cluster_serves_every_queue_and_survives_a_failover(engine: str, tmp_path: Path) -> None:
    queues = [QueueKeys(f"relevo:test:shop:actions:q{n}") for n in range(12)]
    with Cluster(tmp_path / "cluster", engine) as cluster, both(patient(cluster.url, tmp_path)) as stores:
        for store, keys in itertools.product(stores, queues):
            assert store.run(one_job(keys)) == 1
            assert len(store.run(a_turn(keys)).ids) == 1
        assert len({cluster.primary_of(keys.key("ready").decode()).port for keys in queues}) == 3
        cluster.kill_primary_of(queues[0].key("ready").decode())
        for store, keys in itertools.product(stores, queues):
            assert store.run(one_job(keys), patience=PATIENCE) in (0, 1)
        for keys in queues:
            assert len(stores[0].run(a_turn(keys, 10)).ids) == 2


@pytest.mark.slow
def test_sentinels_lead_to_the_primary_also_after_a_failover(engine: str, tmp_path: Path, keys: QueueKeys) -> None:
    with SentinelGroup(tmp_path / "sentinels", engine) as group, both(patient(group.url, tmp_path)) as stores:
        for store in stores:
            assert store.run(one_job(keys)) == 1
            assert len(store.run(a_turn(keys)).ids) == 1
        old = group.kill_primary()
        for store in stores:
            assert store.run(one_job(keys), patience=PATIENCE) in (0, 1)
        assert group.primary() is not old
        old.start()  # it comes back as a replica
        for store in stores:
            assert store.run(one_job(keys), patience=PATIENCE) in (0, 1)
        assert len(stores[0].run(a_turn(keys, 10)).ids) == 4
