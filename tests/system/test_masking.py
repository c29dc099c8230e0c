"""Credentials in what jobs are given, write and fail with are shown nowhere."""

from __future__ import annotations

import msgspec
import pytest

from relevo import current_job
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.shell import relevo
from tests.system.web import TOKENS, Here, served
from tests.working import drain

PASSWORD, BEARER, KEY, CARD = "hunter2", "eyJhbGci0iJ9", "abc-123", "4111-1111"
URL = f"https://ana:{PASSWORD}@bank.example"
HEADERS = [["Authorization", f"Bearer {BEARER}"]]
BODY = msgspec.json.encode({"api_key": KEY, "amount": 7}).decode()


async def test_credentials_in_arguments_logs_and_errors_are_shown_nowhere(
    server: Server, app_factory: AppFactory, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_factory(web_tokens=TOKENS, mask=["card"])

    @app.task(name="charge", retries=0)
    async def charge(url: str, headers: list[list[str]], body: str) -> None:
        print(f"POST {url} {headers} {body}")
        current_job().progress(0.5, f"asked {url}, card={CARD}")
        raise ConnectionError(f"{url} refused Bearer {BEARER}: API_KEY={KEY} card={CARD}")

    job = await charge.aenqueue(URL, HEADERS, BODY)
    with caplog.at_level("INFO", "relevo"):
        await drain(app)

    shown = {"the worker's log": "\n".join(record.getMessage() for record in caplog.records)}
    assert "bank.example" in shown["the worker's log"]
    words = ("--name", app.name)
    for line in (
        f"job {job.id} --logs",
        f"job {job.id} --logs --json",
        f"dead show {job.id}",
        "dead list",
        "dead error-groups",
    ):
        shown[line] = relevo(*line.split(), *words, url=server.url, RELEVO_MASK="card").out
    shown["top"] = relevo("top", "--once", *words, url=server.url).out
    with served(app) as url:
        for role in ("viewer", "operator", "admin"):
            with Here(url, role) as here:
                for path in (
                    f"/jobs/{job.id}",
                    "/dead",
                    "/dead/error-groups",
                    f"/dead/{job.id}",
                    "/queues/default/jobs?state=dead",
                ):
                    shown[f"{role} {path}"] = here.get(f"/api/v1{path}").text
                if role != "viewer":
                    shown[f"{role} logs"] = here.get(f"/api/v1/jobs/{job.id}/logs").text
        with Here(url, "viewer") as viewer:  # what is hidden is not found either, letter by letter
            assert len(viewer.ask("/dead", error="refused bearer ")["items"]) == 1
            assert viewer.ask("/dead", error=f"refused bearer {BEARER[:3]}")["items"] == []
        with Here(url, "operator") as operator:
            given = operator.ask(f"/dead/{job.id}")["args"]
            operator.do(f"/dead/{job.id}/edit", 422, {"args": given})
    for where, text in shown.items():
        assert "bank.example" in text or "logs" not in where, where
        for secret in (PASSWORD, BEARER, KEY):
            assert secret not in text, (where, text)
    assert CARD not in shown[f"job {job.id} --logs --json"] + shown["admin logs"] + shown[f"dead show {job.id}"]
    (letter,) = app.dead.export()
    assert all(secret in letter.decode() for secret in (PASSWORD, BEARER, KEY)), "it could not run elsewhere"
