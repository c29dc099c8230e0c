"""Jobs that are stored in the outbox with the transaction, and moved to their queues when it has committed."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from django.db import DatabaseError

from relevo.django.commit import Call, Held, is_sent
from relevo.django.outbox.relay import relay, store
from relevo.engine.push import CHUNK
from relevo.errors import StoreError
from relevo.worker import kill_points as faults

log = logging.getLogger("relevo.django")


class HeldInOutbox(Held):
    """Writes its jobs to the outbox, and moves them after the commit. What it cannot move, a worker will."""

    def hold(self, calls: Sequence[Call]) -> None:
        """Store these in the open transaction."""
        store(self.alias, calls)
        super().hold(calls)

    def __call__(self) -> None:
        if faults.ACTIVE:
            faults.at("outbox_stored")
        while self.calls:
            some = self.calls[:CHUNK]
            try:
                owners = relay(some[0].task.engine, self.alias, [call.job.id for call in some])
            except (StoreError, DatabaseError) as error:
                log.warning("%d jobs stay in the outbox until a worker moves them: %s", len(self.calls), error)
                return
            del self.calls[: len(some)]
            for call in some:
                is_sent(call, owners.get(call.job.id, call.job.id))
