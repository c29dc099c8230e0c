"""Passes what a job prints on to the real streams in whole lines, so that lines of several jobs and processes are not
mixed, and marks each with its job where a person reads along."""

from __future__ import annotations

from contextlib import suppress
from threading import RLock
from typing import Any

from relevo.engine.context import running

#: Characters (or bytes) of a line that has not ended yet; a longer one is cut.
LONGEST = 2**20


class Lines:
    """The unfinished lines of one attempt, one for each stream it prints to."""

    __slots__ = ("_lock", "_mark", "_open")

    def __init__(self, *, is_marked: bool) -> None:
        job = running.get()
        self._mark = f"[{job.target} {job.id}] " if is_marked and job is not None else ""
        self._open: dict[int, tuple[Any, list[Any], int]] = {}
        # Re-entrant: a signal handler or a finaliser may print in the middle of a write.
        self._lock = RLock()

    def put(self, real: Any, text: Any) -> None:
        """Take text for a stream, or bytes for its buffer; write the lines that it ends."""
        end = "\n" if isinstance(text, str) else b"\n"
        cut = text.rfind(end) + 1
        with self._lock:
            _, pieces, size = self._open.pop(id(real), (real, [], 0))
            if not cut and size + len(text) <= LONGEST:
                pieces.append(text)
                self._open[id(real)] = real, pieces, size + len(text)
                return
            cut = cut or len(text)
            if text[cut:]:
                self._open[id(real)] = real, [text[cut:]], len(text) - cut
            self._write(real, end[:0].join([*pieces, text[:cut]]))

    def end(self) -> None:
        """The attempt has ended: write what waits for the end of its line."""
        with self._lock:
            left, self._open = self._open, {}
            for real, pieces, _ in left.values():
                with suppress(Exception):  # a closed pipe or a narrow encoding is not the job's fault
                    empty = pieces[0][:0]
                    self._write(real, empty.join(pieces))

    def _write(self, real: Any, lines: Any) -> None:
        if isinstance(lines, str):
            real.write(self._marked(lines))
        else:
            real.write(self._marked(lines.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape"))
        real.flush()  # at once, and not when some buffer is full, in the middle of a line

    def _marked(self, lines: str) -> str:
        lines = lines if lines.endswith("\n") else lines + "\n"
        if not self._mark:
            return lines
        return "".join(f"{self._mark}{line}\n" for line in lines[:-1].split("\n"))
