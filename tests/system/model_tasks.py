"""Tasks with models for child processes, which import this module."""

from __future__ import annotations

from pathlib import PurePosixPath

from pydantic import BaseModel

from relevo import Relevo

app = Relevo("models", url="redis://127.0.0.1:1")
app.codec.register(PurePosixPath, str, PurePosixPath)


class Amount(BaseModel):
    cents: int


@app.task(executor="process")
def doubled(amount: Amount, path: PurePosixPath) -> Amount:
    assert isinstance(path, PurePosixPath)
    return Amount(cents=amount.cents * 2)
