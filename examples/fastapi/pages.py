"""The web app: `uvicorn pages:api`. It enqueues reports and shows their progress, by server-sent events."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

from fastapi import FastAPI, HTTPException
from fastapi.responses import HTMLResponse, StreamingResponse
from jobs import app, write_report

from relevo import Job, JobEvent
from relevo.errors import UnknownJob


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    """Close relevo's connections with the web app."""
    yield
    await app.aclose()


api = FastAPI(title="Reports", lifespan=lifespan)


@api.post("/reports", status_code=202)
async def order(pages: int = 5) -> dict[str, str]:
    """Order a report."""
    job = await write_report.aenqueue(pages)
    return {"id": job.id, "page": f"/reports/{job.id}", "events": f"/reports/{job.id}/events"}


@api.get("/reports/{id}/events")
async def events(id: str) -> StreamingResponse:
    """What happens to a report, as server-sent events, until it has ended."""
    job = await found(id)
    return StreamingResponse(told(job), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@api.get("/reports/{id}")
async def page(id: str) -> HTMLResponse:
    """A page that shows the progress of a report."""
    job = await found(id)
    return HTMLResponse(PAGE.replace("{id}", job.id))


async def found(id: str) -> Job[Any]:
    """The job with this id, or 404."""
    try:
        return await app.ajob(id)
    except UnknownJob:
        raise HTTPException(404, "there is no such report") from None


async def told(job: Job[Any]) -> AsyncIterator[str]:
    """Each event in the form that browsers read."""
    async with aclosing(job.events()) as events:
        async for event in events:
            yield f"event: {event.kind}\ndata: {json.dumps(shown(event))}\n\n"


def shown(event: JobEvent) -> dict[str, Any]:
    """What the browser may know."""
    match event.kind:
        case "progress":
            return {"fraction": event.fraction, "message": event.message}
        case "logs":
            return {"text": event.text}
        case "ended":
            return {"state": event.state}
        case _:
            return {"attempt": event.attempt}


PAGE = """<!doctype html>
<title>Report {id}</title>
<h1>Report</h1>
<progress id="bar" value="0"></progress> <span id="message">waiting</span>
<pre id="log"></pre>
<script>
  const events = new EventSource("/reports/{id}/events"), show = (id) => document.getElementById(id);
  const on = (kind, act) => events.addEventListener(kind, (event) => act(JSON.parse(event.data)));
  on("started", () => { show("message").textContent = "started"; });
  on("progress", (said) => { show("bar").value = said.fraction; show("message").textContent = said.message; });
  on("logs", (said) => { show("log").textContent += said.text; });
  on("retried", () => { show("message").textContent = "failed, and is tried again"; });
  on("ended", (said) => { show("message").textContent = said.state; events.close(); });
</script>
"""
