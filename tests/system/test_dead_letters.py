"""Dead letters in an operator's hands: pages, filters, groups, edit, undo, export and import."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from relevo import Relevo, Reply, State, Task, chain, current_job, group
from relevo.dead import store as letters
from relevo.dead.export import Imported
from relevo.dead.paging import DeadRow
from relevo.engine.job import Attempt, Record, Story, write
from relevo.engine.settle import of_dead
from relevo.errors import JobError, OptionError, PayloadError, UnknownJob
from tests.conftest import AppFactory
from tests.eventually import PATIENCE
from tests.proxy import Proxy
from tests.servers import Server
from tests.system.timed import HOUR, Times
from tests.working import drain, drained

BODY = b'{"t":"step","a":[1],"g":"acme"}'


class Site:
    """An app whose task fails for every number that is not in `good`."""

    def __init__(self, app: Relevo) -> None:
        self.app = app
        self.good: set[int] = set()
        self.ran: list[int] = []

        @app.task(name="step", retries=0, give_up_on=(KeyError,))
        def step(number: int, *, error: str = "ValueError") -> int:
            self.ran.append(number)
            if number in self.good:
                return number
            if error == "KeyError":
                raise KeyError(f"no {number}")
            raise ValueError(f"no {number}")

        @app.task(name="other", retries=0)
        def other(number: int) -> int:
            return refuse(number)

        self.step: Task[..., int] = step
        self.other: Task[..., int] = other

    def dead(self, **filters: Any) -> list[str]:
        return [row.id for row in self.app.dead.list(**filters)]


def refuse(number: int) -> int:
    raise ValueError(f"refused {number}")


@pytest.fixture
def site(app: Relevo) -> Site:
    return Site(app)


def letter(number: int, at_ms: int, error: str = "ValueError") -> letters.Arrival:
    """A dead letter as it would be filed."""
    from tests.store.desk import new_id

    text = f'Traceback:\n  File "/srv/shop/{error}.py", line {number}, in step\n' + "    call()\n" * 20
    attempt = Attempt("failed", "w1", at_ms, at_ms, error, f"no {number}", text)
    record = Record(
        State.DEAD,
        "step",
        queue_from="running",
        reason="retries_exhausted",
        ended_ms=at_ms,
        story=Story((attempt,)),
        body=Raw(BODY),
    )
    return letters.Arrival(new_id(), at_ms, write(of_dead(record, None)))


def fill(app: Relevo, queue: str, count: int, *, error: Callable[[int], str] = lambda _: "ValueError") -> None:
    app.engine.run(app.engine.list_queue(queue))
    rows = [letter(number, 1_800_000_000_000 + number, error(number)) for number in range(count)]
    for start in range(0, count, 500):
        app.engine.run(
            letters.bury(app.engine.keys_of(queue), rows[start : start + 500], ttl_ms=600_000, dead_max=1_000_000)
        )


async def test_a_dead_message_shows_its_conversation(bus: Relevo) -> None:
    svc, me = bus.service("embedding"), bus.service("ingestion")

    @svc.action("generate", retries=0)
    async def generate(text: str) -> None:
        raise ValueError(text)

    job = me.send(
        "embedding.generate", {"text": "x"}, tenant="acme", conversation="task_7", session="s1", correlation_id="op_7"
    )
    await drain(bus)
    info = bus.dead.show(job.id)
    assert (info.correlation_id, info.source, info.conversation_id, info.session) == (
        "op_7",
        "ingestion",
        "task_7",
        "s1",
    )
    assert (info.tenant, info.permanent) == ("acme", False)
    assert [row.id for row in bus.dead.list(tenant="acme", queue="embedding:actions")] == [job.id]


# Finding


def test_dead_letters_are_found_by_each_filter(site: Site) -> None:
    value = site.step.using(tenant="acme").enqueue(1).id
    key = site.step.enqueue(2, error="KeyError").id
    other = site.other.using(queue="mail").enqueue(4711).id
    drained(site.app, queues=["default", "mail"])
    assert site.dead(task="other") == [other]
    assert site.dead(tenant="acme") == [value]
    assert site.dead(permanent=True) == [key]
    assert set(site.dead(permanent=False)) == {value, other}
    assert site.dead(reason="permanent") == [key]
    assert site.dead(text="4711") == [other]
    assert set(site.dead(came_from="running")) == {value, key, other}
    assert site.dead(came_from="ready") == []
    assert site.dead(error="no 1", queue="default") == [value]
    assert set(site.dead(error="valueerror: ")) == {value, other}
    assert site.dead(error="nothing like it") == site.dead(queue="no such queue") == []
    group = site.app.dead.show(key).fingerprint
    assert site.dead(error_group=group) == [key]
    assert site.dead(error_group=group, queue="mail") == []
    assert site.dead(error_group="0" * 16) == []


def test_dead_letters_are_found_by_the_time_of_their_death(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    site = Site(times.app)
    ids = []
    for number in range(3):
        ids.append(site.step.enqueue(number).id)
        drained(times.app)
        times.move(HOUR)
    assert site.dead(since="150m") == [ids[2], ids[1]]
    assert site.dead(until="90m") == [ids[1], ids[0]]
    assert site.dead(since="150m", until="90m") == [ids[1]]
    then = datetime.fromtimestamp((times.now_ms() - 150 * 60_000) / 1000, UTC)
    assert site.dead(since=then) == [ids[2], ids[1]]


def test_a_page_goes_on_where_the_last_one_ended_although_dead_letters_come_and_go(app: Relevo) -> None:
    for name, count in (("a", 130), ("b", 70)):
        fill(app, name, count)
    seen: list[DeadRow] = []
    after = ""
    while True:
        page = app.dead.page(limit=33, after=after)
        seen += page.rows
        after = page.after
        if page.rows:  # the last one of the page leaves, and so does one that comes next
            app.dead.discard([page.rows[-1].id])
        if not after:
            break
    assert len(seen) == len({row.id for row in seen}) == 200
    ended = [row.ended_ms or 0 for row in seen]
    assert ended == sorted(ended, reverse=True)
    assert {row.queue for row in seen} == {"a", "b"}


async def test_a_rare_dead_letter_is_searched_for_in_bounded_steps(app: Relevo) -> None:
    fill(app, "a", 2100, error=lambda number: "RareError" if number in (7, 8, 9) else "ValueError")
    page = app.dead.page(error="RareError")
    assert (page.rows, bool(page.after)) == ([], True)
    assert page.looked <= 2050
    page = app.dead.page(error="RareError", after=page.after)
    rare = [f"RareError: no {n}" for n in (9, 8, 7)]
    assert [row.error for row in page.rows] == rare
    assert [row.error for row in app.dead.list(error="RareError")] == rare, "a list looks at all of them"
    assert [row.error for row in app.dead.list(error="RareError", limit=1, offset=1)] == rare[1:2]
    assert [row.error for row in await app.dead.alist(error="RareError", limit=2)] == rare[:2]
    assert await app.dead.alist(error="NoError") == []


def test_one_id_in_several_queues_is_listed_for_each(app: Relevo) -> None:
    """An event has one id in the queues of all its subscribers."""
    one, other = letter(1, 1_800_000_000_000), letter(2, 1_800_000_000_000)
    for queue in ("a", "b", "c"):
        app.engine.run(app.engine.list_queue(queue))
        app.engine.run(letters.bury(app.engine.keys_of(queue), [one, other], ttl_ms=600_000, dead_max=100))
    for limit in (1, 2, 4):
        rows, after = [], ""
        while True:
            page = app.dead.page(limit=limit, after=after)
            rows += page.rows
            after = page.after
            if not after:
                break
        assert [row.id for row in rows] == sorted([one.id, other.id] * 3, reverse=True)
        assert [row.queue for row in rows] == ["a", "b", "c"] * 2
    assert app.dead.retry([one.id], queue="b") == 1
    assert app.dead.retry([one.id]) == 2


def test_a_page_costs_the_same_of_2_000_and_of_10_000_dead_letters(app: Relevo, server: Server) -> None:
    """Also far behind, and for a group: counted in commands of the server, those inside of scripts included."""
    costs: list[dict[str, int]] = []
    for count in (400, 1_600):  # of each group a page at least
        for number in range(5):
            fill(app, f"q{number}", count, error=lambda number: f"Error{number % 40}")
        first = app.dead.page()
        middle = f"{1_800_000_000_000 + 100}-{first.rows[0].id}-q2"
        group = first.rows[0].fingerprint
        looks: dict[str, Callable[[], Any]] = {
            "first": app.dead.page,
            "far": partial(app.dead.page, after=middle),
            "one queue": partial(app.dead.page, queue="q3", after=middle),
            "group": partial(app.dead.page, error_group=group),
            "error groups": app.dead.error_groups,
        }
        costs.append({name: _commands_of(server, look) for name, look in looks.items()})
    assert len(app.dead.error_groups()) == 40
    assert sum(one.count for one in app.dead.error_groups()) == 10_000
    few, many = costs
    assert all(many[name] <= few[name] * 1.5 + 50 for name in many), costs  # a binary search has some more steps
    for number in range(5):  # faster than key by key, after the test
        keys = app.engine.keys_of(f"q{number}")
        ids = server.command("ZRANGE", keys.key("dead"), 0, -1)
        for start in range(0, len(ids), 1000):
            server.command("UNLINK", *(keys.key("ended") + b":" + id for id in ids[start : start + 1000]))


def _commands_of(server: Server, look: Callable[[], Any]) -> int:
    look()  # the first one reads scripts in
    before = _commands(server)
    look()
    return _commands(server) - before


def _commands(server: Server) -> int:
    return sum(one["calls"] for one in server.command("INFO", "commandstats").values())


# Groups


def test_dead_letters_with_one_fingerprint_are_one_error_group(site: Site) -> None:
    for number in range(6):
        site.step.using(tenant=f"t{number % 2}", queue=f"q{number % 2}").enqueue(number)
    for number in range(3):
        site.step.enqueue(number, error="KeyError")
    site.other.using(queue="q0").enqueue(1)
    drained(site.app, queues=["default", "q0", "q1"])
    first, second, third = site.app.dead.error_groups()
    assert (first.count, first.reason, first.permanent, first.trend) == (6, "retries_exhausted", False, "new")
    assert (first.queues, first.tasks, first.recent, first.before) == (("q0", "q1"), ("step",), 6, 0)
    assert set(first.tenants) == {"t0", "t1"}
    assert first.error.startswith("ValueError: no ")
    assert (second.count, second.permanent, second.error[:9]) == (3, True, "KeyError:")
    assert (third.count, third.tasks, third.tenants) == (1, ("other",), ())
    assert 0 < first.first_ms <= first.last_ms
    assert site.app.dead.error_groups(limit=1) == [first]
    assert [group.count for group in site.app.dead.error_groups("q0")] == [3, 1]
    assert site.app.dead.error_groups("no such queue") == []
    assert [group for group in (first, second, third) if group.permanent] == site.app.dead.error_groups(permanent=True)
    assert [group for group in (first, second, third) if not group.permanent] == site.app.dead.error_groups(
        permanent=False
    )


def test_a_job_that_dies_again_after_a_retry_is_no_new_error_group(server: Server, app_factory: AppFactory) -> None:
    times = Times(server, app_factory)
    site = Site(times.app)
    site.step.enqueue(1)
    drained(times.app)
    assert [one.trend for one in site.app.dead.error_groups()] == ["new"]
    times.move(3 * HOUR)
    assert [one.trend for one in site.app.dead.error_groups()] == ["quiet"]
    assert site.app.dead.retry(all=True) == 1
    drained(times.app)
    (again,) = site.app.dead.error_groups()
    assert (again.trend, again.recent, again.before) == ("rising", 1, 0)
    assert again.last_ms - again.first_ms >= 3 * HOUR


# Running them again


def test_dead_letters_are_retried_by_filter(site: Site) -> None:
    ids = [site.step.enqueue(number).id for number in range(4)]
    keys = [site.step.enqueue(number, error="KeyError").id for number in range(4, 6)]
    drained(site.app, threads=1)  # they die in their order
    site.good.update(range(6))
    assert site.app.dead.retry(error="no 3") == 1
    assert site.app.dead.retry(error_group=site.app.dead.show(ids[0]).fingerprint, limit=2) == 2
    assert set(site.dead()) == {ids[2], *keys}, "the oldest went"
    assert site.app.dead.retry(permanent=False) == 1
    assert site.app.dead.retry(task="step", queue="mail") == 0
    assert site.app.dead.retry(task="step", all=True) == 2
    drained(site.app)
    assert sorted(site.ran[6:]) == list(range(6))


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("dead.retry(queue='default')", "all=True"),
        ("dead.discard(queue='default')", "all=True"),
        ("dead.replay(queue='default')", "all of a queue are queue= and all=True"),
        ("dead.replay()", "all=True"),
        ("dead.retry(['0' * 20], task='step')", "not both"),
        ("dead.retry(tsk='step')", "did you mean 'task'"),
        ("dead.retry(all=True, rate='1/s')", r"app.dead.replay\(rate="),
        ("dead.list(colour='red')", "no filter 'colour'"),
        ("dead.list(error_group='abc')", "fingerprint"),
        ("dead.list(since='24')", "how long ago"),
        ("dead.retry(all=True, limit=0)", "limit: a whole number"),
        ("dead.page(after='nonsense')", "after: the `after` of a page"),
        ("dead.page(after=5)", "after: the `after` of a page"),
        ("dead.page(after='9' * 5000 + '-1m7gsn00yr40stbqaaw9-mails')", "after: the `after` of a page"),
        ("dead.error_groups(limit=0)", "1 to 1000"),
        ("dead.error_groups(5)", "queue"),
        ("dead.error_groups(permanent='no')", "permanent: True or False"),
        ("dead.restore()", "all=True"),
        ("dead.restore('x')", "a list of ids"),
        ("dead.restore(['0' * 20], all=True)", "not both"),
        ("dead.edit('0' * 20)", "args="),
        ("dead.edit('x', args=[])", "not the id of a job"),
        ("dead.replay(all=True, rate='fast')", "not a rate"),
        ("dead.replay(patience=-1)", "patience"),
        ("dead.resume('x')", "not the id of a replay"),
        ("dead.runs(limit=1000)", "1 to 100"),
        ("dead.load(b'{}')", "lines are needed"),
        ("dead.load(5)", "lines are needed"),
    ],
)
def test_a_wrong_call_is_refused_with_what_to_do(app: Relevo, call: str, says: str) -> None:
    with pytest.raises(OptionError, match=says):
        eval(call, {"dead": app.dead})


# Other arguments


def test_a_dead_letter_is_run_with_other_arguments_as_a_new_job(site: Site) -> None:
    job = site.step.using(name="step-1", tenant="acme", priority=7).enqueue(1)
    drained(site.app)
    site.good.add(2)
    new = site.app.dead.edit(job.id, args=[2])
    assert new.id != job.id
    origin, info = site.app.dead.show(job.id), new.info()
    assert (origin.replaced_by, info.origin) == (new.id, job.id)
    assert (info.args, info.kwargs, info.name, info.tenant, info.priority) == ([2], {}, "step-1", "acme", 7)
    assert (origin.state, origin.args, origin.reason) == (State.DEAD, [1], "retries_exhausted")
    assert (site.dead(), site.app.dead.error_groups()) == ([], []), "it is settled"
    assert (site.app.dead.retry([job.id]), job.retry()) == (0, False)
    with pytest.raises(UnknownJob, match="it was retried or edited"):
        site.app.dead.edit(job.id, args=[3])
    drained(site.app)
    assert (new.result(timeout=PATIENCE), site.ran) == (2, [1, 2])


def test_an_edit_keeps_arguments_that_are_not_given_and_refuses_wrong_ones(site: Site) -> None:
    job = site.step.enqueue(1, error="KeyError")
    drained(site.app)
    for given, says in (
        ({"args": ["one"]}, "argument 'number'"),
        ({"args": []}, "missing a required argument"),
        ({"kwargs": {"colour": "red"}}, "unexpected keyword argument 'colour'"),
        ({"args": [object()]}, "cannot be written as JSON"),
    ):
        with pytest.raises(PayloadError, match=says):
            site.app.dead.edit(job.id, **given)
    for nonsense in ({"args": "ab"}, {"kwargs": [1]}, {"kwargs": {1: 2}}):
        with pytest.raises(OptionError, match="edit: "):
            site.app.dead.edit(job.id, **nonsense)
    assert site.dead() == [job.id], "nothing was done"
    assert site.app.dead.edit(job.id, args=[5]).info().kwargs == {"error": "KeyError"}


def test_an_app_that_does_not_know_the_task_takes_the_arguments_as_they_are(
    site: Site, app_factory: AppFactory
) -> None:
    job = site.step.enqueue(1)
    drained(site.app)
    stranger = app_factory(site.app.name)
    assert stranger.dead.edit(job.id, args=["anything"]).info().args == ["anything"]


async def test_a_member_of_a_workflow_is_not_replaced(site: Site) -> None:
    from relevo import chain

    await chain(site.step.s(1), site.step.s()).aenqueue()
    await drain(site.app)
    (row,) = await site.app.dead.alist()
    with pytest.raises(JobError, match="belongs to the workflow"):
        await site.app.dead.aedit(row.id, args=[2])
    child = site.other.using(depends_on=[site.step.enqueue(3)])
    await child.aenqueue(4)
    await drain(site.app)
    parent = next(row for row in await site.app.dead.alist(text="no 3"))
    with pytest.raises(JobError, match="other jobs wait for this very one"):
        await site.app.dead.aedit(parent.id, args=[2])


async def test_a_signed_message_is_signed_anew(bus_factory: AppFactory) -> None:
    app = bus_factory(signing_keys=["a:0123456789abcdef0123456789abcdef"])
    svc, got = app.service("embedding"), []

    @svc.action("generate", retries=0)
    async def generate(text: str) -> None:
        got.append(text)
        if text == "bad":
            raise ValueError

    app.service("ingestion").send("embedding.generate", {"text": "bad"}, tenant="acme", correlation_id="op")
    await drain(app)
    (row,) = await app.dead.alist()
    new = await app.dead.aedit(row.id, kwargs={"text": "good"})
    assert (await new.ainfo()).correlation_id == "op"
    await drain(app)
    assert (got, await app.dead.alist()) == (["bad", "good"], [])


# Undo


def test_discarded_dead_letters_are_restored_by_undo(site: Site) -> None:
    jobs = [site.step.using(queue=f"q{number % 2}").enqueue(number) for number in range(4)]
    drained(site.app, queues=["q0", "q1"])
    before = site.app.dead.list()
    group = site.app.dead.error_groups()
    assert site.app.dead.discard(all=True) == 4
    assert (site.dead(), site.app.dead.error_groups()) == ([], [])
    with pytest.raises(UnknownJob):
        site.app.dead.show(jobs[0].id)
    assert site.app.dead.restore([jobs[0].id]) == 1
    assert site.dead() == [jobs[0].id]
    assert site.app.dead.restore(all=True, queue="q1") == 2
    assert site.app.dead.restore(all=True) == 1
    assert site.app.dead.restore(all=True) == 0
    assert {row.id for row in before} == set(site.dead())
    assert [one.count for one in site.app.dead.error_groups()] == [one.count for one in group]
    site.good.update(range(4))
    assert site.app.dead.retry(all=True) == 4
    assert site.app.dead.discard(all=True, undo=False) == 0
    drained(site.app, queues=["q0", "q1"])
    assert [job.result(timeout=PATIENCE) for job in jobs] == list(range(4))


def test_a_full_queue_does_not_keep_the_dead_letters_of_others_from_being_restored(app_factory: AppFactory) -> None:
    app = app_factory(dead_max=3)

    @app.task
    def step() -> None: ...

    def die(queue: str) -> list[str]:
        jobs = [step.using(queue=queue).enqueue() for _ in range(3)]
        for lease in app.queue(queue).take(3):
            lease.bury("no bank")
        return [job.id for job in jobs]

    old, others = die("first"), die("second")
    assert app.dead.discard(all=True) == 6
    die("first")
    counts: list[int] = []
    with pytest.raises(JobError, match="first has no room for 3 of them"):
        app.dead.restore(all=True, watch=counts.append)
    assert (counts, len(app.dead.list(queue="second"))) == ([3], 3)
    app.dead.discard(others)
    with pytest.raises(JobError, match="first has no room for 3 of them"):
        app.dead.restore([*old, *others])
    assert len(app.dead.list(queue="second")) == 3


# Elsewhere


def test_exported_dead_letters_are_imported_and_run_by_another_app(site: Site, app_factory: AppFactory) -> None:
    jobs = [site.step.using(queue=f"q{number % 2}", tenant="acme").enqueue(number) for number in range(5)]
    drained(site.app, queues=["q0", "q1"])
    lines = list(site.app.dead.export())
    assert len(lines) == 5 and all(line.endswith(b"\n") and line.count(b"\n") == 1 for line in lines)
    assert [msgspec.json.decode(line)["id"] for line in lines] == [row.id for row in reversed(site.app.dead.list())]
    assert len(list(site.app.dead.export(queue="q1"))) == 2
    there = Site(app_factory())
    assert there.app.dead.load(lines) == Imported(5, 0)
    assert there.app.dead.load(iter(lines + lines)) == Imported(0, 10), "the same dead letter twice is one"
    assert there.app.dead.list() == site.app.dead.list()
    assert there.app.dead.error_groups()[0].count == 5
    there.good.update(range(5))
    assert there.app.dead.retry(all=True) == 5
    drained(there.app, queues=["q0", "q1"])
    assert sorted(there.ran) == list(range(5))
    assert there.app.job(jobs[0].id).result(timeout=PATIENCE) == 0


def test_an_import_files_no_death_in_the_future(site: Site) -> None:
    """Such a dead letter would be left out of actions on all dead letters."""
    ids = [site.step.enqueue(number).id for number in range(3)]
    drained(site.app, threads=1)  # they die in their order
    lines = list(site.app.dead.export())
    site.app.dead.discard(all=True, undo=False)
    hour = 3_600_000
    for n, line in enumerate(lines[1:], 1):
        said = msgspec.json.decode(line)
        said["died_ms"] += n * hour
        said["record"]["ended_ms"] += n * hour
        lines[n] = msgspec.json.encode(said)
    earliest = site.app.engine.run(site.app.engine.now_ms())
    assert site.app.dead.load(lines) == Imported(3, 0)
    latest = site.app.engine.run(site.app.engine.now_ms())
    rows = site.app.dead.list()
    assert {row.id for row in rows} == set(ids) and rows[-1].id == ids[0]
    assert all(earliest <= (row.ended_ms or 0) <= latest for row in rows[:2])
    assert all(earliest <= (site.app.dead.show(row.id).ended_ms or 0) <= latest for row in rows[:2])
    assert site.app.dead.error_groups()[0].last_ms <= latest
    assert site.app.dead.discard(all=True) == 3


async def test_an_import_names_lines_that_are_no_dead_letters_and_files_the_others(site: Site) -> None:
    site.step.enqueue(1)
    await drain(site.app)
    lines = [line async for line in site.app.dead.aexport()]
    (good,) = lines
    record = msgspec.json.decode(good)
    await site.app.dead.adiscard(all=True, undo=False)
    bad = [
        b"nonsense",
        b"{}",
        b"[1]",
        b'{"relevo":"0.1.0"}',
        b"\xff\xfe",
        msgspec.json.encode({**record, "id": "x"}),
        msgspec.json.encode({**record, "died_ms": -1}),
        msgspec.json.encode({**record, "queue": "dead_letter"}),
        msgspec.json.encode({**record, "record": {"state": "done"}}),
        msgspec.json.encode({**record, "record": 5}),
        msgspec.json.encode({**record, "record": {**record["record"], "ended_ms": "now"}}),
        b"[" * 5000,
    ]
    done = await site.app.dead.aload([*bad, b"\n", good, 5])  # type: ignore[list-item]
    assert (done.new, done.known) == (1, 0)
    assert [number for number, _ in done.refused] == [*range(1, len(bad) + 1), len(bad) + 3]
    assert all(why for _, why in done.refused)
    assert len(site.dead()) == 1
    assert (await site.app.dead.aload([good])).known == 1


async def test_checkpoints_and_inputs_of_a_dead_letter_are_exported_with_it(bus_factory: AppFactory) -> None:
    """Large data of a message, a reply, results of jobs before it, checkpoints: it runs with the same arguments."""
    app = bus_factory(claim_check="100b", signing_keys=["a:0123456789abcdef0123456789abcdef"])
    svc, me, ran, good = app.service("embedding"), app.service("ingestion"), list[Any](), set[str]()

    def tried(*what: Any) -> None:
        ran.append(what)
        if what[0] not in good:
            raise ValueError

    @svc.action("generate", retries=0)
    async def generate(text: str) -> str:
        if text != "fine":
            tried("message", text)
        return text

    @me.action("ready", retries=0)
    async def ready(reply: Reply[str]) -> None:
        tried("callback", reply.result)

    @app.task(name="number")
    async def number(n: int) -> int:
        return n

    @app.task(name="after", retries=0)
    async def after(before: Any, more: str) -> None:
        tried("after", before, more)

    @app.task(name="steps", retries=0)
    async def steps() -> None:
        tried("steps", await current_job().astep("first", number.func, 7))

    text = "x" * 200
    me.send("embedding.generate", {"text": text})
    me.send("embedding.generate", {"text": "fine"}, on_reply="ready")
    chain(number.s(1), after.s("one")).enqueue()
    group(number.s(n) for n in range(3)).then(after.s("list")).enqueue()
    steps.enqueue()
    await drain(app)
    first, ran[:] = sorted(map(repr, ran)), []
    assert len(first) == 5
    letter = (await app.dead.alist(task="embedding.generate"))[0]
    assert (await app.dead.ashow(letter.id)).kwargs == {"text": text}
    with pytest.raises(OptionError, match="give kwargs="):
        await app.dead.aedit(letter.id, args=[])
    lines = [line async for line in app.dead.aexport()]
    assert await app.dead.adiscard(all=True, undo=False) == 5

    bare = [msgspec.json.encode({**msgspec.json.decode(line), "carried": {"life": "waits"}}) for line in lines]
    done = await app.dead.aload(bare)
    assert (done.new, len(done.refused)) == (1, 4), "a job can run without its checkpoints"
    assert all("stored beside its body" in why for _, why in done.refused)
    await app.dead.adiscard(all=True, undo=False)

    assert await app.dead.aload(lines) == Imported(5, 0)
    good.update(("message", "callback", "after", "steps"))
    assert await app.dead.aretry(all=True) == 5
    await drain(app)
    assert sorted(map(repr, ran)) == first
    assert await app.dead.alist() == []


def test_entities_of_pools_go_to_another_app_and_come_back_there(app: Relevo, app_factory: AppFactory) -> None:
    vms = app.pool("vms")
    vms.add("vm-1", "ready", ip="10.0.0.7")
    vms.fail("vm-1", "unreachable")
    (line,) = app.dead.export()
    there = app_factory()
    known = msgspec.json.decode(line)
    body = known["record"]["body"]
    bad = [
        {**known["record"], "queue_from": "no word"},
        {**known["record"], "body": {**body, "entity": ""}},
        {**known["record"], "body": {**body, "metadata": {"@state": "x"}}},
        {**known["record"], "body": {**body, "metadata": {f"f{n}": 1 for n in range(10_001)}}},
        {**known["record"], "body": {"t": "step"}},
    ]
    done = there.dead.load([*(msgspec.json.encode({**known, "record": record}) for record in bad), line])
    assert (done.new, [number for number, _ in done.refused]) == (1, [1, 2, 3, 4, 5])
    assert there.dead.retry(all=True) == 1
    back = there.pool("vms").get("vm-1")
    assert back is not None and (back.state, back.metadata) == ("ready", {"ip": "10.0.0.7"})
    there.pool("vms").remove("vm-1")


@pytest.mark.parametrize("how", ["blocking", "async"])
def test_each_dead_letter_is_retried_and_counted_once_although_replies_are_lost(
    app: Relevo, app_factory: AppFactory, server: Server, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Many calls are sent before the first reply is read: a reply that is lost takes others with it."""
    gc.collect()  # what tests before this one left
    caplog.clear()
    count, is_over = 1_000, threading.Event()
    for start in range(0, count, 500):
        rows = [
            letter(number, app.engine.run(app.engine.now_ms()) - count + number) for number in range(start, start + 500)
        ]
        app.engine.run(letters.bury(app.engine.keys_of("default"), rows, ttl_ms=600_000, dead_max=count))
    app.engine.run(app.engine.list_queue("default"))
    with Proxy("127.0.0.1", server.port) as proxy:
        far = app_factory(app.name, url=proxy.url)

        def lose() -> None:
            for _ in range(12):  # and no more: a call that is repeated must get through before its patience ends
                proxy.drop_replies(1)
                if is_over.wait(0.02):
                    break

        proxy.drop_replies(1)
        losing = threading.Thread(target=lose)
        losing.start()
        try:
            counts: list[int] = []
            if how == "blocking":
                back = far.dead.retry(all=True, watch=counts.append)
            else:
                back = asyncio.run(_aretried(far, counts))
        finally:
            is_over.set()
            losing.join()
        assert proxy.accepted > 1, "some were lost"
    stats = app.queue().stats()
    assert (back, counts[-1], stats.ready, stats.totals["revived"]) == (count,) * 4
    gc.collect()
    logged = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert logged == [], "no complaint about replies that were not read"
    app.queue().clear()


async def _aretried(app: Relevo, counts: list[int]) -> int:
    back = await app.dead.aretry(all=True, watch=counts.append)
    await app.aclose()
    return back
