"""HTTP as tasks of this site need it: with a time limit and a size limit."""

import json
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from django.conf import settings

#: Seconds in which a server must go on sending.
PATIENCE = 30
_PART = 64 * 1024


def opened(url):
    """The response of a server; only of the web, whatever a user typed."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(f"not an address of the web: {url!r:.100}")
    return urlopen(Request(url, headers={"User-Agent": "ifdb-example"}), timeout=PATIENCE)


def parts(response, most):
    """Its body, piece by piece; ValueError if there is more than `most` bytes."""
    size = 0
    while part := response.read(_PART):
        size += len(part)
        if size > most:
            raise ValueError(f"more than {most} bytes")
        yield part


def text_of(path, most=2**20):
    """A page of our sources."""
    with opened(settings.SOURCES_URL + path) as response:
        return b"".join(parts(response, most)).decode()


def json_of(path):
    """The same, read."""
    return json.loads(text_of(path))


def post_json(url, data):
    """Send something, and wait for a good answer."""
    request = Request(url, json.dumps(data).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=PATIENCE) as response:
        response.read()
