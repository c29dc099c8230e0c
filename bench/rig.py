"""A product set up on the server: its driver, its workers, its probe."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from bench.probe import Probe
from bench.processes import DriverProcess, Process, ProductFailed, cores
from bench.products import Product
from bench.progress import say
from bench.server import Server

ROOT = Path(__file__).parents[1]
SLOTS = 1_600_000


class Rig:
    """One product on one server, inside `with`. `scale` shortens or lengthens everything that takes time."""

    def __init__(
        self,
        server: Server,
        product: Product,
        python: str,
        *,
        scale: float = 1.0,
        repeat: int = 3,
        source: Path = ROOT / "src",
        keep_log: bool = False,
    ) -> None:
        self.server = server
        self.product = product
        self.python = python
        self.scale = scale
        self.repeat = repeat
        #: Jobs a second of a drain, once known: how many jobs make a drain of a given time.
        self.drain_rate: dict[bool, float] = {}
        self._source = source
        self._keep_log = keep_log
        self._drivers: dict[bool, DriverProcess] = {}
        self._about: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.folder = Path(tempfile.mkdtemp(prefix=f"relevo-bench-{self.product.name}-"))
        self.probe = Probe(str(self.folder / "probe"), SLOTS)
        self.log = (self.folder / "log").open("ab")
        return self

    def __exit__(self, *_: object) -> None:
        for driver in self._drivers.values():
            driver.stop()
        self.log.close()
        Path(self.probe.path).unlink()
        if self._keep_log:
            say(f"  log: {self.folder / 'log'}")
        else:
            shutil.rmtree(self.folder)

    def environment(self, *, results: bool = False, delayed: bool = False) -> dict[str, str]:
        """Variables of driver and worker. Settings of relevo are left out: they would change what is measured."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RELEVO_", "REDIS_"))}
        paths = [str(self._source), str(ROOT)] if self.product.is_ours else [str(ROOT)]
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(paths),
            "BENCH_URL": self.server.url,
            "BENCH_PROBE": self.probe.path,
            "BENCH_RESULTS": "1" if results else "0",
            "BENCH_DELAYED": "1" if delayed else "0",
        }

    @property
    def about(self) -> dict[str, Any]:
        """What the product says of itself."""
        if not self._about:
            self.driver()
        return self._about

    def driver(self, *, results: bool = False) -> DriverProcess:
        """The client process; it lives as long as the rig."""
        if results not in self._drivers:
            driver = DriverProcess(
                self.python,
                self.product.adapter,
                log=self.log,
                env=self.environment(results=results),
                cwd=self.folder,
            )
            self._drivers[results] = driver
            self._about = driver("about", within=30)
        return self._drivers[results]

    def reset(self) -> None:
        """An empty server, an empty probe."""
        self.server.flush()
        self.probe.reset()

    @contextmanager
    def worker(
        self,
        *,
        results: bool = False,
        delayed: bool = False,
        gently: bool = True,
        extra: Sequence[str] = (),
        on: set[int] | None = None,
    ) -> Iterator[Process]:
        """One worker. Not `gently`: it is killed in the end, for what it holds then is of no interest."""
        worker = Process(
            [*self.about["worker"], *extra],
            log=self.log,
            on=on or cores()[1],
            env=self.environment(results=results, delayed=delayed),
            cwd=self.folder,
        )
        try:
            yield worker
        finally:
            worker.stop(3 if gently else 0)

    def wait_until(self, condition: Any, worker: Process, *, within: float, what: str) -> None:
        """Look until a condition holds."""
        until = time.monotonic() + within
        while not condition():
            if not worker.is_running:
                raise ProductFailed(f"the worker ended before {what}; see its log")
            if time.monotonic() > until:
                raise ProductFailed(f"{what}: not within {within:.0f} s")
            time.sleep(0.002)

    def wait_idle(self, driver: DriverProcess) -> None:
        """Run some jobs, so that everything is connected and loaded."""
        if driver("starts", first=0, n=5, gap=(0.0, 0.02), timeout=15, within=90)["lost"]:
            raise ProductFailed("the jobs that warm up were not run")

    def log_size(self) -> int:
        """How much driver and workers wrote so far."""
        return (self.folder / "log").stat().st_size

    def logged(self, since: int = 0) -> str:
        """What they wrote since it was so much."""
        return (self.folder / "log").read_bytes()[since:].decode(errors="replace")

    def log_tail(self) -> str:
        """The end of it."""
        return self.logged()[-1500:]
