"""The project of examples/fastapi: a web app and a worker as real processes, for an HTTP client and for a browser."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
from playwright.sync_api import Page

from relevo import Relevo
from relevo.store.plan import Call
from tests.browser import RealBrowser
from tests.conftest import PATIENT
from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server, free_port
from tests.system.shell import PATIENT_ENV, environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi"
#: Has a page keep all messages that it shows.
NOTE_MESSAGES = """
    window.messages = [];
    const message = document.getElementById("message");
    new MutationObserver(() => messages.push(message.textContent)).observe(message, { childList: true });
"""


@contextlib.contextmanager
def process(variables: dict[str, str], log: Path, *command: str) -> Iterator[None]:
    """A process of the example, for as long as the block lasts."""
    with log.open("wb") as file:
        running = subprocess.Popen([sys.executable, "-m", *command], cwd=EXAMPLE, env=variables, stderr=file)
    try:
        yield
    finally:
        running.terminate()
        running.wait(PATIENCE)


class Site:
    """The web app, and what the worker logs."""

    def __init__(self, client: httpx.Client, app: Relevo, worker_log: Path) -> None:
        self.client = client
        self.queue = app.queue()
        self._app = app
        self._worker_log = worker_log

    @property
    def followed(self) -> int:
        """How many jobs are followed; all of them are one more."""
        watching = self._app.engine.keys_of("default").key("watching")
        return self._app.engine.run(Call([b"HLEN", watching], int))

    def order(self, title: str, pages: int, **headers: str) -> dict[str, str]:
        """Order a report: where its page and its events are."""
        ordered = self.client.post("/reports", json={"title": title, "pages": pages}, headers=headers)
        assert ordered.status_code == 202
        return ordered.json()  # type: ignore[no-any-return]

    def events(self, path: str) -> list[tuple[str, dict[str, object]]]:
        """The events of a stream, until it ends."""
        found: list[tuple[str, dict[str, object]]] = []
        with self.client.stream("GET", path) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            kind = ""
            for line in stream.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    found.append((kind, json.loads(value)))
        return found

    @property
    def worker_log(self) -> str:
        return self._worker_log.read_text("utf-8")


@pytest.fixture
def site(server: Server, tmp_path: Path) -> Iterator[Site]:
    prefix, port = f"fastapi{uuid4().hex[:12]}", free_port()
    database = f"sqlite:///{tmp_path / 'reports.db'}"
    variables = environment(server.url, RELEVO_PREFIX=prefix, DATABASE_URL=database, **PATIENT_ENV)
    web = ("uvicorn", "reports.web:api", "--port", str(port), "--timeout-graceful-shutdown", "5")
    worker_log = tmp_path / "worker.log"
    with (
        process(variables, tmp_path / "web.log", *web),
        process(variables, worker_log, "relevo.cli.main", "worker", "reports.jobs:app"),
        closing(Relevo("reports", url=server.url, env="test", prefix=prefix, **PATIENT)) as app,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        eventually(lambda: is_up(client), what="the web app answers")
        yield Site(client, app, worker_log)
    assert leaks(server, prefix) == []
    remove(server, prefix)


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/openapi.json").is_success
    except httpx.TransportError:
        return False


def test_a_report_is_followed_until_it_is_done(site: Site) -> None:
    ordered = site.order("tea", 2)
    told = site.events(ordered["events"])
    assert told[-1] == ("ended", {"state": "done", "error": ""})
    assert [kind for kind, _ in told].count("ended") == 1
    assert ("progress", {"fraction": 1.0, "message": "page 2 of 2"}) in told
    assert "page 2 of 2 is written" in "".join(str(data["text"]) for kind, data in told if kind == "logs")
    report = site.client.get(f"{ordered['page']}/data").json()
    assert report["text"] == "Page 1 about tea.\nPage 2 about tea."

    # If another browser comes after the end, I expect it to see the end
    assert site.events(ordered["events"]) == [("ended", {"state": "done", "error": ""})]


def test_the_request_id_is_in_the_logs_of_the_job(site: Site) -> None:
    ordered = site.order("tea", 1, **{"X-Request-ID": "r-4711"})
    told = site.events(ordered["events"])
    assert "[r-4711] page 1 of 1 is written" in "".join(str(data["text"]) for kind, data in told if kind == "logs")
    eventually(lambda: "[r-4711] page 1 of 1 is written" in site.worker_log)
    assert site.client.get("/reports", headers={"X-Request-ID": "r-1"}).headers["x-request-id"] == "r-1"
    assert site.client.get("/reports").headers["x-request-id"]


def test_a_report_that_does_not_exist_is_not_found(site: Site) -> None:
    assert site.client.get("/reports/4711").status_code == 404
    assert site.client.get("/reports/4711/events").status_code == 404
    assert site.client.post("/reports", json={"title": "", "pages": 0}).status_code == 422


def test_a_person_orders_a_report_and_sees_how_it_is_written(site: Site, browser: RealBrowser) -> None:
    address, title = str(site.client.base_url).rstrip("/"), "Tea <b>harvests</b>"
    with browser.window(address) as window, browser.window(address) as overview:

        def order(page: Page) -> None:
            page.get_by_label("Title").fill(title)
            page.get_by_label("Pages").fill("6")
            page.get_by_role("button", name="Order").click()
            page.get_by_role("heading", name=title).wait_for()
            page.get_by_role("status").get_by_text("waiting for a worker").wait_for()
            page.evaluate(NOTE_MESSAGES)

        site.queue.pause()
        window.go("/")
        window.do(order)
        overview.go("/")
        overview.do(lambda page: page.get_by_role("cell", name="waiting").wait_for())
        eventually(lambda: site.followed == 2, what="both pages follow")
        site.queue.resume()

        # While it is written, I expect both pages to show how far it is, without being loaded again
        overview.do(lambda page: page.get_by_role("cell", name="done").wait_for())
        window.do(lambda page: page.get_by_role("status").get_by_text("done").wait_for())
        messages = window.do(lambda page: page.evaluate("messages"))
        assert messages.index("page 6 of 6") < messages.index("done")
        assert window.do(lambda page: page.get_by_role("progressbar").get_attribute("value")) == "1"
        log = window.do(lambda page: page.get_by_label("Log").inner_text()).splitlines()
        assert [line.partition("] ")[2] for line in log] == [f"page {n} of 6 is written" for n in range(1, 7)]
        window.do(lambda page: page.get_by_text(f"Page 6 about {title}.").wait_for())

        # If I come back later, I expect to see the report
        window.do(lambda page: page.reload())
        window.do(lambda page: page.get_by_text(f"Page 6 about {title}.").wait_for())
        assert (window.faults, overview.faults) == ([], [])
