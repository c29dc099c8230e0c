"""CloneFile, MarkBroken and RecodeGame: copies of files, and forms of them for the browser.

A task may run twice, as every task may: each writes its file under a temporary name first, and its row last.
"""

import re
import zipfile
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.db import transaction

from core.fetching import opened, parts
from core.taskqueue import Enqueue, EnqueueOrGet
from games.models import GameURL, InterpretedGameUrl

#: Formats that RecodeGame reads.
RECODED = (".qst", ".zip", ".qsz")
#: Encodings of quests, the strictest first.
ENCODINGS = ("utf-8", "cp1251")


def CloneFile(id):
    """Copy the file of a URL to our disk."""
    url = GameURL.objects.get(pk=id)
    name = f"{id}-{_name_in(url.original_url)}"
    print(f"cloning {url.original_url}")
    with opened(url.original_url) as response:
        size = _write(settings.UPLOADS_DIR / name, parts(response, settings.UPLOAD_MOST))
    url.local_name, url.file_size, url.status, url.fault = name, size, GameURL.Status.OK, ""
    with transaction.atomic():
        url.save()
        if name.lower().endswith(RECODED):
            # Only enqueue if not already pending
            EnqueueOrGet(RecodeGame, id, name=f"RecodeGame({id})")


def MarkBroken(task, context):
    """CloneFile has failed for good."""
    (id,) = context["argv"]
    GameURL.objects.filter(pk=id).update(status=GameURL.Status.BROKEN, fault=context["error"])


def RecodeGame(game_url_id):
    """Make a form for the interpreter in the browser: the quest itself, as UTF-8."""
    url = GameURL.objects.get(pk=game_url_id)
    data = (settings.UPLOADS_DIR / url.local_name).read_bytes()
    if zipfile.is_zipfile(BytesIO(data)):
        data = _quest_in(data)
    text, encoding = _decoded(data)
    locations = len(re.findall(r"(?m)^\s*:\S", text))
    if not locations:
        raise ValueError(f"{url.local_name} is no quest: it has no locations")
    name = f"{game_url_id}.qst"
    _write(settings.RECODES_DIR / name, [text.encode()])
    InterpretedGameUrl.objects.update_or_create(
        original=url, defaults={"recoded_name": name, "encoding": encoding, "locations": locations}
    )
    print(f"{url.local_name}: {encoding}, {locations} locations")


def clone_all(urls):
    """Enqueue a copy of each of these; called in the transaction that makes them."""
    for url in urls:
        Enqueue(CloneFile, url.pk, name=f"CloneUrl({url.pk})", onfail=MarkBroken)


def _name_in(url):
    """The name of the file, with nothing in it that a path could mean."""
    name = unquote(PurePosixPath(urlsplit(url).path).name)
    return re.sub(r"[^\w.-]+", "_", name).strip("._")[-100:] or "file"


def _write(path, pieces):
    """Write a file that is there as a whole or not at all; its size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=path.parent) as folder:
        unfinished = Path(folder, "unfinished")
        with unfinished.open("wb") as file:
            for piece in pieces:
                file.write(piece)
            size = file.tell()
        unfinished.replace(path)
    return size


def _quest_in(archive):
    """The quest in a .zip or .qsz, which is the same; at most as large as an upload may be."""
    with zipfile.ZipFile(BytesIO(archive)) as files:
        quests = [one for one in files.infolist() if one.filename.lower().endswith(".qst")]
        if not quests:
            raise ValueError("the archive has no quest")
        with files.open(quests[0]) as file:
            data = file.read(settings.UPLOAD_MOST + 1)
    if len(data) > settings.UPLOAD_MOST:
        raise ValueError(f"{quests[0].filename} is larger than {settings.UPLOAD_MOST} bytes")
    return data


def _decoded(data):
    for encoding in ENCODINGS:
        try:
            return data.decode(encoding), encoding
        except UnicodeDecodeError:
            continue
    raise ValueError(f"not a text in {' or '.join(ENCODINGS)}")
