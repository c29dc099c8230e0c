"""What a page says, as people read it."""

from __future__ import annotations

import html
import re
from typing import Any


def text_of(response: Any) -> str:
    """The text of the page, without markup; runs of space are one."""
    page = re.sub(r"<(script|style|svg).*?</\1>", " ", response.content.decode(), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def messages_of(response: Any) -> list[str]:
    """The messages at its top."""
    found = re.search(r'<ul class="messagelist">(.*?)</ul>', response.content.decode(), re.DOTALL)
    return (
        [html.unescape(one.strip()) for one in re.findall(r"<li[^>]*>(.*?)</li>", found[1], re.DOTALL)] if found else []
    )


def rows_of(response: Any) -> list[str]:
    """The ids of the objects in the list."""
    return [row.id for row in response.context_data["cl"].result_list]


def following(client: Any, address: str) -> list[list[str]]:
    """The ids of all pages from this one on."""
    pages = []
    while address:
        page = client.get(address)
        assert page.status_code == 200
        listing = page.context_data["cl"]
        pages.append(rows_of(page))
        path = page.wsgi_request.path
        address = path + listing.next_page if listing.after else ""
    return pages
