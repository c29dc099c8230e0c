"""Servers whose eviction policy deletes jobs: warned of, or refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.errors import UnfitServer
from relevo.store.server_facts import memory
from relevo.worker.worker import Worker
from tests.servers import Server


@pytest.fixture(scope="module")
def evicting(engine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that deletes keys when its memory is full."""
    config = {"maxmemory-policy": "allkeys-lru"}
    with Server(engine, directory=tmp_path_factory.mktemp("evicting"), config=config) as server:
        yield server


async def mail() -> None: ...


def shop(server: Server, **settings: Any) -> Relevo:
    app = Relevo("shop", url=server.url, **settings)
    app.task(name="mail")(mail)
    return app


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "maxmemory-policy" in record.getMessage()]


async def test_producers_and_workers_are_warned_once(evicting: Server, caplog: pytest.LogCaptureFixture) -> None:
    app = shop(evicting, env="dev")
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            app.enqueue(mail)
        await app.aenqueue(mail)
        await Worker(app, burst=True).run()
    (line,) = warnings(caplog)
    assert "allkeys-lru" in line
    assert "noeviction" in line, "what to do"
    await app.aclose()
    app.close()


@pytest.mark.parametrize(
    "settings", [{"env": "prod"}, {"env": "dev", "server_check": "strict"}], ids=["prod", "strict"]
)
async def test_strict_producers_and_workers_refuse(evicting: Server, settings: dict[str, Any]) -> None:
    app = shop(evicting, **settings)
    jobs = app.engine.keys_of("default").key("jobs")
    with pytest.raises(UnfitServer, match="allkeys-lru"):
        app.enqueue(mail)
    with pytest.raises(UnfitServer, match="allkeys-lru"):
        await app.aenqueue(mail)
    with pytest.raises(UnfitServer, match="allkeys-lru"):
        app.task(name="more")(mail).enqueue_many([((), {})] * 700)
    with pytest.raises(UnfitServer, match="allkeys-lru"):
        await Worker(app).run()
    assert evicting.command("EXISTS", jobs) == 0
    assert app.health().queues is not None, "whoever only looks is not refused"
    evicting.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
    try:
        app.enqueue(mail)
    finally:
        evicting.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    await app.aclose()
    app.close()


@pytest.mark.parametrize("settings", [{"env": "prod", "server_check": "off"}, {"env": "prod", "server_check": "warn"}])
def test_a_setting_allows_such_a_server_in_production(evicting: Server, settings: dict[str, Any]) -> None:
    app = shop(evicting, **settings)
    app.enqueue(mail)
    app.close()


def test_a_server_that_does_not_answer_info_is_used(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "shy") as shy:
        shy.command("ACL", "SETUSER", "shy", "on", ">secret", "~*", "&*", "+@all", "-info")
        app = Relevo("shop", url=shy.url.replace("127.", "shy:secret@127."), env="prod")
        app.task(name="mail")(mail)
        app.enqueue(mail)
        app.close()


def test_evicted_keys_are_a_reason_of_health(engine: str, tmp_path: Path) -> None:
    with Server(engine, directory=tmp_path / "full", config={"maxmemory-policy": "allkeys-lru"}) as full:
        app = shop(full, env="dev")
        full.command("SET", "first", "x" * 1_000_000)
        used = app.engine.run(memory()).used
        full.command("CONFIG", "SET", "maxmemory", str(used))
        for number in range(100):
            full.command("SET", f"more:{number}", "x" * 100_000)
            if app.engine.run(memory()).evicted:
                break
        assert app.engine.run(memory()).evicted, full.command("INFO", "memory")
        (reason,) = [one for one in app.health().reasons if one.measure == "evicted"]
        assert "jobs may be lost" in reason.text
        app.close()
