"""`relevo demo`: the main features in a few seconds, on a real server, with real processes that are really killed."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from relevo.cli.options import Subparsers, command
from relevo.errors import JobFailed

if TYPE_CHECKING:
    from relevo.app import Relevo
    from relevo.cli.demo.view import View
    from relevo.engine.workers import WorkerInfo

JOBS = 20_000


def add(commands: Subparsers) -> None:
    """Add the command."""
    parser = command(
        commands,
        "demo",
        "see it work: server, workers and jobs, in under 20 seconds",
        about="""
        Starts a server (the embedded one unless RELEVO_URL is set), two worker processes and a lively workload:
        priorities, delays, retries, a dead letter, a worker that is killed. Ends by itself.
        """,
        examples="""
        relevo demo
        relevo demo --keep
        """,
        app=False,
    )
    parser.add_argument("--keep", action="store_true", help="continue with a steady workload until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print the findings as JSON at the end")


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; the exit code is 1 if anything went wrong."""
    # The workload belongs to this run alone: two demos at once must not count each other's jobs.
    os.environ["RELEVO_ENV"] = f"demo-{os.getpid()}"
    os.environ.setdefault("RELEVO_LOG_MAX", "16KiB")
    from relevo.cli.demo import tasks as demo_tasks
    from relevo.cli.demo.view import View

    app = demo_tasks.app
    findings: dict[str, Any] = {}
    with contextlib.redirect_stdout(sys.stderr) if args.json else contextlib.nullcontext(), View() as view:
        _server(app, view)
        with _workers():
            for step in (_start, _priorities, _delays, _retries, _dead_letter, _killed_worker, _throughput):
                findings[step.__name__.strip("_")] = step(app, view)
            findings["accounting"] = _accounting(app, view)
            if args.keep:
                _go_on(app, view)
        _clean(app)
    findings["failed"] = view.failed
    if args.json:
        import msgspec

        print(msgspec.json.encode(findings).decode())
    elif not view.failed:
        print(
            f"\nAll of it worked, in {time.monotonic() - view.began:.1f} s. Next: write a module with\n\n"
            "    from relevo import Relevo\n"
            '    app = Relevo("shop")\n\n'
            "    @app.task\n"
            '    def greet(name: str) -> str:\n        return f"hello {name}"\n\n'
            "and run: relevo worker shop:app"
        )
    return 1 if view.failed else 0


@contextlib.contextmanager
def _workers() -> Iterator[None]:
    command = [sys.executable, "-m", "relevo.cli.main", "worker", "relevo.cli.demo.tasks:app", "-p", "2"]
    process = subprocess.Popen(  # noqa: S603
        [*command, "--log-level", "WARNING"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def _server(app: Relevo, view: View) -> None:
    from relevo.store.plan import Call

    began = time.monotonic()
    view.begin("Server")
    info: str = app.engine.run(Call([b"INFO", b"server"], bytes.decode))
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    engine = "Valkey" if "valkey_version" in fields else "Redis"
    version = fields.get("valkey_version") or fields["redis_version"]
    kind = "embedded" if app.engine.client.source.is_embedded else "given"
    view.server = f"{engine} {version}, {kind}"
    view.end(f"{engine} {version} ({kind}) answers after {time.monotonic() - began:.2f} s")


def _living(app: Relevo) -> list[WorkerInfo]:
    from relevo.engine.workers import roll

    return app.engine.run(roll(app.engine.keys, app.engine.run(app.engine.now_ms())))[0]


def _start(app: Relevo, view: View) -> int:
    view.begin("Workers")
    began = time.monotonic()
    view.watch(app.queue().stats, lambda: len(_living(app)) == 2, 15)
    pids = [worker.pid for worker in _living(app)]
    view.end(
        f"{len(pids)} processes ({', '.join(map(str, pids))}) after {time.monotonic() - began:.1f} s",
        well=len(pids) == 2,
    )
    return len(pids)


def _priorities(app: Relevo, view: View) -> list[str]:
    from relevo import Priority
    from relevo.cli.demo.tasks import pack

    view.begin("Priorities")
    queue = app.queue()
    queue.pause()
    names = ["LOW", "NORMAL", "HIGH", "CRITICAL"] * 3
    jobs = [(name, pack.using(priority=Priority[name]).enqueue(name)) for name in names]
    view.stats(queue.stats())
    queue.resume()
    started = sorted((job.result(10), name) for name, job in jobs)
    order = [name for _, name in started]
    ranks = [Priority[name] for name in order]
    view.end(
        f"enqueued low to critical, started {' '.join(n.lower() for n in order[::3])}", well=ranks == sorted(ranks)
    )
    return order


def _delays(app: Relevo, view: View) -> list[float]:
    from relevo.cli.demo.tasks import deliver

    view.begin("Delays")
    asked = [0.5, 1.0, 1.5]
    now = time.time()
    jobs = [deliver.using(delay=delay).enqueue(f"parcel in {delay} s") for delay in asked]
    view.watch(app.queue().stats, lambda: app.queue().stats().scheduled == 0, 5)
    late = [(job.result(10) - now - delay) * 1000 for job, delay in zip(jobs, asked, strict=True)]
    view.end(
        f"due after 0.5, 1.0 and 1.5 s, started {max(late):.0f} ms late at most", well=-5 < min(late) <= max(late) < 500
    )
    return late


def _retries(app: Relevo, view: View) -> str:
    from relevo.cli.demo.tasks import call_shaky_service

    view.begin("Retries")
    job = call_shaky_service.enqueue(7)
    view.watch(app.queue().stats, lambda: job.state().has_ended, 10)
    text = job.result(1)
    view.end(f"failed twice with 503, then: {text}", well="attempt 3" in text)
    return text


def _dead_letter(app: Relevo, view: View) -> str:
    from relevo.cli.demo.tasks import charge_expired_card

    view.begin("Dead letter")
    job = charge_expired_card.enqueue("4242")
    view.watch(app.queue().stats, lambda: job.state().has_ended, 10)
    try:
        job.result(1)
    except JobFailed as failed:
        handled = view.watch(app.queue().stats, lambda: app.queue().stats().living == 0, 5)
        runs = len(job.info().attempts)
        view.end(f"given up after {runs} runs ({failed.error}), kept with its history, handler ran", well=handled)
        return failed.reason
    view.end("a task that must fail did not", well=False)
    return ""


def _killed_worker(app: Relevo, view: View) -> float:
    from relevo.cli.demo.tasks import long_report

    view.begin("Killed worker")
    job = long_report.enqueue(2.0)
    view.watch(app.queue().stats, lambda: job.state() == "running", 5)
    view.found("a 2 s job is running …")
    view.watch(app.queue().stats, lambda: job.progress() is not None, 3)
    holder = job.info().worker
    victim = next(worker.pid for worker in _living(app) if worker.id == holder)
    os.kill(victim, signal.SIGKILL)
    killed = time.monotonic()
    view.found(f"kill -9 {victim} …")
    view.watch(app.queue().stats, lambda: job.info().worker not in ("", holder), 20)
    back = time.monotonic() - killed
    text = job.result(20)
    view.end(f"kill -9 {victim} in mid job; running again after {back:.1f} s: {text}", well="attempt 2" in text)
    return back


def _throughput(app: Relevo, view: View) -> dict[str, float]:
    from relevo.cli.demo.tasks import tick

    view.begin("Throughput")
    began = time.monotonic()
    tick.enqueue_many([((number,), {}) for number in range(JOBS)])
    stored = time.monotonic() - began
    queue = app.queue()
    well = view.watch(queue.stats, lambda: queue.stats().living == 0, 30)
    ran = time.monotonic() - began
    view.end(f"{JOBS:,} jobs stored in {stored:.2f} s, all run {ran:.2f} s after the first was made", well=well)
    return {"jobs": JOBS, "stored_s": stored, "ran_s": ran}


def _accounting(app: Relevo, view: View) -> dict[str, int]:
    view.begin("Accounting")
    stats = app.queue().stats()
    view.stats(stats)
    totals = stats.totals
    given, done, dead = totals["enqueued"], totals.get("done", 0), totals.get("dead", 0)
    view.end(f"{given:,} enqueued = {done:,} done + {dead} dead letter; 0 lost", well=given == done + dead)
    return {"enqueued": given, "done": done, "dead": dead, "lost": given - done - dead}


def _go_on(app: Relevo, view: View) -> None:
    from relevo.cli.demo.tasks import call_shaky_service, deliver, pack

    view.begin("Steady work")
    view.found("until Ctrl-C; try `relevo status` in another terminal, or kill -9 a worker process")
    with contextlib.suppress(KeyboardInterrupt):
        for number in range(10**9):
            pack.enqueue(f"parcel {number}")
            deliver.using(delay="3s").enqueue(f"parcel {number}")
            if number % 5 == 0:
                call_shaky_service.enqueue(number)
            view.watch(app.queue().stats, lambda: False, 0.5)
    view.end("stopped")


def _clean(app: Relevo) -> None:
    """Remove everything that does not expire by itself."""
    app.queue().clear()
    app.dead.discard(all=True)
    app.close()
