"""The documents are checked: their examples run and print what they show, their tables agree with the code.

A Python block is run if `<!-- test -->` stands before it, with a worker on its app; `<!-- test: no worker -->` runs it
without one, and `<!-- test: shop.py -->` as a script of that name beside a worker; a shell block after
`<!-- test: curl -->` is run beside that worker and `relevo web`. If the next block
follows `<!-- output -->`, the example must print exactly that; what its tasks print is the worker's and does not count.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
from tools.internals import layers_page

from relevo import Backoff, Failure, JobInfo, Priority, State, errors
from relevo.cli import worker as worker_command
from relevo.cli.main import COMMANDS, build_parser
from relevo.engine import options
from relevo.health.thresholds import Limits, limits_of, read_limits
from relevo.queues.queue import JobRow
from relevo.settings import Settings
from relevo.store import server_verdicts as checks
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.process.web import web
from tests.servers import Server
from tests.system.shell import command, environment, importing_from
from tests.working import working

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = [path for folder in ("src", "tests", "deploy") for path in (ROOT / folder).rglob("*.*")]
FOLDERS = {folder for path in SOURCES for folder in path.relative_to(ROOT).parts[:-1]}

_EXAMPLE = re.compile(r"<!-- test(?:: (?P<how>[^>]+?))? -->\n```python\n(?P<code>.*?)^```", re.DOTALL | re.MULTILINE)
_OUTPUT = re.compile(r"<!-- output -->\n```text\n(?P<text>.*?)^```", re.DOTALL | re.MULTILINE)


class Example(NamedTuple):
    """A block of a page that is run."""

    page: Path
    line: int
    how: str
    code: str
    output: str | None

    @property
    def label(self) -> str:
        return f"{self.page.name}:{self.line}"


def examples(page: Path) -> Iterator[Example]:
    text = page.read_text("utf-8")
    found = list(_EXAMPLE.finditer(text))
    starts = [one.start() for one in found] + [len(text)]
    for one, end in zip(found, starts[1:], strict=True):
        shown = _OUTPUT.search(text, one.end(), end)
        line = text.count("\n", 0, one.start("code")) + 1
        yield Example(page, line, one["how"] or "worker", one["code"], shown["text"] if shown else None)


EXAMPLES = [one for page in PAGES for one in examples(page)]


def section(page: str, heading: str) -> str:
    text = (ROOT / page).read_text("utf-8")
    start = text.index(f"\n## {heading}\n")
    end = text.find("\n## ", start + 4)
    return text[start : end if end > 0 else len(text)]


def rows(text: str) -> list[list[str]]:
    """The cells of all tables, headers left out."""
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines]
    heads = {index - 1 for index, line in enumerate(lines) if set(line) <= set("-|")}
    return [row for index, row in enumerate(cells) if index not in heads and index - 1 not in heads]


def code(cell: str) -> str:
    """What stands in the first backticks."""
    found = re.search("`([^`]+)`", cell)
    return found[1] if found else ""


# Examples


class OwnOutput(io.StringIO):
    """What the example itself prints: not what its tasks print, in threads of the worker."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.current_thread()

    def write(self, text: str) -> int:
        return super().write(text) if threading.current_thread() is self._thread else len(text)


def is_definition(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return isinstance(statement.value, ast.Call) and ast.unparse(statement.value.func) in ("Relevo", "ContextVar")
    return isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


def run(example: Example) -> None:
    """Run it as module `shop`; the worker starts when everything is defined that the page defines first."""
    body = ast.parse("\n" * (example.line - 1) + example.code).body
    start = next((index for index, one in enumerate(body) if not is_definition(one)), len(body))
    space: dict[str, Any] = {"__name__": "shop"}

    def perform(part: list[ast.stmt]) -> None:
        exec(compile(ast.Module(part, []), str(example.page), "exec", dont_inherit=True), space)

    perform(body[:start])
    has_worker = example.how == "worker" and "app" in space
    try:
        with working(space["app"]) if has_worker else nullcontext():
            perform(body[start:])
    finally:
        if "app" in space:
            space["app"].close()


@pytest.fixture
def surroundings(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The test's server under a prefix of its own, which must be left clean."""
    prefix = f"docs{uuid4().hex[:12]}"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELEVO_URL", server.url)
    for name, value in PATIENT.items():
        monkeypatch.setenv(f"RELEVO_{name.upper()}", value)
    monkeypatch.setenv("RELEVO_PREFIX", prefix)
    yield prefix
    left = leaks(server, prefix)
    remove(server, prefix)
    assert not left, f"without an end: {left}"


@pytest.mark.parametrize("example", [one for one in EXAMPLES if not one.how.endswith(".py")], ids=lambda one: one.label)
def test_example_prints_what_the_page_shows(
    example: Example, surroundings: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert example.how in ("worker", "no worker"), f"{example.label}: unknown way to run it: {example.how}"
    monkeypatch.setattr(sys, "stdout", printed := OwnOutput())
    run(example)
    if example.output is not None:
        assert printed.getvalue() == example.output


SCRIPTS = [one for one in EXAMPLES if one.how.endswith(".py")]


@pytest.mark.parametrize("example", SCRIPTS, ids=lambda one: one.label)
def test_script_prints_what_the_page_shows_beside_a_worker(
    example: Example, surroundings: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first script has a worker as the page starts it; the others have one in this process, which is faster."""
    monkeypatch.setenv("RELEVO_ENV", "test")
    (tmp_path / example.how).write_text(example.code)
    name = Path(example.how).stem
    variables = environment(server.url, RELEVO_PREFIX=surroundings)
    if example is SCRIPTS[0] or "opentelemetry" in example.code:  # which is set up once per process
        log = tmp_path / "worker.log"
        with log.open("w") as file:
            worker = subprocess.Popen(command("worker", f"{name}:app"), env=variables, cwd=tmp_path, stderr=file)
        try:
            eventually(lambda: "relevo.worker: worker " in log.read_text(), what="the worker's first log line")
            done = script(example, variables, tmp_path)
        finally:
            worker.terminate()
            assert worker.wait(PATIENCE) == 0
    else:
        with importing_from(tmp_path):
            app = importlib.import_module(name).app
            with working(app):
                done = script(example, variables, tmp_path)
            app.close()
    assert (done.stdout, done.stderr) == (example.output, "")


def test_first_project_of_the_readme_runs(surroundings: str, server: Server, tmp_path: Path) -> None:
    text = section("README.md", "Your first project")
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for path, content in files:
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    variables = environment(server.url, RELEVO_PREFIX=surroundings)
    log = tmp_path / "worker.log"
    with log.open("w") as file:
        worker = subprocess.Popen(command("worker", "shop.jobs:app"), env=variables, cwd=tmp_path, stderr=file)
    try:
        words = [sys.executable, files[-1][0]]
        done = subprocess.run(words, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE)
    finally:
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
    shown = _OUTPUT.search(text)
    assert shown and (done.stdout, done.stderr) == (shown["text"], "")
    listed = [line.partition("relevo.worker: ")[2] for line in log.read_text().splitlines()[:3]]
    assert all(f"relevo.worker: {line}\n" in text for line in listed[1:])
    first = r"worker \w+: app shop \(shop.jobs:app\) in \w+, settings from \S+relevo.toml, server .*"
    assert re.fullmatch(first, listed[0])


def script(example: Example, variables: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, example.how]
    return subprocess.run(words, env=variables, cwd=folder, capture_output=True, text=True, timeout=PATIENCE)


def test_requests_of_a_producer_are_answered_as_the_page_shows(
    surroundings: str, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a token, and no way to the server."""
    monkeypatch.setenv("RELEVO_ENV", "test")
    page = ROOT / "docs/http-api.md"
    (app_of_page,) = [one for one in examples(page) if one.how == "shop.py"]
    text = page.read_text("utf-8")
    asked = re.search(r"<!-- test: curl -->\n```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    shown = _OUTPUT.search(text, asked.end()) if asked else None
    assert asked and shown
    (tmp_path / "shop.py").write_text(app_of_page.code)
    secret = "0123456789abcdef"
    with (
        importing_from(tmp_path),
        working(importlib.import_module("shop").app),
        web(
            tmp_path,
            "shop:app",
            url=server.url,
            RELEVO_PREFIX=surroundings,
            RELEVO_WEB_TOKENS=f"producer shop.*:web:{secret}",
        ) as here,
    ):
        done = subprocess.run(
            ["sh", "-e", "-c", asked[1]],
            env={"PATH": os.environ["PATH"], "api": f"{here.url}/api/v1", "SECRET": secret},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
    expected = re.escape(shown["text"]).replace("1m7r…", "[0-9a-z]{20}")
    assert re.fullmatch(expected, done.stdout), (done.stdout, done.stderr)


def test_pages_have_examples_that_run() -> None:
    """Else a changed marker would leave nothing to test."""
    pages = {f"{name}.md" for name in ["README", "errors", "health", "jobs", "queues", "settings", "tasks", "workers"]}
    assert {one.page.name for one in EXAMPLES} >= pages


# Tables


def test_every_setting_is_documented_with_its_true_default() -> None:
    documented = {code(row[0]): code(row[1]) for row in rows((ROOT / "docs/settings.md").read_text("utf-8"))}
    true = Settings()
    assert set(documented) == set(Settings.__struct_fields__)
    for name, default in documented.items():
        assert getattr(Settings(**{name: ast.literal_eval(default)}), name) == getattr(true, name), name


def test_every_option_is_documented_with_its_true_default_and_place() -> None:
    table = {code(row[0]): row for row in rows(section("docs/tasks.md", "Options"))}
    true = options.Options()
    assert set(table) == set(options._READERS)
    for name, (_, default, place, *meaning) in table.items():
        value = eval(code(default), {"Backoff": Backoff, "Priority": Priority})
        if name == "eta":  # takes no None: leaving it out is the way not to give it
            assert value is None and true.eta_ms is None
        else:
            assert options.changed(true, {name: value}) == true, name
        assert place == ("task" if name in options.TASK_ONLY else "job" if name in options.ONE_JOB_ONLY else "both")
        assert " ".join(meaning), name
    for alias, name in options.ALIASES.items():
        assert f"alias `{alias}`" in table[name][-1]


def test_every_field_of_a_jobs_info_and_rows_is_documented() -> None:
    table = rows(section("docs/jobs.md", "Waiting for a result"))
    fields = {name: row[2] for row in table if len(row) == 3 for name in re.findall(r"`(\w+)`", row[0])}
    assert set(fields) == {*JobInfo.__struct_fields__, "error"}
    not_in_rows = {name for name in JobInfo.__struct_fields__ if name not in JobRow.__struct_fields__}
    assert not_in_rows - {"queue", "tags", "started_ms"} == {name for name, rows in fields.items() if rows != "yes"}


def test_every_field_of_a_failure_is_documented() -> None:
    text = section("docs/tasks.md", "Verdicts").partition("Its `Failure` has")[2]
    assert set(re.findall(r"`(\w+)`", text.partition("\n\n")[0])) == set(Failure.__struct_fields__)


def test_layers_are_drawn_as_they_are_checked() -> None:
    checked = layers_page().split("```")[1].splitlines()[1:]
    drawn = section("ARCHITECTURE.md", "Layers").split("```")[1].splitlines()[1:]
    assert [re.split("  +", line)[0] for line in drawn] == checked


def test_every_feature_has_a_row_with_its_folder() -> None:
    (line,) = [one for one in layers_page().splitlines() if one.startswith("metrics | ")]
    folders = {code(row[1]).rstrip("/") for row in rows(section("ARCHITECTURE.md", "One feature, one folder"))}
    assert folders >= set(line.split(" | "))


def test_every_error_is_documented() -> None:
    text = (ROOT / "docs/errors.md").read_text("utf-8")
    true = {name for name, one in vars(errors).items() if inspect.isclass(one) and issubclass(one, errors.RelevoError)}
    assert {code(row[0]) for row in rows(text)} == true - {"RelevoError"}
    assert set(re.findall(r"(?:── |^)(\w+)", text[: text.index("| error |")], re.MULTILINE)) >= true


def test_every_state_is_documented() -> None:
    documented = {code(row[0]) for row in rows(section("docs/glossary.md", "States"))}
    assert documented == {state.value for state in State}


def test_every_option_of_the_worker_command_is_documented() -> None:
    parser = argparse.ArgumentParser()
    worker_command.add(subparsers := parser.add_subparsers())
    actions = subparsers.choices["worker"]._actions
    true = {action.option_strings[-1] if action.option_strings else action.metavar for action in actions} - {"--help"}
    table = rows((ROOT / "docs/workers.md").read_text("utf-8").partition("Exit codes")[0])
    assert {re.findall("`([^`]+)`", row[0])[-1] for row in table} == true


def test_every_option_of_every_command_is_documented() -> None:
    build_parser(parser := argparse.ArgumentParser())
    pages = {"worker": (ROOT / "docs/workers.md").read_text("utf-8")}
    for part in (ROOT / "docs/commands.md").read_text("utf-8").split("\n## ")[1:]:
        heading, _, text = part.partition("\n")
        pages |= {name: text for name in re.findall(r"relevo (\w+)", heading) if name not in pages}
    assert set(pages) == set(COMMANDS)
    for name, one in _commands(parser):
        documented = set(re.findall(r"(?<!-)--?[a-z][a-z-]*", pages[name]))
        for action in one._actions:  # what all of them have is documented at the top of the page
            if action.option_strings and action.dest not in ("help", "json", "app", "name", "env", "url"):
                assert documented & set(action.option_strings), f"relevo {name}: {action.option_strings}"


def _commands(parser: argparse.ArgumentParser, name: str = "") -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, one in action.choices.items():
                yield name or word, one
                yield from _commands(one, name or word)


def test_every_limit_of_health_is_documented_with_its_true_default() -> None:
    documented: dict[str, object] = {}
    for row in rows(section("docs/health.md", "Limits")):
        defaults = [ast.literal_eval(text) for text in re.findall("`([^`]+)`", row[1])]
        documented |= dict(zip(re.findall("`([^`]+)`", row[0]), defaults, strict=True))
    assert limits_of(read_limits("health_limits", documented), "") == Limits()
    assert set(documented) == set(Limits.__struct_fields__)


def test_every_check_of_doctor_is_documented() -> None:
    documented = {name for row in rows(section("docs/server.md", "Doctor")) for name in row[0].split(", ")}
    assert documented == {check.__name__ for check in checks.CHECKS}


# Links


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


def anchors(page: Path) -> set[str]:
    """Anchors of headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_tests_that_are_named_exist(page: Path) -> None:
    text = page.read_text("utf-8")
    for name, test in re.findall(r"`((?:[\w.-]+/)+[\w.-]+\.(?:py|lua|acl|conf|toml|service))(?:::(\w+))?`", text):
        if name.partition("/")[0] not in FOLDERS:
            continue  # of another program
        found = [path for path in SOURCES if str(path).endswith("/" + name)]
        assert found, f"{page.name}: {name}"
        if test:
            assert f"def {test}(" in found[0].read_text("utf-8"), f"{page.name}: {name}::{test}"
