"""The health of an app as somebody last found it."""

from __future__ import annotations

import msgspec

from relevo.model.health import Health
from relevo.store.keys import AppKeys
from relevo.store.plan import Argument, Call
from relevo.store.scripts import script

#: A snapshot says nothing after two intervals; for two more it can be seen what was found last.
KEPT = 4

_read = msgspec.json.Decoder(Health).decode


def keep_snapshot(keys: AppKeys, health: Health) -> Call[int]:
    """Keep what was found."""
    reasons = "\n".join(reason.text for reason in health.reasons)
    live_ms = round(KEPT * health.every_s * 1000)
    args: list[Argument] = [live_ms, health.status, health.checked_at_ms, reasons, msgspec.json.encode(health)]
    return Call(args, int, script("snapshot"), (keys.health,))


def snapshot(keys: AppKeys) -> Call[Health | None]:
    """What was found last; None: nobody looked, or not for long."""

    def decode(reply: bytes | None) -> Health | None:
        try:
            return None if reply is None else _read(reply)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None  # of another version

    return Call([b"HGET", keys.health, b"report"], decode)
