"""A list as the templates of the admin know it: search, filters, pages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.http import HttpRequest
from django.utils.http import urlencode
from msgspec import Struct

#: Rows of a page.
PER_PAGE = 100
#: Values of one filter that are offered.
OFFERED = 15


class Choice(Struct, frozen=True):
    """One value of a filter."""

    display: str
    query_string: str
    selected: bool


class Filter(Struct, frozen=True):
    """One filter of the sidebar."""

    title: str
    choices: list[Choice]


class Listing(Struct, kw_only=True):
    """What the templates of the admin call `cl`."""

    #: Of the model.
    opts: Any
    #: What is asked for: names of filters and their values, without the page.
    params: dict[str, str]
    result_list: Sequence[Any]
    filters: list[Filter]
    query: str = ""
    search_help_text: str = ""
    #: Where the next page begins; '': this is the last.
    after: str = ""
    is_first: bool = True
    #: A sentence below the list.
    note: str = ""
    search_fields: bool = True
    formset: None = None

    @property
    def result_count(self) -> int:
        """What can be chosen: the rows of this page."""
        return len(self.result_list)

    @property
    def has_filters(self) -> bool:
        """Whether there is a sidebar."""
        return bool(self.filters)

    @property
    def has_active_filters(self) -> bool:
        """Whether something is left out."""
        return any(self.params.values())

    @property
    def first_page(self) -> str:
        """The address of the first page."""
        return address(self.params)

    @property
    def next_page(self) -> str:
        """The address of the next page."""
        return address({**self.params, "after": self.after})


def asked(request: HttpRequest, names: Iterable[str]) -> dict[str, str]:
    """What a request asks for by these names; texts, at most so long as a name may be."""
    return {name: request.GET.get(name, "")[:1000] for name in names}


def address(params: Mapping[str, str]) -> str:
    """A query string."""
    return "?" + urlencode({name: value for name, value in params.items() if value})


def filter_of(
    title: str, name: str, params: Mapping[str, str], values: Iterable[str], labels: Mapping[str, str] | None = None
) -> Filter:
    """A filter that offers these values, and the one that is chosen."""
    chosen = params.get(name, "")
    offered = list(dict.fromkeys(value for value in values if value))[:OFFERED]
    if chosen and chosen not in offered:
        offered.append(chosen)
    labels = labels or {}
    choices = [Choice(labels.get("", "All"), address({**params, name: ""}), not chosen)]
    for value in offered:
        choices.append(Choice(labels.get(value, value), address({**params, name: value}), value == chosen))
    return Filter(title, choices)
