"""Tasks with dependencies, for every executor. In a module of their own: a child process imports it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

from relevo import Depends, Relevo

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

app = Relevo("dependent", url="redis://127.0.0.1:1")
_FILE = "DEPENDENCIES_FILE"


def note(what: str) -> None:
    """Write down what happened, for the test."""
    with open(os.environ[_FILE], "a") as file:
        file.write(f"{what}\n")


def get_db() -> Iterator[str]:
    try:
        yield "db"
    except ValueError as error:
        note(f"rolled back after {error}")
        raise
    finally:
        note("closed")


async def get_async_db() -> AsyncIterator[str]:
    try:
        yield "async db"
    except ValueError as error:
        note(f"rolled back after {error}")
        raise
    finally:
        note("closed")


#: The class of the value is known to type checkers alone, as is common.
Db = Annotated["Session", Depends(get_db)]


def _act(db: Any, order: int) -> str:
    if order < 0:
        raise ValueError(f"order {order}")
    note("done")
    return f"{db} {order}"


@app.task(name="on_loop", retries=0)
async def on_loop(order: int, db: Annotated[Session, Depends(get_async_db)]) -> str:
    return _act(db, order)


@app.task(name="in_thread", retries=0)
def in_thread(db: Db, order: int) -> str:
    return _act(db, order)


@app.task(name="in_process", retries=0, executor="process")
def in_process(order: int, *, db: Db) -> str:
    return _act(db, order)


@app.task(name="loop_in_process", retries=0, executor="process")
async def loop_in_process(order: int, db: str = Depends(get_async_db)) -> str:
    return _act(db, order)
