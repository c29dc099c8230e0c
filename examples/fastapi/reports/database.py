"""The database: a pool of connections, opened once by each process of the web app and of the workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Column, Engine, Integer, MetaData, String, Table, Text, create_engine
from sqlalchemy.schema import CreateTable

URL = os.environ.get("DATABASE_URL", "sqlite:///reports.db")

reports = Table(
    "reports",
    MetaData(),
    Column("id", Integer, primary_key=True),
    Column("title", String(100), nullable=False),
    Column("pages", Integer, nullable=False),
    Column("text", Text, nullable=False, default=""),
    Column("job", String(20)),
)


@contextmanager
def pool() -> Iterator[Engine]:
    """At most five connections for the threads of a process, which wait for each other's."""
    engine = create_engine(URL, pool_size=5, max_overflow=0, connect_args={"timeout": 60})
    with engine.begin() as connection:
        connection.execute(CreateTable(reports, if_not_exists=True))
    try:
        yield engine
    finally:
        engine.dispose()
