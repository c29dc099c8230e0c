"""What the services say to each other. In production this is a small package that all of them install."""

from __future__ import annotations

from msgspec import Struct


class Document(Struct, frozen=True):
    """For `ingestion.process_document`."""

    document_id: str
    text: str
    #: Everything that is made for this document is made on behalf of this conversation.
    task_id: str
    #: Which process of the orchestrator holds the session: the context of its own queue.
    home: str


class Accepted(Struct, frozen=True):
    """What `ingestion.process_document` answers at once; the work has only begun."""

    document_id: str
    parts: int


class Done(Struct, frozen=True):
    """For `orchestrator.execution_callback`: how it ended, for the session in the message's headers."""

    document_id: str
    #: done, failed, cancelled or timeout
    status: str
    vectors: int = 0
    error: str = ""
