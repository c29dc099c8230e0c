"""The audit trail: who did what, when, and to how many."""

from __future__ import annotations

import pytest

from relevo import Relevo
from relevo.audit import whoami
from relevo.errors import OptionError
from relevo.store.plan import Call
from tests.servers import Server
from tests.system.shell import relevo


def test_deeds_are_told_newest_first_with_who_and_how_many(bus: Relevo) -> None:
    bus.audit.note("queue.pause", who="ana@desk", via="http", queue="mails", reason=None)
    bus.audit.note("dead.retry", count=7)
    retried, paused = bus.audit.list()
    assert (retried.what, retried.count, retried.who, retried.via, retried.app) == (
        "dead.retry",
        7,
        whoami(),
        "python",
        bus.name,
    )
    assert (paused.what, paused.who, paused.via, paused.about) == (
        "queue.pause",
        "ana@desk",
        "http",
        {"queue": "mails"},
    )
    assert retried.at_ms >= paused.at_ms > 1_700_000_000_000


async def test_async_code_writes_and_reads_the_same(bus: Relevo) -> None:
    await bus.audit.anote("purge.run", count=0)
    assert [deed.what for deed in await bus.audit.alist(limit=1)] == ["purge.run"]


def test_what_a_stranger_wrote_is_passed_over(bus: Relevo) -> None:
    bus.run(Call([b"XADD", bus.bus_keys.key("audit"), b"*", b"s", b"no JSON"]))
    bus.audit.note("queue.pause")
    assert [deed.what for deed in bus.audit.list()] == ["queue.pause"]


@pytest.mark.parametrize("limit", [0, 1001, True, "7", None])
def test_a_page_that_cannot_be_one_is_refused(bus: Relevo, limit: object) -> None:
    with pytest.raises(OptionError, match="limit"):
        bus.audit.list(limit=limit)  # type: ignore[arg-type]


def test_the_trail_ends_when_nobody_does_anything_for_long(bus: Relevo) -> None:
    bus.audit.note("queue.pause")
    assert 0 < bus.run(Call([b"PTTL", bus.bus_keys.key("audit")])) <= 90 * 86_400_000


def test_the_command_shows_what_was_done(server: Server, bus: Relevo) -> None:
    bus.audit.note("dead.retry", who="ana@desk", via="cli", count=7, queue="mails")
    seen = relevo("audit", url=server.url, RELEVO_PREFIX=bus.settings.prefix)
    assert seen.code == 0, seen
    assert "ana@desk  cli" in seen.out and "dead.retry" in seen.out and "queue=mails" in seen.out
    (deed,) = relevo("audit", "--json", "--limit", "1", url=server.url, RELEVO_PREFIX=bus.settings.prefix).json
    assert (deed["what"], deed["count"], deed["about"]) == ("dead.retry", 7, {"queue": "mails"})
