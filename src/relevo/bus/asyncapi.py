"""The services of a bus as an AsyncAPI 3.0 document: a pure function of the catalogue.

Each queue is a channel, and each action an operation that receives from it and replies to the message's `reply_to`.
Equal messages and structures are written once, under `components`. A structure is known by its own name; where two
services use one name for different structures, the second gets a number.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, get_type_hints

import msgspec

from relevo.bus.catalogue import ActionInfo, Catalogue, QueueInfo, ServiceInfo, SubscriptionInfo
from relevo.engine.job import write
from relevo.engine.message import Headers, Message, Reply
from relevo.engine.topics import ONE, REST
from relevo.text.names import parse

VERSION = "3.0.0"
_SCHEMAS = "#/components/schemas/"
#: Nesting depth of schemas; anything deeper becomes "any value".
_DEEPEST = 50
#: Keywords whose value maps names to schemas, and those whose value is one schema or a list of them.
_BY_NAME = ("properties", "patternProperties")
_NESTED = ("items", "additionalProperties", "additionalItems", "allOf", "anyOf", "oneOf", "not", "contains")
#: Written elsewhere, or in another form in AsyncAPI.
_DROPPED = ("$defs", "$schema", "$id", "discriminator", "prefixItems")
_NOT_IN_IDS = re.compile(r"[^A-Za-z0-9_.-]+")


def document(catalogue: Catalogue) -> dict[str, Any]:
    """Everything that the services offer, as JSON values. The same services give the same document."""
    made = _Document()
    for service in catalogue.services:
        made.add(service)
    parts = {"channels": made.channels, "operations": made.operations, "components": made.components}
    # A bus has no version number of its own: this one changes when what is offered changes, and only then.
    version = hashlib.sha256(write(parts)).hexdigest()[:12]
    info = {
        "title": f"Services of {catalogue.prefix}:{catalogue.env}",
        "version": version,
        "description": "Messages are sent with relevo; addresses are those of its queues on Redis or Valkey.",
    }
    return {"asyncapi": VERSION, "info": info, "defaultContentType": "application/json", **parts}


def _as_handlers_see_it() -> type:
    """What `current_job().message` has, as one struct."""
    own = [(field.name, field.type) for field in msgspec.structs.fields(Message) if field.type is not Headers]
    read = [
        (name, get_type_hints(one.fget)["return"]) for name, one in vars(Message).items() if isinstance(one, property)
    ]
    return msgspec.defstruct("Message", [*own, *read])


class _Document:
    """The document so far."""

    def __init__(self) -> None:
        self.channels: dict[str, Any] = {}
        self.operations: dict[str, Any] = {}
        self.schemas: dict[str, Any] = {}
        self.messages: dict[str, Any] = {}
        #: a structure with all it refers to -> its name
        self._named: dict[bytes, str] = {}
        self._headers = self._of(_as_handlers_see_it())

    @property
    def components(self) -> dict[str, Any]:
        return {"messages": self.messages, "schemas": self.schemas}

    def add(self, service: ServiceInfo) -> None:
        for queue in service.queues:
            if queue.kind == "actions":
                self._add_actions(service, queue)
            else:
                self._add_callbacks(service, queue)
        # Each process has its own subscription of a broadcast; one stands for all.
        for one in {(one.pattern, one.kind): one for one in service.subscriptions}.values():
            self._add_subscription(one)

    def _add_actions(self, service: ServiceInfo, queue: QueueInfo) -> None:
        place = (service.name, *service.context)
        asked = {one.name: self._message(service, one) for one in service.actions}
        replies = {one.name: self._reply(service, one) for one in service.actions}
        channel = self._channel(queue.address, _id(*place, queue.kind), f"Actions of {service.label}", asked.values())
        if not asked:  # a message was sent to a service that was never served
            return
        back = self._channel(None, _id(*place, "replies"), f"Replies of {service.label}", replies.values())
        for one in service.actions:
            title = one.about or f"{service.name}.{one.name}"
            operation = self._receive(_id(*place, one.name), service.name, title, channel, asked[one.name])
            operation["reply"] = {
                "address": {
                    "location": "$message.header#/reply_to",
                    "description": "A queue of callbacks, or the inbox of a process; empty if no reply is wanted.",
                },
                "channel": _ref("#/channels/", back),
                "messages": [_ref(f"#/channels/{back}/messages/", replies[one.name])],
            }
            if not one.served:
                operation["x-served"] = False

    def _add_callbacks(self, service: ServiceInfo, queue: QueueInfo) -> None:
        title = f"Callbacks of {service.label}"
        value = {"name": "callback", "title": "The end of a message that the service sent", "headers": self._headers}
        message = self._adopt("callback", {**value, "payload": self._of(Reply[Any])}, self.messages)
        channel = self._channel(queue.address, _id(service.name, *service.context, queue.kind), title, [message])
        self._receive(channel, service.name, title, channel, message)

    def _add_subscription(self, one: SubscriptionInfo) -> None:
        words = [{ONE: "any", REST: "rest"}.get(word, word) for word in one.pattern.split(".")]
        value = {"name": one.pattern, "title": f"What happened: {one.pattern}", "headers": self._headers}
        message = self._adopt(_id("event", *words), {**value, "payload": {"type": "object"}}, self.messages)
        address, more, title = one.queue.address, {}, f"Events {one.pattern} for {one.service}"
        if one.kind == "broadcast":
            address = address.replace(f":{parse(address).context[0]}:", ":{instance}:", 1)
            more = {"parameters": {"instance": {"description": "A process; each gets every event."}}}
        channel = self._channel(address, _id(one.service, "notifications", *words), title, [message], **more)
        self._receive(channel, one.service, title, channel, message)

    def _receive(self, name: str, service: str, title: str, channel: str, message: str) -> dict[str, Any]:
        """Write an operation; the caller may add to it."""
        operation = self.operations[_free(name, self.operations)] = {
            "action": "receive",
            "summary": title,
            "tags": [{"name": service}],
            "channel": _ref("#/channels/", channel),
            "messages": [_ref(f"#/channels/{channel}/messages/", message)],
        }
        return operation

    def _channel(self, address: str | None, name: str, title: str, messages: Iterable[str], **more: Any) -> str:
        """Write a channel, whose messages are components; return its id."""
        id = _free(name, self.channels)
        refs = {message: _ref("#/components/messages/", message) for message in messages}
        self.channels[id] = {"address": address, "title": title, "messages": refs, **more}
        return id

    def _message(self, service: ServiceInfo, action: ActionInfo) -> str:
        type = f"{service.name}.{action.name}"
        value = {"name": type, "title": action.about or type, "headers": self._headers}
        value |= {"correlationId": {"location": "$message.header#/correlation_id"}, "payload": self.moved(action.takes)}
        return self._adopt(_id(type), value, self.messages)

    def _reply(self, service: ServiceInfo, action: ActionInfo) -> str:
        type = f"{service.name}.{action.name}"
        value = {"name": f"{type}.reply", "title": f"The reply to {type}", "payload": self.moved(action.gives)}
        return self._adopt(_id(type, "reply"), value, self.messages)

    def _of(self, kind: Any) -> Any:
        """The schema of one of relevo's own types."""
        (schema,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
        return self.moved({**schema, "$defs": parts})

    @staticmethod
    def _adopt(name: str, value: Any, into: dict[str, Any]) -> str:
        """Write a component, unless an equal one exists; return its name."""
        free = _free(name, {key for key in into if into[key] != value})
        into[free] = value
        return free

    # schemas
    def moved(self, schema: Any, named: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
        """A schema in which structures are references to components; `named`: structures it may refer to."""
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return schema is not False and {}
        inside = schema.get("$defs")
        named = {**(named or {}), **(inside if isinstance(inside, dict) else {})}
        if "$ref" in schema:
            name = str(schema["$ref"]).removeprefix("#/$defs/")
            return _ref(_SCHEMAS, self._structure(name, named, depth)) if name in named else {}
        result: dict[str, Any] = {}
        for key, value in schema.items():
            if key in _BY_NAME:
                fields = value.items() if isinstance(value, dict) else ()
                result[key] = {name: self.moved(one, named, depth + 1) for name, one in fields}
            elif key in _NESTED:
                result[key] = self._each(value, named, depth)
            elif key not in _DROPPED:
                result[key] = value
        if isinstance(first := schema.get("prefixItems"), list):  # which JSON Schema calls `items` before 2020
            result |= {"items": self._each(first, named, depth), "additionalItems": result.get("items", {})}
        return result

    def _each(self, value: Any, named: Mapping[str, Any], depth: int) -> Any:
        if isinstance(value, list):
            return [self.moved(one, named, depth + 1) for one in value]
        return self.moved(value, named, depth + 1)

    def _structure(self, name: str, named: Mapping[str, Any], depth: int) -> str:
        """Write a structure as a component, once; return the component's name."""
        whole = write([name, {one: named[one] for one in sorted(_reached(name, named))}])
        known = self._named.get(whole)
        if known is None:
            # Registered before it is written: it may refer to itself.
            known = self._named[whole] = _free(_id(name), self.schemas)
            self.schemas[known] = {}
            self.schemas[known] = self.moved(named[name], named, depth + 1)
        return known


def _reached(name: str, named: Mapping[str, Any]) -> set[str]:
    """A structure and all structures that it refers to, directly or not."""
    found, ahead = {name}, [named[name]]
    while ahead:
        value = ahead.pop()
        if isinstance(value, dict):
            other = str(value.get("$ref", "")).removeprefix("#/$defs/")
            if other in named and other not in found:
                found.add(other)
                ahead.append(named[other])
            ahead += value.values()
        elif isinstance(value, list):
            ahead += value
    return found


def _id(*parts: str) -> str:
    """A name that can be referred to without escapes."""
    return _NOT_IN_IDS.sub("_", ".".join(parts)) or "_"


def _free(name: str, taken: Any) -> str:
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}.{number}"
    return free


def _ref(place: str, name: str) -> dict[str, str]:
    return {"$ref": place + name}
