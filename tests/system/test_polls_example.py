"""A plain site moved over by the guide: the snippets of docs/django.md in a copy of examples/polls, as they stand."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.leaks import remove
from tests.process.harness import WorkerProcess
from tests.servers import Server

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "django.md"
STEP = re.compile(r"^```python\n# (\S+), (at the end|a new file|instead of: ([^\n]+))\n(.*?)^```", re.M | re.S)

VOTE = """
from django.test import Client
from polls.models import Question
question = Question.objects.create(text="Tea or coffee?", asked_by="ana@example.com")
tea = question.choice_set.create(text="Tea")
answer = Client().post(f"/polls/{question.pk}/vote/", {"choice": tea.pk}, follow=True)
assert b"Tea: 1" in answer.content, answer.content
assert b"Tea or coffee?" in Client().get("/polls/").content
assert b"You did not choose." in Client().post(f"/polls/{question.pk}/vote/").content
"""


class Site:
    """A copy of the example."""

    def __init__(self, folder: Path, server: Server) -> None:
        shutil.copytree(ROOT / "examples" / "polls", folder)
        self.folder = folder
        more = {"REDIS_URL": server.url, "RELEVO_ENV": "test", "PYTHONPATH": str(folder)}
        self.variables = {**os.environ, **more, "DJANGO_SETTINGS_MODULE": "mysite.settings"}

    def manage(self, *arguments: str) -> str:
        """Run a command of the site: what it wrote."""
        command = [sys.executable, "manage.py", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=self.variables, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def mails(self) -> list[str]:
        """The mails that were sent."""
        return [one.read_text() for one in (self.folder / "sent").glob("*")]

    def follow(self, guide: str) -> int:
        """Make the changes of the guide, in order: how many there were."""
        steps = STEP.findall(guide)
        for path, how, old, text in steps:
            file = self.folder / path
            if how == "a new file":
                assert not file.exists()
                file.write_text(text)
            elif how == "at the end":
                file.write_text(file.read_text() + text)
            else:
                before = file.read_text()
                assert before.count(old) == 1, (path, old)
                file.write_text(before.replace(old, text.rstrip("\n")))
        return len(steps)


def section(heading: str) -> str:
    """One section of the guide."""
    return GUIDE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]


@pytest.fixture
def site(tmp_path: Path, server: Server) -> Site:
    """The plain site, with its tables."""
    made = Site(tmp_path / "polls", server)
    made.manage("migrate", "-v", "0")
    return made


def test_plain_site_works_without_relevo(site: Site) -> None:
    assert not any("relevo" in file.read_text() for file in site.folder.rglob("*.py"))
    site.manage("shell", "-c", VOTE)
    assert ["Tea: 1" in mail for mail in site.mails()] == [True]
    assert "No changes detected" in site.manage("makemigrations", "--check")


def test_site_that_follows_the_guide(site: Site, server: Server) -> None:
    assert site.follow(section("A site, step by step")) == 5
    assert "no issues" in site.manage("check")
    assert "OK" in site.manage("test")
    site.manage("shell", "-c", VOTE)
    assert site.mails() == []  # the voter did not wait
    command = [sys.executable, "manage.py", "relevo", "worker"]
    worker = WorkerProcess(command, env=site.variables, log=site.folder / "worker.log", dies=False)
    try:
        eventually(lambda: len(site.mails()) == 1, what="the mail")
        assert "every_morning" in site.manage("relevo", "schedules", "list")
        assert worker.stop() == 0
    finally:
        worker.end()
        remove(server, "mysite")
