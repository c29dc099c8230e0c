"""What runs by the clock; there is no beat to start."""

from __future__ import annotations

from shop.app import app


@app.task(cron="30 2 * * *", tz="Europe/Madrid")
def report() -> str:
    """Every night."""
    return "sales of yesterday"


@app.task(every="5s", result_ttl=0)
def sync_stock() -> None:
    """Every five seconds."""
    print("stock is up to date")
