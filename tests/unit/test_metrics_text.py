"""The text format, read by the parser of Prometheus' own client."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from relevo.metrics.text import Family, Sample, text

WORDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda words: words.strip() == words)


@given(WORDS, st.floats(allow_nan=False, allow_infinity=False))
def test_any_label_and_any_value_is_read_back(label: str, value: float) -> None:
    given = Family("relevo_x_seconds", "gauge", 'with \\ and "\n', [Sample({"task": label, "none": ""}, value)])
    (family,) = text_string_to_metric_families(text([given]).decode())
    (sample,) = family.samples
    assert sample.labels == {"task": label}
    assert math.isclose(sample.value, value, rel_tol=0, abs_tol=0)
    assert family.documentation == given.help


def test_a_family_without_samples_is_left_out() -> None:
    assert text([Family("relevo_x", "gauge", "x", [])]) == b""


def test_a_name_that_is_no_unicode_does_not_cost_the_others() -> None:
    exported = text([Family("relevo_x", "gauge", "x", [Sample({"task": "a\udc80"}, 1), Sample({"task": "b"}, 2)])])
    assert b'relevo_x{task="b"} 2\n' in exported
