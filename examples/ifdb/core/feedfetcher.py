"""FetchFeeds: the news of the community, from feeds and forums."""

import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from xml.etree import ElementTree

from core.fetching import json_of, text_of
from core.models import FeedCache

ATOM = "{http://www.w3.org/2005/Atom}"


def FetchFeeds():
    """Read all feeds. If some cannot be read, the others are, and the task is tried again."""
    failed = {}
    for feed_id, (path, read) in FEEDS.items():
        try:
            new = sum(store(feed_id, item) for item in read(path))
            print(f"{feed_id}: {new} new")
        except Exception as error:  # noqa: BLE001
            failed[feed_id] = error
            print(f"{feed_id}: {error}")
    if failed:
        raise ExceptionGroup(f"not read: {', '.join(failed)}", list(failed.values()))


def store(feed_id, item):
    """Store an item; False: it was known."""
    item_id = item.pop("item_id")
    return FeedCache.objects.get_or_create(feed_id=feed_id, item_id=item_id, defaults=item)[1]


def rss(path):
    """RSS 2.0, as forums and blogs have it."""
    for item in ElementTree.fromstring(text_of(path)).iter("item"):
        yield {
            "item_id": item.findtext("guid") or item.findtext("link"),
            "title": item.findtext("title"),
            "authors": item.findtext("author") or "",
            "url": item.findtext("link"),
            "date_published": parsedate_to_datetime(item.findtext("pubDate")),
        }


def atom(path):
    """Atom."""
    for entry in ElementTree.fromstring(text_of(path)).iter(ATOM + "entry"):
        yield {
            "item_id": entry.findtext(ATOM + "id"),
            "title": entry.findtext(ATOM + "title"),
            "authors": entry.findtext(f"{ATOM}author/{ATOM}name") or "",
            "url": entry.find(ATOM + "link").get("href"),
            "date_published": datetime.fromisoformat(entry.findtext(ATOM + "updated")),
        }


def vk(path):
    """Posts of a wall: they have no titles, so the first sentence is one."""
    for post in json_of(path)["response"]["items"]:
        yield {
            "item_id": f"{post['owner_id']}_{post['id']}",
            "title": re.split(r"(?<=[.!?])\s", post["text"].strip(), maxsplit=1)[0][:200],
            "authors": "",
            "url": f"https://vk.com/wall{post['owner_id']}_{post['id']}",
            "date_published": datetime.fromtimestamp(post["date"], UTC),
        }


FEEDS = {
    "ifhub": ("/ifhub/rss", rss),
    "forum.ifiction.ru": ("/ifiction/extern.php", atom),
    "urq.borda.ru": ("/urq/rss.xml", rss),
    "instead-games.ru": ("/instead/rss.xml", rss),
    "vk.com/urqgames": ("/vk/wall.get", vk),
}
