"""Conversations of the bus, as an app gives them: listed, traced, cleaned up after, counted."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING

from relevo.bus.conversations import Cleaned, Messages, Tally, cleaning, listing, tallies
from relevo.bus.span import Span
from relevo.bus.tracing import tracing

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


class Conversations:
    """What was made on behalf of each request of the bus. Given by `app.conversations`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def list(self, id: str) -> Messages:
        """The messages of one conversation (`send(…, conversation="chat_7")`) that still exist, oldest first.

        >>> app.conversations.list("chat_7")
        [Made(id='…', kind='actions', queue='embedding:actions', state=<State.DONE: 'done'>, …)]
        """
        return self._engine.run(listing(self._engine, id))

    async def alist(self, id: str) -> Messages:
        """`list` for async code."""
        return await self._engine.arun(listing(self._engine, id))

    def clean(self, id: str, *, dead: bool = False, dry_run: bool = False) -> Cleaned:
        """Remove the records, results and logs of a conversation. Messages in use stay, and so do dead letters.

        With `dead`, dead letters are removed, too. Workers do this once the last callback was handled, and all of it
        expires by itself: cleaning up only frees space sooner. With `dry_run` nothing is changed.
        """
        return self._engine.run(cleaning(self._engine, id, dead=dead, dry_run=dry_run))

    async def aclean(self, id: str, *, dead: bool = False, dry_run: bool = False) -> Cleaned:
        """`clean` for async code."""
        return await self._engine.arun(cleaning(self._engine, id, dead=dead, dry_run=dry_run))

    def trace(self, id: str) -> builtins.list[Span]:
        """The way of an operation through all services, by its correlation id, its conversation, or a message's id."""
        return self._engine.run(tracing(self._engine, id))

    async def atrace(self, id: str) -> builtins.list[Span]:
        """`trace` for async code."""
        return await self._engine.arun(tracing(self._engine, id))

    def counts(self) -> dict[str, Tally]:
        """How many actions, callbacks and notifications were made on the whole bus, and what became of them."""
        return self._engine.run(tallies(self._engine))

    async def acounts(self) -> dict[str, Tally]:
        """`counts` for async code."""
        return await self._engine.arun(tallies(self._engine))
