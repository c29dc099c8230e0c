"""The tables of keys and scripts in docs/internals are those of the source."""

from __future__ import annotations

import pytest
from tools.internals import FOLDER, PAGES, first_sentence, keys_page, scripts_page

from relevo.store.keys import QUEUE_KEYS
from relevo.store.scripts import names


@pytest.mark.parametrize("page", PAGES)
def test_a_generated_page_is_up_to_date(page: str) -> None:
    assert (FOLDER / page).read_text("utf-8") == PAGES[page](), "run ./dev docs"


def test_every_key_has_a_row() -> None:
    page = keys_page()
    for name, key in QUEUE_KEYS.items():
        assert f"| `{name}" in page
        assert all((key.type, key.holds, key.ends)), name
    assert "| `worker:<worker>` | string |" in page


def test_every_script_has_a_row() -> None:
    page = scripts_page()
    for name in names():
        assert f"| `{name.partition('/')[2]}` |" in page


def test_the_first_sentence_of_a_header_is_what_the_script_does() -> None:
    assert first_sentence("Move a job: now,\nor later. And more.\nKEYS  jobs") == "Move a job: now, or later"
    assert first_sentence("Move a job\n\nor a | b.\nKEYS  jobs") == "Move a job"
