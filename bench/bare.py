"""The same work without a queue: what the interpreter, the event loop and the server reach by themselves.

What a measure of real work finds is to be read beside it. `python -m bench.bare` with one of these prints JSON:

    sleep SECONDS LANES FOR   asyncio.sleep in so many tasks at once: sleeps a second
    rounds SECONDS            how many rounds of `burn` take so long
    burn ROUNDS FOR           `burn` in a plain loop: calls a second
    values PORT BYTES FOR     values of that size stored one by one, stored a thousand at a time, fetched so: per second
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any

from bench.resp import connect, pack

clock = time.perf_counter
Found = dict[str, float]
#: Values per round trip where nobody waits for a single one: as many as a bulk enqueue has, and a busy worker's turn.
TOGETHER = 1000


def burn(rounds: int) -> int:
    """Keep the processor busy, in Python code alone."""
    found = 0
    for i in range(rounds):
        found ^= i
    return found


def rounds_of(seconds: float) -> int:
    """How many rounds take so long when nobody interrupts."""

    def timed() -> float:
        began = clock()
        burn(10_000)
        return clock() - began

    return max(1, round(seconds / min(timed() for _ in range(30)) * 10_000))


def repeated(step: Callable[[], object], seconds: float) -> float:
    """How often a second something can be done."""
    done, began = 0, clock()
    while clock() < began + seconds:
        step()
        done += 1
    return done / (clock() - began)


async def sleeps(each: float, lanes: int, seconds: float) -> Found:
    """Sleeps a second, with `lanes` of them at once, and what one takes of the processor.

    A loop's timers are coarser than its clock, so there are fewer than one would think.
    """
    began, busy = clock(), time.process_time()

    async def lane() -> int:
        done = 0
        while clock() < began + seconds:
            await asyncio.sleep(each)
            done += 1
        return done

    done = sum(await asyncio.gather(*(lane() for _ in range(lanes))))
    return {"per_s": done / (clock() - began), "cpu_us": (time.process_time() - busy) / done * 1e6}


def values(port: int, size: int, seconds: float) -> Found:
    """Values of `size` bytes a second, to the server and back."""
    server, body = connect(port), b"x" * size
    one = pack("HSET", "bare", 0, body)
    many = pack("HSET", "bare", *(part for field in range(TOGETHER) for part in (field, body)))
    fetch = pack("HMGET", "bare", *range(TOGETHER))
    fetched = len(f"*{TOGETHER}\r\n") + TOGETHER * len(f"${size}\r\n{'x' * size}\r\n")
    room = bytearray(fetched)
    stored = len(":0\r\n")
    found = {"one": repeated(lambda: _exchange(server, one, stored, room), seconds)}
    server.sendall(many)
    server.recv(64)  # the first time it says how many are new; from now on none is
    found["stored"] = TOGETHER * repeated(lambda: _exchange(server, many, stored, room), seconds)
    found["fetched"] = TOGETHER * repeated(lambda: _exchange(server, fetch, fetched, room), seconds)
    _exchange(server, pack("DEL", "bare"), stored, room)
    server.close()
    return found


def _exchange(server: socket.socket, command: bytes, length: int, room: bytearray) -> None:
    """Send a command and receive its reply, whose length is known."""
    server.sendall(command)
    while length > 0:
        got = server.recv_into(room)
        if not got:
            raise ConnectionError("the server closed the connection")
        length -= got


def runner() -> Callable[[Coroutine[Any, Any, Found]], Found]:
    """What runs a coroutine here as the worker would."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run
    return uvloop.run


def main(what: str, *given: str) -> Found:
    """Do what is asked for: what was found."""
    numbers = [float(one) for one in given]
    match what, numbers:
        case "sleep", [each, lanes, seconds]:
            return runner()(sleeps(each, int(lanes), seconds))
        case "rounds", [seconds]:
            return {"rounds": rounds_of(seconds)}
        case "burn", [rounds, seconds]:
            return {"per_s": repeated(lambda: burn(int(rounds)), seconds)}
        case "values", [port, size, seconds]:
            return values(int(port), int(size), seconds)
    raise SystemExit(f"bench.bare: see what it can do at the top of its file; found {what} {' '.join(given)}")


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
