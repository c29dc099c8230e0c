"""A worker of the project in processes of its own: `manage.py relevo worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from relevo.django.site_app import SiteApp
from tests.process.harness import WorkerProcess

MANAGE = [sys.executable, "-m", "django"]
ROOT = Path(__file__).parents[2]


def environment(shop: SiteApp, **more: str) -> dict[str, str]:
    """That of a process of the same project, on the same server and under the same name."""
    url = shop.settings.url
    assert url is not None
    return {**os.environ, "SHOP_APP": shop.name, "REDIS_URL": url, "PYTHONPATH": str(ROOT), **more}


@contextmanager
def worker_process(
    shop: SiteApp, folder: Path, *, command: str = "relevo worker", **variables: str
) -> Iterator[WorkerProcess]:
    """`manage.py relevo worker`, ended with the block."""
    worker = WorkerProcess(
        [*MANAGE, *command.split()], env=environment(shop, **variables), log=folder / "worker.log", dies=False
    )
    try:
        yield worker
    finally:
        worker.end()
