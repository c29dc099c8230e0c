"""Headers in the body of a job: they stand before its arguments, in what is encoded of a call."""

from __future__ import annotations

import re
from typing import Any

from relevo.engine.job import write
from relevo.errors import PayloadError, PayloadTooLarge

#: Bytes of the headers of a job. They travel with every job that it makes.
HEADERS_MAX = 8_192
_NAME_MAX = 200
#: Headers are written first. No text in them can look like the end: a quote inside of it is escaped.
_HEADERS = re.compile(rb'"h":\{.*?\}(?:,(?="[ak]":)|$)', re.DOTALL)


def encoded(headers: Any, *, what: str) -> bytes:
    """The headers of a job as JSON, checked."""
    if not isinstance(headers, dict):
        raise PayloadError(f"{what}: headers are texts by their names, found {headers!r:.80}")
    for name, value in headers.items():
        if not isinstance(name, str) or not 0 < len(name) <= _NAME_MAX or not name.isprintable():
            raise PayloadError(
                f"{what}: the name of a header is printable text of at most {_NAME_MAX} characters, found {name!r:.80}"
            )
        if not isinstance(value, str):
            raise PayloadError(f"{what}: header {name!r:.80} must be text, found {value!r:.80}")
    try:
        raw = write(headers)
    except UnicodeEncodeError as error:
        raise PayloadError(f"{what}: a header cannot be written: {error}") from error
    if len(raw) > HEADERS_MAX:
        raise PayloadTooLarge(f"{what}: headers", len(raw), HEADERS_MAX)
    return raw


def headed(fragment: bytes, headers: dict[str, str], *, what: str) -> bytes:
    """Encoded arguments with headers."""
    if not headers:
        return fragment
    head = b'"h":' + encoded(headers, what=what)
    return head + b"," + fragment if fragment else head


def arguments_of(fragment: bytes) -> bytes:
    """Encoded arguments without headers."""
    return _HEADERS.sub(b"", fragment, count=1) if fragment.startswith(b'"h":') else fragment
