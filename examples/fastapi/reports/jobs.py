"""The app: `relevo worker reports.jobs:app`. relevo.toml names the module with its tasks."""

from __future__ import annotations

from collections.abc import Iterator

from relevo import Relevo
from sqlalchemy import Engine

from reports.database import pool
from reports.request_ids import OfJobs

app = Relevo("reports", middleware=[OfJobs()])


@app.lifespan
def lifespan() -> Iterator[Engine]:
    """Each worker process has a pool of connections; tasks find it in `current_job().state`."""
    with pool() as engine:
        yield engine
