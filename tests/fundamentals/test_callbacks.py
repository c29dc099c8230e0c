"""Callbacks: send a message, go on, and have an action called with the outcome."""

from __future__ import annotations

from typing import Any

from relevo import Relevo, current_job
from relevo.engine.message import Reply
from relevo.testing import TestKit
from tests.answering import answering
from tests.eventually import aeventually


def test_a_message_is_sent_and_forgotten(app: Relevo, kit: TestKit) -> None:
    # Given a service with an action
    conversation = app.service("conversation")
    saved: list[str] = []

    @conversation.action("save_message")
    async def save_message(text: str) -> None:
        saved.append(text)

    # If another service sends a message to it, I expect that to return at once
    app.service("execution").send("conversation.save_message", {"text": "hola"})
    assert saved == []

    # and the message to be handled when a worker runs
    kit.drain()
    assert saved == ["hola"]


def test_the_sender_is_called_back_with_the_result(app: Relevo, kit: TestKit) -> None:
    # Given a service with a slow action
    embedding = app.service("embedding")

    @embedding.action("generate_batch")
    async def generate_batch(texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    # and a service with an action for the result
    ingestion = app.service("ingestion")
    stored: dict[str, list[int] | None] = {}

    @ingestion.action("embeddings_ready")
    async def embeddings_ready(reply: Reply[list[int]]) -> None:
        stored[reply.context["document"]] = reply.result

    # If it sends a message and names that action
    ingestion.send(
        "embedding.generate_batch",
        {"texts": ["a", "bcd"]},
        on_reply="embeddings_ready",
        timeout="1h",
        context={"document": "d7"},
    )

    # I expect the action to be called once, with the result and the context I gave
    kit.drain()
    assert stored == {"d7": [1, 3]}


def test_the_sender_is_called_back_when_the_action_fails(app: Relevo, kit: TestKit) -> None:
    # Given an action that fails
    embedding, ingestion = app.service("embedding"), app.service("ingestion")
    replies: list[Reply[Any]] = []

    @embedding.action("generate_batch", retries=0)
    async def generate_batch() -> None:
        raise MemoryError("the model does not fit")

    @ingestion.action("embeddings_ready")
    async def embeddings_ready(reply: Reply[Any]) -> None:
        replies.append(reply)

    # If I send to it
    ingestion.send("embedding.generate_batch", on_reply="embeddings_ready")
    kit.drain()

    # I expect a callback with the error, and a dead letter
    (reply,) = replies
    assert (reply.ok, reply.status) == (False, "failed")
    assert reply.error is not None and reply.error.message == "the model does not fit"
    assert [letter.task for letter in app.dead.list()] == ["embedding.generate_batch"]


def test_the_sender_is_called_back_at_its_timeout(app: Relevo, kit: TestKit) -> None:
    # Given a service without workers
    ingestion = app.service("ingestion")
    timed_out: list[str] = []

    @ingestion.action("embeddings_ready")
    async def embeddings_ready(reply: Reply[Any]) -> None: ...

    @ingestion.action("embeddings_missing")
    async def embeddings_missing(reply: Reply[Any]) -> None:
        timed_out.append(reply.status)

    # If I send to it with a timeout
    ingestion.send(
        "embedding.generate_batch", on_reply="embeddings_ready", on_timeout="embeddings_missing", timeout="1h"
    )
    kit.drain()
    assert timed_out == []

    # I expect a callback when that time is over
    kit.clock.move("61m")
    kit.drain()
    assert timed_out == ["timeout"]


def test_a_long_action_reports_its_progress(app: Relevo, kit: TestKit) -> None:
    # Given an action that reports its progress
    embedding, ingestion = app.service("embedding"), app.service("ingestion")
    reports: list[Any] = []

    @embedding.action("generate_batch")
    async def generate_batch(texts: list[str]) -> str:
        for done in range(len(texts)):
            await embedding.areport({"done": done + 1, "of": len(texts)})
        return "all"

    @ingestion.action("progress")
    async def progress(reply: Reply[dict[str, int]]) -> None:
        reports.append(reply.result)

    @ingestion.action("embeddings_ready")
    async def embeddings_ready(reply: Reply[str]) -> None:
        reports.append(reply.result)

    # If I name an action for the reports
    ingestion.send(
        "embedding.generate_batch", {"texts": ["a", "b"]}, on_reply="embeddings_ready", on_progress="progress"
    )
    kit.drain()

    # I expect the reports before the end
    assert reports == [{"done": 1, "of": 2}, {"done": 2, "of": 2}, "all"]


def test_a_callback_inherits_tenant_and_operation_of_its_message(app: Relevo, kit: TestKit) -> None:
    # Given an action, and one for its callback
    embedding, ingestion = app.service("embedding"), app.service("ingestion")
    seen: list[tuple[str, str, str]] = []

    def note() -> None:
        message = current_job().message
        assert message is not None
        seen.append((message.type, message.tenant, message.correlation_id))

    @embedding.action("generate_batch")
    async def generate_batch() -> None:
        note()

    @ingestion.action("embeddings_ready")
    async def embeddings_ready(reply: Reply[None]) -> None:
        note()

    # If I send on behalf of a tenant
    ingestion.send("embedding.generate_batch", on_reply="embeddings_ready", tenant="acme", correlation_id="upload-9")
    kit.drain()

    # I expect the callback to have the same tenant and operation
    assert seen == [
        ("embedding.generate_batch", "acme", "upload-9"),
        ("ingestion.embeddings_ready", "acme", "upload-9"),
    ]


async def test_a_callback_comes_back_to_the_process_that_holds_the_socket(bus: Relevo) -> None:
    # Given a web server that runs a worker in its own loop, and holds a user's socket
    embedding, web = bus.service("embedding"), bus.service("web")
    socket: list[str] = []

    @embedding.action("answer")
    async def answer(question: str) -> str:
        return f"{question} 42"

    @web.action("push")
    async def push(reply: Reply[str]) -> None:
        socket.append(reply.result or "")

    async with answering(bus):
        # If it sends with sticky=True
        await web.asend("embedding.answer", {"question": "why?"}, on_reply="push", sticky=True)

        # I expect the callback in this process; if it had died, another process of the service would take it
        await aeventually(lambda: socket == ["why? 42"], what="it was pushed")
