"""Parses a request: names in its path, its query and its body, each checked by the types of its handler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request

from relevo.web.problems import Refused, invalid, misfit
from relevo.web.route import Lines, Route

T = TypeVar("T", bound=Struct)

JSON = "application/json"
#: For error answers (RFC 9457).
PROBLEM = "application/problem+json"
#: For lines of JSON. No HTML form can send it.
LINES = "application/x-ndjson"
#: A dead letter holds more than its arguments: each attempt, with its traceback.
STORY = 4
#: Replaces a slash inside a name while a path is split: no name contains it, since names are printable.
SLASH = "\x1f"
#: Bodies that clients send when they have none.
_NOTHING = (b"", b"{}", b"null")


async def arguments(request: Request, route: Route, most: int) -> dict[str, Any]:
    """The arguments of the handler. `most`: bytes of a body."""
    given: dict[str, Any] = {name: request.path_params[name].replace(SLASH, "/") for name in route.names}
    query = _query(request, route.query)
    if query is not None:
        given["query"] = query
    if route.headers is not None:
        given["headers"] = _headers(request, route.headers)
    if route.body is Lines:
        _check_media(request, LINES)
        given["body"] = Lines(_lines(request, most * STORY))
    elif route.body is not None:
        in_query = () if route.query is None else route.query.__struct_fields__
        given["body"] = _body(await _bytes(request, most), request, route.body, in_query)
    elif route.changes and (await _bytes(request, most)).strip() not in _NOTHING:
        # A filter in an unread body would be lost, and more would be done than was requested.
        where = "; use the query" if route.query is not None else ""
        raise invalid(f"this request takes no body{where}")
    return given


def _query(request: Request, kind: type[T] | None) -> T | None:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise invalid(f"{name!r:.60} is given twice")
        found[name] = value
    if kind is None:
        if found:
            raise invalid(f"this request takes no query, found {next(iter(found))!r:.60}")
        return None
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, kind.__struct_fields__) from None


def _headers(request: Request, kind: type[T]) -> T:
    found = {}
    for field in msgspec.structs.fields(kind):
        match request.headers.getlist(field.encode_name):
            case [value]:
                found[field.encode_name] = value
            case [_, *_]:
                raise invalid(f"{field.encode_name} is given twice", argument=field.encode_name)
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise misfit(error, ()) from None


def _check_media(request: Request, media: str) -> None:
    found = request.headers.get("content-type", "")
    if found.partition(";")[0].strip().lower() != media:
        what = "JSON" if media == JSON else "lines of JSON, as /dead/export gives them"
        raise Refused(415, "UnsupportedMediaType", f"send {what}, with Content-Type: {media}, found {found!r:.60}")


def _body(raw: bytes, request: Request, kind: type[T], in_query: Iterable[str]) -> T:
    if raw:
        _check_media(request, JSON)
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise misfit(error, kind.__struct_fields__, in_query) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None


async def _bytes(request: Request, most: int) -> bytes:
    """The body, of at most `most` bytes."""
    too_large = f"a body of {most:,} bytes at the most is read; this one is larger"
    if request.headers.get("content-length", "").isdecimal() and int(request.headers["content-length"]) > most:
        raise _too_large(too_large)  # before a client that sent `Expect: 100-continue` sends it
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise _too_large(too_large)
            parts.append(part)
    except ClientDisconnect:
        raise invalid("the body ended too soon") from None  # the client is gone, but it is no error of ours either
    return b"".join(parts)


async def _lines(request: Request, most: int) -> AsyncIterator[bytes]:
    """The lines of a body as they come, none longer than `most`. A last line that is cut off is left out."""
    line = bytearray()
    try:
        async for part in request.stream():
            first, *others = part.split(b"\n")
            line += first
            for start in others:
                yield bytes(line)
                line = bytearray(start)
            if len(line) > most:
                raise _too_large(f"a line of {most:,} bytes at the most is read; one is longer")
    except ClientDisconnect:
        return
    if line:
        yield bytes(line)


def _too_large(message: str) -> Refused:
    return Refused(413, "TooLarge", message, {"Connection": "close"})  # else the rest would still be sent
