"""The text format of Prometheus, version 0.0.4: families of samples as lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from msgspec import Struct

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Kind = Literal["gauge", "counter", "histogram"]


class Sample(Struct, frozen=True):
    """One line. `suffix`: the part that a histogram adds to the name of its family."""

    labels: Mapping[str, str]
    value: float
    suffix: str = ""


class Family(Struct, frozen=True):
    """All samples of one name."""

    name: str
    kind: Kind
    help: str
    samples: list[Sample]


def text(families: Iterable[Family]) -> bytes:
    """Families in the text format of Prometheus. One without samples is left out."""
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines.append(f"# HELP {family.name} {_escaped(family.help)}")
            lines.append(f"# TYPE {family.name} {family.kind}")
            lines += (_line(family.name, sample) for sample in family.samples)
    # A lone surrogate in one name must not break the whole response.
    return "".join(line + "\n" for line in lines).encode(errors="replace")


def _line(name: str, sample: Sample) -> str:
    # Prometheus treats an empty label as a missing one.
    parts = (f'{label}="{_quoted(value)}"' for label, value in sample.labels.items() if value)
    labels = ",".join(parts)
    return f"{name}{sample.suffix}{{{labels}}} {number(sample.value)}"


def number(value: float) -> str:
    """A value as text: whole numbers without a point, others with all their digits."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(float(value))


def _escaped(words: str) -> str:
    return words.replace("\\", "\\\\").replace("\n", "\\n")


def _quoted(words: str) -> str:
    return _escaped(words).replace('"', '\\"')
