"""The output of a job is captured with its attempt, bounded, and never mixed with that of other jobs."""

from __future__ import annotations

import asyncio
import io
import logging
import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevo.engine import context
from relevo.engine.context import JobContext
from relevo.worker.capture import Capture, Installed, current
from relevo.worker.output_lines import LONGEST
from tests.eventually import PATIENCE

LEFT_OUT = re.compile(r"\n?… ([\d,]+) bytes left out …\n")
BIG = 1 << 20


@contextmanager
def job(limit: int = BIG) -> Iterator[Capture]:
    """Sets the capture around an attempt, as the executors do."""
    capture = Capture(limit)
    token = current.set(capture)
    try:
        yield capture
    finally:
        current.reset(token)
        capture.end()


# Called by the tests themselves: between a fixture and its test pytest puts its own streams and handlers back.
def real_stream(monkeypatch: pytest.MonkeyPatch, name: str) -> io.TextIOWrapper:
    """Put a real text stream in the place of sys.stdout or sys.stderr."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True)
    monkeypatch.setattr(sys, name, stream)
    return stream


def root_without_handlers(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger of an app that never configured logging."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    return root


def printed(stream: io.TextIOWrapper) -> str:
    return cast(io.BytesIO, stream.buffer).getvalue().decode()


# --- the bounded text ---------------------------------------------------------------------------


@given(st.lists(st.text()), st.integers(0, 50))
def test_text_within_the_limit_is_exactly_what_was_written(parts: list[str], spare: int) -> None:
    whole = "".join(parts)
    capture = Capture(len(whole.encode()) + spare)
    for part in parts:
        capture.write(part)
    assert capture.text() == whole


@given(st.lists(st.text(st.sampled_from("a\né€🦊"), min_size=1), min_size=1), st.integers(0, 60))
def test_text_over_the_limit_is_its_beginning_and_its_end(parts: list[str], limit: int) -> None:
    whole = "".join(parts)
    size = len(whole.encode())
    capture = Capture(limit)
    for part in parts:
        capture.write(part)
    text = capture.text()
    if size <= limit:
        assert text == whole
        return
    notice = LEFT_OUT.search(text)
    assert notice is not None
    head, tail = text[: notice.start()], text[notice.end() :]
    if notice[0].startswith("\n") and len(head.encode()) < limit // 4 and whole.startswith(head + "\n"):
        head += "\n"  # the line break before the notice is the text's own
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert len(head.encode()) + len(tail.encode()) + int(notice[1].replace(",", "")) == size
    assert limit // 4 - 4 < len(head.encode()) <= limit // 4
    assert limit - limit // 4 - 4 < len(tail.encode()) <= limit - limit // 4


@pytest.mark.parametrize(
    ("limit", "written", "kept"),
    [
        (8, "ab" + "-" * 12_345 + "uvwxyz", "ab\n… 12,345 bytes left out …\nuvwxyz"),
        (8, "a\n" + "-" * 10 + "uvwxyz", "a\n… 10 bytes left out …\nuvwxyz"),  # no empty line after a whole line
        (8, "🦊" * 100, "… 396 bytes left out …\n🦊"),  # four bytes each: the head has room for two, the tail for six
        (0, "", ""),
        (0, "abc", "… 3 bytes left out …\n"),
        (BIG, "a\udc80b", "a\\udc80b"),  # a lone surrogate
    ],
)
def test_the_line_between_says_how_many_bytes_were_left_out(limit: int, written: str, kept: str) -> None:
    capture = Capture(limit)
    capture.write(written)
    assert capture.text() == kept


def test_megabytes_stay_within_the_limit_in_small_writes_and_in_one() -> None:
    limit = 64 * 1024
    lines, at_once = Capture(limit), Capture(limit)
    for _ in range(100_000):
        lines.write("é" * 49 + "\n")
    text = LEFT_OUT.sub("", lines.text())
    assert len(text.encode()) <= limit
    assert set(text) == {"é", "\n"}
    at_once.write("x" * 5_000_000 + "€" * 5_000_000)
    text = at_once.text()
    assert len(LEFT_OUT.sub("", text).encode()) <= limit
    assert text.startswith("x" * (limit // 4) + "\n…")
    assert text.endswith("€" * 1000)


def test_changed_is_true_after_a_write_until_the_text_is_read() -> None:
    capture = Capture(BIG)
    capture.write("")
    assert not capture.changed
    for letter, text in (("a", "a"), ("b", "ab")):
        capture.write(letter)
        assert capture.changed
        assert capture.text() == text
        assert not capture.changed


@pytest.fixture
def threads_interrupt_each_other() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.parametrize(("count", "width"), [(1000, 1), (20, 300_000)], ids=["many writes", "huge writes"])
@pytest.mark.usefixtures("threads_interrupt_each_other")
def test_writes_of_threads_are_neither_lost_nor_torn(count: int, width: int) -> None:
    capture = Capture(64 * BIG)
    start = threading.Barrier(4)

    def write(letter: str) -> None:
        start.wait(PATIENCE)
        for number in range(count):
            capture.write(letter * width + f"{number}\n")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    expected = [letter * width + str(number) for letter in "abcd" for number in range(count)]
    assert sorted(capture.text().splitlines()) == sorted(expected)


def test_a_write_in_the_middle_of_a_write_does_not_block() -> None:
    """As when a signal handler prints."""
    capture = Capture(BIG)

    class Loud(str):
        __slots__ = ()

        def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
            capture.write("inner ")
            return super().encode(encoding, errors)

    done = threading.Thread(target=capture.write, args=(Loud("outer"),), daemon=True)
    done.start()
    done.join(PATIENCE)
    assert not done.is_alive()
    assert capture.text() == "inner outer"


# --- jobs side by side --------------------------------------------------------------------------


def say(job_number: int, number: int) -> None:
    print("job", job_number, "line", number)
    print("job", job_number, "error", number, file=sys.stderr)
    logging.getLogger("shop").warning("job %d log %d", job_number, number)


async def test_a_hundred_parallel_async_jobs_keep_their_own_lines() -> None:

    async def run(job_number: int) -> str:
        with job() as capture:
            for number in range(20):
                say(job_number, number)
                await asyncio.sleep(0)
            return capture.text()

    with Installed(forward=False):
        texts = await asyncio.gather(*(run(job_number) for job_number in range(100)))
    for job_number, text in enumerate(texts):
        assert_only_own_lines(job_number, text)


@pytest.mark.usefixtures("threads_interrupt_each_other")
def test_a_hundred_jobs_on_sixteen_threads_keep_their_own_lines() -> None:
    together = threading.Barrier(16)

    def run(job_number: int) -> str:
        if job_number < 16:
            together.wait(PATIENCE)
        with job() as capture:
            for number in range(20):
                say(job_number, number)
        return capture.text()

    with Installed(forward=False), ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(run, range(100)))
    for job_number, text in enumerate(texts):
        assert_only_own_lines(job_number, text)


def assert_only_own_lines(job_number: int, text: str) -> None:
    lines = [line.partition("shop: ")[2] or line for line in text.splitlines()]
    assert lines == [f"job {job_number} {what} {number}" for number in range(20) for what in ("line", "error", "log")]


async def test_what_a_job_starts_is_captured_with_it() -> None:

    async def child() -> None:
        await asyncio.sleep(0)
        print("from a task")

    with Installed(forward=False):
        with job() as capture:
            await asyncio.create_task(child())
            await asyncio.to_thread(print, "from a thread")
        assert capture.text() == "from a task\nfrom a thread\n"


@pytest.mark.skipif(
    getattr(sys.flags, "thread_inherit_context", 0) == 1, reason="here plain threads inherit the context"
)
def test_a_thread_without_the_context_and_code_outside_jobs_pass_through(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed(forward=False):
        with job() as capture:
            thread = threading.Thread(target=print, args=("plain thread",))
            thread.start()
            thread.join()
        print("outside")
    assert capture.text() == ""
    assert printed(stdout) == "plain thread\noutside\n"


# --- the streams --------------------------------------------------------------------------------


@pytest.mark.parametrize(("forward", "seen"), [(True, "a-b\nerr\n"), (False, "")])
def test_output_reaches_the_real_stream_only_when_forwarded(
    monkeypatch: pytest.MonkeyPatch, forward: bool, seen: str
) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed(forward=forward), job() as capture:
        print("a", end="-")
        print("b", flush=True)
        sys.stdout.writelines(["err", "\n"])
    assert capture.text() == "a-b\nerr\n"
    assert printed(stdout) == seen


def test_bytes_written_to_the_buffer_are_captured_even_in_the_middle_of_a_character(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed(), job() as capture:
        euro = "€".encode()
        assert sys.stdout.buffer.write(euro[:1]) == 1
        sys.stdout.buffer.write(memoryview(euro)[1:])
        sys.stdout.buffer.writelines([bytearray(b"!"), b"\xff"])
        sys.stdout.buffer.flush()
    assert capture.text() == "€!\ufffd"
    assert cast(io.BytesIO, stdout.buffer).getvalue() == euro + b"!\xff\n"


def test_bytes_reach_a_real_stream_that_has_no_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    real = io.StringIO()
    monkeypatch.setattr(sys, "stdout", real)
    with Installed():
        with job() as capture:
            sys.stdout.buffer.write(b"in a job ")
            sys.stdout.buffer.flush()
        sys.stdout.buffer.write(b"outside")
    assert capture.text() == "in a job "
    assert real.getvalue() == "in a job \noutside"


def test_lines_of_jobs_are_not_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed():
        with job(), ExitStack() as inner:
            print("one", end=" ", flush=True)
            inner.enter_context(job())
            print("two", end=" ")
            inner.close()
            sys.stdout.write("and one\nunfinished")
            print("outside", file=sys.__stdout__)
        print("after")
    assert printed(stdout) == "two \none and one\nunfinished\nafter\n"


def test_lines_carry_their_job_where_that_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    token = context.running.set(JobContext(id="1m7", queue="default", target="shop.charge"))
    with Installed(marked=True), job() as capture:
        print("one\ntwo", 3)
        sys.stdout.buffer.write(b"\xff bytes\nand")
    context.running.reset(token)
    assert cast(io.BytesIO, stdout.buffer).getvalue() == (
        b"[shop.charge 1m7] one\n[shop.charge 1m7] two 3\n[shop.charge 1m7] \xff bytes\n[shop.charge 1m7] and\n"
    )
    assert capture.text() == "one\ntwo 3\n\ufffd bytes\nand"


def test_each_group_of_lines_is_written_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stream that is no terminal collects what is written, and would pass it on in the middle of a line."""
    with open(tmp_path / "out", "w", encoding="utf-8") as real:
        monkeypatch.setattr(sys, "stdout", real)
        with Installed(), job():
            print("x" * 5_000, "end")
            assert (tmp_path / "out").read_text() == "x" * 5_000 + " end\n"


def test_a_line_without_an_end_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed(), job():
        for _ in range(LONGEST // 2**16 + 1):
            sys.stdout.write("x" * 2**16)
        assert printed(stdout) == "x" * (LONGEST + 2**16) + "\n"


def test_everything_else_is_asked_of_the_real_stream(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with open(tmp_path / "out", "w", encoding="latin-1") as real:
        monkeypatch.setattr(sys, "stdout", real)
        with Installed(), job() as capture:
            assert sys.stdout.fileno() == sys.stdout.buffer.fileno() == real.fileno()
            assert (sys.stdout.isatty(), sys.stdout.writable(), sys.stdout.name) == (False, True, real.name)
            assert sys.stdout.encoding == "latin-1"
            cast(io.TextIOWrapper, sys.stdout).reconfigure(encoding="utf-8")
            assert sys.stdout.encoding == real.encoding == "utf-8"
            with pytest.raises(AttributeError, match="no_such_thing"):
                sys.stdout.no_such_thing  # type: ignore[union-attr]
            with pytest.raises(TypeError, match="must be str, not int"):
                sys.stdout.write(7)  # type: ignore[arg-type]
        assert capture.text() == ""


def test_a_job_that_closes_stdout_does_not_close_it_for_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    with Installed():
        with job() as capture:
            with sys.stdout as stream:
                stream.write("one ")
            sys.stdout.close()
            sys.stdout.buffer.close()
            print("two")
        print("three")
    assert capture.text() == "one two\n"
    assert printed(stdout) == "one two\nthree\n"


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError("the reader is gone")

    def flush(self) -> None:
        raise BrokenPipeError("the reader is gone")


def _closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize(
    "real",
    [Broken(), _closed(), io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True), None],
    ids=["broken", "closed", "narrow", "absent"],
)
def test_a_job_does_not_notice_a_real_stream_that_fails(
    monkeypatch: pytest.MonkeyPatch, real: io.TextIOBase | None
) -> None:
    monkeypatch.setattr(sys, "stdout", real)
    with Installed(), job() as capture:
        print("é", flush=True)
        sys.stdout.buffer.write("ü".encode())
        sys.stdout.buffer.flush()
        assert sys.stdout.isatty() is False
        assert sys.stdout.encoding
    assert capture.text() == "é\nü"


def test_outside_a_job_a_failing_stream_fails_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", Broken())
    with Installed():
        with pytest.raises(BrokenPipeError):
            print("lost")
        with pytest.raises(BrokenPipeError):
            sys.stdout.flush()


def test_without_a_console_printing_outside_a_job_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    with Installed():
        print("nowhere", flush=True)
        sys.stdout.buffer.write(b"nowhere")
        assert sys.stdout.encoding == "utf-8"
    assert sys.stdout is None


# --- logging ------------------------------------------------------------------------------------


def test_log_records_are_captured_with_time_level_and_logger_and_not_forwarded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stdout, stderr = real_stream(monkeypatch, "stdout"), real_stream(monkeypatch, "stderr")
    with Installed():
        with job() as capture:
            logging.getLogger("shop.cart").error("no %s left", "tea")
        logging.getLogger("relevo.worker").error("outside a job")
    assert re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3} ERROR shop\.cart: no tea left\n", capture.text())
    assert printed(stdout) == printed(stderr) == ""


def test_a_logged_exception_is_captured_with_its_traceback() -> None:
    with Installed(), job() as capture:
        try:
            _ = 1 / 0
        except ZeroDivisionError:
            logging.getLogger("shop").exception("sum failed")
    text = capture.text()
    assert "ERROR shop: sum failed\nTraceback (most recent call last):\n" in text
    assert text.endswith("ZeroDivisionError: division by zero\n")


def test_a_log_call_that_cannot_be_formatted_does_not_break_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    root_without_handlers(monkeypatch)
    real_stream(monkeypatch, "stderr")

    class Rude:
        def __str__(self) -> str:
            raise RuntimeError("no")

    with Installed(forward=False), job() as capture:
        logging.getLogger("shop").error("%d apples", "many")
        logging.getLogger("shop").error(Rude())
        print("still here")
    first, second, third = capture.text().splitlines()
    assert first.startswith("ERROR shop: not shown, formatting failed with TypeError (test_capture.py:")
    assert second.startswith("ERROR shop: not shown, formatting failed with RuntimeError (test_capture.py:")
    assert third == "still here"


def test_a_record_that_the_app_prints_to_the_routed_stream_is_captured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    root = root_without_handlers(monkeypatch)
    stderr = real_stream(monkeypatch, "stderr")
    with Installed(), job() as capture:
        root.addHandler(logging.StreamHandler())  # takes the sys.stderr of now, which is routed
        logging.getLogger("shop").error("logged once")
    assert capture.text().count("logged once") == 1
    assert printed(stderr).count("logged once") == 1


def test_a_warning_of_an_app_without_handlers_is_still_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python prints it as a last resort only while there is no handler at all, and we add one."""
    root_without_handlers(monkeypatch)
    stderr = real_stream(monkeypatch, "stderr")
    with Installed():
        with job() as capture:
            logging.getLogger("shop").warning("in a job")
        logging.getLogger("shop").warning("outside")
    assert capture.text().endswith("WARNING shop: in a job\n")
    assert printed(stderr) == "in a job\noutside\n"


# --- installing ---------------------------------------------------------------------------------


def test_leaving_restores_streams_and_handlers() -> None:
    before = sys.stdout, sys.stderr, list(logging.getLogger().handlers)
    with pytest.raises(KeyError), Installed():
        assert sys.stdout is not before[0]
        raise KeyError
    assert (sys.stdout, sys.stderr, logging.getLogger().handlers) == before


def test_two_installations_capture_once_until_the_last_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    first, second = Installed(), Installed()
    with first, first:
        pass
    assert sys.stdout is stdout
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    with job() as capture:
        print("once")
        logging.getLogger("shop").error("logged")
    second.__exit__(None, None, None)
    assert capture.text().count("once") == capture.text().count("logged") == 1
    assert printed(stdout) == "once\n"
    assert sys.stdout is stdout


def test_a_stream_put_over_ours_is_left_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    stdout = real_stream(monkeypatch, "stdout")
    theirs = io.StringIO()
    with Installed():
        ours = sys.stdout
        monkeypatch.setattr(sys, "stdout", theirs)
    assert sys.stdout is theirs
    print("late", file=ours)
    assert printed(stdout) == "late\n"
