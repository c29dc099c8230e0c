"""What workers do."""

from __future__ import annotations

import logging
import time

from relevo import current_job
from sqlalchemy import select, update

from reports.database import reports
from reports.jobs import Database, app
from reports.request_ids import InLogs

log = logging.getLogger("reports")
log.addFilter(InLogs())


@app.task(retries=2, backoff="1s", give_up_on=[LookupError])
def write_report(id: int, *, database: Database) -> str:
    """Write a report, page by page, into its row."""
    job = current_job()
    with database.connect() as connection:
        row = connection.execute(select(reports).where(reports.c.id == id)).one_or_none()
    if row is None:
        raise LookupError(f"there is no report {id}")
    lines: list[str] = []
    for page in range(1, row.pages + 1):
        time.sleep(0.5)
        lines.append(f"Page {page} about {row.title}.")
        with database.begin() as connection:
            connection.execute(update(reports).where(reports.c.id == id).values(text="\n".join(lines)))
        log.info("page %d of %d is written", page, row.pages)
        job.progress(page / row.pages, f"page {page} of {row.pages}")
    return f"{row.pages} pages"
