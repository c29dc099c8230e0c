"""Workers inside tests whose services can be asked: `working`, and known to those who ask."""

from __future__ import annotations

from relevo.model.names import is_bus_name
from relevo.store.plan import Call
from relevo.worker import Worker
from tests.eventually import aeventually
from tests.working import working


class answering(working):
    """A worker that serves, for as long as the block lasts; used as `working` is."""

    async def __aenter__(self) -> Worker:
        worker = await super().__aenter__()
        await aeventually(lambda: self._is_known(worker), what="the worker is known to serve")
        return worker

    async def _is_known(self, worker: Worker) -> bool:
        for queue in worker.queues:
            key = self._app.keys_of(queue).key("instances")
            if is_bus_name(queue) and await self._app.arun(Call([b"ZSCORE", key, worker.id])) is None:
                return False
        return True
