"""Whatever another program writes into the keys of a queue, healthy jobs run and no result of another job is lost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from relevo.engine.job_store import attach, cancel, look
from relevo.engine.outbox import relay, take_outbox
from relevo.engine.turn import Note, Settled, leave, note, renew, rest
from relevo.errors import ServerRefused
from relevo.health.judging import judge
from relevo.health.thresholds import Limits
from relevo.health.vitals_store import keep_minute, vitals
from relevo.limits.limit import limit_of
from relevo.limits.pause_store import pauses, written
from relevo.limits.store import limit, limits
from relevo.store.keys import QUEUE_KEYS
from tests.clock import TimedApp
from tests.conftest import PATIENT
from tests.servers import Server
from tests.store.desk import LEASE_MS, Desk, kept

WORKER = "w"
RECORD = b'{"state":"done","result":7}'
#: The types that keys have, by how one is made.
MAKERS: dict[str, tuple[Any, ...]] = {
    "string": ("SET", "stranger"),
    "list": ("RPUSH", "stranger"),
    "set": ("SADD", "stranger"),
    "hash": ("HSET", "stranger", "1"),
    "zset": ("ZADD", 1, "stranger"),
    "stream": ("XADD", "*", "stranger", "1"),
}
#: Prefixes of keys: what they belong to, where that is not a job.
OWNERS = {"bell": WORKER, "parked": "g:acme", "unique": "order", "alike": "abc", "runs": "nightly", "made": "t1"}
OWNED = ("ended", "notes", "carried", *OWNERS)
#: Without these the neighbour itself is gone: no worker can tell its end.
ITSELF = {"jobs", "claims", "running"}


@pytest.fixture(scope="module")
def stranger_server(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server into which these tests write what they like."""
    with Server(engine, directory=tmp_path_factory.mktemp("hostile")) as server:
        yield server


@pytest.fixture
def desk(stranger_server: Server) -> Iterator[Desk]:
    """An empty queue on that server."""
    app = TimedApp("own", url=stranger_server.url, env="test", **PATIENT)
    desk = Desk(app.engine.client.run, app.engine.keys_of("default"), stranger_server)
    forget(desk)
    yield desk
    app.close()


def forget(desk: Desk) -> None:
    """Empty the server, and begin anew."""
    desk.server.ask("FLUSHALL")
    desk.clock.start()


class Day:
    """A day in the life of a queue: one job runs, others come, and a worker does what workers do."""

    def __init__(self, desk: Desk, *, limited: bool) -> None:
        self.desk = desk
        self.held: dict[str, int] = {}
        if limited:
            desk.run(limit(desk.keys, "g:acme", limit_of(concurrency=5, rate="100/s")))
            desk.run(limit(desk.keys, "q:", limit_of(concurrency=50)))
        desk.wait(WORKER)
        (self.neighbour,) = desk.push('{"t":"shop.mail"}')
        self.notify()
        self.held.update(dict.fromkeys(desk.claim(worker=WORKER), 1))  # under a limit jobs are not handed over
        assert [*self.held] == [self.neighbour]
        assert desk.run(attach(desk.keys, self.neighbour, b"{x}:inbox:p"))

    def notify(self) -> None:
        """Read what lies on the bell, and stop waiting."""
        for message in self.desk.run(leave(self.desk.keys, WORKER)):
            if message[:1] == b"j":
                self.held[message[1:21].decode()] = 1

    def do(self) -> list[str]:
        """All that happens on a queue; the jobs that must end well."""
        run, keys = self.desk.run, self.desk.keys
        run(rest(keys, WORKER, LEASE_MS, 30_000))
        run(renew(keys, [(self.neighbour, 1)], LEASE_MS))
        run(note(keys, [Note(self.neighbour, 1, "progress", "{}")], 60_000))
        self.desk.wait("other")
        jobs = [*self.desk.push('{"t":"shop.mail"}'), *self.desk.push(*['{"t":"shop.mail"}'] * 3)]
        jobs.append(self.desk.push_one('{"t":"shop.pay","g":"acme"}', tenant="acme"))
        jobs.append(self.desk.push_one('{"t":"shop.pay","g":"acme"}', tenant="acme", when="+1000"))
        gone = self.desk.push_one('{"t":"shop.pay"}', when="+900000")
        run(cancel(keys, [(gone, 60_000, "")], 1000))
        run(take_outbox(keys, ticks=True))
        run(look(keys, self.neighbour))
        run(limits(keys))
        run(pauses(keys, "default", self.desk.now_ms, run(written(keys))))
        return jobs

    def finish(self, ids: list[str]) -> None:
        """Work until these have ended. Time passes for a lease at the most."""
        for _ in range(LEASE_MS // 1000 + 5):
            self.notify()
            done = Settled()
            for id, token in self.held.items():
                part = kept([id], token, record=RECORD)
                done.kept += part.kept
                done.records += part.records
                done.moved += part.moved
            self.held.clear()
            found = self.desk.turn(10, done, worker=WORKER, idle_ms=30_000)
            taken = [(one, found.again.get(index, (b"1 ", b""))[0]) for index, one in enumerate(found.ids)]
            for one, claim in (*taken, *((lost[0], lost[1]) for lost in found.lost)):
                self.held[one.decode()] = int(claim.split()[0])
            if all(self.ended(id) for id in ids):
                return
            self.desk.advance(1_000)
        raise AssertionError([id for id in ids if not self.ended(id)])

    def ended(self, id: str) -> bool:
        """Whether the job has ended well, and its result can be read."""
        key = self.desk.keys.own("ended", id)
        return self.desk.server.ask("TYPE", key) == b"string" and b'"result":7' in (self.desk.record(id) or b"")


def faults(desk: Desk) -> dict[str, str]:
    """What the scripts noted: name of the key -> what was wrong."""
    key = desk.keys.key("faults")
    rows = desk.server.ask("HGETALL", key) if desk.server.ask("TYPE", key) == b"hash" else {}
    return {name.decode(): text.decode() for name, text in dict(rows).items()}


def put(desk: Desk, key: str, kind: str) -> None:
    """Fill a key with another type."""
    desk.ask("DEL", key)
    command, *args = MAKERS[kind]
    desk.ask(command, key, *args)


def type_of(desk: Desk, key: str) -> str:
    """The type of a key, by its short name."""
    found: bytes = desk.ask("TYPE", key)
    return found.decode()


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
@pytest.mark.parametrize("name", [name for name in QUEUE_KEYS if name not in OWNED and name not in ITSELF])
def test_key_of_a_wrong_type_stops_no_other_job(desk: Desk, name: str, limited: bool) -> None:
    for kind in MAKERS:
        day = Day(desk, limited=limited)
        put(desk, name, kind)
        before = type_of(desk, name)
        day.finish([day.neighbour, *day.do()])
        desk.run(vitals(desk.keys, "default"))
        desk.run(keep_minute(desk.keys))
        # it may be the right type, or no script of these met it, or it was removed as a whole
        if type_of(desk, name) not in (before, "none"):
            assert name in faults(desk)
            assert type_of(desk, f"aside:{name}") == kind
        forget(desk)


@pytest.mark.parametrize("name", sorted(ITSELF))
def test_new_jobs_run_although_those_before_were_overwritten(desk: Desk, name: str) -> None:
    for kind in MAKERS:
        day = Day(desk, limited=False)
        put(desk, name, kind)
        day.held.clear()
        day.finish(day.do())
        forget(desk)


@pytest.mark.parametrize("name", OWNED)
def test_key_of_one_job_of_a_wrong_type_stops_no_other_job(desk: Desk, name: str) -> None:
    for kind in MAKERS:
        day = Day(desk, limited=True)
        put(desk, f"{name}:{OWNERS.get(name, day.neighbour)}", kind)
        day.finish([day.neighbour, *day.do()])
        forget(desk)


#: The job that runs.
NEIGHBOUR = "NEIGHBOUR"
#: Fields of the hashes whose values scripts read.
FIELDS = {
    "limits": ("q:", "g:acme", "t:shop.mail", "t:shop.pay", "strange"),
    "paused": ("", "ghost"),
    "pauses": ("q:", "t:shop.mail", "b:shop.mail", "g:acme", "strange"),
    "stats": ("enqueued", "done", "dead", "cancelled", "orphans", "lost", "unheard"),
    "clock": ("100", "100:", "100:acme", "strange"),
    "lines": ("100", "100:", "100:acme", "strange"),
    "holding": ("#q:", "#g:acme", "#t:shop.mail", NEIGHBOUR),
    "buckets": ("q:", "g:acme"),
    "story": (NEIGHBOUR,),
    "groups": (NEIGHBOUR, "ghost"),
    "names": ("order",),
    "waiters": (NEIGHBOUR, "ghost"),
    "letters": ("ghost", NEIGHBOUR + ".gone"),
    "schedules": ("nightly",),
    "ticks": ("due:nightly", "job:nightly", "paused:nightly"),
    "timings": ("1 shop.mail", "strange"),
    "minutes": ("1", "strange"),
    "kinds": ("abc",),
    "breakers": ("t:shop.mail",),
    "offers": ("mail", "@w", "#w"),
}
#: What no script of ours writes there.
GARBAGE: tuple[bytes, ...] = (
    b"",
    b" ",
    b"x",
    b"-1",
    b"0",
    b"1.5",
    b"nan",
    b"inf",
    b"-inf",
    b"1e400",
    b"9" * 400,
    b"99999999999999999999",
    b"\xff\x00\n",
    b"{}",
    b"1 2 3 4 5 6",
    b"x x x x",
    b"x x x 0",
    b"0 - - 0",
    b"-5 - - 0",
    b"- 0/s 1 0",
    b"- x/s x 0",
    b"- 1/x 1 0",
    b"- -1/s -1 0",
    b"- nan/s 1 0",
    b"1 1/s",
    b"- - - 0 x/y",
    b"- - - 0 1/",
    b"> >x >>",
    b">a1:",
    b"a b c",
    b">c:ghost{}",
    b"\n\n\n",
)
#: Sorted sets that scripts read by score, their members, and scores that no script of ours gives.
SETS = {
    "ready": ("ghost", NEIGHBOUR, ""),
    "scheduled": ("ghost", NEIGHBOUR, ""),
    "running": ("ghost", ""),
    "waiting": ("ghost", NEIGHBOUR, ""),
    "errands": ("ghost", "@nightly", "", "@"),
    "idle": ("ghost", "", "a b"),
    "parking": ("ghost", "q:", "g:acme", "t:shop.mail", ""),
    "parked:g:acme": ("ghost", NEIGHBOUR, ""),
    "done": ("ghost", ""),
    "dead": ("ghost", ""),
    "cancelled": ("ghost", ""),
    "instances": ("ghost", WORKER),
    "flows": ("ghost",),
}
SCORES = ("inf", "-inf", "-1", "0", "0.5", "1e300", "-1e300", "8796093022208", "1e17")


class Harm:
    """The states that did harm."""

    def __init__(self) -> None:
        self.found: list[str] = []

    @contextmanager
    def of(self, *state: Any) -> Iterator[None]:
        """Note the state if something goes wrong."""
        try:
            yield
        except Exception as error:
            self.found.append(f"{state}: {error!r:.200}")


@pytest.fixture
def harm() -> Iterator[Harm]:
    """Fails the test with all states that did harm."""
    harm = Harm()
    yield harm
    assert not harm.found, "\n".join(harm.found)


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
@pytest.mark.parametrize("name", FIELDS)
def test_forged_value_stops_no_other_job(desk: Desk, harm: Harm, name: str, limited: bool) -> None:
    for value in GARBAGE:
        day = Day(desk, limited=limited)
        for field in FIELDS[name]:
            if (name, field, value) != ("paused", "", b"0"):  # a queue that is paused
                desk.ask("HSET", name, field.replace(NEIGHBOUR, day.neighbour), value)
        with harm.of(name, value):
            day.finish([day.neighbour, *day.do()])
            desk.run(relay(lambda _: desk.keys, ["default"], 1000))
            desk.run(vitals(desk.keys, "default"))
            desk.run(keep_minute(desk.keys))
        forget(desk)


@pytest.mark.parametrize("limited", [False, True], ids=["plain", "limited"])
@pytest.mark.parametrize("name", SETS)
def test_forged_score_stops_no_other_job(desk: Desk, harm: Harm, name: str, limited: bool) -> None:
    for score in SCORES:
        day = Day(desk, limited=limited)
        for member in SETS[name]:
            desk.ask("ZADD", name, score, member.replace(NEIGHBOUR, day.neighbour))
        with harm.of(name, score):
            day.finish([day.neighbour, *day.do()])
            desk.run(relay(lambda _: desk.keys, ["default"], 1000))
            desk.run(vitals(desk.keys, "default"))
            desk.run(keep_minute(desk.keys))
        forget(desk)


@pytest.mark.parametrize("forbidden", ["-publish", "resetchannels"])
def test_results_are_kept_although_the_server_refuses_to_publish(
    stranger_server: Server, desk: Desk, forbidden: str
) -> None:
    """Two jobs end in one turn, and a process waits for the first: both results are kept, and the fault is noted."""
    stranger_server.ask("ACL", "SETUSER", "mute", "reset", "on", ">secret", "~*", "&*", "+@all", forbidden)
    url = stranger_server.url.replace("127.", "mute:secret@127.")
    mute = TimedApp("own", url=url, env="test", **PATIENT)
    first, second = desk.push("{}", "{}")
    assert desk.run(attach(desk.keys, first, b"{x}:inbox:p"))
    assert desk.claim(2) == [first, second]
    muted = Desk(mute.engine.client.run, mute.engine.keys_of("default"), stranger_server)
    muted.turn(0, kept([first, second], record=RECORD))
    assert [desk.record(id) for id in (first, second)] == [RECORD, RECORD]
    (fault,) = desk.run(vitals(desk.keys, "default")).faults.values()
    assert "could not be notified" in fault.text
    mute.close()


def test_a_user_who_may_not_rename_gets_an_error_that_names_the_key(stranger_server: Server, desk: Desk) -> None:
    stranger_server.ask("ACL", "SETUSER", "weak", "reset", "on", ">secret", "~*", "&*", "+@all", "-rename")
    weak = TimedApp("own", url=stranger_server.url.replace("127.", "weak:secret@127."), env="test", **PATIENT)
    put(desk, "ready", "string")
    with pytest.raises(ServerRefused, match=r":ready holds a value of another type"):
        Desk(weak.engine.client.run, weak.engine.keys_of("default"), stranger_server).push()
    found = desk.run(vitals(desk.keys, "default"))
    assert "may not rename" in found.faults["ready"].text or "set aside" in found.faults["ready"].text
    (reason,) = [one for one in judge(found, Limits(), workers=1) if one.measure == "keys"]
    assert reason.text.startswith("default: key ready: ")
    weak.close()


@pytest.mark.parametrize("claim", GARBAGE)
def test_forged_claim_stops_no_other_job(desk: Desk, claim: bytes) -> None:
    day = Day(desk, limited=True)
    desk.ask("HSET", "claims", day.neighbour, claim)
    day.finish(day.do())
    desk.run(cancel(desk.keys, [(day.neighbour, 60_000, "")], 1000))
    desk.run(vitals(desk.keys, "default"))
    desk.run(look(desk.keys, day.neighbour))
