"""`relevo services`, `trace`, `conversation` and `cleanup`: the bus on an operator's terminal."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest

from relevo import Relevo
from relevo.bus.actions import described
from relevo.bus.bus import Bus
from relevo.bus.catalogue import Catalogue, catalogue
from relevo.bus.cli import trace_view
from relevo.bus.cli.schema_view import signature, structures, words
from relevo.bus.span import Span
from relevo.engine.list_store import register
from relevo.engine.lists import known_queues
from relevo.engine.message import Reply
from relevo.store.plan import Ahead, Call
from tests.eventually import eventually
from tests.servers import Server
from tests.system.shell import Output, Terminal, on_terminal, plain, relevo
from tests.unit.test_asyncapi import check
from tests.working import working

NO_SUCH_ID = "01k9q4w2zhq3mf7d0a2f"
#: Each command with the least that it needs.
COMMANDS = (
    ["services"],
    ["trace", "task_7"],
    ["conversation", "task_7"],
    ["cleanup", "task_7"],
    ["cleanup", "--orphans"],
)


class Page(msgspec.Struct):
    number: int
    text: str = ""


class Document(msgspec.Struct):
    id: str
    pages: list[Page] = []
    parent: Document | None = None


@pytest.fixture
def nooble(bus: Relevo) -> Relevo:
    """The flow ingestion -> embedding -> ingestion, and query that hears of it."""
    ingestion, embedding, query = (bus.service(name) for name in ("ingestion", "embedding", "query"))
    failed: list[int] = []

    @ingestion.action("start")
    async def start(document: Document, priority: int = 3) -> str:
        """Takes a document in."""
        await ingestion.asend("embedding.make", {"texts": ["a"]}, on_reply="ready", timeout="1h")
        return document.id

    @ingestion.action("ready")
    async def ready(reply: Reply[list[int]]) -> None:
        await ingestion.apublish("processed", {"id": "7"})

    @embedding.action("make", retries=1, backoff=0)
    async def make(texts: list[str], model: str = "small") -> list[int]:
        """Makes a vector of each text, in \x1b[31mred."""
        if not failed:
            failed.append(1)
            raise ConnectionError("not yet")
        return [len(text) for text in texts]

    @query.action("remember", retries=0)
    async def remember(id: str) -> None:
        raise ValueError("the index is gone")

    @query.on("ingestion.*")
    async def index(id: str) -> None: ...

    return bus


def command(server: Server, app: Relevo, *words: str, **variables: str) -> Output:
    return relevo(*words, url=server.url, cwd=None, **{"RELEVO_PREFIX": app.settings.prefix, **variables})


def look(app: Relevo) -> Catalogue:
    return app.engine.run(catalogue(app.engine))


def announced(app: Relevo, count: int) -> None:
    """Until so many services are known, and all have processes."""
    eventually(lambda: [bool(one.instances) for one in look(app).services] == [True] * count)


def work(app: Relevo) -> None:
    """Process all messages; their outcomes are stored when this returns."""
    with working(app) as worker:
        offered = {name.partition(":")[0] for name in worker.queues if name.endswith(":actions")}
        eventually(lambda: offered <= _served_by(app, worker.id), what="all its services are announced")
        eventually(lambda: not any(app.queue(name).stats().living for name in app.engine.run(known_queues(app.engine))))


def _served_by(app: Relevo, worker: str) -> set[str]:
    return {service.name for service in look(app).services if worker in {one.id for one in service.instances}}


def table(shown: Output, head: str) -> dict[str, list[str]]:
    """The rows of a table whose head begins so, by their first words."""
    lines = shown.out[shown.out.index(f"\n{head}") + 1 :].split("\n\n")[0].splitlines()[1:]
    return {(words := re.split("  +", line))[0]: words[1:] for line in lines if line}


def widest(text: str) -> int:
    return max(map(len, plain(text)))


# The app


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[-1])
def test_an_app_is_not_needed_and_may_be_any(server: Server, nooble: Relevo, words: list[str]) -> None:
    nooble.service("web").send("archive.store", {}, conversation="task_7")
    alone = command(server, nooble, *words, "--json").json
    named = command(server, nooble, *words, "--json", "--name", "other").json
    assert set(alone) == set(named) and "error" not in alone


# Services


def test_services_are_listed_with_instances_and_backlog(server: Server, nooble: Relevo) -> None:
    nooble.service("embedding", context="tenant_xyz").action("make")(
        nooble.engine.part(Bus).actions["embedding.make"].func
    )
    with working(nooble, concurrency=7) as worker:
        announced(nooble, 4)
        listed = command(server, nooble, "services")
        report = command(server, nooble, "services", "--json").json
        embedding = command(server, nooble, "services", "embedding")
    assert embedding.out.count("make(texts") == 1, "actions of several contexts are listed once"
    assert set(table(embedding, "QUEUE  ")) >= {"embedding:actions", "embedding:tenant_xyz:actions"}
    assert listed.code == 0, listed
    assert listed.out.startswith(f"bus {nooble.settings.prefix}:test: 3 services, 1 subscription\n")
    assert table(listed, "SERVICE  ") == {
        "embedding": ["1", "0/7", "1", "0", "0", "0", "-"],
        "embedding:tenant_xyz": ["1", "0/7", "1", "0", "0", "0", "-"],
        "ingestion": ["1", "0/7", "2", "0", "0", "0", "-"],
        "query": ["1", "0/7", "1", "0", "0", "0", "-"],
    }
    assert (report["level"], report["warnings"], report["env"]) == ("ok", [], "test")
    assert set(report) == {"prefix", "env", "now_ms", "level", "warnings", "services", "tallies"}
    mine = report["services"][1]
    assert (mine["name"], mine["context"], mine["concurrency"]) == ("embedding", ["tenant_xyz"], 7)
    assert mine["instances"][0]["id"] == worker.id
    assert [(one["kind"], one["instances"]) for one in mine["queues"]] == [("actions", 1), ("callbacks", 1)]
    assert mine["queues"][0]["address"] == f"{nooble.settings.prefix}:test:embedding:tenant_xyz:actions"
    assert mine["actions"][0]["takes"]["properties"]["texts"] == {"type": "array", "items": {"type": "string"}}


def test_messages_without_a_live_service_need_attention(server: Server, bus: Relevo) -> None:
    bus.service("web").send("archive.store", {}, delay="1h")
    assert command(server, bus, "services").code == 0, "a message that is due later needs no attention"
    bus.service("web").send("archive.store", {})
    seen = command(server, bus, "services")
    assert seen.code == 1
    assert "warning: queue 'archive:actions': messages wait, 2 in all, and no live process serves it" in seen.out
    row = table(seen, "SERVICE  ")["archive"]
    assert row[:5] == ["0", "-", "0", "1", "0"]
    assert row[5:7] == ["1", "0"], "scheduled has a column only because something is"
    report = command(server, bus, "services", "--json")
    assert (report.code, report.json["level"]) == (1, "warning")
    assert report.json["services"][0]["queues"][0]["oldest_ms"] > 0


def test_a_paused_queue_needs_attention(server: Server, nooble: Relevo) -> None:
    with working(nooble):
        announced(nooble, 3)
        nooble.queue("query:actions").pause()
        seen = command(server, nooble, "services")
        nooble.queue("query:actions").resume()
    assert seen.code == 1
    assert "queue 'query:actions' is paused" in seen.out
    assert table(seen, "SERVICE  ")["query"][-1] == "yes"


def test_a_service_whose_processes_are_gone_needs_attention(server: Server, nooble: Relevo) -> None:
    work(nooble)
    seen = command(server, nooble, "services", "embedding")
    assert seen.code == 1
    assert "warning: service 'embedding': no live process serves it" in seen.out
    assert "none live" in seen.out
    assert "missing: actions that are no longer served\n  make(texts: list[str]" in seen.out


def test_one_service_is_shown_with_its_actions_queues_and_instances(server: Server, nooble: Relevo) -> None:
    with working(nooble) as worker:
        announced(nooble, 3)
        seen = command(server, nooble, "services", "ingestion")
        query = command(server, nooble, "services", "query")
        report = command(server, nooble, "services", "ingestion", "--json").json
    assert seen.code == 0
    assert "\n  start(document: Document, priority: int = …) -> str\n      Takes a document in.\n" in seen.out
    assert "\n  ready(reply: Reply[list[int]]) -> None\n" in seen.out
    assert "\nwhere\n  Document(id: str, pages: list[Page] = [], parent: Document | None = None)\n" in seen.out
    assert '\n  Page(number: int, text: str = "")\n' in seen.out
    assert set(table(seen, "QUEUE  ")) == {"ingestion:actions", "ingestion:callbacks"}
    assert table(seen, "INSTANCE  ")[worker.id][1] == str(os.getpid())
    assert "subscriber" not in seen.out.lower()
    assert table(query, "SUBSCRIBER  ")["query"][:4] == ["ingestion.*", "durable", "0", "-"]
    assert [one["name"] for one in report["services"]] == ["ingestion"]


def test_action_of_a_former_process_is_listed_as_missing(server: Server, nooble: Relevo) -> None:
    with working(nooble):
        announced(nooble, 3)
        # As it stands half a minute after the last process went that knew it.
        offers = nooble.engine.keys_of("embedding:actions").key("offers")
        server.command("HSET", offers, "forget", '1 {"takes":{"type":"object"},"gives":{"type":"null"}}')
        seen = command(server, nooble, "services", "embedding")
        listed = command(server, nooble, "services")
    assert "\nmissing: actions that are no longer served\n  forget() -> None\n" in seen.out
    assert seen.out.index("actions\n  make(") < seen.out.index("missing")
    assert "MISSING" in listed.out
    assert (seen.code, listed.code) == (0, 0), "to take an action away is nothing unusual"


def test_a_name_that_no_service_has_is_not_found(server: Server, nooble: Relevo) -> None:
    nothing = command(server, nooble, "services")
    assert (nothing.code, "0 services" in nothing.out) == (1, True)
    assert "warning: there is no service under" in nothing.out
    nooble.service("web").send("query.remember", {"id": "7"}, delay="1h")
    seen = command(server, nooble, "services", "querry")
    assert (seen.code, seen.out.count("\n")) == (1, 1)
    assert "there is no service 'querry'" in seen.out and "did you mean 'query'?" in seen.out
    report = command(server, nooble, "services", "querry", "--json")
    assert (report.code, report.json["services"]) == (1, [])


def test_messages_are_counted_by_kind(server: Server, nooble: Relevo) -> None:
    web = nooble.service("web")
    web.send("query.remember", {"id": "7"}, delay="1h")
    web.send("query.remember", {"id": "8"}).cancel()
    seen = command(server, nooble, "services")
    assert table(seen, "KIND  ") == {"actions": ["2", "1", "0", "0", "0", "0", "0"]}
    tally = command(server, nooble, "services", "--json").json["tallies"]["actions"]
    assert (tally["created"], tally["living"], tally["swept"]) == (2, 1, 0)


def test_subscriptions_are_listed_with_backlog_and_lag(server: Server, bus: Relevo) -> None:
    query = bus.service("query")

    @query.on("ingestion.*", max_backlog=3)
    async def index(id: str) -> None: ...

    @query.on("ingestion.>", broadcast=True)
    async def note(id: str) -> None: ...

    with working(bus), working(bus) as second:
        eventually(lambda: len(look(bus).services) == 1 and len(look(bus).services[0].subscriptions) == 3)
        seen = command(server, bus, "services")
        report = command(server, bus, "services", "--json").json["services"][0]["subscriptions"]
    assert "3 subscriptions" in seen.out
    assert re.search(r"^query +ingestion\.> +broadcast \(2\) +0 +- ", seen.out, re.MULTILINE)
    assert re.search(r"^query +ingestion\.\* +durable +0 +- ", seen.out, re.MULTILINE)
    assert {(one["kind"], one["pattern"]) for one in report} == {
        ("durable", "ingestion.*"),
        ("broadcast", "ingestion.>"),
    }
    assert second.id in " ".join(one["queue"]["address"] for one in report)
    for _ in range(4):
        bus.service("ingestion").publish("done", {"id": "7"})
    seen = command(server, bus, "services")
    assert seen.code == 1
    assert re.search(r"^query +ingestion\.\* +durable +3 +\d+s ", seen.out, re.MULTILINE)
    assert "LOST" in seen.out
    assert "subscription 'query:notifications:ingestion.*' is full: 3 events wait in it" in seen.out
    assert "messages wait, 3 in all, and no live process serves it" in seen.out


def test_a_subscription_that_will_be_removed_is_marked(server: Server, nooble: Relevo) -> None:
    work(nooble)
    key, queue = nooble.engine.bus_keys.key("subscriptions"), "query:notifications:ingestion.*"
    text = server.command("HGET", key, queue).decode()
    assert '"warned":false' in text
    server.command("HSET", key, queue, text.replace('"warned":false', '"warned":true'))
    seen = command(server, nooble, "services", "query")
    assert seen.code == 1
    assert table(seen, "SUBSCRIBER  ")["query"][-1] == "warned"
    assert re.search(rf"subscription '{re.escape(queue)}': not served for .*; in .* it is removed", seen.out)


def test_the_catalogue_takes_as_many_calls_for_a_thousand_messages_as_for_one(nooble: Relevo) -> None:
    """And no call waits for the answer of another queue."""

    def calls() -> int:
        count, alone, answer, steps = 0, 0, None, catalogue(nooble.engine)
        try:
            while True:
                step: Any = steps.send(answer)
                if isinstance(step, Ahead):
                    made = list(step.calls)
                    count, answer = count + len(made), [nooble.engine.run(one) for one in made]
                else:
                    count, alone, answer = count + 1, alone + 1, nooble.engine.run(step)
        except StopIteration:
            assert alone <= 4, "however many queues there are"
            return count

    web = nooble.service("web")
    web.send("archive.store", {})
    one = calls()
    for n in range(100):
        web.send("archive.store", {"n": n})
    assert calls() == one
    web.send("print.page", {})
    assert calls() - one <= 5


def test_control_characters_of_a_docstring_are_escaped(server: Server, nooble: Relevo) -> None:
    work(nooble)
    seen = command(server, nooble, "services", "embedding")
    assert "\x1b" not in seen.out and "in \\x1b[31mred." in seen.out
    on_screen = on_terminal("services", "embedding", url=server.url, RELEVO_PREFIX=nooble.settings.prefix)
    assert "\x1b[31mred" not in on_screen.out


def test_watching_refreshes_a_terminal_until_it_is_interrupted(server: Server, nooble: Relevo) -> None:
    prefix = {"RELEVO_PREFIX": nooble.settings.prefix}
    with Terminal("services", "--watch", "0.1", url=server.url, columns=100, **prefix) as terminal:
        terminal.shows("there is no service")
        nooble.service("web").send("archive.store", {})
        terminal.shows("archive:actions")
        assert "\x1b[2J" in terminal.seen
        assert terminal.ends(signal.SIGINT) == 130


# AsyncAPI


def test_the_asyncapi_document_of_a_bus_is_valid(server: Server, nooble: Relevo, tmp_path: Path) -> None:
    with working(nooble):
        announced(nooble, 3)
        printed = command(server, nooble, "services", "--asyncapi")
        one = command(server, nooble, "services", "query", "--asyncapi")
        file = tmp_path / "bus.json"
        written = command(server, nooble, "services", "--asyncapi", "-o", str(file))
    assert (printed.code, written.code) == (0, 0)
    check(printed.json)
    prefix = nooble.settings.prefix
    assert printed.json["channels"]["embedding.actions"]["address"] == f"{prefix}:test:embedding:actions"
    assert {"embedding.make", "ingestion.start", "query.notifications.ingestion.any"} <= set(printed.json["operations"])
    assert json.loads(file.read_text("utf-8")) == printed.json
    assert (
        written.out
        == f"wrote {file}: {len(printed.json['channels'])} channels, {len(printed.json['operations'])} operations\n"
    )
    check(one.json)
    assert all(name.startswith("query.") for name in one.json["operations"])


def test_an_asyncapi_document_of_nothing_or_to_nowhere_is_refused(server: Server, bus: Relevo, tmp_path: Path) -> None:
    seen = command(server, bus, "services", "--asyncapi")
    assert (seen.code, seen.out) == (1, "")
    assert "nothing to describe: there is no service" in seen.err
    bus.service("web").send("archive.store", {})
    seen = command(server, bus, "services", "--asyncapi", "-o", str(tmp_path / "no" / "such.json"))
    assert (seen.code, seen.out) == (2, "")
    assert "cannot be written: No such file or directory" in seen.err


# What actions take and give


def takes(func: Callable[..., Any]) -> str:
    about = described(func)
    return signature("do", about["takes"], about["gives"]).lines(1000)[0]


def test_arguments_read_as_in_python() -> None:
    def plain(texts: list[str], size: int, flag: bool, share: float | None = None) -> dict[str, list[int]]:
        return {}

    described = "do(texts: list[str], size: int, flag: bool, share: float | None = …) -> dict[str, list[int]]"
    assert takes(plain) == described

    def rarer(
        id: UUID, mode: Literal["a", "b"], pair: tuple[int, str], raw: bytes, some: set[str], any: Any
    ) -> None: ...

    assert takes(rarer) == (
        'do(id: UUID, mode: "a" | "b", pair: tuple[int, str], raw: bytes, some: set[str], any: Any) -> None'
    )


def test_the_fields_of_a_structure_that_is_the_whole_message_are_its_arguments() -> None:
    def whole(document: Document) -> Document | None: ...

    assert takes(whole) == "do(id: str, pages: list[Page] = [], parent: Document | None = None) -> Document | None"
    about = described(whole)
    assert [shape.name for shape in structures(about["takes"], about["gives"])] == ["Page"]


def test_a_long_signature_takes_a_line_for_each_argument() -> None:
    def plain(texts: list[str], size: int) -> None: ...

    shape = signature("do", **{name: described(plain)[name] for name in ("takes", "gives")})
    assert shape.lines(30) == ["do(", "    texts: list[str],", "    size: int,", ") -> None"]


@pytest.mark.parametrize(
    "schema",
    [None, "text", [], {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}}, {"enum": []}, {"anyOf": [None]}],
)
def test_a_schema_that_is_none_is_anything(schema: Any) -> None:
    assert words(schema) in ("Any", "A")
    assert signature("do", schema, schema).lines(80)
    structures(schema, schema)


def test_a_schema_of_any_depth_is_told_in_a_few_words() -> None:
    deep: Any = {"type": "string"}
    for _ in range(500):
        deep = {"type": "array", "items": deep}
    assert words(deep) == "list[list[list[list[list[list[…]]]]]]"
    structures(deep, deep)


# Trace


def test_a_trace_shows_every_attempt_below_what_caused_it(server: Server, nooble: Relevo) -> None:
    sent = nooble.service("web").send("ingestion.start", {"document": {"id": "7"}}, tenant="acme")
    work(nooble)
    seen = command(server, nooble, "trace", sent.id)
    assert seen.code == 0, seen
    lines = [re.split("  +", line.strip()) for line in seen.out.splitlines() if line.lstrip().startswith("+")]
    assert [(line[1], line[2], line[3], line[7]) for line in lines] == [
        ("ingestion.start", "send", "web →", "✓ done"),
        ("embedding.make", "send", "ingestion →", "~ retry"),
        ("embedding.make #2", "send", "ingestion →", "✓ done"),
        ("ingestion.ready", "callback", "embedding →", "✓ done"),
        ("query on ingestion.processed", "event", "ingestion →", "✓ done"),
    ]
    indents = [line.index(name[1]) for line, name in zip(_rows(seen), lines, strict=True)]
    assert [indent - indents[0] for indent in indents] == [0, 2, 2, 4, 6]
    assert "\n            ConnectionError\n" in re.sub(" {6,}Conn", " " * 12 + "Conn", seen.out)
    assert "4 messages, handled by 3 services" in seen.out
    assert re.search(r"^tenant +acme$", seen.out, re.MULTILINE)
    assert "w1 is worker " in seen.out
    report = command(server, nooble, "trace", sent.id, "--json").json
    assert set(report) == {"id", "now_ms", "began_ms", "ended_ms", "open", "spans"}
    assert [one["depth"] for one in report["spans"]] == [0, 1, 1, 2, 3]
    assert report["open"] == 0 and report["ended_ms"] >= report["began_ms"]
    assert all(one["wait_ms"] >= 0 and one["run_ms"] >= 0 for one in report["spans"])


def _rows(seen: Output) -> list[str]:
    return [line for line in seen.out.splitlines() if line.lstrip().startswith("+")]


def test_the_id_of_any_message_leads_to_its_whole_operation(server: Server, nooble: Relevo) -> None:
    sent = nooble.service("web").send("ingestion.start", {"document": {"id": "7"}})
    work(nooble)
    whole = command(server, nooble, "trace", sent.id, "--json").json
    last = whole["spans"][-1]["id"]
    seen = command(server, nooble, "trace", last, "--json").json
    assert [one["id"] for one in seen["spans"]] == [one["id"] for one in whole["spans"]]
    assert f"\noperation  {sent.id}\n" in command(server, nooble, "trace", last).out


def test_trace_ends_with_open_messages(server: Server, nooble: Relevo) -> None:
    web = nooble.service("web")
    web.send("query.remember", {"id": "7"}, conversation="task_7")
    with working(nooble):
        eventually(lambda: nooble.dead.list())
    waiting = web.send("archive.store", {}, conversation="task_7")
    seen = command(server, nooble, "trace", "task_7")
    assert seen.code == 0
    assert seen.out.startswith("✗ task_7: 1 dead, 1 ready\n")
    assert "retries_exhausted: ValueError" in seen.out
    assert re.search(rf"\nstill open\n○ ready for [\w.]+: archive\.store {waiting.id}\n$", seen.out)
    report = command(server, nooble, "trace", "task_7", "--json").json
    assert (report["open"], report["ended_ms"]) == (1, None)
    by_id = command(server, nooble, "trace", report["spans"][0]["id"], "--json").json
    assert by_id["open"] == 1, "what lives is found by the conversation of the message"


@pytest.mark.parametrize("id", [NO_SUCH_ID, "🦊 *"])
def test_unknown_operation_is_not_found(server: Server, bus: Relevo, id: str) -> None:
    seen = command(server, bus, "trace", id)
    assert (seen.code, seen.out, seen.err.count("\n")) == (1, "", 1)
    assert "older than the newest 10,000 messages" in seen.err
    assert command(server, bus, "trace", id, "--json").json["error"] == "UnknownJob"
    off = command(server, bus, "trace", id, RELEVO_TRACE_MAX="0")
    assert (off.code, "trace_max is 0" in off.err) == (1, True)


def test_a_terminal_without_utf8_gets_letters(server: Server, nooble: Relevo) -> None:
    nooble.service("web").send("query.remember", {"id": "7"}, conversation="task_7")
    work(nooble)
    for asked in (["trace", "task_7"], ["conversation", "task_7"], ["services"], ["services", "query"]):
        seen = command(server, nooble, *asked, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert seen.out.isascii() and "\\u" not in seen.out, asked
    assert "x dead" in command(server, nooble, "trace", "task_7", PYTHONIOENCODING="ascii", PYTHONUTF8="0").out


def span(id: str, type: str = "a.do", **more: Any) -> Span:
    queue = f"{type.partition('.')[0]}:actions"
    return Span(**{"id": id, "type": type, "queue": queue, "intent": "send", "outcome": "done", **more})


def drawn(*spans: Span, now_ms: int = 1000) -> list[tuple[int, str, int, int]]:
    return [(row.depth, row.span.id, row.wait_ms, row.run_ms) for row in trace_view.rows(spans, now_ms)]


def test_parallel_messages_are_drawn_branch_by_branch() -> None:
    assert drawn(
        span("a", sent_ms=1, started_ms=1, ended_ms=9),
        span("b", sent_ms=2, started_ms=3, ended_ms=9, causation="a"),
        span("c", sent_ms=3, started_ms=4, ended_ms=9, causation="a"),
        span("d", sent_ms=5, started_ms=6, ended_ms=9, causation="b"),
        span("e", sent_ms=4, started_ms=6, ended_ms=9, causation="c"),
    ) == [(0, "a", 0, 8), (1, "b", 1, 6), (2, "d", 1, 3), (1, "c", 1, 5), (2, "e", 2, 3)]


def test_an_attempt_waits_since_the_one_before_has_ended() -> None:
    assert drawn(
        span("a", sent_ms=100, started_ms=110, ended_ms=150, outcome="retry"),
        span("a", attempt=2, sent_ms=100, started_ms=450, ended_ms=500, outcome="retry"),
        span("a", attempt=3, sent_ms=100, outcome="scheduled"),
    ) == [(0, "a", 10, 40), (0, "a", 300, 50), (0, "a", 500, 0)]


def test_messages_that_run_or_never_ran_are_drawn_with_their_times() -> None:
    """Clocks that disagree give no negative times."""
    (row,) = trace_view.rows([span("a", sent_ms=100, started_ms=300, outcome="running")], 1000)
    assert (row.wait_ms, row.run_ms, row.is_open) == (200, 700, True)
    (row,) = trace_view.rows([span("a", sent_ms=100, ended_ms=900, outcome="expired")], 1000)
    assert (row.wait_ms, row.run_ms, row.has_started, row.is_open) == (800, 0, False, False)
    assert drawn(span("a", sent_ms=500, started_ms=400, ended_ms=450)) == [(0, "a", 0, 0)]


def test_messages_of_a_subscriber_are_drawn_below_its_copy_of_the_event() -> None:
    event = {"intent": "event", "sent_ms": 1, "started_ms": 2, "ended_ms": 3}
    spans = [
        span("e", "shop.sold", queue="mail:notifications:shop.*", **event),
        span("e", "shop.sold", queue="stock:notifications:shop.*", **event),
        span("s", "archive.store", source="stock", causation="e", sent_ms=3, started_ms=3, ended_ms=4),
    ]
    rows = trace_view.rows(spans, 1000)
    assert [(row.depth, row.span.queue.partition(":")[0]) for row in rows] == [
        (0, "mail"),
        (0, "stock"),
        (1, "archive"),
    ]


def test_messages_that_cause_each_other_are_drawn_once() -> None:
    found = drawn(span("a", causation="b"), span("b", causation="a"), span("c", causation="c"))
    assert sorted(id for _, id, _, _ in found) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("times", "bar"),
    [
        ((0, 0, 100), "██████████"),
        ((0, 50, 100), "░░░░░█████"),
        ((50, 50, 50), "     █"),
        ((0, 100, 100), "░░░░░░░░░█"),
        ((99, 99, 100), "         █"),
        ((100, 100, 100), "         █"),
        ((0, 0, 0), "█"),
    ],
)
def test_bars_show_wait_and_run_on_one_scale(times: tuple[int, int, int], bar: str) -> None:
    since, start, until = times
    row = trace_view.Row(span("a", started_ms=1), 0, since, start, until)
    assert "".join(trace_view._bar(row, 0, 100, 10)) == bar


def test_long_operation_is_cut_unless_all_is_given(server: Server, bus: Relevo) -> None:
    web = bus.service("web")
    for _ in range(210):
        web.send("archive.store", {}, conversation="task_7")
    seen = command(server, bus, "trace", "task_7")
    assert len(_rows(seen)) == trace_view.ROOM
    assert "… 10 more; --all shows them" in seen.out
    assert len(_rows(command(server, bus, "trace", "task_7", "--all"))) == 210


# Screens


@pytest.mark.parametrize("columns", [80, 120])
def test_screens_fit_into_the_terminal(server: Server, nooble: Relevo, columns: int) -> None:
    def screen(*words: str) -> str:
        seen = on_terminal(*words, url=server.url, columns=columns, RELEVO_PREFIX=nooble.settings.prefix)
        assert seen.code in (0, 1)
        return seen.out

    web = nooble.service("web")
    web.send("ingestion.start", {"document": {"id": "7"}}, conversation="task_7", tenant="acme")
    web.send("query.remember", {"id": "7"}, conversation="task_7")
    with working(nooble):
        eventually(lambda: nooble.dead.list())
        announced(nooble, 3)
        screens = {"services": screen("services"), "embedding": screen("services", "embedding")}
    screens |= {"trace": screen("trace", "task_7"), "conversation": screen("conversation", "task_7")}
    for name, text in screens.items():
        assert widest(text) <= columns, f"{name}:\n{text}"
        assert "Traceback" not in text
    assert ("web →" in screens["trace"]) == (columns >= trace_view.WIDE)
    assert "\x1b[1;31m✗ dead" in screens["trace"], "what failed is red"
    assert "█" in screens["trace"]


# Task


def test_messages_of_a_task_are_shown_by_queue(server: Server, nooble: Relevo) -> None:
    web = nooble.service("web")
    web.send("query.remember", {"id": "7"}, conversation="task_7")
    with working(nooble):
        eventually(lambda: nooble.dead.list())
    web.send("query.remember", {"id": "8"}, conversation="task_7")
    web.send("archive.store", {}, conversation="task_7", on_reply="stored")
    web.send("archive.store", {}, conversation="task_8")
    seen = command(server, nooble, "conversation", "task_7")
    assert seen.code == 0
    assert seen.out.startswith("conversation task_7: 4 messages, 3 active\n")
    rows = [re.split("  +", line) for line in seen.out.split("\n\n")[1].splitlines()]
    assert rows == [
        ["KIND", "QUEUE", "ACTIVE", "INACTIVE", "STATES"],
        ["actions", "archive:actions", "1", "0", "1 ready"],
        ["actions", "query:actions", "1", "1", "1 dead, 1 ready"],
        ["callbacks", "web:callbacks", "1", "0", "1 waiting"],
    ]
    report = command(server, nooble, "conversation", "task_7", "--json").json
    assert (report["conversation"], report["active"], report["inactive"]) == ("task_7", 3, 1)
    assert report["queues"][1]["states"] == {"dead": 1, "ready": 1}
    assert {one["type"] for one in report["made"]} == {"query.remember", "archive.store", "web.stored"}


def test_task_without_messages_is_not_found(server: Server, bus: Relevo) -> None:
    seen = command(server, bus, "conversation", "task_7")
    assert (seen.code, seen.out) == (1, "")
    assert "nothing of conversation 'task_7' exists" in seen.err
    assert command(server, bus, "conversation", "task_7", "--json").json["error"] == "UnknownJob"


def test_many_messages_of_a_task_are_counted_and_the_newest_listed(server: Server, bus: Relevo) -> None:
    sent = [bus.service("web").send("archive.store", {}, conversation="task_7").id for _ in range(60)]
    seen = command(server, bus, "conversation", "task_7")
    assert "… 10 older; --all shows them" in seen.out
    assert sent[9] not in seen.out and sent[10] in seen.out and sent[-1] in seen.out
    assert sent[0] in command(server, bus, "conversation", "task_7", "--all").out


# Cleanup


@pytest.fixture
def left(nooble: Relevo) -> Relevo:
    """Of task_7: a dead letter, a result, and a message that waits."""
    web = nooble.service("web")

    @nooble.service("query").action("kept", result_ttl=600)
    async def kept() -> int:
        return 1

    web.send("query.remember", {"id": "7"}, conversation="task_7")
    web.send("query.kept", {}, conversation="task_7")
    with working(nooble):
        eventually(lambda: len(nooble.dead.list()) == 1 and nooble.queue("query:actions").stats().done == 1)
    web.send("archive.store", {}, conversation="task_7")
    return nooble


def test_cleanup_reports_what_it_removed_and_why_it_left_the_rest(server: Server, left: Relevo) -> None:
    observed = command(server, left, "cleanup", "task_7", "--dry-run")
    assert (observed.code, observed.out.splitlines()[0]) == (1, "conversation task_7: 1 would be removed")
    assert left.queue("query:actions").stats().done == 1
    seen = command(server, left, "cleanup", "task_7")
    assert (seen.code, seen.out.splitlines()[:3]) == (
        1,
        [
            "conversation task_7: 1 removed",
            "left: 1 message in use; what waits or runs is never touched",
            "left: 1 dead letter; --dead removes them, too",
        ],
    )
    assert table(seen, "QUEUE  ") == {"archive:actions": ["0", "1", "0"], "query:actions": ["1", "0", "1"]}
    assert left.queue("query:actions").stats().done == 0
    report = command(server, left, "cleanup", "task_7", "--dead", "--json")
    assert (report.code, report.json["removed"], report.json["living"], report.json["dead"]) == (1, 1, 1, 0)
    assert report.json["queues"]["query:actions"] == {"removed": 1, "living": 0, "dead": 0}
    assert not left.dead.list()


def test_cleanup_of_a_task_without_messages_is_fine(server: Server, left: Relevo) -> None:
    left.queue("archive:actions").clear()
    assert command(server, left, "cleanup", "task_7", "--dead").code == 0
    seen = command(server, left, "cleanup", "task_7")
    assert (seen.code, seen.out) == (0, "conversation task_7: 0 removed\nnothing is left of it\n")


def last_used(app: Relevo, *queues: str, days: int) -> None:
    """Make the last use of these queues so many days old."""
    then_ms = app.engine.run(app.engine.now_ms()) - days * 86_400_000
    app.engine.run(register(app.engine.bus_keys.key("queues"), queues))
    for queue in queues:
        app.engine.run(Call(["ZADD", app.engine.bus_keys.key("queues"), then_ms, queue]))


def test_orphans_are_shown_first_and_removed_when_asked(server: Server, bus: Relevo) -> None:
    asked = ["cleanup", "--orphans"]
    last_used(bus, "new:actions", days=0)
    assert command(server, bus, *asked).out == "no orphans\n"
    last_used(bus, "old:actions", "older:actions", days=2)
    seen = command(server, bus, *asked)
    assert (seen.code, seen.out.splitlines()[-1]) == (0, "2 orphans would be removed: say --yes")
    assert "old:actions" in bus.engine.run(known_queues(bus.engine))
    report = command(server, bus, *asked, "--dry-run", "--json").json
    assert (report["dry_run"], report["count"], report["skipped"]) == (True, 2, [])
    assert {one["name"] for one in report["purged"]} == {"old:actions", "older:actions"}
    seen = command(server, bus, *asked, "--yes")
    assert (seen.code, seen.out.splitlines()[-1]) == (0, "removed 2 orphans")
    assert bus.engine.run(known_queues(bus.engine)) == ["new:actions"]


def test_an_orphan_with_messages_is_kept_and_needs_attention(server: Server, bus: Relevo) -> None:
    bus.service("web").send("archive.store", {})
    last_used(bus, "archive:actions", days=2)
    seen = command(server, bus, "cleanup", "--orphans", "--yes")
    assert seen.code == 1
    assert "kept: 1 messages are in it" in seen.out
    assert seen.out.splitlines()[-1] == "removed 0 orphans"


def test_only_one_sweep_runs_at_a_time(server: Server, bus: Relevo) -> None:
    server.command("SET", bus.engine.bus_keys.key("leader"), "another", "PX", 30_000)
    seen = command(server, bus, "cleanup", "--orphans", "--yes")
    assert (seen.code, "another process is sweeping" in seen.out) == (1, True)
    assert command(server, bus, "cleanup", "--orphans").code == 0, "a list without --yes takes no lock"


# Other commands, which meet queues of the bus


def test_messages_are_shown_retried_and_discarded_as_jobs_are(server: Server, nooble: Relevo) -> None:
    sent = nooble.service("web").send("query.remember", {"id": "7"})
    work(nooble)
    seen = command(server, nooble, "job", sent.id, "--name", "any", "--queue", "query:actions")
    assert (seen.code, "is dead: retries_exhausted" in seen.out) == (0, True)
    assert command(server, nooble, "job", sent.id, "--name", "any", "--json").json["queue"] == "query:actions"
    listed = command(server, nooble, "dead", "list", "--name", "any", "--queue", "query:actions", "--json")
    assert [one["id"] for one in listed.json["items"]] == [sent.id]
    wrong = command(server, nooble, "dead", "list", "--name", "any", "--queue", "query:action")
    assert (wrong.code, "did you mean 'query:actions'?" in wrong.err) == (2, True)
    assert command(server, nooble, "dead", "retry", sent.id, "--name", "any").code == 0
    work(nooble)
    twice = command(server, nooble, "trace", sent.id, "--json").json
    assert [one["outcome"] for one in twice["spans"]] == ["dead", "dead"], "it was handled twice"
    assert command(server, nooble, "dead", "discard", sent.id, "--name", "any").code == 0
