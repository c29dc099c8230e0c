"""The site of examples/ifdb: the demonstration prints what its page shows, and the site is used as visitors use it."""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.error import URLError
from uuid import uuid4

import pytest
from playwright.sync_api import Page

from tests.browser import RealBrowser
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server
from tests.system.shell import environment
from tests.system.shown import Shown, demonstrated, without_time

FAULTS = "from games.models import GameURL; print(*GameURL.objects.values_list('fault', flat=True))"
FOLDER = Path(__file__).parents[2] / "examples" / "ifdb"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("ifdb")
    with demonstrated(FOLDER, place, IFDB_VAR=str(place / "var"), REDIS_URL="") as found:
        yield found


class TestDemonstration:
    def test_it_ends_by_itself_and_well(self, shown: Shown) -> None:
        assert (shown.code, shown.err) == (0, "")

    def test_a_game_of_several_sources_is_one_and_a_lost_file_is_marked_broken(self, shown: Shown) -> None:
        shown.at(r"clock FetchFeeds every 30 minutes")
        shown.at(r"clock ImportGames every 6 hours")
        imported = shown.at("task 5 new games, 0 new URLs")
        dead = shown.at(r"worker CloneFile is dead \(retries_exhausted\): .*HTTP Error 404: Not Found", imported)
        shown.at("visitor sees Lost Pages B. Reader broken", shown.at(r"worker on_failure is done in .* s", dead))
        assert sum("again in" in line for line in shown.lines) == 3
        shown.at("visitor sees The Lighthouse A. Lamp ok ok")
        shown.at(r"discord \[\"New: The Lighthouse, Last Train, Lost Pages, Winter, Cat on a Roof\"\]")

    def test_failed_tasks_run_again_when_what_they_lacked_is_back(self, shown: Shown) -> None:
        back = shown.at("source /files/lost.qst is back")
        shown.at(r"worker CloneFile \(CloneUrl\(4\)\) is done in .* s", back)
        shown.at("visitor sees Lost Pages B. Reader ok", back)

    def test_the_page_shows_what_is_printed(self, shown: Shown) -> None:
        """Times are those of another run, and so is the order of what happens side by side."""

        def plain(lines: list[str]) -> list[str]:
            return sorted(re.sub(r"in \d+\.\d+ s", "…", line) for line in lines)

        page = (FOLDER / "README.md").read_text("utf-8")
        printed = page.partition("$ python examples/ifdb/demo.py\n")[2].partition("```")[0].splitlines()
        assert plain([without_time(line) for line in printed]) == plain(shown.lines)


def test_one_command_runs_the_site_until_it_is_told_to_end(server: Server, tmp_path: Path) -> None:
    prefix = f"t{uuid4().hex[:12]}"
    variables = environment(server.url, REDIS_URL=server.url, IFDB_VAR=str(tmp_path), IFDB_PREFIX=prefix)
    command = [sys.executable, "-u", str(FOLDER / "run.py"), "0", "0"]
    running = subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        pattern = r"The site: (\S+) +the admin: (\S+) "
        site, admin = next(found.groups() for line in running.stdout if (found := re.search(pattern, line)))
        for address, text in ((site, "No games yet."), (admin, "Log in")):
            with urllib.request.urlopen(address, timeout=60) as answer:
                assert text in answer.read().decode()
        running.send_signal(signal.SIGTERM)
        output, _ = running.communicate(timeout=PATIENCE)
        assert (running.returncode, output.splitlines()[-1]) == (0, "ended")
        with pytest.raises(URLError):
            urllib.request.urlopen(site, timeout=60)
    finally:
        running.kill()
        remove(server, prefix)


def module(name: str) -> ModuleType:
    """A module of the example, without its folder on the path."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    found = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


class Used:
    """The site while it runs, and one visitor."""

    def __init__(self, site: Any, visitor: Any) -> None:
        self.site = site
        self.visitor = visitor

    def adds(self, url: str, title: str) -> None:
        """The visitor adds a game."""
        assert title in self.visitor.page("/game/add/", title=title, author="", url=url)

    def row(self, title: str) -> str:
        """What the list of games says of one."""
        return next((row for row in self.visitor.page("/") if row.startswith(title)), "")


@pytest.fixture(scope="module")
def used(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Used]:
    prefix = f"t{uuid4().hex[:12]}"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "IFDB_VAR": str(tmp_path_factory.mktemp("site")),
            "IFDB_PREFIX": prefix,
            "IFDB_RETRY_AFTER": "10ms",
            "REDIS_URL": server.url,
            "PYTHONPATH": str(FOLDER.parents[1] / "src"),
        }.items():
            patch.setenv(name, value)
        run, demo = module("run"), module("demo")
        with run.running() as site:
            yield Used(site, demo.Visitor(site.web))
        left = [one for one in leaks(server, prefix) if "ImportGames" not in one and "FetchFeeds" not in one]
        remove(server, prefix)
        assert not left, f"without an end: {left}"
    del sys.modules["run"], sys.modules["demo"]


class TestVisitors:
    def test_file_of_a_visitor_is_cloned_recoded_and_played(self, used: Used) -> None:
        used.adds(f"{used.site.sources}/files/station.zip", "Night Train")
        eventually(lambda: "ok" in used.row("Night Train"), what="its file")
        page = eventually(lambda: [one for one in used.visitor.page("/game/1/") if "Play" in one], what="the quest")
        assert "station.zip ok Play" in page[0]
        assert used.visitor.page("/play/1/")[2] == "2 locations, from utf-8"

    @pytest.mark.parametrize(
        ("path", "fault"),
        [
            ("ftp://127.0.0.1/x.qst", "not an address of the web"),
            ("http://127.0.0.1:1/x.qst", "Connection refused"),
            ("{sources}/files/nothing.zip", "HTTP Error 404"),
        ],
    )
    def test_what_cannot_be_cloned_is_marked_broken_with_its_fault(self, used: Used, path: str, fault: str) -> None:
        title = f"Broken {fault.split()[0]}"
        used.adds(path.replace("{sources}", used.site.sources), title)
        eventually(lambda: "broken" in used.row(title), what="the mark")
        assert fault in used.site.manage("shell", "-c", FAULTS)

    def test_import_is_done_once_however_often_it_is_asked_for(self, used: Used) -> None:
        for _ in range(3):
            used.site.manage("relevo", "schedules", "run", "ImportGames")
        eventually(lambda: "ok" in used.row("Winter"), what="a game")
        assert "new" not in used.site.manage("batchjob", "ImportForceUpdateUrls").replace(
            "ImportForceUpdateUrls: 0", ""
        )
        assert sum(row.startswith("Winter") for row in used.visitor.page("/")) == 1
        assert used.site.manage("batchjob", "ForceReimport") == "ForceReimport: 5\n"

    def test_schedules_are_those_of_the_site(self, used: Used) -> None:
        assert used.site.manage("setup_periodic_tasks") == "Periodic tasks set up successfully\n"
        found = json.loads(used.site.manage("relevo", "schedules", "list", "--json"))["items"]
        assert {(one["name"], one["when"], one["tz"], one["priority"]) for one in found} == {
            ("ImportGames", "0 */6 * * *", "Europe/Moscow", 50),
            ("FetchFeeds", "*/30 * * * *", "Europe/Moscow", 75),
        }

    def test_news_are_stored_once(self, used: Used) -> None:
        for _ in range(2):
            used.site.manage("relevo", "schedules", "run", "FetchFeeds")
        eventually(lambda: len(used.visitor.page("/feeds/")) == 8, what="six items")
        assert "Workers: 1" in used.site.manage("redis_queue_status")


class TestAdmin:
    def test_an_operator_finds_a_failed_task_and_runs_it_again(self, used: Used, browser: RealBrowser) -> None:
        def act(page: Page) -> None:
            page.goto(used.site.web)
            page.get_by_role("link", name="Add a game").click()
            page.get_by_label("Title").fill("Torn <b>pages</b>")
            page.get_by_label("Address of the file").fill(f"{used.site.sources}/files/lost.qst")
            page.get_by_role("button", name="Add").click()
            page.get_by_role("heading", name="Torn <b>pages</b>").wait_for()
            game = page.url
            eventually(lambda: "broken" in used.row("Torn"), what="the mark")

            page.goto(f"{used.site.web}/admin/")
            page.get_by_label("Username").fill("admin")
            page.get_by_label("Password").fill("admin")
            page.get_by_role("button", name="Log in").click()
            page.get_by_role("link", name="Jobs", exact=True).first.click()
            page.get_by_role("link", name="Dead (").click()
            page.get_by_role("link", name="CloneUrl(").first.click()

            # I expect to see what was asked for, what came of it each time, and what it printed
            page.get_by_text("games.tasks.uploads:CloneFile").first.wait_for()
            assert page.locator("#attempts tbody tr").count() >= 4
            assert "HTTP Error 404: Not Found" in page.locator("#attempts").inner_text()
            assert f"cloning {used.site.sources}/files/lost.qst\nTraceback" in page.locator("#output").inner_text()

            # When the file is back, I expect that the task can be run again from the list
            data = json.dumps({"path": "/files/lost.qst"}).encode()
            with urllib.request.urlopen(f"{used.site.sources}/restore", data, timeout=60):
                pass
            page.go_back()
            page.get_by_role("row").filter(has_text="CloneUrl(").first.get_by_role("checkbox").check()
            page.locator("select[name=action]").select_option(label="Retry selected jobs")
            page.get_by_role("button", name="Go").click()
            page.locator(".messagelist").get_by_text("1 job").wait_for()
            eventually(lambda: "ok" in used.row("Torn"), what="the file")
            page.goto(game)
            eventually(lambda: page.reload() and page.get_by_role("link", name="Play").count(), what="the quest")
            page.get_by_role("link", name="Play").click()
            page.get_by_text("Torn pages.").wait_for()

        with browser.window(used.site.web) as window:
            window.do(act)
            assert window.faults == []

    def test_an_operator_sees_what_is_done_by_the_clock_and_runs_it_now(self, used: Used, browser: RealBrowser) -> None:
        def act(page: Page) -> None:
            page.goto(f"{used.site.web}/admin/relevo/schedule/")
            page.get_by_label("Username").fill("admin")
            page.get_by_label("Password").fill("admin")
            page.get_by_role("button", name="Log in").click()
            text = page.locator("#content").inner_text()
            assert "core.feedfetcher:FetchFeeds" in text
            assert "every 30 minutes" in text
            assert "games.tasks.game_importer:ImportGames" in text
            page.goto(f"{used.site.web}/admin/games/game/")
            page.get_by_role("heading", name="Select game to change").wait_for()

        with browser.window(used.site.web) as window:
            window.do(act)
            assert window.faults == []
