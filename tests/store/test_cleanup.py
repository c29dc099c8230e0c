"""What was made on behalf of a task: found, cleaned up in steps that never touch what lives, and taken off lists."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import Any

import pytest

from relevo.bus import conversation_store as tasks
from relevo.bus import span_store as spans
from relevo.bus.conversation_store import Left, clean, enlist, forget, made, noted
from relevo.bus.message_store import Place, Tracked, promise, report, send
from relevo.bus.span import Span
from relevo.bus.span_store import spans_of, write_spans
from relevo.engine.edges import Edge
from relevo.engine.job_store import discard
from relevo.engine.list_store import unlist
from relevo.engine.turn import Note, note
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from tests.conftest import CHAOS, AppFactory
from tests.servers import Server
from tests.store.bus import make_bus
from tests.store.desk import LEASE_MS, Desk, kept, moved, new_id, plain, repeated
from tests.store.kin import KEEP_MS, cancelling, child_of, everything, outbox, relayed, reviving, state_of

BODY = b'{"t":"shop.charge","k":{"n":7}'
TASK, TTL_MS = "task_7", 60_000


@pytest.fixture
def desk(app_factory: AppFactory, server: Server) -> Desk:
    """The actions of a service, in a time that the test moves."""
    bus = make_bus(app_factory, server)
    return Desk(bus.run, bus.app.engine.keys_of("shop:actions"), server)


# --- making


def message(desk: Desk, task: str = TASK, *, ttl_ms: int = TTL_MS, **more: Any) -> str:
    """Send a message on behalf of a task."""
    id = new_id()
    call = send(desk.keys, id, BODY, Place(100), lease_ms=LEASE_MS, tracked=Tracked(task, ttl_ms), **more)
    assert desk.run(call) == ("stored", "")
    return id


def callback(desk: Desk, task: str = TASK, *, ttl_ms: int = TTL_MS) -> str:
    """Promise a callback on behalf of a task."""
    id = new_id()
    tracked = Tracked(task, ttl_ms)
    body = b'{"t":"shop.ready","p":"reply"}'
    call = promise(
        desk.keys, "shop:actions", id, Place(100), body, timeout_ms=600_000, failure_ms=KEEP_MS, tracked=tracked
    )
    assert desk.run(call) == 1
    return id


def ended(desk: Desk, how: str, task: str = TASK) -> str:
    """A message that has ended so."""
    id = message(desk, task)
    if how == "cancelled":
        cancelling(desk, id)
        return id
    assert desk.claim() == [id]
    match how:
        case "plain":
            settled = plain([id])
        case "kept":
            settled = kept([id])
        case _:
            settled = moved(id, how, text=b'{"state":"%b","body":%b}' % (how.encode(), BODY + b"}"))
    assert not desk.turn(0, settled).refused
    return id


def retried(desk: Desk) -> str:
    id = LIVES["running"](desk)
    desk.turn(0, moved(id, "retry", ms=60_000))
    return id


def lost(desk: Desk) -> str:
    """A message whose worker is silent."""
    id = LIVES["running"](desk)
    desk.advance(LEASE_MS + 1)
    return id


def revived(desk: Desk) -> str:
    id = ended(desk, "dead")
    assert reviving(desk, id) == 1
    return id


LIVES: dict[str, Callable[[Desk], str]] = {
    "ready": message,
    "scheduled": lambda desk: message(desk, delay_ms=60_000),
    "running": lambda desk: (message(desk), *desk.claim())[0],
    "waiting": callback,
    "scheduled again": retried,
    "running without a worker": lost,
    "ready again": revived,
}


def cleaned(desk: Desk, task: str = TASK, *, dead: bool = False, dry_run: bool = False) -> Left:
    """Clean up; what is done is said again, and nothing more is done."""
    left: Left = desk.run(clean(desk.keys, task, dead=dead, dry_run=dry_run))
    again: Left = desk.run(clean(desk.keys, task, dead=dead, dry_run=dry_run))
    assert again == (left if dry_run else Left(0, left.living, left.dead))
    return left


def known(desk: Desk, task: str = TASK) -> list[str]:
    found: list[str] = desk.run(made(desk.keys, task))
    return found


# --- what is noted


def test_what_is_made_for_a_task_is_noted_with_it_and_ends_with_the_last_of_it(desk: Desk) -> None:
    """The message, its note and the note's end come in one step."""
    first = message(desk, ttl_ms=500_000)
    assert known(desk) == [first]
    assert 400_000 < desk.ask("PTTL", f"made:{TASK}") <= 500_000
    desk.advance(5)
    second = callback(desk, ttl_ms=900_000)
    assert known(desk) == [first, second]
    assert 800_000 < desk.ask("PTTL", f"made:{TASK}") <= 900_000
    assert desk.run(report(desk.keys, second, progress := new_id(), b'{"t":"shop.progress"}'))
    assert known(desk) == [first, second, progress], "a report is noted as its callback is"


def test_a_send_is_noted_once_and_only_if_it_is_stored_for_a_task(desk: Desk) -> None:
    message(desk, "")
    assert desk.server.command("KEYS", f"{{{desk.keys.address}}}:made*") == []

    def sending(id: str, **more: Any) -> Call[tuple[str, str]]:
        return send(desk.keys, id, BODY, Place(100), lease_ms=LEASE_MS, tracked=Tracked(TASK, TTL_MS), **more)

    for _ in range(2):
        assert desk.run(sending(new_id(), must_be_served="charge")) == ("unserved", "")
        assert known(desk) == []
    call = sending(id := new_id())
    desk.run(call)
    for _ in range(2):
        desk.run(repeated(call))
    assert known(desk) == [id]
    assert desk.stats().totals["enqueued"] == 2


# --- what a clean-up removes


@pytest.mark.parametrize("state", LIVES)
@pytest.mark.parametrize("dead", [False, True])
def test_what_lives_is_counted_and_not_touched(desk: Desk, state: str, dead: bool) -> None:
    assert cleaned(desk, dead=dead) == cleaned(desk, dead=dead, dry_run=True) == Left()
    assert everything(desk) == {}, "where nothing was made nothing is written"
    id = LIVES[state](desk)
    before = everything(desk)
    assert cleaned(desk, dead=dead) == cleaned(desk, dead=dead, dry_run=True) == Left(0, 1, 0)
    assert everything(desk) == before
    assert state_of(desk, id) == state.split()[0]


@pytest.mark.parametrize("how", ["plain", "kept", "cancelled", "expired"])
def test_what_has_ended_is_removed_with_all_that_was_kept_of_it(desk: Desk, how: str) -> None:
    id = ended(desk, how)
    desk.run(note(desk.keys, [Note(id, "", "log", "hello")], 60_000))
    desk.ask("HSET", f"carried:{id}", "s:step", "1")
    desk.ask("PEXPIRE", f"carried:{id}", 60_000)
    assert cleaned(desk) == Left(1, 0, 0)
    assert state_of(desk, id) == "unknown"
    assert set(everything(desk)) <= {"stats", "jobs"}
    assert desk.stats().totals["cleaned"] == 1


def test_dead_letters_stay_unless_they_are_asked_for(desk: Desk) -> None:
    id = ended(desk, "dead")
    before = everything(desk)
    assert cleaned(desk) == Left(0, 0, 1)
    assert everything(desk) == before
    assert state_of(desk, id) == "dead"
    assert cleaned(desk, dead=True) == Left(1, 0, 0)
    assert state_of(desk, id) == "unknown"
    assert set(everything(desk)) == {"stats"}
    expired = ended(desk, "dead")
    desk.ask("DEL", f"ended:{expired}")  # as the server does when its time has come
    assert cleaned(desk) == Left(1, 0, 0), "it is no dead letter any more"


def test_a_dead_letter_that_can_be_restored_keeps_what_belongs_to_it(desk: Desk) -> None:
    id = ended(desk, "dead")
    desk.ask("HSET", f"carried:{id}", "data", "x")
    desk.ask("PEXPIRE", f"carried:{id}", 60_000)
    desk.run(discard(desk.keys, [id], undo_ms=60_000))
    assert cleaned(desk, dry_run=True) == cleaned(desk) == Left(0, 0, 1)
    assert desk.ask("HGET", f"carried:{id}", "data") == b"x"
    assert cleaned(desk, dead=True) == Left(1, 0, 0)
    assert desk.ask("EXISTS", f"binned:{id}", f"carried:{id}", "bin") == 0


def test_what_was_revived_after_a_clean_up_is_found_by_the_next(desk: Desk) -> None:
    id = ended(desk, "dead")
    assert cleaned(desk) == Left(0, 0, 1)
    reviving(desk, id)
    desk.claim()
    desk.turn(0, moved(id, "done", 1_700_000_000, ms=0))
    assert known(desk) == [id]


def test_other_tasks_and_what_belongs_to_none_are_left_alone(desk: Desk) -> None:
    others = [ended(desk, how, task) for how in ("kept", "dead", "cancelled") for task in ("task_77", "task_", "", "7")]
    mine = ended(desk, "kept")
    assert cleaned(desk, dead=True) == Left(1, 0, 0)
    assert state_of(desk, mine) == "unknown"
    assert [state_of(desk, id) for id in others] == ["done"] * 4 + ["dead"] * 4 + ["cancelled"] * 4


def test_a_dry_run_counts_what_a_real_one_removes_and_changes_nothing(desk: Desk) -> None:
    for _ in range(2):
        for how in ("plain", "kept", "cancelled", "expired", "dead"):
            ended(desk, how)
    for make in (message, callback, LIVES["scheduled"]):
        make(desk)
    before = everything(desk)
    seen = [cleaned(desk, dead=dead, dry_run=True) for dead in (False, True)]
    assert seen == [Left(8, 3, 2), Left(10, 3, 0)]
    assert everything(desk) == before
    assert cleaned(desk) == seen[0]
    assert cleaned(desk, dead=True) == Left(2, 3, 0)
    assert desk.stats().totals["cleaned"] == 10


@pytest.mark.parametrize("part", [1, 2, 3, 7, 500])
def test_a_large_task_is_cleaned_up_in_bounded_steps(desk: Desk, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr(tasks, "PART", part)
    for n in range(12):
        ended(desk, ("kept", "dead", "plain")[n % 3])
        message(desk, delay_ms=1000)
    calls: list[Call[Any]] = []

    def counted(plan: Generator[Call[Any], Any, Left]) -> Left:
        answer = None
        while True:
            try:
                calls.append(plan.send(answer))
            except StopIteration as over:
                found: Left = over.value
                return found
            answer = desk.run(calls[-1])

    assert counted(clean(desk.keys, TASK, dead=False, dry_run=True)) == Left(8, 12, 4)
    assert len(calls) == 24 // part + 1
    assert counted(clean(desk.keys, TASK, dead=False, dry_run=False)) == Left(8, 12, 4)
    assert len(known(desk)) == 16


@pytest.mark.parametrize(
    "task", ["a:b", "{x}", "}:jobs", "*", "?", "a b", "é", "日本", "🚀", '"', "\\", "%20", "made", "-"]
)
def test_any_text_names_a_task(desk: Desk, task: str) -> None:
    mine, other = ended(desk, "kept", task), ended(desk, "kept", task + "x")
    lives = message(desk, task)
    assert known(desk, task) == [mine, lives]
    assert cleaned(desk, task) == Left(1, 1, 0)
    assert [state_of(desk, id) for id in (mine, other, lives)] == ["unknown", "done", "ready"]


def test_what_waits_for_a_dead_letter_to_be_retried_does_not_wait_for_ever(desk: Desk) -> None:
    id = message(desk)
    child = child_of(desk, id, policy="w", queue="shop:actions")
    assert desk.claim() == [id]
    desk.turn(0, moved(id, "dead", text=b'{"state":"dead","body":%b}' % (BODY + b"}")))
    relayed(desk, {"shop:actions": desk.keys})
    assert state_of(desk, child) == "waiting"
    assert cleaned(desk, dead=True) == Left(1, 0, 0)
    desk.advance(60_001)  # until it could have been retried
    relayed(desk, {"shop:actions": desk.keys})
    assert state_of(desk, child) == "cancelled"
    assert outbox(desk) == {}


def test_a_callback_goes_on_waiting_when_its_message_is_cleaned_up(desk: Desk) -> None:
    """Its end is reported by an outbox message, which is no part of a task."""
    waits = callback(desk)
    sent = message(desk, waiter=str(Edge(waits, "shop:actions", "b", 0)))
    assert desk.claim() == [sent]
    desk.turn(0, kept([sent]))
    assert cleaned(desk, dead=True) == Left(1, 1, 0)
    relayed(desk, {"shop:actions": desk.keys})
    assert desk.claim() == [waits]


def test_a_full_server_can_be_cleaned_up(own_desk: Desk) -> None:
    """Freeing memory must not need any."""
    ids = [ended(own_desk, how) for how in ("kept", "dead", "cancelled")]
    own_desk.server.command("CONFIG", "SET", "maxmemory", "1")
    assert own_desk.run(clean(own_desk.keys, TASK, dead=True, dry_run=False)) == Left(3, 0, 0)
    own_desk.server.command("CONFIG", "SET", "maxmemory", "0")
    assert [state_of(own_desk, id) for id in ids] == ["unknown"] * 3


# --- in the middle of everything else


class Story:
    """A queue in which messages come and go during a clean-up, and what must be true of it all the time."""

    def __init__(self, desk: Desk, chance: random.Random) -> None:
        self.desk = desk
        self.chance = chance
        self.sent: set[str] = set()
        self.held: list[str] = []
        #: Ended, and so may be gone.
        self.over: set[str] = set()
        self.buried: set[str] = set()
        self.cleaning: Generator[Call[Any], Any, Left] | None = None
        self.cleans_dead = False
        self._answer: Any = None

    def send(self) -> None:
        self.sent.add(message(self.desk, delay_ms=self.chance.choice([0, 0, 60_000])))

    def promise(self) -> None:
        self.sent.add(callback(self.desk))

    def claim(self) -> None:
        got = self.desk.claim(self.chance.randint(1, 3))
        assert set(got) <= self.sent - self.over - set(self.held)
        self.held += got

    def finish(self) -> None:
        if not self.held:
            return
        id = self.held.pop(self.chance.randrange(len(self.held)))
        how = self.chance.choice(["plain", "kept", "dead", "expired", "retry", "back"])
        if how in ("plain", "kept"):
            settled = moved(id, "done", self.token(id), ms=60_000 if how == "kept" else 0, text=b'{"state":"done"}')
        else:
            settled = moved(id, how, self.token(id), text=b'{"state":"%b"}' % how.encode())
        assert not self.desk.turn(0, settled).refused
        if how not in ("retry", "back"):
            self.over.add(id)
        if how == "dead":
            self.buried.add(id)

    def token(self, id: str) -> int:
        return int(self.ask("HGET", "claims", id).split()[0])

    def ask(self, command: str, key: str, *args: str) -> Any:
        """As the desk asks, on a connection that stays."""
        return self.desk.run(Call([command, self.desk.keys.key(key), *args]))

    def pass_time(self) -> None:
        self.desk.advance(self.chance.choice([1, 20_000]))
        self.held.clear()  # their worker has died; others may have them when the leases end

    def clean(self) -> None:
        """One step of a clean-up, or its beginning."""
        if self.cleaning is None:
            self.cleans_dead = self.chance.random() < 0.2
            self.cleaning = clean(self.desk.keys, TASK, dead=self.cleans_dead, dry_run=self.chance.random() < 0.2)
            self._answer = None
        try:
            self._answer = self.desk.run(self.cleaning.send(self._answer))
            if self.cleans_dead:
                self.buried.clear()  # they may be gone
        except StopIteration:
            self.cleaning = None

    def check(self) -> None:
        """What was sent and has not ended is there, in one place, and dead letters stay."""
        assert {id.decode() for id in self.ask("HKEYS", "jobs")} == self.sent - self.over
        self.desk.stats()
        assert self.buried <= {id.decode() for id in self.ask("ZRANGE", "dead", "0", "-1")}


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_up_loses_nothing_whatever_happens_between_its_steps(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Random steps of clean-ups among three times as many others; none removes what waits, is due later or runs."""
    monkeypatch.setattr(tasks, "PART", 3)
    chance = random.Random(seed)
    story = Story(desk, chance)
    steps = [story.send, story.send, story.promise, story.claim, story.finish, story.finish, story.clean, story.clean]
    for n in range(1500 if CHAOS else 300):
        chance.choice(steps)()
        if n % 50 == 49:
            story.pass_time()
        story.check()
    desk.advance(120_000)
    while story.sent - story.over - set(desk.members("waiting")):
        found = desk.turn(50)
        rows = [(id.decode(), story.token(id.decode())) for id in found.ids]
        rows += [(bytes(row[0]).decode(), story.token(bytes(row[0]).decode())) for row in found.lost]
        assert rows, f"these never come: {story.sent - story.over}"
        for id, token in rows:
            assert not desk.turn(0, moved(id, "done", token, ms=0)).refused
            story.over.add(id)
        story.check()
    left = desk.run(clean(desk.keys, TASK, dead=True, dry_run=False))
    assert left == Left(left.removed, len(story.sent - story.over), 0)


# --- the list of the queues of a task, and of all queues


def test_queues_are_noted_once_for_a_task_and_forgotten_by_name(desk: Desk) -> None:
    bus = desk.keys
    key = bus.own("made", TASK)
    assert desk.run(enlist(key, ["a:actions", "b:actions"], 500_000)) == 2
    assert desk.run(enlist(key, ["b:actions", "c:actions"], 900_000)) == 3
    assert desk.run(noted(bus, TASK)) == ["a:actions", "b:actions", "c:actions"]
    assert 800_000 < desk.ask("PTTL", f"made:{TASK}") <= 900_000
    assert desk.run(forget(bus, TASK, ["a:actions", "unknown"])) == 1
    assert desk.run(forget(bus, TASK, ["a:actions"])) == 0
    assert desk.run(noted(bus, TASK)) == ["b:actions", "c:actions"]
    desk.run(forget(bus, TASK, ["b:actions", "c:actions"]))
    assert desk.ask("EXISTS", f"made:{TASK}") == 0


def test_a_queue_that_was_listed_again_since_it_was_read_stays(desk: Desk) -> None:
    """In random interleavings, a queue that was used after it was read is never taken off."""
    key, chance = desk.keys.key("queues"), random.Random(7)
    assert desk.run(unlist(key, "a:actions", 5000)) is False
    used, seen = 0, 0

    def score() -> int:
        return int(desk.run(Call(["ZSCORE", key, "a:actions"])) or 0)

    for now in range(1, 301):
        match chance.choice(["use", "look", "unlist"]):
            case "use":
                desk.ask("ZADD", "queues", now, "a:actions")
                used = now
            case "look":
                seen = score()
            case _:
                gone = desk.run(unlist(key, "a:actions", seen))
                assert gone == (0 < used <= seen)
                assert not (gone and desk.run(unlist(key, "a:actions", seen)))
                used = 0 if gone else used
        assert score() == used
    desk.ask("DEL", "queues")


# --- the ways of messages


def span(n: int, **more: Any) -> Span:
    return Span(id=f"{n:020}", type="a.b", queue="a:actions", intent="send", correlation=f"operation {n % 3}", **more)


def read(desk: Desk, id: str) -> list[Span]:
    found: list[Span] = desk.run(spans_of(desk.keys, id))
    return found


def test_spans_are_read_by_operation_oldest_first(desk: Desk) -> None:
    written = [span(n) for n in range(9)]
    assert desk.run(write_spans(desk.keys, written[:4], 1000)) == 4
    assert desk.run(write_spans(desk.keys, written[4:], 1000)) == 9
    assert read(desk, "operation 1") == written[1::3]
    assert read(desk, f"{7:020}") == [written[7]]
    assert read(desk, "nothing") == []
    assert 0 < desk.ask("PTTL", "spans") <= spans.LIVE_MS


def test_the_newest_spans_are_kept(desk: Desk) -> None:
    for start in range(0, 5000, 500):
        desk.run(write_spans(desk.keys, [span(n) for n in range(start, start + 500)], 1000))
    count = desk.ask("XLEN", "spans")
    assert 1000 <= count <= 1200, "about so many: the server drops whole nodes of a hundred"
    assert [one.id for one in read(desk, "operation 0")][-1] == f"{4998:020}"
    assert read(desk, f"{0:020}") == []


@pytest.mark.parametrize("count", [0, 1, 999, 1000, 1001, 2001])
def test_all_pages_of_spans_are_read_once(desk: Desk, count: int) -> None:
    many = [span(3 * n) for n in range(count)]
    for start in range(0, count, spans.PART):
        desk.run(write_spans(desk.keys, many[start : start + spans.PART], 100_000))
    assert read(desk, "operation 0") == many


@pytest.mark.parametrize(
    "garbage",
    [
        [b"s", b""],
        [b"s", b"\xff\xfe"],
        [b"s", b'{"id":"\xff"}'],
        [b"s", b"null"],
        [b"s", b"[]"],
        [b"s", b"{}"],
        [b"s", b'{"id":7,"type":"a","queue":"b","intent":"send"}'],
        [b"other", b"field"],
        [b"\xff", b"\xff", b"more", b"of it"],
        [b"s", b'{"id":"i","type":"a","queue":"b","intent":"send","sent_ms":"soon"}'],
        [b"s", b"[" * 10_000],
    ],
)
def test_malformed_spans_are_skipped(desk: Desk, garbage: list[bytes]) -> None:
    desk.run(write_spans(desk.keys, [span(0)], 1000))
    desk.ask("XADD", "spans", "*", *garbage)
    desk.run(write_spans(desk.keys, [span(3)], 1000))
    assert read(desk, "operation 0") == [span(0), span(3)]


def test_every_argument_of_the_clean_up_scripts_is_passed(desk: Desk) -> None:
    """The contract and the calls agree: as many arguments as named, or more where a list follows."""
    keys: QueueKeys = desk.keys
    calls: list[Call[Any]] = [
        next(clean(keys, TASK, dead=True, dry_run=True)),
        unlist(keys.key("queues"), "a", 1),
        enlist(keys.own("made", TASK), ["a"], 1000),
        write_spans(keys, [span(1)], 10),
    ]
    for call in calls:
        assert call.script is not None
        assert len(call.args) >= len(call.script.args)
