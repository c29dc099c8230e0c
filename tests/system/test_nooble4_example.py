"""The services of examples/nooble4: run as their page shows, with one process killed, on the embedded server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevo import Relevo
from relevo.testing.leaks import leaks
from tests.system.shown import Shown, demonstrated, without_time

FOLDER = Path(__file__).parents[2] / "examples" / "nooble4"


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    place = tmp_path_factory.mktemp("nooble4")
    with demonstrated(FOLDER, place, NOOBLE4_VECTORS=str(place / "vectors.sqlite")) as found:
        yield found


def test_it_ends_by_itself_and_well(shown: Shown) -> None:
    assert (shown.code, shown.err) == (0, "")


def test_the_answer_comes_through_all_services_and_the_session_has_it_before_the_clean_up(shown: Shown) -> None:
    """Request, long work, callback, session, and then nothing is left."""
    accepted = shown.at(r"session session_1 <- guide\.md accepted: 6 texts")
    shown.at(r"session session_1 <- guide\.md progress: 3 of 6", accepted)
    stored = shown.at(r"ingestion guide\.md: 6 vectors stored", accepted)
    pushed = shown.at(r"session session_1 <- guide\.md done: 6 vectors", stored)
    cleaned = shown.at(
        r"clean-up conversation task_1: \d+ removed from \d+ queues; \d+ in use, 0 dead letters left", pushed
    )
    assert shown.at(r"clean-up conversation task_1: .*") == cleaned, "progress has cleaned up"
    shown.at(r"orchestrator agents of acme may use guide\.md \(6 vectors\)", stored)
    shown.at("left task_1: nothing")


def test_a_fault_reaches_the_session_of_the_process_that_sent_the_request(shown: Shown) -> None:
    """With its cause; the message stays as a dead letter."""
    fault = r"embedding\.model\.UnreadableText: the text was broken before it came here"
    failed = shown.at(rf"session session_2 <- scan\.pdf failed: {fault}", shown.at(rf"ingestion scan\.pdf: .*{fault}"))
    shown.at(r"clean-up conversation task_2: \d+ removed from \d+ queues; \d+ in use, 1 dead letters left", failed)
    shown.at(r"left task_2: embedding\.generate_batch is dead, on embedding:actions")


def test_the_work_of_a_killed_process_goes_on_where_it_was_and_is_answered_once(shown: Shown) -> None:
    killed = shown.at(r"demo kill -9 \d+, which is embedding")
    again = shown.at(r"embedding text \d of 6, attempt 2", killed)
    assert shown.lines[again] in ("embedding text 3 of 6, attempt 2", "embedding text 4 of 6, attempt 2")
    done = shown.at(r"session session_1 <- manual\.md done: 6 vectors", again)
    assert sum("manual.md done" in line for line in shown.lines) == 1
    shown.at(r"trace \d+ ms embedding\.generate_batch from ingestion attempt 2 done in \d+ ms", done)
    shown.at("left task_3: nothing")


def test_no_key_without_an_end_is_left(shown: Shown) -> None:
    app = Relevo("looking", prefix="nooble4", data_dir=str(shown.data))
    assert leaks(app.engine.run, "*nooble4*") == []
    assert app.queue().stats().living == 0
    app.close()


def test_the_page_shows_what_is_printed(shown: Shown) -> None:
    """Numbers are those of another run, and so is the order of what happens side by side."""

    def plain(lines: list[str]) -> list[str]:
        # Which text was the last before the kill, and which news came too late, is another thing in every run.
        kept = [line for line in lines if not line.startswith("embedding ") and " progress: " not in line]
        numbers = r"process_\w+|kill -9 \d+|\d+ ms|\d+ removed from \d+ queues; \d+ in use"
        return sorted(re.sub(numbers, "…", line) for line in kept)

    page = (FOLDER / "README.md").read_text("utf-8")
    printed = page.partition("$ python examples/nooble4/demo.py\n")[2].partition("```")[0].splitlines()
    assert plain([without_time(line) for line in printed]) == plain(shown.lines)
