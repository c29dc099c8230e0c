"""Arguments without a dash: the app on every command alike, and the short forms that leave out the action."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.audit.trail import Asked
from relevo.cli import main
from relevo.cli.words import with_action
from relevo.dead.wanted import Filters
from relevo.dead.web.letters import Which
from relevo.queues.web import AnyJobs
from relevo.web.overview import Newest
from tests.servers import Server
from tests.system.shell import Output, relevo

ID = "01k9q4w2zhq3mf7d0a2f"
SHOP = """
from relevo import Relevo
app = Relevo({name!r})


@app.task(name="shop.charge")
def charge(invoice):
    pass
"""


def parsed(text: str) -> argparse.Namespace:
    return main._parse(text.split())


def parsers(parser: argparse.ArgumentParser, *words: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    choices = [one.choices for one in parser._actions if isinstance(one, argparse._SubParsersAction)]
    if not choices:
        yield " ".join(words), parser
    for word, one in choices[0].items() if choices else ():
        yield from parsers(one, *words, word)


@pytest.fixture(autouse=True)
def no_app_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELEVO_APP", raising=False)


def test_every_command_of_an_app_takes_it_in_both_ways() -> None:
    main.build_parser(parser := argparse.ArgumentParser())
    for words, one in parsers(parser):
        ways = {option for action in one._actions for option in (*action.option_strings, action.dest)}
        without = words in ("demo", "completion") or words.startswith("server")
        assert ({"-A", "module_app"} <= ways) is not without, words
        if not without:
            names = ["x"] * sum(nargs in (None, "+") for _, nargs in one.get_default("names"))
            needed = ["--args", "[]"] if words == "dead edit" else []
            for given in ([*names, "-A", "shop:app", *needed], ["shop:app", *names, *needed]):
                args = main._parse([*words.split(), *given])
                is_bus = not args.needs_app and given[0] == "shop:app" and words in ("services", "cleanup")
                assert args.app == ("shop:app" if not is_bus else None), (words, given)


@pytest.mark.parametrize(
    ("text", "app", "names"),
    [
        ("worker shop:app", "shop:app", {}),
        ("worker shop.jobs", "shop.jobs", {}),
        ("status shop:app", "shop:app", {}),
        ("-A shop:app status", "shop:app", {}),
        ("--app=shop:app status", "shop:app", {}),
        ("pause shop:app mail", "shop:app", {"queue": "mail"}),
        ("pause mail -A shop:app", "shop:app", {"queue": "mail"}),
        ("pause shop:app --task shop.charge", "shop:app", {"queue": None, "task": "shop.charge"}),
        ("pause billing:actions --name shop", None, {"queue": "billing:actions"}),
        ("limit shop:app mail --rate 1/s", "shop:app", {"queue": "mail"}),
        (f"job show shop:app {ID} --logs", "shop:app", {"id": ID}),
        (f"job show shop:app --queue mail {ID}", "shop:app", {"id": ID, "queue": "mail"}),
        (f"dead retry shop:app {ID} {ID}", "shop:app", {"ids": [ID, ID]}),
        (f"dead retry {ID} --name shop {ID}", None, {"ids": [ID, ID]}),
        ("dead retry shop:app --all", "shop:app", {"ids": []}),
        ("schedules pause shop:app a b", "shop:app", {"schedules": ["a", "b"]}),
        ("schedules pause a b --name shop", None, {"schedules": ["a", "b"]}),
        ("services embedding:tenant", None, {"service": "embedding:tenant"}),
        ("services shop:app embedding:tenant", "shop:app", {"service": "embedding:tenant"}),
        ("trace chat:7", None, {"id": "chat:7"}),
        ("trace shop:app chat:7", "shop:app", {"id": "chat:7"}),
    ],
)
def test_first_word_is_the_app_where_it_has_its_form(text: str, app: str | None, names: dict[str, object]) -> None:
    args = parsed(text)
    assert args.app == app
    assert {name: getattr(args, name) for name in names} == names


def test_queue_of_a_service_is_no_app_where_the_environment_names_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RELEVO_APP", "shop:app")
    assert (parsed("pause billing:actions").app, parsed("pause billing:actions").queue) == (None, "billing:actions")
    assert (parsed("pause shop:other mail").app, parsed("pause shop:other mail").queue) == ("shop:other", "mail")
    assert parsed("status shop:other").app == "shop:other"
    assert parsed("queue billing:actions").action == "show"


@pytest.mark.parametrize(
    ("short", "whole"),
    [
        ("job", "job list"),
        (f"job {ID} --logs", f"job show {ID} --logs"),
        ("job -A shop:app", "job list -A shop:app"),
        ("job shop:app", "job list shop:app"),
        (f"job shop:app {ID}", f"job show shop:app {ID}"),
        ("job --help", "job --help"),
        ("queue mail --name shop", "queue show mail --name shop"),
        ("queue billing:actions --name shop", "queue show billing:actions --name shop"),
        ("queue list", "queue list"),
        ("schedules", "schedules list"),
        ("schedules nightly", "schedules show nightly"),
        ("schedules --name shop -- nightly", "schedules show --name shop -- nightly"),
        (f"workflow {ID} --watch", f"workflow show {ID} --watch"),
        (f"dead {ID}", f"dead show {ID}"),
        ("server start", "server start"),
        ("queue cleanup", "queue show cleanup"),
        ("job canel", "job canel"),
    ],
)
def test_action_that_is_left_out_is_list_or_show(short: str, whole: str) -> None:
    words = short.split()
    assert with_action(words, getattr(main.load(words[0]), "ACTIONS", ())) == whole.split()


def test_filters_have_the_same_names_everywhere() -> None:
    """For dead letters and for the audit trail: on the command line, over HTTP and in Python."""
    main.build_parser(parser := argparse.ArgumentParser())
    commands = dict(parsers(parser))

    def options(words: str) -> set[str]:
        return {action.dest for action in commands[words]._actions}

    filters = set(Filters.__annotations__)
    assert set(Which.__struct_fields__) == filters
    for action in ("list", "retry", "discard", "restore", "export"):
        assert options(f"dead {action}") >= filters, action
    assert {*AnyJobs.__struct_fields__} == options("job list") & {*AnyJobs.__struct_fields__}
    asked = {name if name != "app" else "of_app" for name in Asked.__annotations__}  # --app is the app of the command
    assert options("audit") >= asked and {*Newest.__struct_fields__} >= set(Asked.__annotations__)


def test_app_is_imported_wherever_it_is_named(server: Server, app: Relevo, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP.format(name=app.name))
    job = app.task(name="shop.charge")(lambda invoice: None).enqueue(1)

    def shop(*words: str) -> Output:
        return relevo(*words, url=server.url, cwd=tmp_path)

    assert shop("status", "shop:app", "--json").json["queues"][0]["ready"] == 1
    assert shop("-A", "shop:app", "status", "--json").json["queues"][0]["ready"] == 1
    assert shop("job", "shop:app", "--json").json["items"][0]["id"] == job.id
    assert shop("job", "shop:app", job.id, "--json").json["id"] == job.id
    assert shop("queue", "shop:app", "default").code == 0
    assert shop("pause", "shop:app", "default").out == "paused queue default\n"
    assert shop("worker", "-A", "shop:app", "--burst").code == 0
    assert shop("pause", "shop:app", "--name", app.name).code == 2


def test_jobs_are_listed_by_state_and_queue_in_pages(server: Server, app: Relevo) -> None:
    task = app.task(name="shop.charge")(lambda: None)
    ready = [task.enqueue().id for _ in range(3)]
    mails = task.using(queue="mails").enqueue().id
    late = task.using(delay="1h").enqueue().id
    (running,) = [lease.id for lease in app.queue("mails").take(1)]

    def listed(*words: str) -> Output:
        seen = relevo("job", "list", "--name", app.name, *words, url=server.url)
        assert seen.code == 0, seen.err
        return seen

    def ids(*words: str) -> list[str]:
        return [row["id"] for row in listed(*words, "--json").json["items"]]

    assert running == mails
    assert ids() == [mails, *ready, late]
    assert ids("--queue", "mails") == [mails]
    assert ids("--state", "scheduled") == [late]
    assert ids("--state", "done") == []
    seen, after = [], ""
    while after is not None:
        page = listed("--limit", "2", "--json", *(("--after", after) if after else ())).json
        seen += [row["id"] for row in page["items"]]
        after = page["next"]
    assert seen == [mails, *ready, late]
    shown = relevo("job", "--name", app.name, "--limit", "2", url=server.url)
    assert [line.split()[:3] for line in shown.out.splitlines()[1:]] == [
        [mails, "shop.charge", "running"],
        [ready[0], "shop.charge", "ready"],
    ]
    assert "there may be more: --after ready-" in shown.err
    assert ids("--task", "shop.charge", "--state", "ready") == ready
    assert ids("--text", "CHARGE", "--limit", "1") == [mails]
    assert ids("--tag", "import") == []
    wrong = relevo("job", "list", "--name", app.name, "--task", "charge", url=server.url)
    assert (wrong.code, "did you mean 'shop.charge'?" in wrong.err) == (2, True)
    wrong = relevo("job", "list", "--name", app.name, "--queue", "mial", url=server.url)
    assert (wrong.code, "did you mean 'mails'?" in wrong.err) == (2, True)


def test_queues_are_listed_in_pages_and_cleared(server: Server, app: Relevo) -> None:
    task = app.task(name="shop.charge")(lambda: None)
    for name in ("a", "b", "c"):
        task.using(queue=name).enqueue()

    def queue(*words: str) -> Output:
        return relevo("queue", *words, "--name", app.name, url=server.url)

    page = queue("list", "--limit", "2", "--json").json
    assert ([row["name"] for row in page["items"]], page["next"]) == (["a", "b"], "b")
    page = queue("list", "--limit", "2", "--after", "b", "--json").json
    assert ([row["name"] for row in page["items"]], page["next"]) == (["c"], None)
    assert [line.split()[:3] for line in queue().out.splitlines()] == [
        ["QUEUE", "RUNNING", "READY"], ["a", "0", "1"], ["b", "0", "1"], ["c", "0", "1"],
    ]  # fmt: skip
    assert queue("pause", "a", "--reason", "new prices").out == "paused queue a\n"
    assert queue("limit", "b", "--concurrency", "2").out == "limited queue b\n"
    assert queue("limits", "b", "--json").json["items"][0]["concurrency"] == 2
    assert queue("resume", "a").out == "resumed queue a\n"
    assert queue("clear", "c").out == "1 job would be removed: say --yes\n"
    assert queue("clear", "c", "--yes").out == "removed 1 job\n"
    assert queue("clear", "c", "--yes", "--json").json == {"queue": "c", "removed": 0, "dry_run": False}
    assert queue("clear", "d").code == 2
