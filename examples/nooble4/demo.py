"""Run the three services, send them documents, kill one, and show what happens: python examples/nooble4/demo.py

It starts the processes that an operator would start, plays the browsers, and reads the logs of all of them. Without
RELEVO_URL they share the embedded server. It ends by itself; the exit code is 1 if anything did not come as it should.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from relevo import Relevo
from relevo.bus.span import timeline

FOLDER = Path(__file__).parent
GUIDE = "\n".join(f"Chapter {number} of the guide." for number in range(1, 7))
#: What a worker writes before the output of a job.
JOB = re.compile(r"\[\S+ \w{20}\] ")
WORKER = [sys.executable, "-m", "relevo.cli.main", "worker"]
#: Whose lines of the logs are shown.
SHOWN = re.compile(r"\[(?P<pid>\d+)\] (?:nooble4\.(?P<who>\w+)|(?P<bus>relevo\.bus)): (?P<text>.*)")
#: The messages of one document, besides news of the way.
WAY = {
    "ingestion.process_document",
    "orchestrator.document_accepted",
    "embedding.generate_batch",
    "ingestion.embeddings_ready",
    "orchestrator.execution_callback",
}
#: Seconds in which anything must happen; a killed worker's job runs again within 15.
BOUND = 40.0


class Logs:
    """What all processes write, in the order in which they write it."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._read, self.write = os.pipe()
        self._rest = b""
        self.last: deque[str] = deque(maxlen=20)

    def until(self, *patterns: str) -> re.Match[str]:
        """Show lines until all that we wait for has been said, in whatever order, and give the last of it."""
        missing = set(patterns)
        for line in self._lines():
            if shown := SHOWN.search(line):
                self.show(shown["who"] or "clean-up", shown["text"])
            for pattern in sorted(missing):
                if found := re.search(pattern, line):
                    missing.remove(pattern)
                    if not missing:
                        return found
        raise TimeoutError(f"within {BOUND:g} s nobody said {' or '.join(sorted(missing))}")

    def show(self, who: str, text: str) -> None:
        """One line on the screen."""
        print(f"{time.monotonic() - self._began:5.1f} s  {who:<12}  {text}", flush=True)

    def _lines(self) -> Iterator[str]:
        until = time.monotonic() + BOUND
        while (left := until - time.monotonic()) > 0:
            line, newline, rest = self._rest.partition(b"\n")
            if newline:
                self._rest = rest
                self.last.append(JOB.sub("", line.decode(errors="replace")))
                yield self.last[-1]
            elif select.select([self._read], [], [], left)[0]:
                self._rest += os.read(self._read, 65_536)


class Browser:
    """The people of one process of the orchestrator."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def upload(self, task: str, document: str, text: str, *, session: str, tenant: str, tier: str) -> None:
        """Send a document."""
        given = {"task_id": task, "document_id": document, "text": text, "session": session, "tenant": tenant}
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode({**given, "tier": tier}) + b"\n")
        self._process.stdin.flush()


@contextmanager
def services(logs: Logs) -> Iterator[tuple[Browser, Browser]]:
    """Embedding, ingestion, and two processes of the orchestrator, until all is done."""

    def start(*command: str) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            command, cwd=FOLDER, stdin=subprocess.PIPE, stdout=logs.write, stderr=logs.write, start_new_session=True
        )

    processes: list[subprocess.Popen[bytes]] = []
    try:
        processes += (start(sys.executable, "-m", "orchestrator"), start(sys.executable, "-m", "orchestrator"))
        processes += (start(*WORKER, "ingestion.service:app"), start(*WORKER, "embedding.service:app"))
        for _ in range(2):
            logs.until("orchestrator: ready")
        yield Browser(processes[0]), Browser(processes[1])
    finally:
        for process in processes:
            process.send_signal(signal.SIGTERM)
        for process in processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def a_document_goes_through(logs: Logs, browser: Browser) -> None:
    """Request, long work with progress, callback, event, session, clean-up."""
    browser.upload("task_1", "guide.md", GUIDE, session="session_1", tenant="acme", tier="enterprise")
    logs.until("session_1 <- guide.md done", "agents of acme may use guide.md", "conversation task_1: .* removed")


def a_document_fails(logs: Logs, browser: Browser) -> None:
    """The fault comes back by the same way, to the session of the other process."""
    text = "Page 1.\nPage 2 is \N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}."
    browser.upload("task_2", "scan.pdf", text, session="session_2", tenant="globex", tier="free")
    logs.until("session_2 <- scan.pdf failed", "conversation task_2: .* removed")


def a_process_is_killed(logs: Logs, browser: Browser) -> None:
    """The work is delivered again and goes on where it was; the session notices nothing but the time."""
    browser.upload("task_3", "manual.md", GUIDE, session="session_1", tenant="acme", tier="enterprise")
    pid = int(logs.until(r"\[(\d+)\] nooble4\.embedding: text 3 of 6")[1])
    os.kill(pid, signal.SIGKILL)
    logs.show("demo", f"kill -9 {pid}, which is embedding")
    logs.until("session_1 <- manual.md done", "agents of acme may use manual.md", "conversation task_3: .* removed")


def what_is_known(app: Relevo, logs: Logs) -> None:
    """The way of the last operation through all services, and what is left of the conversations."""
    until = time.monotonic() + BOUND
    while missing := WAY - {span.type for span in app.conversations.trace("task_3") if span.outcome == "done"}:
        if time.monotonic() > until:
            raise TimeoutError(f"the trace does not tell of {', '.join(missing)}")
        time.sleep(0.1)  # processes write down every second what they did
    spans = [
        span for span in app.conversations.trace("task_3") if span.intent != "event" and "progress" not in span.type
    ]
    began = min(span.sent_ms for span in spans)
    for depth, span in timeline(spans):
        after, took = max(0, span.started_ms - began), span.ended_ms - span.started_ms
        what = f"{'  ' * depth}{span.type} from {span.source}"
        how = f"attempt {span.attempt} {span.outcome}" if span.attempt > 1 else span.outcome
        logs.show("trace", f"{after:>5} ms  {what:<54}  {how} in {took} ms")
    for task in ("task_1", "task_2", "task_3"):
        left = [f"{one.type} is {one.state.value}, on {one.queue}" for one in app.conversations.list(task)]
        logs.show("left", f"{task}: {'; '.join(left) or 'nothing'}")
    app.dead.discard(all=True)


def main() -> int:
    """Show it all: the exit code."""
    os.chdir(FOLDER)
    os.environ.setdefault("RELEVO_ENV", f"demo-{os.getpid()}")  # two demos at once must not get each other's messages
    logs, app = Logs(), Relevo("demo")
    try:
        with services(logs) as (first, second):
            a_document_goes_through(logs, first)
            a_document_fails(logs, second)
            a_process_is_killed(logs, first)
            what_is_known(app, logs)
    except TimeoutError as error:
        print(error, "The last lines of the logs:", *logs.last, sep="\n", file=sys.stderr)
        return 1
    finally:
        app.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
