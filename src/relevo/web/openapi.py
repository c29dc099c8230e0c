"""The OpenAPI 3.1 document, made from the table of routes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from relevo.version import __version__
from relevo.web.access import Role
from relevo.web.asking import JSON, LINES, PROBLEM
from relevo.web.problems import Problem
from relevo.web.route import Lines, Route

Schema = Callable[[Any], dict[str, Any]]

_REFS = "#/components/schemas/{name}"
_ABOUT = """\
Enqueues, inspects and controls the jobs of one relevo app. Everything is JSON; an error is an object \
with its name and a message that says what to do (RFC 9457). Times are milliseconds since 1970, by the clock of the \
queues' server."""
#: The meaning of each status. Routes that take no names have no 404 and 409.
_PROBLEMS = {
    "401": "a token is missing or unknown",
    "403": "the token's role does not allow it, or the page or host it comes from",
    "404": "not found",
    "405": "this path has another method",
    "408": "the body did not come in time",
    "409": "the state of the object does not allow it",
    "413": "the body is too large",
    "415": "the content type of the body is not JSON",
    "422": "the request does not have the expected form",
    "429": "too many wrong tokens",
    "503": "the server of the queues cannot be reached or refuses, or this process handles too many requests",
}


def document(routes: Sequence[Route], *, base: str = "", app: str = "relevo") -> dict[str, Any]:
    """Describe the API. `base`: where it is mounted."""
    asked = (kind for route in routes for kind in (route.answers, route.query, route.headers, route.body))
    kinds = [Problem, *(kind for kind in asked if kind and kind is not Lines)]
    schemas, parts = msgspec.json.schema_components(kinds, ref_template=_REFS)
    known = list(zip(kinds, schemas, strict=True))

    def schema(kind: Any) -> dict[str, Any]:
        return next(one for other, one in known if other == kind)

    def part(kind: Any) -> dict[str, Any]:
        found: dict[str, Any] = parts[_name(schema(kind))]
        return found

    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schema, part)
    given = (kind for route in routes for kind in (route.query, route.headers) if kind)
    parameters = {_name(schema(kind)) for kind in given}
    return {
        "openapi": "3.1.0",
        "info": {"title": f"relevo: {app}", "version": __version__, "description": _ABOUT},
        "servers": [{"url": base or "/"}],
        "paths": paths,
        "components": {
            "schemas": {name: one for name, one in parts.items() if name not in parameters},
            "securitySchemes": {
                "token": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The secret of one of web_tokens; without any, the one printed at the start.",
                }
            },
        },
        "security": [{"token": []}],
    }


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _operation(route: Route, schema: Schema, part: Schema) -> dict[str, Any]:
    roles = f"{route.role.label} or producer" if route.producers else route.role.label
    needs = "" if route.role is Role.VIEWER else f"\n\nNeeds the role {roles}."
    found: dict[str, Any] = {
        "operationId": route.id,
        "tags": [route.handler.__module__.rpartition(".")[2]],
        "summary": route.summary,
        "description": route.about + needs,
        "parameters": [
            *map(_in_path, route.names),
            *_given(route.query, "query", part),
            *_given(route.headers, "header", part),
        ],
        "responses": {
            **_answers(route, schema),
            **{status: _problem(schema, status) for status in _statuses(route)},
        },
    }
    if route.body is not None:
        needed = route.body is Lines or bool(part(route.body).get("required"))
        found["requestBody"] = {"required": needed, "content": _content(route.body, schema)}
    return found


def _statuses(route: Route) -> list[str]:
    left_out = set()
    if not route.names and route.query is None and route.body is None:
        left_out |= {"404"}
    if not route.changes:
        left_out |= {"408", "409", "413"}
    if route.body is None:
        left_out |= {"415"}
    return [status for status in _PROBLEMS if status not in left_out]


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _given(kind: type[Struct] | None, where: str, part: Schema) -> list[dict[str, Any]]:
    if kind is None:
        return []
    fields: dict[str, Any] = part(kind)["properties"]
    return [{"name": name, "in": where, "required": False, "schema": about} for name, about in fields.items()]


def _answers(route: Route, schema: Schema) -> dict[str, Any]:
    content = _content(route.answers, schema)
    if not route.creates:
        return {"200": {"description": "done", "content": content}}
    where = {"description": "where to read it; absent if several were created", "schema": {"type": "string"}}
    answer = {"headers": {"Location": where}, "content": content}
    return {"200": {"description": "it was there already", **answer}, "201": {"description": "made", **answer}}


def _content(kind: Any, schema: Schema) -> dict[str, Any]:
    return {LINES: {}} if kind is Lines else {JSON: {"schema": schema(kind)}}


def _problem(schema: Schema, status: str) -> dict[str, Any]:
    return {"description": _PROBLEMS[status], "content": {PROBLEM: {"schema": schema(Problem)}}}
