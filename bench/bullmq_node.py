"""BullMQ on Node.js, a reference outside Python: enqueue and drain, timed by a program of its own."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.processes import ProductFailed, run_to_end
from bench.progress import say
from bench.server import Server

PROGRAM = Path(__file__).with_name("bullmq_node.cjs")


def take(server: Server, node: str, modules: Path, measures: Sequence[str], scale: float) -> dict[str, Any]:
    """Run the program; what it found, in the shape of the other products."""
    server.flush()
    env = {**os.environ, "NODE_PATH": str(modules)}
    command = [node, str(PROGRAM), str(server.port), ",".join(measures), str(scale)]
    with tempfile.TemporaryDirectory(prefix="relevo-bench-node-") as folder, Path(folder, "log").open("wb") as log:
        try:
            found: dict[str, Any] = json.loads(run_to_end(command, env=env, cwd=Path(folder), log=log, within=120))
        except ProductFailed:
            say(Path(folder, "log").read_text(errors="replace")[-1500:])
            raise
    return found
