"""ImportGames: games of other sites. One game that several of them have is one game here, with the URLs of all."""

import re
from html.parser import HTMLParser

from django.conf import settings
from django.db import transaction

from core.fetching import json_of, post_json, text_of
from games.models import Game
from games.tasks.uploads import clone_all


def ImportGames(append_urls=False):
    """Import the games that we do not have. With `append_urls`, also new URLs of those that we have."""
    new, added = [], 0
    for found in merged(one for fetch in SOURCES for one in fetch()):
        game = known(found)
        if game is None:
            new.append(create(found))
        elif append_urls:
            added += append(game, found)
    print(f"{len(new)} new games, {added} new URLs")
    if new:
        post_json(settings.DISCORD_WEBHOOK, {"content": "New: " + ", ".join(map(str, new))})


def ForceReimport():
    """Write all games again that the importer wrote, as their sources have them now; how many."""
    count = 0
    for found in merged(one for fetch in SOURCES for one in fetch()):
        game = known(found)
        if game is not None and game.is_updateable:
            Game.objects.filter(pk=game.pk).update(author=found["author"], description=found["description"])
            count += 1
    return count


def ImportForceUpdateUrls():
    """Add the URLs that sources have and we have not, to games that we have; how many."""
    found = merged(one for fetch in SOURCES for one in fetch())
    return sum(append(game, one) for one in found if (game := known(one)) is not None)


def known(found):
    """The game of that title, if we have it."""
    return next((one for one in Game.objects.all() if key_of(one.title) == key_of(found["title"])), None)


def create(found):
    """The new game. Its files are cloned when it is committed, and not before."""
    with transaction.atomic():
        game = Game.objects.create(**{name: found[name] for name in ("title", "author", "description")})
        append(game, found)
    return game


def append(game, found):
    """Add URLs that the game has not; how many."""
    with transaction.atomic():
        new = [url for one in found["urls"] for url, created in [game.urls.get_or_create(original_url=one)] if created]
        clone_all(new)
    return len(new)


def merged(games):
    """One of each title, with the URLs of all."""
    found = {}
    for game in games:
        one = found.setdefault(key_of(game["title"]), game | {"urls": []})
        one["urls"] += [url for url in game["urls"] if url not in one["urls"]]
        one["description"] = one["description"] or game["description"]
    return list(found.values())


def key_of(title):
    """What two spellings of a title have in common."""
    return re.sub(r"\W+", "", title.casefold())


def ifwiki():
    """The API of IFWiki, page by page."""
    path = "/ifwiki/api.php"
    while path:
        page = json_of(path)
        for one in page["games"]:
            yield {"title": one["name"], "author": one["author"], "description": one["text"], "urls": one["files"]}
        path = page.get("next")


def apero():
    """The list of Apero, which is a page."""
    reader = _Rows()
    reader.feed(text_of("/apero/games.html"))
    for row in reader.rows:
        yield {"title": row["title"], "author": row["author"], "description": "", "urls": [row["file"]]}


def questbook():
    """The database of QuestBook."""
    for one in json_of("/questbook/all.json"):
        yield {"title": one["title"], "author": one["authors"], "description": one["about"], "urls": [one["url"]]}


def insteadgames():
    """The database of InsteadGames."""
    for one in json_of("/instead/games.json")["games"]:
        yield {"title": one["title"], "author": one["author"], "description": one["descr"], "urls": [one["zip"]]}


SOURCES = (ifwiki, apero, questbook, insteadgames)


class _Rows(HTMLParser):
    """Rows such as <li data-title=… data-author=… data-file=…>."""

    def __init__(self):
        super().__init__()
        self.rows = []

    def handle_starttag(self, tag, attrs):
        given = {name.removeprefix("data-"): value for name, value in attrs if name.startswith("data-")}
        if tag == "li" and {"title", "author", "file"} <= given.keys():
            self.rows.append(given)
