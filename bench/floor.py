"""The floor: what raw blocking sockets reach at this moment, whatever runs above them.

Waking another core costs twice as much on some machines at some hours, so everything that is bound by round trips is to
be read beside a floor of the same minute. `python -m bench.floor PORT` prints JSON.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import socket
import sys
import time

from bench.resp import connect, pack

BODY = b"x" * 80
SAMPLES = 60


def round_trips(port: int, seconds: float) -> float:
    """Commands a second, each sent when the one before is answered."""
    server = connect(port)
    command, done, began = pack("SET", "floor", BODY), 0, time.perf_counter()
    while time.perf_counter() < began + seconds:
        server.sendall(command)
        server.recv(64)
        done += 1
    took = time.perf_counter() - began
    server.close()
    return done / took


def echo(port: int, started: mmap.mmap) -> None:
    """The other process: woken by a push, it notes the time and pushes an answer."""
    wait, told = connect(port), connect(port)
    while True:
        wait.sendall(pack("BLPOP", "floor:call", 0))
        data = wait.recv(4096)
        started[:] = time.monotonic_ns().to_bytes(8, "little")
        if b"quit" in data:
            return
        told.sendall(pack("RPUSH", "floor:answer", BODY))
        told.recv(64)


def wake_ups(port: int) -> dict[str, float]:
    """Milliseconds until another, idle process has the message, and until its answer is back."""
    started = mmap.mmap(-1, 8)
    child = os.fork()
    if child == 0:
        try:
            echo(port, started)
        finally:
            os._exit(0)
    caller, waiter = connect(port), connect(port)
    starts, trips = [], []
    for _ in range(SAMPLES):
        time.sleep(random.uniform(0.015, 0.045))
        called = time.monotonic_ns()
        waiter.sendall(pack("BLPOP", "floor:answer", 0))
        exchange(caller, pack("RPUSH", "floor:call", BODY))
        waiter.recv(4096)
        trips.append((time.monotonic_ns() - called) / 1e6)
        starts.append((int.from_bytes(started[:], "little") - called) / 1e6)
    exchange(caller, pack("RPUSH", "floor:call", "quit"))
    os.waitpid(child, 0)
    return {
        "start_p50_ms": round(sorted(starts)[SAMPLES // 2], 3),
        "result_p50_ms": round(sorted(trips)[SAMPLES // 2], 3),
    }


def exchange(server: socket.socket, command: bytes) -> None:
    """Send a command and wait for its short reply."""
    server.sendall(command)
    server.recv(64)


if __name__ == "__main__":
    port = int(sys.argv[1])
    rates = sorted(round_trips(port, 0.3) for _ in range(3))
    print(json.dumps({"round_trips_per_s": round(rates[1]), **wake_ups(port)}))
