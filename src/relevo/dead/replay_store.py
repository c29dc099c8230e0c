"""Replays of dead letters in the store: the progress of each, and its leader."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import msgspec

from relevo.dead.replay import SILENT_MS, Replay
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call

#: A replay is remembered for a week after its last step; the newest MOST of them.
LIVE_MS = 7 * 86_400_000
MOST = 100

_read = msgspec.json.Decoder(Replay).decode

Verb = Literal["take", "note", "end", "stop"]


def lead(app: QueueKeys, verb: Verb, run: Replay, owner: str) -> Call[tuple[bool, bool, Replay | None]]:
    """Take over a replay, record its progress, or ask it to stop.

    Returns whether the call took effect (else another owner leads it, or it does not exist), whether it is to stop, and
    its progress before.
    """
    script = app.script("dead/lead_replay")
    args: list[Argument] = [run.id, verb, owner, LIVE_MS, SILENT_MS, MOST, msgspec.json.encode(run)]

    def decode(reply: list[Any]) -> tuple[bool, bool, Replay | None]:
        counts, wish, text = reply
        return bool(counts), wish == b"stop", _replay(text) if text else None

    return Call(args, decode, script, app.of(script))


def one(app: QueueKeys, id: str) -> Call[Replay | None]:
    """A replay; None: unknown."""

    def decode(reply: list[Any]) -> Replay | None:
        text, owner, beat = reply
        found = _replay(text) if text else None
        return found and msgspec.structs.replace(found, heard_ms=int(beat or 0), is_led=bool(owner))

    return Call([b"HMGET", app.own("replay", id), "text", "owner", "beat"], decode)


def newest(app: QueueKeys, limit: int, offset: int = 0) -> Generator[Call[Any], Any, list[Replay]]:
    """Replays, latest sign of life first."""
    ids: list[bytes] = yield Call([b"ZREVRANGE", app.key("replays"), offset, offset + limit - 1])
    found: list[Replay] = []
    for id in ids:
        run: Replay | None = yield one(app, id.decode(errors="replace"))
        if run is not None:
            found.append(run)
    return found


def _replay(text: bytes) -> Replay | None:
    try:
        return _read(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
