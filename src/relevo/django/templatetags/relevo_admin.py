"""Filters of the templates in `admin/relevo`: times and values as people read them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
from django.utils import timezone
from django.utils.html import format_html

from django import template
from relevo.text.durations import spoken

register = template.Library()


@register.filter
def moment(ms: int | None) -> str:
    """A time in the current time zone, with all of it in the tooltip; a dash for none.

    >>> moment(None)
    '–'
    """
    if not ms:
        return "–"
    at = timezone.localtime(datetime.fromtimestamp(ms / 1000, UTC))
    is_today = at.date() == timezone.localtime(datetime.now(UTC)).date()
    short = at.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")
    whole = at.strftime("%Y-%m-%d %H:%M:%S %Z")
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), whole, short)


@register.filter
def span(ms: int | None) -> str:
    """A duration.

    >>> span(90_000)
    '1m30s'
    """
    return "–" if ms is None else spoken(ms / 1000)


@register.filter
def as_json(value: Any) -> str:
    """A plain value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


@register.filter
def columns(names: str) -> list[str]:
    """The headings of a table, from one text.

    >>> columns("Job,State")
    ['Job', 'State']
    """
    return names.split(",")


@register.filter
def plural(count: int, word: str) -> str:
    """How many of them.

    >>> plural(1, "job"), plural(1200, "job")
    ('1 job', '1,200 jobs')
    """
    return f"{count:,} {word}{'' if count == 1 else 's'}"


@register.filter
def percent(fraction: float) -> str:
    """A part of the whole.

    >>> percent(0.25)
    '25 %'
    """
    return f"{fraction * 100:.0f} %"


@register.filter
def unlocal(number: float) -> str:
    """A number as attributes of HTML want it, whatever the language."""
    return f"{number:.4f}"
