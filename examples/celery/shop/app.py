"""The app: `relevo worker shop.app:app`. relevo.toml names the modules with its tasks."""

from __future__ import annotations

from collections.abc import Iterator

from relevo import Relevo

from shop.bank import Bank

app = Relevo("shop")


@app.lifespan
def lifespan() -> Iterator[Bank]:
    """Each worker process connects to the bank once."""
    bank = Bank.connected()
    yield bank
    bank.close()
