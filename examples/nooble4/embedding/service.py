"""Embedding on the bus. Run it with `relevo worker embedding.service:app`."""

from __future__ import annotations

import logging

from relevo import Relevo, current_job

from embedding.model import UnreadableText, embed

log = logging.getLogger("nooble4.embedding")

app = Relevo("embedding")
embedding = app.service("embedding")


@embedding.action("generate_batch", retries=2, timeout="5m", give_up_on=[UnreadableText])
async def generate_batch(texts: list[str]) -> list[list[float]]:
    """The vectors of some texts, in their order."""
    job = current_job()

    async def one(number: int, text: str) -> list[float]:
        vector = await embed(text)
        log.info("text %d of %d, attempt %d", number, len(texts), job.attempt)
        await embedding.areport({"done": number, "of": len(texts)})
        return vector

    # Each step is kept: if this process dies, the next attempt goes on with the text after the last one.
    return [await job.astep(f"text {number}", one, number, text) for number, text in enumerate(texts, 1)]
