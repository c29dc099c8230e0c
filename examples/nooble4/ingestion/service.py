"""Ingestion on the bus. Run it with `relevo worker ingestion.service:app`.

It asks embedding for the vectors of a document and does not wait: the answer is an action of its own, called when the
work has ended, whichever process of ingestion lives then.
"""

from __future__ import annotations

import logging

import msgspec
from msgspec import Struct
from relevo import Relevo, Reply, current_job
from relevo.errors import NoResponders, RequestTimeout

from contracts import Accepted, Document, Done
from ingestion import vectors

log = logging.getLogger("nooble4.ingestion")

app = Relevo("ingestion")
ingestion = app.service("ingestion")

#: How long embedding may take for one document before its session is told that nothing came.
PATIENCE = "10m"


class Asked(Struct, frozen=True):
    """What we must know when the answer comes, hours and restarts later; it travels with the callback."""

    document_id: str
    home: str


@ingestion.action("process_document")
async def process_document(document: Document) -> Accepted:
    """Cut a document into texts and have them embedded."""
    texts = [part for part in document.text.split("\n") if part.strip()]

    async def ask() -> str:
        message = await ingestion.asend(
            "embedding.generate_batch",
            {"texts": texts},
            on_reply="embeddings_ready",
            on_progress="embeddings_progress",
            on_timeout="embeddings_late",
            timeout=PATIENCE,
            context=Asked(document.document_id, document.home),
            conversation=document.task_id,
        )
        return message.id

    # A message may be delivered twice; a step is made once.
    await current_job().astep("ask", ask)
    log.info("%s: %d texts sent to embedding", document.document_id, len(texts))
    return Accepted(document.document_id, len(texts))


@ingestion.action("embeddings_progress")
async def embeddings_progress(reply: Reply[dict[str, int]]) -> None:
    """Embedding works. Whoever shows it to somebody hears the event; nobody waits for it."""
    asked = msgspec.convert(reply.context, Asked)
    await ingestion.apublish("document_progress", {"document_id": asked.document_id, **(reply.result or {})})


@ingestion.action("embeddings_ready", retries=5, backoff="1s")
async def embeddings_ready(reply: Reply[list[list[float]]]) -> None:
    """Embedding has ended, well or not: the last word about the conversation."""
    asked = msgspec.convert(reply.context, Asked)
    if reply.ok and reply.result is not None:
        done = Done(asked.document_id, reply.status, vectors.store(asked.document_id, reply.result))
        log.info("%s: %d vectors stored", asked.document_id, done.vectors)
        await ingestion.apublish("document_processed", {"document_id": asked.document_id, "vectors": done.vectors})
    else:
        error = f"{reply.error.type}: {reply.error.message}" if reply.error else ""
        done = Done(asked.document_id, reply.status, error=error)
        log.info("%s: %s, %s", asked.document_id, reply.status, error)
    await tell_session(asked.home, done)
    # When this function has returned, what is left of the conversation is removed. Nothing has to be called for that;
    # if it raises, it is called again, and the session is notified again.


@ingestion.action("embeddings_late", retries=5, backoff="1s")
async def embeddings_late(reply: Reply[None]) -> None:
    """Embedding has not answered in time; what it may still say is not heard any more."""
    asked = msgspec.convert(reply.context, Asked)
    await tell_session(asked.home, Done(asked.document_id, reply.status, error=f"no vectors within {PATIENCE}"))


async def tell_session(home: str, done: Done) -> None:
    """Call the orchestrator back and wait until it has told the session.

    First the process that held the session when the document came. If that is gone, any other: people reconnect.
    """
    try:
        await ingestion.arequest("orchestrator.execution_callback", done, at=home, timeout="5s")
    except (NoResponders, RequestTimeout):
        await ingestion.arequest("orchestrator.execution_callback", done, timeout="20s", wait=True)
