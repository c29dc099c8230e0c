"""The last health report of an app."""

from __future__ import annotations

import msgspec

from relevo.health.status import Health
from relevo.store.keys import AppKeys
from relevo.store.plan import Argument, Call
from relevo.store.scripts import script

#: A snapshot is outdated after two intervals; it stays visible for two more.
KEPT = 4

_read = msgspec.json.Decoder(Health).decode


def keep_snapshot(keys: AppKeys, health: Health) -> Call[int]:
    """Keep a report."""
    reasons = "\n".join(reason.text for reason in health.reasons)
    live_ms = round(KEPT * health.every_s * 1000)
    args: list[Argument] = [live_ms, health.status, health.checked_at_ms, reasons, msgspec.json.encode(health)]
    return Call(args, int, script("health/keep_report"), (keys.health,))


def snapshot(keys: AppKeys) -> Call[Health | None]:
    """The last report; None: there is none, or it has expired."""

    def decode(reply: bytes | None) -> Health | None:
        try:
            return None if reply is None else _read(reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # of another version

    return Call([b"HGET", keys.health, b"report"], decode)
