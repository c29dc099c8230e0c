"""Run the site, use it as visitors and operators do, and show what happens: python examples/ifdb/demo.py

It ends by itself; the exit code is 1 if anything did not come as it should. What it writes is in a folder of its own,
unless IFDB_VAR names one.
"""

import json
import os
import re
import sys
import tempfile
import time
from http.cookiejar import CookieJar
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener, urlopen

import run

#: Seconds in which anything must happen.
BOUND = 60.0


class Story:
    """What is printed: lines of the site's processes, and what people see."""

    def __init__(self):
        self._began = time.monotonic()

    def tell(self, who, text):
        """One line."""
        sys.stdout.write(f"{time.monotonic() - self._began:5.1f} s  {who:<8}  {text}\n")  # whole lines of all threads
        sys.stdout.flush()

    def hear(self, line):
        """A line of a process: shown if it is of a task."""
        if found := re.search(r"relevo\.worker: ((?:core|games|relevo\.compat)\S+) \w{20}(.*)", line):
            target, rest = found.groups()
            self.tell("worker", f"{re.split('[.:]', target)[-1]}{re.split(': attempt|; see:', rest)[0]}")
        elif re.match(r"cloning |\d+-|\d+ new games|\S+: \d+ new", line):
            self.tell("task", re.sub(r"http://[\d.:]+", "", line))

    def until(self, what, is_so):
        """Wait until it is so: what it is."""
        until = time.monotonic() + BOUND
        while not (found := is_so()):
            if time.monotonic() > until:
                raise TimeoutError(f"not within {BOUND:g} s: {what}")
            time.sleep(0.1)
        return found


class Visitor:
    """A browser without pictures."""

    def __init__(self, web):
        self._web = web
        self._cookies = CookieJar()
        self._opener = build_opener(HTTPCookieProcessor(self._cookies))

    def page(self, path, **form):
        """The text of a page, as people read it; with a form, of the one that comes when it is sent."""
        data = None
        if form:
            self.page(path)
            token = next(one.value for one in self._cookies if one.name == "csrftoken")
            data = urlencode({**form, "csrfmiddlewaretoken": token}).encode()
        with self._opener.open(self._web + path, data, timeout=30) as answer:
            text = re.sub(r"<style>.*?</style>|<title>.*?</title>", "", answer.read().decode(), flags=re.DOTALL)
        return [line for row in re.sub(r"</(?:tr|p|h1|nav)>", "\n", text).splitlines() if (line := _plain(row))]


def _plain(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def games_are_imported(story, site, visitor):
    """The import that the clock starts every six hours, now: each game once, its files cloned and recoded."""
    for line in site.manage("relevo", "schedules", "list").splitlines()[1:]:
        name, when = re.match(r"(\S+) +(\S+ \S+ \S+)", line).groups()
        story.tell("clock", f"{name} {when}")
    site.manage("relevo", "schedules", "run", "ImportGames")

    def cloned():
        games = visitor.page("/")[2:]
        return games if any("broken" in one for one in games) and "not cloned" not in str(games) else None

    for game in story.until("all files are cloned, or known to be broken", cloned):
        story.tell("visitor", f"sees {game}")
    with urlopen(f"{site.sources}/discord", timeout=30) as answer:
        story.tell("discord", answer.read().decode())


def a_visitor_adds_a_game(story, site, visitor):
    """Its file is cloned when the row is committed, and can be played then."""
    added = f"{site.sources}/files/lighthouse.qst"
    page = visitor.page("/game/add/", title="The Lighthouse, annotated", author="V. Isitor", url=added)
    story.tell("visitor", f"adds {page[1]}")
    played = story.until("it can be played", lambda: _lines(visitor, "/play/5/"))
    story.tell("visitor", f"plays: {played[2]}")


def _lines(visitor, path):
    try:
        return visitor.page(path)
    except OSError:  # not yet
        return None


def news_are_fetched(story, site, visitor):
    """The feeds that the clock fetches every half hour, now."""
    site.manage("relevo", "schedules", "run", "FetchFeeds")
    for item in story.until("six items", lambda: len(page := visitor.page("/feeds/")) == 8 and page[2:]):
        story.tell("visitor", f"reads {item}")


def what_operators_do(story, site, visitor):
    """Look at the queue, clean up old records, and run failed tasks again when what they lacked is back."""
    for line in site.manage("redis_queue_status").splitlines():
        story.tell("operator", re.sub(r" \(.*\)", "", line))
    story.tell("operator", site.manage("cleanup_task_data", "--days=7", "--dry-run").strip())
    found = Request(f"{site.sources}/restore", json.dumps({"path": "/files/lost.qst"}).encode())
    with urlopen(found, timeout=30):
        story.tell("source", "/files/lost.qst is back")
    story.tell("operator", site.manage("batchjob", "RetryFailedJobs").strip())
    page = story.until(
        "it is cloned", lambda: [one for one in visitor.page("/") if "Lost Pages" in one and "ok" in one]
    )
    story.tell("visitor", f"sees {page[0]}")


def main():
    """Show it all: the exit code."""
    os.environ.setdefault("IFDB_RETRY_AFTER", "0.3s")  # nobody waits for a demonstration
    story = Story()
    with tempfile.TemporaryDirectory(prefix="ifdb-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("IFDB_VAR", folder)
        try:
            with run.running(hear=story.hear) as site:
                visitor = Visitor(site.web)
                games_are_imported(story, site, visitor)
                a_visitor_adds_a_game(story, site, visitor)
                news_are_fetched(story, site, visitor)
                what_operators_do(story, site, visitor)
        except (TimeoutError, ChildProcessError) as error:
            print(error, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
