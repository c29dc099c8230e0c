"""The app: `relevo worker reports.jobs:app`. relevo.toml names the module with its tasks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from relevo import Depends, Relevo, current_job
from sqlalchemy import Engine

from reports.database import pool
from reports.request_ids import OfJobs

app = Relevo("reports", middleware=[OfJobs()])


@app.lifespan
def lifespan() -> Iterator[Engine]:
    """Each worker process has a pool of connections."""
    with pool() as engine:
        yield engine


def _pool_of_this_process() -> Engine:
    engine: Engine = current_job().state
    return engine


#: For parameters of tasks, which callers do not give.
Database = Annotated[Engine, Depends(_pool_of_this_process)]
