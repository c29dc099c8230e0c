"""The remains of conversations: listed, cleaned up, and counted.

Everything on the bus expires by itself: messages when they are handled or too old, records and lists at their time
limits. Cleaning up only frees space sooner.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from relevo.bus.conversation_store import Left, clean, forget, made, noted
from relevo.engine.ids import made_ms
from relevo.engine.job import State
from relevo.engine.job_store import Seen, look, readable
from relevo.engine.lists import bus_queues
from relevo.errors import OptionError, ServerRefused
from relevo.queues import store as queues
from relevo.store.plan import Ahead, Call
from relevo.text.names import is_bus_name, parse

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

log = logging.getLogger("relevo.bus")

#: Messages of a conversation that are listed one by one.
LISTED = 1_000


class Made(Struct, frozen=True, kw_only=True):
    """Something that was made on behalf of a conversation."""

    id: str
    #: actions, callbacks or notifications
    kind: str
    queue: str
    state: State
    type: str = ""
    made_ms: int = 0


class Cleaned(Struct, frozen=True):
    """What a clean-up did, queue by queue."""

    conversation: str
    queues: dict[str, Left]
    dry_run: bool = False

    @property
    def removed(self) -> int:
        """Records, logs and results that were removed."""
        return sum(one.removed for one in self.queues.values())

    @property
    def living(self) -> int:
        """Messages still in use; they were not touched."""
        return sum(one.living for one in self.queues.values())

    @property
    def dead(self) -> int:
        """Dead letters that were kept."""
        return sum(one.dead for one in self.queues.values())


Messages = list[Made]


def _checked(given: Any) -> str:
    if not isinstance(given, str) or not given or len(given) > 200:
        raise OptionError(f"conversation: an id is text of at most 200 characters, found {given!r:.80}")
    return given


def _queues_of(engine: Engine, conversation: str, *, everywhere: bool) -> Generator[Call[Any], Any, list[str]]:
    """The queues that hold something of a conversation, as the bus noted them; notes may be lost, so `everywhere`
    looks in all queues.
    """
    names: list[str] = yield noted(engine.bus_keys, conversation)
    if not everywhere:
        return [name for name in names if is_bus_name(name)]
    return list(dict.fromkeys([*names, *(yield from bus_queues(engine))]))


def listing(engine: Engine, conversation: str) -> Generator[Call[Any] | Ahead[Any], Any, list[Made]]:
    """What was made on behalf of a conversation and still exists: oldest first."""
    conversation = _checked(conversation)
    names = yield from _queues_of(engine, conversation, everywhere=True)
    found: list[Made] = []
    ids = yield Ahead(made(engine.keys_of(name), conversation) for name in names)
    pairs = [(name, id) for name, here in zip(names, ids, strict=True) for id in here][:LISTED]
    seen: list[Seen] = yield Ahead(look(engine.keys_of(name), id) for name, id in pairs)
    for (name, id), one in zip(pairs, seen, strict=True):
        if one.state is State.UNKNOWN:
            continue  # done, and no record was kept
        envelope = one.envelope or readable(one.body)
        type = envelope.target if envelope else one.record.target if one.record else ""
        kind = parse(name, prefix=False, env=False).kind
        found.append(Made(id=id, kind=kind, queue=name, state=one.state, type=type, made_ms=made_ms(id)))
    return sorted(found, key=lambda item: item.made_ms)


def cleaning(
    engine: Engine, conversation: str, *, dead: bool = False, dry_run: bool = False, everywhere: bool = True
) -> Generator[Call[Any] | Ahead[Any], Any, Cleaned]:
    """Remove the remains of a conversation, each queue in one step. Messages in use stay, and so do dead letters.

    Queues without access are left to their own services, and to the expiry of what is in them.
    """
    conversation = _checked(conversation)
    names = yield from _queues_of(engine, conversation, everywhere=everywhere)
    looked: dict[str, Left] = {}
    for name in names:
        with suppress(ServerRefused):
            looked[name] = yield from clean(engine.keys_of(name), conversation, dead=dead, dry_run=dry_run)
    done = {name: left for name, left in looked.items() if left != Left()}
    emptied = [name for name, left in looked.items() if not left.living and not left.dead]
    if emptied and not dry_run:
        yield forget(engine.bus_keys, conversation, emptied)
    report = Cleaned(conversation, done, dry_run)
    if done:
        log.info(
            "conversation %s: %d removed from %d queues%s; %d in use, %d dead letters left",
            conversation,
            report.removed,
            len(done),
            " (only observed)" if dry_run else "",
            report.living,
            report.dead,
        )
    return report


class Tally(Struct, frozen=True, kw_only=True):
    """How many objects of one kind were made, and what became of them."""

    created: int = 0
    living: int = 0
    done: int = 0
    dead: int = 0
    expired: int = 0
    #: Removed because their conversation ended.
    cleaned: int = 0
    #: Removed by the sweeper, as unused.
    swept: int = 0


def tallies(engine: Engine) -> Generator[Call[Any] | Ahead[Any], Any, dict[str, Tally]]:
    """How many objects of each kind were made, and what became of them, from the counters of all queues of the bus."""
    names = yield from bus_queues(engine)
    stats: list[queues.QueueStats] = yield Ahead(queues.count(engine.keys_of(name), name) for name in names)
    past: list[bytes] = yield Call([b"HGETALL", engine.bus_keys.key("stats")])
    return tallied(past, stats)


def tallied(past: Sequence[bytes], stats: Iterable[queues.QueueStats]) -> dict[str, Tally]:
    """The same, from the counters of existing queues (`stats`) and the bus's own of removed queues (`past`)."""
    found: dict[str, Tally] = {}
    for field, count in zip(past[::2], past[1::2], strict=True):
        kind, _, what = field.decode(errors="replace").partition(":")
        if what in Tally.__struct_fields__:
            known = found.get(kind, Tally())
            found[kind] = msgspec.structs.replace(known, **{what: getattr(known, what) + int(count)})
    for one in stats:
        kind = parse(one.name, prefix=False, env=False).kind
        before, total = found.get(kind, Tally()), one.totals
        found[kind] = Tally(
            created=before.created + total.get("enqueued", 0),
            living=before.living + one.living,
            done=before.done + total.get("done", 0),
            dead=before.dead + total.get("dead", 0),
            expired=before.expired + total.get("expired", 0),
            cleaned=before.cleaned + total.get("cleaned", 0),
            swept=before.swept + total.get("swept", 0),
        )
    return found
