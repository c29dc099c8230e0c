"""What the sources have. Games and people are invented."""

import io
import json
import zipfile
from datetime import UTC, datetime

LIGHTHOUSE = """\
; Маяк
:маяк
pln Вы стоите у маяка. Море шумит.
btn наверх,Подняться
btn берег,Спуститься к воде
end
:наверх
pln Лампа погасла. Внизу темнеет море.
btn маяк,Вернуться
end
:берег
pln Лодки нет.
btn маяк,Вернуться
end
"""
STATION = """\
:station
pln The last train has left. A clock shows half past eleven.
btn office,Knock at the office
end
:office
pln There is light under the door.
btn station,Go back
end
"""
WINTER = """\
:зима
pln Снег идёт третий день.
end
"""


def archive(name, data):
    """A .zip with one file, and a page that tells how to play it."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as files:
        files.writestr("readme.txt", "Open the quest in an interpreter.\n")
        files.writestr(name, data)
    return whole.getvalue()


def pages(here):
    """All pages by their path: the kind of each, and its content."""
    found = {
        "/ifwiki/api.php": _json(
            {
                "games": [
                    _wiki("The Lighthouse", "A. Lamp", "A keeper alone with the sea.", f"{here}/files/lighthouse.qst"),
                    _wiki("Last Train", "N. Station", "A night at a station.", f"{here}/files/station.zip"),
                ],
                "next": "/ifwiki/api.php?page=2",
            }
        ),
        "/ifwiki/api.php?page=2": _json(
            {"games": [_wiki("Lost Pages", "B. Reader", "Its file is gone.", f"{here}/files/lost.qst")]}
        ),
        "/apero/games.html": (
            "text/html",
            "<ul>"
            f"<li data-title='the lighthouse!' data-author='A. Lamp' data-file='{here}/files/lighthouse.zip'>"
            f"<li data-title='Winter' data-author='C. Snow' data-file='{here}/files/winter.qsz'></ul>".encode(),
        ),
        "/questbook/all.json": _json(
            [{"title": "Last train", "authors": "N. Station", "about": "", "url": f"{here}/files/station.zip"}]
        ),
        "/instead/games.json": _json(
            {
                "games": [
                    {"title": "Cat on a Roof", "author": "D. Cat", "descr": "Short.", "zip": f"{here}/files/cat.txt"}
                ]
            }
        ),
        "/files/lighthouse.qst": ("application/octet-stream", LIGHTHOUSE.encode("cp1251")),
        "/files/lighthouse.zip": ("application/zip", archive("lighthouse.qst", LIGHTHOUSE.encode())),
        "/files/station.zip": ("application/zip", archive("games/Station.QST", STATION.encode())),
        "/files/winter.qsz": ("application/zip", archive("winter.qst", WINTER.encode("cp1251"))),
        "/files/cat.txt": ("text/plain", b"Not a quest: read it.\n"),
        "/ifhub/rss": _rss(("ifhub-1", "A contest begins", 3), ("ifhub-2", "Results of the contest", 9)),
        "/urq/rss.xml": _rss(("urq-1", "Interpreters compared", 5)),
        "/instead/rss.xml": _rss(("instead-1", "Cat on a Roof, version 2", 7)),
        "/ifiction/extern.php": ("application/atom+xml", _ATOM.encode()),
        "/vk/wall.get": _json(
            {
                "response": {
                    "items": [{"owner_id": -7, "id": 41, "date": _at(8).timestamp(), "text": "A new quest. Play it!"}]
                }
            }
        ),
    }
    return found


#: A file that its site has lost, and may find again.
LOST = {"/files/lost.qst": ("application/octet-stream", b":pages\npln Torn pages.\nend\n")}

_ATOM = """<feed xmlns="http://www.w3.org/2005/Atom"><entry><id>tag:forum,1</id><title>Which language?</title>
<author><name>E. Verb</name></author><link href="https://forum.example/1"/><updated>2026-03-04T10:00:00Z</updated>
</entry></feed>"""


def _at(day):
    return datetime(2026, 3, day, 12, tzinfo=UTC)


def _wiki(name, author, text, *files):
    return {"name": name, "author": author, "text": text, "files": list(files)}


def _json(data):
    return "application/json", json.dumps(data).encode()


def _rss(*items):
    rows = "".join(
        f"<item><guid>{id}</guid><title>{title}</title><link>https://news.example/{id}</link>"
        f"<pubDate>{_at(day):%a, %d %b %Y %H:%M:%S +0000}</pubDate></item>"
        for id, title, day in items
    )
    return "application/rss+xml", f"<rss version='2.0'><channel><title>News</title>{rows}</channel></rss>".encode()
