"""The web app: `uvicorn reports.web:api`. It orders reports and shows their progress by server-sent events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi.responses import FileResponse
from fastapi.sse import EventSourceResponse, ServerSentEvent
from fastapi.staticfiles import StaticFiles
from pydantic import BaseModel, Field
from relevo import Job, JobEvent
from relevo.errors import UnknownJob
from sqlalchemy import Engine, insert, select, update

from reports.database import pool, reports
from reports.jobs import app
from reports.request_ids import OfHttp
from reports.tasks import write_report

PAGES = Path(__file__).parent / "static"


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Engine]]:
    """The same pool as in the workers; relevo's connections are closed with the web app."""
    with pool() as engine:
        yield {"engine": engine}
    await app.aclose()


def engine_of(request: Request) -> Engine:
    """The pool of this process."""
    engine: Engine = request.state.engine
    return engine


Database = Annotated[Engine, Depends(engine_of)]

api = FastAPI(title="Reports", lifespan=lifespan)
api.add_middleware(OfHttp)
api.mount("/static", StaticFiles(directory=PAGES))


@api.get("/", include_in_schema=False)
def order_page() -> FileResponse:
    """A form, and the reports that are being written."""
    return FileResponse(PAGES / "order.html")


class Order(BaseModel):
    """What a browser sends."""

    title: str = Field(min_length=1, max_length=100)
    pages: int = Field(default=10, ge=1, le=100)


@api.post("/reports", status_code=202)
def order(order: Order, database: Database) -> dict[str, str]:
    """Order a report: its row first, so that the worker finds it."""
    with database.begin() as connection:
        id = connection.execute(insert(reports).values(**order.model_dump()).returning(reports.c.id)).scalar_one()
    job = write_report.using(name=f"report-{id}").enqueue(id)
    with database.begin() as connection:
        connection.execute(update(reports).where(reports.c.id == id).values(job=job.id))
    return {"page": f"/reports/{id}", "events": f"/reports/{id}/events"}


def known(id: int, database: Database) -> dict[str, Any]:
    """The row of a report, or 404."""
    with database.connect() as connection:
        row = connection.execute(select(reports).where(reports.c.id == id)).mappings().one_or_none()
    if row is None or row["job"] is None:
        raise HTTPException(404, "there is no such report")
    return dict(row)


Report = Annotated[dict[str, Any], Depends(known)]


@api.get("/reports/{id}", include_in_schema=False)
def report_page(_: Report) -> FileResponse:
    """The page that shows how a report is written."""
    return FileResponse(PAGES / "report.html")


@api.get("/reports/{id}/data")
def data(report: Report) -> dict[str, Any]:
    """What is in the database."""
    return report


async def job_of(report: Report) -> Job[Any] | None:
    """The job that writes a report; None: it has ended so long ago that nothing is kept of it."""
    try:
        return await app.ajob(report["job"])
    except UnknownJob:
        return None


@api.get("/reports/{id}/events", response_class=EventSourceResponse)
async def events(job: Annotated[Job[Any] | None, Depends(job_of)]) -> AsyncIterator[ServerSentEvent]:
    """What happens to a report until it has ended."""
    if job is None:
        yield ServerSentEvent(event="ended", data={"state": "done"})
        return
    async with aclosing(job.events()) as happened:
        async for event in happened:
            yield ServerSentEvent(event=event.kind, data=shown(event))


@api.get("/events", response_class=EventSourceResponse)
async def all_events() -> AsyncIterator[ServerSentEvent]:
    """What happens to all reports, from now on."""
    async with aclosing(app.events(task=write_report, kinds=["started", "progress", "ended"])) as happened:
        async for event in happened:
            yield ServerSentEvent(event=event.kind, data={"job": event.job, **shown(event)})


@api.get("/reports")
def latest(database: Database) -> list[dict[str, Any]]:
    """The latest reports, the newest first."""
    with database.connect() as connection:
        rows = connection.execute(select(reports).order_by(reports.c.id.desc()).limit(10)).mappings()
        return [dict(row) for row in rows]


def shown(event: JobEvent) -> dict[str, Any]:
    """What a browser may know of an event."""
    match event.kind:
        case "progress":
            return {"fraction": event.fraction, "message": event.message}
        case "logs":
            return {"text": event.text}
        case "ended":
            return {"state": event.state, "error": event.error}
        case _:
            return {"attempt": event.attempt}
