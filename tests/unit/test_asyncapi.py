"""The AsyncAPI document of a bus: valid by the rules of AsyncAPI 3.0, and true to the services."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple
from uuid import UUID

import msgspec
import pytest

from relevo.bus.actions import described
from relevo.bus.asyncapi import document
from relevo.bus.catalogue import ActionInfo, Catalogue, QueueInfo, ServiceInfo, SubscriptionInfo
from relevo.engine.message import Reply
from relevo.queues.store import QueueStats
from relevo.text.names import Address, Kind

# The rules, by https://www.asyncapi.com/docs/reference/specification/v3.0.0

_ID = re.compile(r"[\w.-]+")
_LOCATION = re.compile(r"\$message\.(header|payload)#(/[^/~]*)+")
_ROOT = {"asyncapi", "id", "info", "servers", "defaultContentType", "channels", "operations", "components"}
_CHANNEL = {"address", "messages", "title", "summary", "description", "servers", "parameters", "tags", "bindings"}
_OPERATION = {"action", "channel", "title", "summary", "description", "tags", "bindings", "traits", "messages", "reply"}
_MESSAGE = {"headers", "payload", "correlationId", "contentType", "name", "title", "summary", "description", "tags"}
_TYPES = {"string", "integer", "number", "boolean", "null", "object", "array"}


def check(found: Any) -> None:
    """Fail unless this is an AsyncAPI 3.0 document whose references lead somewhere."""
    json.dumps(found)
    _known(found, _ROOT, "the root")
    assert found["asyncapi"] == "3.0.0"
    assert isinstance(found["info"]["title"], str) and isinstance(found["info"]["version"], str)
    for ref in _refs(found):
        _resolve(found, ref)
    components = found["components"]
    for name in (one for kind in components.values() for one in kind):
        assert _ID.fullmatch(name), f"{name!r} cannot name a component"
    for message in components["messages"].values():
        _known(message, _MESSAGE, "a message")
        _check_schema(message["payload"])
        _check_schema(message.get("headers", {}))
        if "correlationId" in message:
            assert _LOCATION.fullmatch(message["correlationId"]["location"])
    for schema in components["schemas"].values():
        _check_schema(schema)
    addresses = [one["address"] for one in found["channels"].values() if one["address"] is not None]
    assert len(addresses) == len(set(addresses)), "two channels with one address"
    for id, channel in found["channels"].items():
        _check_channel(id, channel)
    for operation in found["operations"].values():
        _check_operation(found, operation)


def _known(value: dict[str, Any], fields: set[str], what: str) -> None:
    strange = {name for name in value if name not in fields and not re.fullmatch(r"x-[\w.-]+", name)}
    assert not strange, f"{what} has no {strange}"


def _check_channel(id: str, channel: dict[str, Any]) -> None:
    assert _ID.fullmatch(id), f"{id!r} would have to be escaped"
    _known(channel, _CHANNEL, "a channel")
    assert channel["address"] is None or isinstance(channel["address"], str)
    for message in channel["messages"].values():
        assert message["$ref"].startswith("#/components/messages/")
    expressions = set(re.findall(r"\{([^}]*)\}", channel["address"] or ""))
    assert expressions == set(channel.get("parameters", {})), "an expression of the address is a parameter"


def _check_operation(found: Any, operation: dict[str, Any]) -> None:
    _known(operation, _OPERATION, "an operation")
    assert operation["action"] in ("send", "receive")
    _check_messages(operation)
    assert all(isinstance(tag["name"], str) for tag in operation.get("tags", ()))
    reply = operation.get("reply")
    if reply is not None:
        _known(reply, {"address", "channel", "messages"}, "a reply")
        _check_messages(reply)
        if "address" in reply:
            assert _LOCATION.fullmatch(reply["address"]["location"])
            assert _resolve(found, reply["channel"]["$ref"])["address"] is None, "the message says where the reply goes"


def _check_messages(part: dict[str, Any]) -> None:
    """Messages are given as references into the channel, which is one, too."""
    channel = part["channel"]["$ref"]
    assert re.fullmatch("#/channels/[^/]+", channel)
    assert part["messages"] and all(one["$ref"].startswith(f"{channel}/messages/") for one in part["messages"])


def _check_schema(schema: Any) -> None:
    """JSON Schema of draft 07, which is what AsyncAPI takes."""
    if isinstance(schema, bool):
        return
    assert isinstance(schema, dict)
    assert not {"$defs", "$id", "prefixItems"} & set(schema), "not of draft 07, or not where it belongs"
    assert isinstance(schema.get("discriminator", ""), str)
    if "$ref" in schema:
        assert [*schema] == ["$ref"], "what stands beside a reference is not looked at"
        assert schema["$ref"].startswith("#/components/schemas/")
    assert schema.get("type", "null") in _TYPES
    for name in ("allOf", "anyOf", "oneOf"):
        assert schema.get(name, [{}]), f"{name} of nothing"
        for one in schema.get(name, ()):
            _check_schema(one)
    for one in schema.get("properties", {}).values():
        _check_schema(one)
    for name in ("additionalProperties", "additionalItems", "not"):
        _check_schema(schema.get(name, True))
    items = schema.get("items", True)
    for one in items if isinstance(items, list) else [items]:
        _check_schema(one)


def _refs(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "properties":  # these are names, and one of them may be $ref
                yield from _refs([*inner.values()])
            elif key == "$ref":
                yield inner
            elif key not in ("enum", "const", "default"):
                yield from _refs(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _refs(inner)


def _resolve(found: Any, ref: str) -> Any:
    assert re.fullmatch(r"#(/[\w.-]+)+", ref), f"{ref} needs escapes or leads elsewhere"
    for part in ref.split("/")[1:]:
        found = found[part]
    return found


# Services


class Page(msgspec.Struct):
    number: int
    text: str = ""


class Document(msgspec.Struct):
    id: str
    pages: list[Page]
    parent: Document | None = None


class Cat(msgspec.Struct, tag=True):
    lives: int = 9


class Dog(msgspec.Struct, tag=True):
    name: str


class Odd(msgspec.Struct, rename={"ref": "$ref", "defs": "$defs"}):
    ref: str
    defs: dict[str, Page]


class Pair(NamedTuple):
    left: int
    right: str = "x"


@dataclass
class Order:
    number: int
    lines: tuple[int, str]


def store(document: Document, priority: int = 3) -> str:
    """Keeps a document."""
    return document.id


def order(order: Order) -> list[Document] | None: ...


def many(pet: Cat | Dog, odd: Odd, pair: Pair, mode: Literal["a", 1], id: UUID | None, any: Any) -> dict[str, Page]:
    return {}


def ready(reply: Reply[list[float]]) -> None: ...


def nothing() -> None: ...


def queue(service: str, kind: Kind = "actions", *detail: str, context: tuple[str, ...] = ()) -> QueueInfo:
    name = Address("relevo", "dev", service, context, kind, detail)
    stats = QueueStats(
        name=str(name),
        ready=0,
        scheduled=0,
        running=0,
        waiting=0,
        done=0,
        dead=0,
        cancelled=0,
        expired=0,
        living=0,
        idle_workers=0,
        paused=False,
        next_due_ms=None,
        totals={},
    )
    return QueueInfo(kind, str(name), stats, None, 1)


def action(name: str, func: Callable[..., Any] = nothing, *, served: bool = True) -> ActionInfo:
    about = json.loads(json.dumps(described(func)))
    return ActionInfo(name, about.get("about", ""), about["takes"], about["gives"], served)


def subscription(service: str, pattern: str, *, instance: str = "") -> SubscriptionInfo:
    context = (instance,) if instance else ()
    where = queue(service, "notifications", pattern, context=context)
    return SubscriptionInfo(
        service=service,
        pattern=pattern,
        kind="broadcast" if instance else "durable",
        queue=where,
        max_backlog=10,
        seen_ms=1,
        ends_ms=2,
        warned=False,
    )


def service(
    name: str, *actions: ActionInfo, context: tuple[str, ...] = (), on: tuple[SubscriptionInfo, ...] = ()
) -> ServiceInfo:
    queues = tuple(queue(name, kind, context=context) for kind in (("actions", "callbacks") if actions else ()))
    return ServiceInfo(
        name=name,
        context=context,
        instances=(),
        running=0,
        concurrency=0,
        actions=actions,
        queues=queues,
        subscriptions=on,
    )


def bus(*services: ServiceInfo) -> Any:
    return json.loads(json.dumps(document(Catalogue("relevo", "dev", 1, services))))


WHOLE = bus(
    service("archive", action("store", store), action("order", order)),
    service("archive", action("store", store), action("order", order), context=("tenant xyz", "1")),
    service("ingestion", action("many", many), action("on.ready", ready), action("gone", served=False)),
    service("query", on=(subscription("query", "ingestion.*"), subscription("query", "ingestion.>", instance="w1"))),
)


def test_a_bus_with_everything_and_an_empty_one_are_valid_documents() -> None:
    check(WHOLE)
    check(bus())


def test_a_service_that_was_only_sent_to_is_a_channel_without_operations() -> None:
    found = bus(
        ServiceInfo(
            name="lost",
            context=(),
            instances=(),
            running=0,
            concurrency=0,
            actions=(),
            queues=(queue("lost"),),
            subscriptions=(),
        )
    )
    check(found)
    assert [one["address"] for one in found["channels"].values()] == ["relevo:dev:lost:actions"]
    assert found["operations"] == {}


def test_channels_are_the_addresses_of_queues() -> None:
    assert {one["address"] for one in WHOLE["channels"].values()} == {
        "relevo:dev:archive:actions",
        "relevo:dev:archive:callbacks",
        "relevo:dev:archive:tenant%20xyz:1:actions",
        "relevo:dev:archive:tenant%20xyz:1:callbacks",
        "relevo:dev:ingestion:actions",
        "relevo:dev:ingestion:callbacks",
        "relevo:dev:query:notifications:ingestion.*",
        "relevo:dev:query:{instance}:notifications:ingestion.>",
        None,  # of replies, the message says where they go
    }


def test_an_action_receives_what_it_takes_and_replies_what_it_gives() -> None:
    operation = WHOLE["operations"]["archive.store"]
    assert (operation["action"], operation["summary"]) == ("receive", "Keeps a document.")
    assert operation["reply"]["address"]["location"] == "$message.header#/reply_to"
    message = WHOLE["components"]["messages"]["archive.store"]
    assert _resolve(WHOLE, _resolve(WHOLE, operation["messages"][0]["$ref"])["$ref"]) == message
    assert message["payload"] == {
        "type": "object",
        "properties": {"document": {"$ref": "#/components/schemas/Document"}, "priority": {"type": "integer"}},
        "required": ["document"],
    }
    assert {"reply_to", "correlation_id"} <= set(_resolve(WHOLE, message["headers"]["$ref"])["properties"])
    reply = _resolve(WHOLE, _resolve(WHOLE, operation["reply"]["messages"][0]["$ref"])["$ref"])
    assert reply["payload"] == {"type": "string"}


def test_a_structure_is_written_once_and_may_refer_to_itself() -> None:
    schemas = WHOLE["components"]["schemas"]
    assert [name for name in schemas if name.startswith(("Document", "Page", "Order"))] == ["Document", "Page", "Order"]
    parent = schemas["Document"]["properties"]["parent"]
    assert parent["anyOf"] == [{"$ref": "#/components/schemas/Document"}, {"type": "null"}]
    assert WHOLE["components"]["messages"]["archive.order"]["payload"] == {"$ref": "#/components/schemas/Order"}


def test_contexts_of_one_service_share_messages_and_have_operations_of_their_own() -> None:
    shared = [name for name in WHOLE["components"]["messages"] if name.startswith("archive.store")]
    assert shared == ["archive.store", "archive.store.reply"]
    assert {"archive.store", "archive.tenant_xyz.1.store"} <= set(WHOLE["operations"])
    marked = {name for name, one in WHOLE["operations"].items() if "x-served" in one}
    assert marked == {"ingestion.gone"}, "it has no handler"


def test_two_structures_of_one_name_are_kept_apart() -> None:
    def other() -> Callable[..., Any]:
        other = msgspec.defstruct("Page", [("title", str)])
        document = msgspec.defstruct("Document", [("pages", list[other])])  # type: ignore[valid-type]

        def store(document: Any) -> None: ...

        store.__annotations__["document"] = document
        return store

    found = bus(service("archive", action("store", store)), service("print", action("store", other())))
    check(found)
    schemas = found["components"]["schemas"]
    assert set(schemas) == {"Message", "Reply_Any_", "Fault", "Document", "Page", "Document.2", "Page.2"}
    assert schemas["Document.2"]["properties"]["pages"]["items"] == {"$ref": "#/components/schemas/Page.2"}
    assert set(schemas["Page.2"]["properties"]) == {"title"}
    payload = found["components"]["messages"]["print.store"]["payload"]
    assert payload == {"$ref": "#/components/schemas/Document.2"}


def test_tuples_are_described_as_in_draft_07() -> None:
    schemas = WHOLE["components"]["schemas"]
    lines = schemas["Order"]["properties"]["lines"]
    assert (lines["items"], lines["additionalItems"]) == ([{"type": "integer"}, {"type": "string"}], False)
    assert schemas["Pair"]["items"] == [{"type": "integer"}, {"type": "string", "default": "x"}]


def test_fields_that_are_called_as_keywords_are_fields() -> None:
    fields = WHOLE["components"]["schemas"]["Odd"]["properties"]
    assert fields["$ref"] == {"type": "string"}
    assert fields["$defs"]["additionalProperties"] == {"$ref": "#/components/schemas/Page"}


def test_processes_of_a_broadcast_share_a_channel_with_a_parameter() -> None:
    found = bus(service("query", on=tuple(subscription("query", "a.>", instance=f"w{n}") for n in range(3))))
    check(found)
    (channel,) = found["channels"].values()
    assert channel["address"] == "relevo:dev:query:{instance}:notifications:a.>"
    assert set(channel["parameters"]) == {"instance"}


def test_patterns_that_differ_only_in_wildcards_are_kept_apart() -> None:
    patterns = ("a.*", "a.>", "a.any", "a.rest")
    found = bus(service("query", on=tuple(subscription("query", pattern) for pattern in patterns)))
    check(found)
    assert {one["address"].rpartition(":")[2] for one in found["channels"].values()} == set(patterns)
    assert {one["name"] for one in found["components"]["messages"].values()} == set(patterns)


def test_the_version_changes_when_what_is_offered_does_and_only_then() -> None:
    def version(*actions: ActionInfo, now_ms: int = 1) -> Any:
        return document(Catalogue("relevo", "dev", now_ms, (service("archive", *actions),)))["info"]["version"]

    assert version(action("store", store)) == version(action("store", store), now_ms=2)
    assert version(action("store", store)) != version(action("store", order))


def nested_arrays(levels: int) -> Any:
    return {"type": "array", "items": nested_arrays(levels - 1)} if levels else {"type": "string"}


@pytest.mark.parametrize(
    "schema",
    [
        None,
        "text",
        [],
        {"$ref": "#/$defs/Nowhere"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/A"}}},
        {"$ref": "#/$defs/a b/c", "$defs": {"a b/c": {"type": "string"}}},
        {"$defs": []},
        {"properties": [], "items": [[]]},
        {"anyOf": [{"$ref": "#/$defs/A"}, None], "$defs": {"A": {"$defs": {"B": {}}, "$ref": "#/$defs/B"}}},
        nested_arrays(200),
    ],
)
def test_missing_and_dangling_schemas_do_not_break_the_document(schema: Any) -> None:
    check(bus(service("strange", ActionInfo("do", "", schema, schema, True))))


# The rules themselves


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("asyncapi", "2.6.0"),
        ("paths", {}),
        ("components/schemas/Document", None),
        ("components/schemas/Page/$defs", {}),
        ("components/messages/archive.store/payload", {"anyOf": []}),
        ("channels/archive.actions/address", "relevo:dev:{tenant}:actions"),
        ("channels/archive.actions/address", "relevo:dev:ingestion:actions"),
        ("channels/archive.actions/messages/archive.store", None),
        ("operations/archive.store/channel", {"$ref": "#/channels/ingestion.actions"}),
        ("operations/archive.store/reply/address/location", "reply_to"),
        ("operations/archive.store/reply/channel", {"$ref": "#/channels/archive.actions"}),
    ],
)
def test_a_document_that_breaks_a_rule_is_not_valid(path: str, value: Any) -> None:
    """`check` finds what is wrong."""
    found = copy.deepcopy(WHOLE)
    *places, last = path.split("/")
    place = functools.reduce(dict.__getitem__, places, found)
    place[last] = value
    if value is None:
        del place[last]
    with pytest.raises((AssertionError, KeyError)):
        check(found)
