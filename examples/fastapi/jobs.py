"""The tasks, which the worker runs: `relevo worker jobs:app`."""

from __future__ import annotations

import time

from relevo import Relevo, current_job

app = Relevo("reports")


@app.task
def write_report(pages: int) -> str:
    """Write a report, page by page."""
    for page in range(1, pages + 1):
        time.sleep(0.5)
        print(f"page {page} is written")
        current_job().progress(page / pages, f"page {page} of {pages}")
    return f"a report of {pages} pages"
