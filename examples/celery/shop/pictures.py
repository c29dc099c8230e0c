"""Pictures: a group with a last step, in a queue of its own."""

from __future__ import annotations

from relevo import Workflow, current_job, group

from shop.app import app

SIZES = (64, 256, 1024)


@app.task(queue="pictures")
def render(product: str, size: int) -> str:
    """Make a picture in one size."""
    for done in range(4):
        current_job().progress(done / 4, f"{done} of 4")
    return f"{product}-{size}.webp"


@app.task(queue="pictures")
def publish(pictures: list[str], product: str) -> str:
    """Gets all pictures when the last one is there."""
    return f"album of {product}: {', '.join(pictures)}"


def make_album(product: str) -> Workflow[str]:
    """Render all sizes side by side, then publish them."""
    return group(render.s(product, size) for size in SIZES).then(publish.s(product)).enqueue()
