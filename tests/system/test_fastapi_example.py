"""The web app of examples/fastapi: two real processes, and the progress of a job as a browser gets it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.eventually import PATIENCE, eventually
from tests.leaks import leaks, remove
from tests.servers import Server, free_port
from tests.system.shell import environment

EXAMPLE = Path(__file__).parents[2] / "examples" / "fastapi"


@contextlib.contextmanager
def process(variables: dict[str, str], *command: str) -> Iterator[None]:
    """A process of the example, for as long as the block lasts."""
    running = subprocess.Popen([sys.executable, "-m", *command], cwd=EXAMPLE, env=variables)
    try:
        yield
    finally:
        running.terminate()
        running.wait(PATIENCE)


@pytest.fixture
def site(server: Server) -> Iterator[httpx.Client]:
    prefix, port = f"fastapi{uuid4().hex[:12]}", free_port()
    variables = environment(server.url, RELEVO_PREFIX=prefix)
    web = ("uvicorn", "pages:api", "--port", str(port), "--log-level", "warning")
    with (
        process(variables, *web),
        process(variables, "relevo.cli.main", "worker", "jobs:app"),
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE) as client,
    ):
        eventually(lambda: is_up(client), what="the web app answers")
        yield client
    assert leaks(server, prefix) == []
    remove(server, prefix)


def is_up(client: httpx.Client) -> bool:
    try:
        return client.get("/openapi.json").is_success
    except httpx.TransportError:
        return False


def read(client: httpx.Client, path: str) -> list[tuple[str, dict[str, object]]]:
    """The events of a stream, until it ends."""
    found = []
    with client.stream("GET", path) as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        for block in "".join(stream.iter_text()).strip().split("\n\n"):
            kind, data = block.split("\n")
            found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_browser_follows_a_report_until_it_is_done(site: httpx.Client) -> None:
    ordered = site.post("/reports", params={"pages": 2})
    assert ordered.status_code == 202
    told = read(site, ordered.json()["events"])
    kinds = [kind for kind, _ in told]
    assert told[-1] == ("ended", {"state": "done"})
    assert kinds.count("ended") == 1
    assert ("progress", {"fraction": 1.0, "message": "page 2 of 2"}) in told
    assert "".join(str(data["text"]) for kind, data in told if kind == "logs").endswith("page 2 is written\n")

    # If another browser comes after the end, I expect it to see the end
    assert read(site, ordered.json()["events"]) == [("ended", {"state": "done"})]
    page = site.get(ordered.json()["page"])
    assert f'EventSource("{ordered.json()["events"]}")' in page.text


def test_a_report_that_does_not_exist_is_not_found(site: httpx.Client) -> None:
    nowhere = "01k9q4w2zhq3mf7d0a2f"
    assert site.get(f"/reports/{nowhere}").status_code == 404
    assert site.get(f"/reports/{nowhere}/events").status_code == 404
