"""An HTTP server with the pages of all sources, and a channel that takes messages.

`POST /restore` with {"path": …} brings back a file that was lost.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock

from sources.pages import LOST, pages


class Sources(ThreadingHTTPServer):
    """Its pages, and the messages that were posted."""

    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", port), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.pages = pages(self.address)
        self.messages = []
        self.lock = Lock()


def serve(port):
    """Serve until Ctrl-C."""
    with Sources(port) as server:
        print(f"sources at {server.address}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/discord":
            self._answer(200, "application/json", json.dumps(self.server.messages).encode())
        elif self.path in self.server.pages:
            self._answer(200, *self.server.pages[self.path])
        else:
            self._answer(404, "text/plain", b"no such page\n")

    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            if self.path == "/discord":
                self.server.messages.append(said["content"])
            elif said["path"] in LOST:
                self.server.pages |= {said["path"]: LOST[said["path"]]}
        self._answer(204, "text/plain", b"")

    def _answer(self, code, kind, body):
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        """Nothing: the worker's log says what was asked for."""
