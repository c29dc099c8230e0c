"""Where the time of relevo's worker goes while it drains: samples of its stacks, and the server's commands."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

from bench.figures import shown
from bench.measures.drain import SECONDS, rate_of, size_of, wait_delivered
from bench.processes import ProductFailed
from bench.products import Product
from bench.progress import say
from bench.report import columns
from bench.rig import Rig
from bench.server import Server


def profile(path: str, product: Product, binary: str | None, scale: float) -> int:
    """Drain once under py-spy. A file that ends in .json is for speedscope, any other holds collapsed stacks."""
    sampler = _py_spy()
    with Server(binary) as server, Rig(server, product, sys.executable, scale=scale) as rig:
        n = size_of(rate_of(rig), SECONDS * scale)
        rig.reset()
        n = rig.driver()("fill", n=n, seconds=20)["n"]
        before = server.counters()
        with rig.worker(gently=False) as worker:
            rig.wait_until(lambda: rig.probe.any_ran(n), worker, within=30, what="the first job")
            kind = "speedscope" if path.endswith(".json") else "raw"
            options = ["--format", kind, "--rate", "500", "--subprocesses", "--output", path, "--pid", str(worker.pid)]
            sampling = subprocess.Popen([sampler, "record", *options], stdout=sys.stderr)
            try:
                found = wait_delivered(rig, worker, n)
                spent = server.counters().since(before)
            finally:
                sampling.send_signal(signal.SIGINT)  # it then writes what it has
                sampling.wait(30)
    if sampling.returncode or not Path(path).exists():
        raise ProductFailed(f"py-spy ended with {sampling.returncode}; it needs the right to trace processes (root)")
    told = found.told()
    print(f"{told['ran']:,} of {n:,} jobs ran, {told['twice']} more than once; stacks in {path}\n")
    rows = [[name, f"{calls:,}", shown(calls / n), shown(n / calls)] for name, calls in spent.calls.items()]
    print(columns(["server command", "calls", "per job", "jobs per call"], rows))
    say("sampling slows the worker down: take speeds from a run without it")
    return 1 if told["lost"] else 0


def _py_spy() -> str:
    beside = Path(sys.executable).parent / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise ProductFailed("--profile needs py-spy: pip install py-spy")
    return found
