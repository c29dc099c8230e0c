"""The orchestrator on the bus: asks ingestion, and pushes to sessions what comes back.

A session lives in one process, and what is meant for it should come to that process. Two ways lead there:

- the callback of what this process sent itself is `sticky`: the bus hands it to this process while it lives, and to any
  other process of the service if not;
- what others send on their own goes to a queue that only this process serves, `HOME`, a context of the service.
"""

from __future__ import annotations

import logging
from uuid import uuid4

from relevo import Relevo, Reply, current_job

from contracts import Accepted, Document, Done
from orchestrator.sessions import Sessions, Socket, Upload

log = logging.getLogger("nooble4.orchestrator")

app = Relevo("orchestrator")
orchestrator = app.service("orchestrator")
HOME = f"process_{uuid4().hex[:8]}"
here = app.service("orchestrator", context=HOME)
sessions = Sessions()


async def submit(upload: Upload) -> None:
    """Ask ingestion to process a document on behalf of a session."""
    sessions.open(upload.session)
    await orchestrator.asend(
        "ingestion.process_document",
        Document(upload.document_id, upload.text, upload.task_id, HOME),
        on_reply="document_accepted",
        timeout="30s",
        sticky=True,
        context=upload.document_id,
        tenant=upload.tenant,
        tier=upload.tier,
        session=upload.session,
        correlation_id=upload.task_id,
    )


def _socket() -> Socket | None:
    """The socket of the session on whose behalf the message came, if it is here."""
    message = current_job().message
    return sessions.find(message.session) if message is not None else None


@orchestrator.action("document_accepted")
async def document_accepted(reply: Reply[Accepted]) -> None:
    """Ingestion has taken the document, or could not."""
    socket = _socket()
    if socket is None:
        return
    if reply.ok and reply.result is not None:
        await socket.send(reply.result.document_id, "accepted", f"{reply.result.parts} texts")
    else:
        why = reply.error.message if reply.error else "ingestion did not take it"
        await socket.send(str(reply.context), reply.status, why)


@orchestrator.on("ingestion.document_progress", broadcast=True)
async def document_progress(document_id: str, done: int, of: int) -> None:
    """Every process hears it; the one that holds the session shows it."""
    socket = _socket()
    if socket is not None:
        await socket.send(document_id, "progress", f"{done} of {of}")


async def execution_callback(done: Done) -> bool:
    """Push result and status to the session: whether it is here."""
    socket = _socket()
    if socket is None:
        log.info("%s is %s, but its session is gone", done.document_id, done.status)
        return False
    await socket.send(done.document_id, done.status, done.error or f"{done.vectors} vectors")
    return True


for service in (here, orchestrator):
    service.action("execution_callback")(execution_callback)


@orchestrator.on("ingestion.document_processed")
async def document_processed(document_id: str, vectors: int) -> None:
    """One process of the service hears it, also if none was there when it happened."""
    message = current_job().message
    assert message is not None
    log.info("agents of %s may use %s (%d vectors)", message.tenant, document_id, vectors)
