"""What a way of asking must offer to be measured, and the floods of requests that it is put under.

A caller is an adapter of `bench.driver`, so it lives in the client process and knows its product alone. Each request
carries a text of its own, and the answer must hold that text: an answer that went to somebody else would be seen.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

from bench.adapters.contract import Adapter

clock = time.perf_counter
Answer = dict[str, Any]

#: Of the requests of a flood with late answers, every fifth is answered too late.
LATE_EVERY = 5


class Tally:
    """How requests ended: with the answer, with the end of their time, or in no proper way."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.ms: list[float] = []
        self.timeouts = 0
        #: Answers that belong to another request.
        self.wrong = 0
        #: The first thing that went wrong, in words.
        self.trouble = ""

    def note(self, text: str, answer: Any, seconds: float) -> None:
        """A request came to an end; `answer` is None if its time was up."""
        if answer is None:
            self.timeouts += 1
        elif answer == {"text": text}:
            self.ms.append(round(seconds * 1e3, 3))
        else:
            self.wrong += 1
            self.trouble = self.trouble or f"{text!r} was answered with {answer!r:.200}"

    def failed(self, error: Exception) -> None:
        """A request ended with an error: it counts as lost."""
        self.trouble = self.trouble or f"{type(error).__name__}: {error}"

    def told(self, seconds: float) -> Answer:
        """For the harness."""
        replies = len(self.ms)
        return {
            "n": self._n,
            "replies": replies,
            "timeouts": self.timeouts,
            "wrong": self.wrong,
            "lost": self._n - replies - self.timeouts - self.wrong,
            "trouble": self.trouble,
            "seconds": seconds,
            "ms": self.ms,
        }


class Caller(Adapter):
    """A way of asking. Where it is async, the methods below are coroutines; an answer of None says: time is up."""

    def ready(self, seconds: float) -> Any:
        """Give back when the responder answers, which must happen within `seconds`."""
        raise NotImplementedError

    def ask(self, text: str, timeout: float) -> Any:
        """Send a request that is answered at once, and wait for the answer."""
        raise NotImplementedError

    def ask_late(self, text: str, timeout: float, after: float) -> Any:
        """The same for one that is answered `after` seconds."""
        raise NotImplementedError

    async def flood(self, n: int, in_flight: int, timeout: float, bound: float, late: float = 0.0) -> Answer:
        """`n` requests, so many at a time; what has not ended after `bound` seconds is lost.

        With `late`, some are answered only after so many seconds.
        """
        numbers, tally = iter(range(n)), Tally(n)

        async def lane() -> None:
            for i in numbers:
                text, called = f"text {i}", clock()
                try:
                    if late and i % LATE_EVERY == 0:
                        answer = await self.ask_late(text, timeout, late)
                    else:
                        answer = await self.ask(text, timeout)
                    tally.note(text, answer, clock() - called)
                except Exception as error:
                    tally.failed(error)

        began = clock()
        lanes = [asyncio.create_task(lane()) for _ in range(in_flight)]
        # One bound for all: a timer for each request would be part of what is measured.
        _, hanging = await asyncio.wait(lanes, timeout=bound)
        seconds = clock() - began
        for one in hanging:
            one.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        return tally.told(seconds)

    def flood_threads(self, n: int, in_flight: int, timeout: float, bound: float) -> Answer:
        """The same from threads that wait."""
        numbers, tally, lock = iter(range(n)), Tally(n), threading.Lock()

        def lane() -> None:
            while True:
                with lock:
                    i = next(numbers, None)
                if i is None:
                    return
                text, called = f"text {i}", clock()
                try:
                    answer = self.ask(text, timeout)
                except Exception as error:
                    tally.failed(error)
                    continue
                took = clock() - called
                with lock:
                    tally.note(text, answer, took)

        began, until = clock(), clock() + bound
        # Daemons: one that hangs must not keep the process from ending.
        lanes = [threading.Thread(target=lane, daemon=True) for _ in range(in_flight)]
        for one in lanes:
            one.start()
        for one in lanes:
            one.join(max(0.0, until - clock()))
        return tally.told(clock() - began)
