"""Metrics for Prometheus, from the state in Redis: any process of the app can export all of them.

    from relevo import metrics

    text = metrics.exposition(app)

`relevo worker … --metrics-port 9464` serves them; docs/metrics.md lists them.
"""

from __future__ import annotations

import logging
import time

from relevo.engine.engine import Engine, HasEngine
from relevo.errors import StoreError
from relevo.metrics.families import families, nothing_but_down
from relevo.metrics.snapshot import Snapshot, reading
from relevo.metrics.text import CONTENT_TYPE, text

__all__ = ["CONTENT_TYPE", "aexposition", "exposition"]

log = logging.getLogger("relevo.metrics")

#: Time limit of a scrape in seconds: the default of Prometheus is ten.
WITHIN = 8.0


def exposition(app: HasEngine) -> bytes:
    """All metrics of an app in the text format of Prometheus; only `relevo_up 0` if the server cannot be reached."""
    return exposition_of(app.engine)


def exposition_of(engine: Engine) -> bytes:
    """`exposition` for an engine without an app."""
    began = time.monotonic()
    try:
        found = engine.client.run(reading(engine), patience=0, within=WITHIN)
    except StoreError as error:
        return _away(engine, error)
    return _text(found, began)


async def aexposition(app: HasEngine) -> bytes:
    """`exposition` for async code."""
    began = time.monotonic()
    try:
        found = await app.engine.client.driver().perform(reading(app.engine), patience=0, within=WITHIN)
    except StoreError as error:
        return _away(app.engine, error)
    return _text(found, began)


def _text(found: Snapshot, began: float) -> bytes:
    return text(families(found, scrape_seconds=time.monotonic() - began))


def _away(engine: Engine, error: StoreError) -> bytes:
    log.warning("no metrics: %s", error)
    return text(nothing_but_down(engine.name))
