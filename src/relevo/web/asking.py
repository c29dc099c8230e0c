"""What a request asks for: names in its path, its query and its body, each checked by the types of its handler."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import Struct
from starlette.requests import Request

from relevo.web.problems import Refused, invalid, misfit
from relevo.web.route import Route

T = TypeVar("T", bound=Struct)


async def arguments(request: Request, route: Route, most: int) -> dict[str, Any]:
    """What the handler is called with. `most`: bytes of a body."""
    given: dict[str, Any] = {name: request.path_params[name] for name in route.names}
    query = _query(request, route.query)
    if query is not None:
        given["query"] = query
    if route.body is not None:
        given["body"] = _body(await _bytes(request, most), request.headers.get("content-type", ""), route.body)
    return given


def _query(request: Request, kind: type[T] | None) -> T | None:
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name in found:
            raise invalid(f"{name!r:.60} is given twice")
        found[name] = value
    if kind is None:
        if found:
            raise invalid(f"nothing can be said in the query here, found {next(iter(found))!r:.60}")
        return None
    try:
        return msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        raise misfit(error, kind.__struct_fields__) from None


def _body(raw: bytes, media: str, kind: type[T]) -> T:
    if raw and media.partition(";")[0].strip().lower() != "application/json":
        raise Refused(
            415, "UnsupportedMediaType", f"send JSON, with Content-Type: application/json, found {media!r:.60}"
        )
    try:
        return msgspec.json.decode(raw or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise misfit(error, kind.__struct_fields__) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid(f"the body is not JSON: {error}") from None


async def _bytes(request: Request, most: int) -> bytes:
    """The body, and never more of it than is allowed."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            message = f"a body of {most:,} bytes at the most is read; this one is larger"
            raise Refused(413, "TooLarge", message, {"Connection": "close"})  # else the rest of it would still come
        parts.append(part)
    return b"".join(parts)
