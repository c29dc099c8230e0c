"""Fetch pages, parse them in parallel, write a summary: a pipeline of three kinds of jobs.

    python examples/pipeline/pipeline.py docs/*.md README.md

It brings its own worker and, without RELEVO_URL, its own server. In a real project the last part would be two programs:
`relevo worker pipeline:app` and whoever enqueues.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

from msgspec import Struct

from relevo import Relevo, Workflow, group
from relevo.errors import JobFailed
from relevo.worker import Worker

app = Relevo("pipeline")


class Page(Struct):
    """What is known of a page; travels between the jobs as JSON, and arrives as this class."""

    source: str
    words: int
    common: dict[str, int]


# Fetching waits for others: its own queue, retries that grow, and no more than 30 seconds for each try.
@app.task(queue="net", retries=4, backoff="500ms", timeout="30s", give_up_on=[FileNotFoundError])
def fetch(source: str) -> str:
    """The text of a page: from the net, or from a file."""
    if source.startswith(("http://", "https://")):
        with urllib.request.urlopen(source, timeout=20) as answer:
            text: str = answer.read(500_000).decode(errors="replace")
            return text
    return Path(source).read_text("utf-8")


@app.task
def parse(text: str, source: str) -> Page:
    """Count the words of a page."""
    found = re.findall(r"[^\W\d_]{4,}", text.lower())
    return Page(source, len(found), dict(Counter(found).most_common(20)))


@app.task
def summarise(pages: list[Page]) -> str:
    """All pages, the longest first, and the words that they share."""
    shared: Counter[str] = Counter()
    for page in pages:
        shared.update(page.common)
    lines = [f"{page.words:6,} words  {page.source}" for page in sorted(pages, key=lambda one: -one.words)]
    return "\n".join([*lines, "most common: " + ", ".join(word for word, _ in shared.most_common(8))])


@app.task
def report_failure() -> str:
    """Called once if the pipeline did not go well; here somebody would be told."""
    progress = app.workflow().progress()
    return f"{progress.done} of {progress.total} jobs went well"


def pipeline(sources: list[str]) -> Workflow[str]:
    """Enqueue it: fetch and parse each source, side by side, then one summary of all."""
    pages = group(fetch.s(source) | parse.s(source) for source in sources)
    return pages.then(summarise.s()).on_failure(report_failure.si()).enqueue()


async def main(sources: list[str]) -> int:
    """Work here until the summary is there."""
    worker = Worker(app)
    working = asyncio.create_task(worker.run())
    began = time.monotonic()
    flow = await asyncio.to_thread(pipeline, sources)
    code = 0
    try:
        print(await flow.aresult(timeout="2m"))
        print(f"{(await flow.aprogress()).total} jobs in {time.monotonic() - began:.2f} s")
    except JobFailed as error:
        [(_, told)] = (await flow.ainfo()).callbacks
        print(await (await app.ajob(told.id)).aresult(timeout=10), file=sys.stderr)
        print(f"{error}\nrelevo workflow retry {flow.id}   runs the failed part again", file=sys.stderr)
        code = 1
    worker.stop()
    await working
    await app.aclose()
    return code


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:] or [__file__])))
