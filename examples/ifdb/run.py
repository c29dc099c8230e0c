"""The whole site, until Ctrl-C: python examples/ifdb/run.py [PORT [PORT OF THE SOURCES]]

Starts what an operator would start: the sources, the pages, and the worker. The database, the files and, without
REDIS_URL, the embedded server are in IFDB_VAR (`var` beside this file). The admin is at /admin/, for `admin` with the
password `admin`.
"""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Thread

FOLDER = Path(__file__).parent
MANAGE = [sys.executable, str(FOLDER / "manage.py")]
#: Seconds for a process to end once it was asked to.
PATIENCE = 30


class Process:
    """One of them, with its output given line by line to `hear`."""

    def __init__(self, command, environ, hear):
        self.lines = []
        self._hear = hear
        self._running = subprocess.Popen(
            command, cwd=FOLDER, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        self.pid = self._running.pid

    def until(self, pattern):
        """Wait for a line like this: what it matched."""
        for line in self._running.stdout:
            self._note(line)
            if found := re.search(pattern, line):
                Thread(target=self._go_on, daemon=True).start()
                return found
        raise ChildProcessError("".join(self.lines[-20:]))

    def _go_on(self):
        for line in self._running.stdout:
            self._note(line)

    def _note(self, line):
        self.lines.append(line)
        self._hear(line.rstrip("\n"))

    def end(self):
        """Ask it to end, and wait."""
        self._running.send_signal(signal.SIGTERM)
        try:
            self._running.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._running.kill()


class Site:
    """The processes of the site, and where its pages are."""

    def __init__(self, sources, web, worker, environ):
        self.sources = sources
        self.web = web
        self.worker = worker
        self._environ = environ

    def manage(self, *words):
        """Run a command of manage.py: its output."""
        return manage(self._environ, *words)


def manage(environ, *words):
    """Run a command of manage.py: its output, and that of one that fails as an error."""
    done = subprocess.run([*MANAGE, *words], cwd=FOLDER, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChildProcessError(f"manage.py {' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def running(*, sources_port=0, web_port=0, hear=lambda _: None):
    """All of it, until the end of the block. Ports of 0 are any that are free."""
    environ = {**os.environ, "PYTHONUNBUFFERED": "1", "DJANGO_SETTINGS_MODULE": "ifdb.settings"}
    environ |= {"DJANGO_SUPERUSER_PASSWORD": "admin"}
    with ExitStack() as ending:

        def start(*command, until):
            process = Process([sys.executable, *command], environ, hear)
            ending.callback(process.end)
            return process.until(until)[1], process

        sources, _ = start("-m", "sources", str(sources_port), until=r"sources at (\S+)")
        environ["IFDB_SOURCES"] = sources
        manage(environ, "migrate", "--verbosity=0")
        if "admin" not in manage(environ, "shell", "-c", _ADMINS):
            manage(environ, "createsuperuser", "--noinput", "--username=admin", "--email=admin@localhost")
        manage(environ, "setup_periodic_tasks")
        web, _ = start("manage.py", "runserver", "--noreload", f"127.0.0.1:{web_port}", until=r"server at (\S+)/")
        _, worker = start("manage.py", "ifdbworker", until=r"(worker \w+)")
        yield Site(sources, web, worker, environ)


_ADMINS = "from django.contrib.auth.models import User; print(*User.objects.values_list('username', flat=True))"


def main(web_port=8000, sources_port=8001):
    """Run it until Ctrl-C or SIGTERM."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        with running(sources_port=sources_port, web_port=web_port, hear=print) as site:
            print(
                f"\nThe site: {site.web}/   the admin: {site.web}/admin/ (admin, admin)   Ctrl-C ends it.\n", flush=True
            )
            signal.pause()
    except KeyboardInterrupt:
        print("ended")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
