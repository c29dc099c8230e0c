"""The contract between the scripts and the Python side: names, numbers of arguments, and what no script may do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from relevo.audit import store as audit
from relevo.bus import conversation_store as tasks
from relevo.bus import event_store as events
from relevo.bus import history_store as history
from relevo.bus import message_store as messages
from relevo.bus import span_store as spans
from relevo.bus import subscription_store as subscriptions
from relevo.bus.delivery_store import Event, Recipient, put_events
from relevo.bus.span import Span
from relevo.checkpoints import store as checkpoints
from relevo.dead import replay_store as replays
from relevo.dead import store as letters
from relevo.dead.replay import Replay
from relevo.engine import (
    changing,
    clock_steps,
    dependents,
    job_events,
    list_store,
    workers,
)
from relevo.engine import (
    job_store as jobs,
)
from relevo.engine import (
    key_format as formats,
)
from relevo.engine import (
    offers_store as presence,
)
from relevo.engine import (
    outbox as relay,
)
from relevo.engine import (
    turn as turns,
)
from relevo.engine.breaker import Breaker
from relevo.engine.edges import Edge
from relevo.engine.job import Envelope, State
from relevo.engine.leader import Leader
from relevo.engine.push import NewJob, push_plain, push_rich
from relevo.engine.workers import WorkerInfo
from relevo.health import store as health
from relevo.health import vitals_store as vitals
from relevo.health.pool_vitals import pool_vitals
from relevo.health.status import Health, Status
from relevo.limits import store as limits
from relevo.metrics import timing_store as timings
from relevo.pools import store as pools
from relevo.queues import store as queues
from relevo.schedules import store as schedules
from relevo.schedules.schedule import schedule_of
from relevo.store.keys import OF_ONE, QUEUE_KEYS, AppKeys, QueueKeys
from relevo.store.plan import Call
from relevo.store.scripts import contract, names, script
from relevo.upkeep import store as purging
from relevo.workflows import store as flows

KEYS = QueueKeys("relevo:test:shop:actions:default")
KNOWN = presence.Known("build", "\nshop.charge=00000000aa\n")
ID = "0" * 20
LIMITS = turns.Limits(1, 2, 3, 4)
SETTLED = turns.Settled([ID], [ID], [5, b""], [turns.Moved(ID, 1, "dead", 100, "", 1.0, 5, b"")])
APP = AppKeys("relevo", "test", "shop")
HOURLY = schedule_of(name="hourly", target="shop.report", every="1h")
TICK = schedules.Tick(1, NewJob(ID, 100, b"{}"))
WANTED = subscriptions.Subscription(pattern="shop.*", service="mail", queue="mail:notifications:shop")
TO_MAIL = Recipient(WANTED.queue, 10, "old", 60_000)
SOLD = Event(ID, "shop.sold", 1, b'{"t":"x"', (TO_MAIL,), events.ANYWHERE)


def clearing() -> Call[Any]:
    """The second call of `clear`, which comes after a page of jobs."""
    steps = queues.clear(KEYS)
    next(steps)
    return steps.send([queues.Listed(ID, State.READY)])


#: Every way of building a call, with the number of variable arguments it was given.
CALLS: list[tuple[Call[Any], int]] = [
    (push_plain(KEYS, [], 100, 1), 0),
    (push_plain(KEYS, [(ID, b"{}")] * 3, 100, 1), 6),
    (push_rich(KEYS, [NewJob(ID, 100, b"{}")] * 2), 20),
    (turns.turn(KEYS, "w", LIMITS, 1, turns.Settled()), 0),
    (turns.turn(KEYS, "w", LIMITS, 1, SETTLED), 2 + 2 + 12),
    (turns.claim(KEYS, ID, "w", 1), 0),
    (turns.renew(KEYS, [(ID, 1), (ID, 2)], 1), 4),
    (clock_steps.set_back(KEYS, 1, lease_ms=2, idle_ms=3, schedules=[clock_steps.Replanned("hourly", 4, 5)]), 3),
    (turns.abandon(KEYS, [(ID, 1)]), 2),
    (turns.rest(KEYS, "w", 1, 1), 0),
    (turns.leave(KEYS, "w"), 0),
    (turns.note(KEYS, [turns.Note(ID, 1, "log:1", "")], 1), 5),
    (jobs.look(KEYS, ID), 0),
    (jobs.attach(KEYS, ID, b"in"), 0),
    (changing.change(KEYS, NewJob(ID, 100, b"{}"), fresh=True), 0),
    (job_events.watch(KEYS, b"in", [ID, "*"], ["w"], 1), 3),
    (job_events.publish(KEYS, [job_events.JobEvent(kind="started", job=ID, queue="default")] * 2), 4),
    (jobs.cancel(KEYS, [(ID, 1, ""), (ID, 1, "n")], 1), 8),
    (jobs.revive(KEYS, ID, Envelope("x"), b"", 0), 0),
    (jobs.discard(KEYS, [ID, ID]), 2),
    (letters.part(KEYS), 0),
    (letters.part(KEYS, place=letters.Place(1, ID)), 0),
    (letters.alike(KEYS, ["0" * 16, "f" * 16]), 2),
    (letters.restore(KEYS, [ID, ID], 1), 2),
    (letters.replace(KEYS, ID, ID, Envelope("x"), b""), 0),
    (letters.bury(KEYS, [letters.Arrival(ID, 1, b"{}", {"#0": "1"})] * 2, ttl_ms=1, dead_max=1), 12),
    (replays.lead(KEYS, "take", Replay(id=ID), "w"), 0),
    (queues.count(KEYS, "default"), 0),
    (next(queues.promote(KEYS)), 0),
    (queues.page(KEYS, "ready", 0, 1), 0),
    (queues.walk(KEYS, State.READY, queues.Mark(), 1), 0),
    (queues.pause(KEYS, True), 0),
    (limits.unlimit(KEYS, "g:acme"), 0),
    (limits.adopt(KEYS, "g:acme", [ID.encode()] * 3), 3),
    (limits.gauge(KEYS, ["g:acme", "t:b"]), 2),
    (limits.trip(KEYS, "shop.charge", 1, Breaker.after(5, "1m")), 0),
    (clearing(), 3),
    (dependents.follow(KEYS, ID, [Edge(ID, "a queue"), Edge(ID, "default", "w", 3)]), 0),
    (dependents.forget(KEYS, [NewJob(ID, 100, b"{}")]), 3),
    (relay.take_outbox(KEYS), 0),
    (relay.take_outbox(KEYS, ["a", "b"], ticks=True), 2),
    (relay.notify(KEYS, [], 1), 0),
    (relay.notify(KEYS, relay.opened([ID, ID]), 1, ["a.gate"]), 1 + 16),
    (relay.notify(KEYS, relay.opened([ID]), 1, start="start\n"), 8),
    (flows.store_members(KEYS, [(ID, b"{}", "")] * 2, "default", 100, 1), 6),
    (relay.start_members(KEYS, ID + relay.MEMBERS), 0),
    (flows.expect(KEYS, ID, ID, [(ID, "default", "task")]), 3),
    (checkpoints.keep(KEYS, ID, 1, "s", "fetch", b"1"), 0),
    (schedules.enroll(KEYS, HOURLY, 1, "digest"), 0),
    (schedules.unenroll(KEYS, "hourly"), 0),
    (schedules.suspend(KEYS, "hourly", pause=True), 0),
    (schedules.fire(KEYS, HOURLY, [], due_ms=1, next_ms=2, fail_ms=3), 0),
    (schedules.fire(KEYS, HOURLY, [TICK, TICK], due_ms=None, fail_ms=3), 14),
    (formats.agree(KEYS, formats.FORMAT, APP.queues, ["a", "b"]), 2),
    (list_store.register(APP.queues, ["a", "b"]), 2),
    (subscriptions.subscribe(KEYS, []), 0),
    (subscriptions.subscribe(KEYS, [WANTED, WANTED]), 8),
    (subscriptions.unsubscribe(KEYS, WANTED.queue), 0),
    (subscriptions.sweep(KEYS), 0),
    (events.publish(KEYS, "shop.sold", ID, b"{"), 0),
    (put_events(KEYS, TO_MAIL, [SOLD, SOLD]), 16),
    (history.log_events(KEYS, [history.Logged(ID, "shop.sold", 1, b"{}")], keep_ms=1, most=1), 4),
    (events.finish(KEYS, ["a.event"]), 1),
    (events.close(KEYS, 1), 0),
    (events.lag(KEYS), 0),
    (Leader(KEYS, ID).take(), 0),
    (messages.send(KEYS, ID, b"{", messages.Place(100), lease_ms=1), 0),
    (messages.ask(KEYS, b"in", [messages.Asked(ID, "b", messages.Place(100), 1, b"{")] * 2, lease_ms=1), 16),
    (next(messages.lay_beside(KEYS, ID, b"{}")), 0),
    (messages.promise(KEYS, "default", ID, messages.Place(100), b"{}", timeout_ms=1, failure_ms=1), 0),
    (messages.report(KEYS, ID, ID, b"{}"), 0),
    (
        presence.serve(
            KEYS,
            WorkerInfo(id=ID, host="here", pid=1, queues=("default",), concurrency=1, started_ms=1),
            KNOWN,
            {"a": b"{}", "b": b"{}"},
        ),
        4,
    ),
    (presence.serve_tasks(KEYS, ID, KNOWN), 0),
    (presence.retire(KEYS, ID), 0),
    (next(tasks.clean(KEYS, "task", dead=False, dry_run=True)), 0),
    (audit.write_deed(KEYS, audit.Deed(at_ms=0, app="shop", who="ana", via="cli", what="dead.retry")), 0),
    (spans.write_spans(KEYS, [Span(id=ID, type="a.b", queue="a:actions", intent="send")] * 2, 1), 2),
    (list_store.unlist(APP.queues, "a", 1), 0),
    (timings.measure(KEYS, [("a", [1.0]), ("b", [2.0])]), 4),
    (vitals.vitals(KEYS, "default"), 0),
    (vitals.keep_minute(KEYS), 0),
    (workers.present(APP, WorkerInfo(id=ID, host="host", pid=7, queues=("default",), concurrency=10, started_ms=1)), 0),
    (health.keep_snapshot(APP, Health(app="shop", env="test", status=Status.HEALTHY, checked_at_ms=1)), 0),
    (purging.find_old_jobs(KEYS, "ready", 1, 0), 0),
    (
        purging.purge_jobs(
            KEYS,
            ID,
            [
                purging.Act(
                    id=ID, state="ready", score=1, claim=b"", since_ms=1, limit_ms=1, end=purging.Ending(verb="dead")
                )
            ]
            * 2,
            1,
        ),
        26,
    ),
    (purging.take_back_jobs(KEYS, ID, [(ID, b"1")], lease_ms=1, limit_ms=1), 2),
    (purging.find_orphans(KEYS, purging.Position()), 0),
    (purging.remember_job_position(KEYS, 7), 0),
    (pools.add_entity(KEYS, "vm", "pending", {"ip": b'"x"'}), 2),
    (pools.move_entity(KEYS, "vm", "pending", "ready", {}), 0),
    (pools.move_entity(KEYS, "vm", "pending", "ready", {"a": b"1"}, pools.Only(1, 2)), 2),
    (pools.fail_entity(KEYS, "vms", "vm", "", ID, pools.Reason("failed"), pools.Keeping(1, 2, 3), {"a": b""}), 2),
    (pools.remove_entity(KEYS, "vm", "", 1), 0),
    (pools.update_entity(KEYS, "vm", {"a": b"1", "b": b""}), 4),
    (pools.list_entities(KEYS, "vms", "ready", 0, 0, 1), 0),
    (pools.count_entities(KEYS), 0),
    (pool_vitals(KEYS, "vms", "shop:actions:pool:vms", stuck_ms=1), 0),
    (pools.revive_entity(KEYS, ID, "vm", "ready", 1, {"a": b"1"}), 2),
    (pools.find_unplaced(KEYS, 1, 0), 0),
    (pools.expire_entity(KEYS, "vm", pools.Only(1, 2), 1), 0),
    (pools.expire_unlisted(KEYS, ["vm", "vm-2"], 1, 1, dry_run=True), 2),
]


def code_of(name: str) -> str:
    """A script with its includes as its files spell it, without its header, its guard and comments."""
    text = script(name).text.decode().partition("]]")[2]
    text = text.replace("KEYS[1] .. ", "")  # of `-- @spell`
    text = text.replace("local server = redis.pcall", "")  # a note of a fault may fail
    return re.sub(r"(?<![\w.])call\(", "redis.call(", re.sub(r"--.*", "", text))


def calls_of_redis(name: str) -> Iterator[str]:
    code = code_of(name)
    code = re.sub(r"\bask\(", "redis.call(", code.replace("return redis.call(...)", "").replace("function ask(", ""))
    verbs = re.findall(r"redis\.p?call\(\s*'([A-Za-z]+)'", code)
    chosen = re.findall(r"redis\.p?call\(living and '(\w+)' or '(\w+)'", code)
    assert len(verbs) + len(chosen) == len(re.findall(r"redis\.p?call", code)), "a command this test cannot see"
    yield from verbs
    for pair in chosen:
        yield from pair


def test_every_script_is_built_by_some_call() -> None:
    assert {call.script.name for call, _ in CALLS if call.script} == set(names())


def test_a_call_passes_the_arguments_that_the_header_names() -> None:
    of_the_app = {("list",): APP.queues, ("worker",): APP.worker(ID), ("health",): APP.health}
    of_the_app |= {("bag",): KEYS.own("carried", ID)}
    for call, variable in CALLS:
        assert call.script is not None
        name, named_keys = call.script.name, call.script.keys
        assert len(call.args) == len(call.script.args) - 2 * call.numbered + variable, name
        if name == "engine/agree_format":
            assert call.keys == (KEYS.key("format"), APP.queues)
        elif named_keys in of_the_app:
            assert call.keys == (of_the_app[named_keys],), name
        else:
            assert call.keys == KEYS.of(call.script), name
            if len(named_keys) == 1:
                assert call.keys == (KEYS.key(named_keys[0]),), name
            assert {key.partition(b"}")[0] for key in call.keys} == {b"{relevo:test:shop:actions:default"}, name


@pytest.mark.parametrize("name", names())
def test_a_script_keeps_its_contract(name: str) -> None:
    check_header(name)
    check_keys(name)
    check_that_arguments_are_used_by_name(name)
    check_commands(name)


def check_header(name: str) -> None:
    """It describes the script and its answer, and names keys that exist and are used."""
    found, code = script(name), code_of(name)
    header = found.text.decode().partition("]]")[0]
    assert re.search(r"--\[\[ [A-Z][^\n]{10,}", header)
    assert re.search(r"^GIVES \S", header, re.MULTILINE)
    assert found.keys, "a script without keys has no slot"
    # "list", "worker" and "health" are keys of an app, "bag" is what one job carries, the others are of a queue
    assert set(found.keys) <= {*QUEUE_KEYS, "list", "worker", "health", "bag"}
    assert len({*found.keys, *found.args}) == len(found.keys) + len(found.args), "one name for two things"
    unused_by_design = {("engine/cancel_jobs", "done_max"), ("engine/release_leases", "n")}
    for word in (*found.keys, *found.args):
        assert re.search(rf"\b{word}\b", code) or (name, word) in unused_by_design, f"{word} is not used"


def check_keys(name: str) -> None:
    """While a slot of a cluster moves, scripts of several keys wait, as some are here and some there.

    The server sees to that if one of the keys is nowhere, as prefixes are.
    """
    named = set(script(name).keys)
    if len(named) > 1 and name != "engine/agree_format":  # which is of two places
        assert {KEYS.key(prefix) for prefix in OF_ONE} & set(KEYS.of(script(name)))
    for prefix in re.findall(r"\b([a-z]+)_key\(", code_of(name)):
        assert len(named) > 1, f"{prefix}:<owner> must be its key: {prefix} does not say where that is"


@pytest.mark.parametrize("name", names())
def test_a_key_of_one_job_or_worker_is_spelt_by_its_helper(name: str) -> None:
    """`ended_key(id)` of store/lua/include/ended_key.lua, defined before its first use."""
    code = code_of(name)
    for prefix in OF_ONE:
        helper = f"local function {prefix}_key(owner) return {prefix} .. ':' .. owner end"
        uses = [found.start() for found in re.finditer(rf"\b{prefix}_key\(", code)]
        assert code.count(helper) == (1 if uses else 0) or name == "engine/push", "defined once"
        assert not uses or uses[0] == code.index(helper) + len("local function ")
        spelt = re.findall(rf"\b{prefix} \.\. '", code.replace(helper, ""))
        assert not spelt or name in SPELT_BY_HAND[prefix], f"write {prefix}_key(…)"


#: The hottest scripts pay for no helper.
SPELT_BY_HAND = {prefix: {"engine/push"} if prefix == "ended" else set[str]() for prefix in OF_ONE}
SPELT_BY_HAND["sent"] = {name for name in names() if "local key = sent" in code_of(name)}


def check_that_arguments_are_used_by_name(name: str) -> None:
    found, code = script(name), code_of(name)
    assert not re.search(r"\bKEYS\b", code)
    fixed = len(found.args)
    assert all(int(n) > fixed for n in re.findall(r"ARGV\[(\d+)\]", code))
    loops = re.findall(r"for i = (\d+)(?: \+ \w+)?, (?:#ARGV|(\d+) \+ \w+)\b", code)
    assert all(not last or int(last) == fixed for _, last in loops)
    starts = [start for start, _ in loops] + re.findall(r"local at = (\d+)", code)
    assert all(int(start) == fixed + 1 for start in starts)
    assert "ARGV" not in code or starts, "variable arguments are read from somewhere"


def check_commands(name: str) -> None:
    """No script walks the keyspace, flushes it, hides a failure half-way, or reads the clock of a machine."""
    verbs = {verb.upper() for verb in calls_of_redis(name)}
    assert verbs, name
    forbidden = {"KEYS", "SCAN", "HSCAN", "ZSCAN", "SSCAN", "RANDOMKEY", "SORT"}
    forbidden |= {"FLUSHDB", "FLUSHALL", "SCRIPT", "EVAL"}
    # a bounded part of one key; no write comes after it, which older servers refuse
    if name in ("upkeep/find_orphans", "queues/count_jobs", "health/measure_queue"):
        forbidden -= {"HSCAN"}
    assert not verbs & forbidden
    # the channel of a PUBLISH is data
    rest = code_of(name).replace("redis.pcall('PUBLISH'", "")
    assert "redis.pcall" not in rest, "a script that fails half-way must say so"
    assert "os.time" not in code_of(name)
    assert "os.clock" not in code_of(name)


def test_a_contract_is_read_from_a_header() -> None:
    source = (
        "--[[ Does.\n\nKEYS  jobs   hash  bodies\n      ready scheduled\nARGV  id     id    the job\n"
        "                   then more: x, y\nGIVES nothing: KEYS  no ]]\nreturn 1"
    )
    assert contract(source) == (("jobs", "ready", "scheduled"), ("id",))


def test_the_lines_of_a_script_are_those_of_its_file() -> None:
    """An error's line number must lead to the right line, for scripts without includes."""
    text = script("engine/announce_worker").text.decode()
    assert text.count("\n") == (text.partition("--[[")[2]).count("\n")


def test_a_script_of_a_test_reads_a_shifted_clock() -> None:
    plain, shifted = script("engine/turn"), script("engine/turn", "the:key")
    assert plain.sha != shifted.sha
    assert b"the:key" in shifted.text
    assert b"the:key" not in plain.text


def test_an_unknown_key_is_refused() -> None:
    with pytest.raises(KeyError, match="no key of a queue is called 'job'"):
        KEYS.key("job")
