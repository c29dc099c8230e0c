"""Names of queues: built from parts, and taken apart again without guessing.

An address reads `{prefix}:{env}:{service}[:{context}…]:{kind}[:{detail}…]`. The kind is one of five
reserved words that no part before it may be, so the first of them ends the context and starts the detail.

One queue has one name:

- What could be taken for structure (`:` `{` `}` `%`, white space, control characters) is percent-encoded.
- A context of `default` is the same as none, and is not written.
- The dead letters of a queue are its own kind and detail behind `dead_letter`: `…:dead_letter:actions`.
  The spellings `…:actions:dead_letter` and the bare `…:dead_letter` are read as that.

Prefix and env may be left out ("" says so), but then the name alone cannot tell `env:service` from
`service:context`. An installation therefore chooses its shape once and tells `parse`; both are expected
unless it says otherwise.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Literal, NamedTuple, cast, get_args
from urllib.parse import unquote_to_bytes

import msgspec

from relevo.errors import OptionError
from relevo.text.nearest import did_you_mean

Kind = Literal["actions", "responses", "callbacks", "notifications", "dead_letter"]
KINDS: tuple[str, ...] = get_args(Kind)

LONGEST_SEGMENT = 200  # bytes, encoded: room for any sane name, while every key of a queue repeats it

# Spelt out, not asked of `str.isspace()` or `unicodedata`: their answers change with the version of Unicode,
# and then two Pythons would name one queue in two ways. Controls, white space and what is invisible.
_ENCODED = re.compile(
    "[:{}%\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u1680\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufeff]"
)
_WORD = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,49}")
_BROKEN_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")


class Address(msgspec.Struct, frozen=True):
    """The name of a queue, in parts; `str()` writes it, `parse()` reads it.

    >>> str(Address("relevo", "dev", "embedding", ("tenant_xyz",), "actions"))
    'relevo:dev:embedding:tenant_xyz:actions'
    """

    prefix: str
    env: str
    service: str
    context: tuple[str, ...] = ()
    kind: Kind = "actions"
    detail: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise OptionError(f"kind: {self.kind!r} is none of {', '.join(KINDS)}{did_you_mean(str(self.kind), KINDS)}")
        for what, parts in (("context", self.context), ("detail", self.detail)):
            if not isinstance(parts, tuple):
                raise OptionError(f"{what}: a tuple of texts is needed, found {parts!r}. Write ('tenant_a',).")
        if self.context == ("default",):
            msgspec.structs.force_setattr(self, "context", ())
        if self.kind == "dead_letter" and not self.detail:
            msgspec.structs.force_setattr(self, "detail", ("actions",))
        self._check()

    def _check(self) -> None:
        if self.prefix != "":
            _head(self.prefix, "prefix")
        if self.env != "":
            _head(self.env, "env")
        _head(self.service, "service")
        for part in self.context:
            _head(part, "context")
        for part in self.detail:
            encode(part, what="detail")
        if self.detail and self.detail[-1] == "dead_letter":
            raise OptionError("detail: 'dead_letter' cannot end a name. Use `.dead_letter` of the queue's address.")
        if self.kind == "dead_letter" and self.detail[0] not in KINDS[:-1]:
            raise OptionError(
                f"detail: a dead letter queue names the kind it serves first, found {self.detail[0]!r}. "
                "Use `.dead_letter` of the queue's address."
            )

    def __str__(self) -> str:
        leading = (part for part in (self.prefix, self.env) if part)
        parts = (*leading, self.service, *self.context, self.kind, *self.detail)
        return ":".join(encode(part, what="name") for part in parts)

    @property
    def dead_letter(self) -> Address:
        """Where the messages of this queue go that were given up; a dead letter queue is its own."""
        if self.kind == "dead_letter":
            return self
        return Address(self.prefix, self.env, self.service, self.context, "dead_letter", (self.kind, *self.detail))


class LegacyName(NamedTuple):
    """The parts of a name of the older scheme `{domain}:{action_type}:{tier}:{task_id}`."""

    domain: str
    action_type: str
    tier: str
    task_id: str


def task_queue(prefix: str, env: str, app: str, queue: str) -> Address:
    """The address of an app's task queue: `relevo:dev:shop:actions:default`."""
    encode(queue, what="queue")
    if queue == "dead_letter":
        raise OptionError("queue: 'dead_letter' is a reserved word. Choose another name.")
    return Address(prefix, env, app, (), "actions", (queue,))


def pool_name(app: str, pool: str) -> str:
    """The name of an app's pool among its queues: `shop:actions:pool:vms`.

    A task queue has one part behind its kind and a service's actions have none, so that two cannot be taken for either;
    and it reads back like every other name, so that what looks at queues can look at a pool.
    """
    encode(pool, what="pool")
    if pool == "dead_letter":
        raise OptionError("pool: 'dead_letter' is a reserved word. Choose another name.")
    return str(Address("", "", app, (), "actions", ("pool", pool)))


def state_word(state: Any, what: str = "") -> str:
    """A state of a pool, which is part of a key: refused if it is not a word."""
    if not isinstance(state, str) or not _WORD.fullmatch(state):
        start = f"{what}: " if what else ""
        raise OptionError(
            f"{start}a state is a word of letters, digits, _, - and dots, like 'pending', found {state!r:.60}"
        )
    return state


def is_pool_name(queue: str) -> bool:
    """Whether this is the name of a pool among the queues."""
    return ":actions:pool:" in queue


def is_own_name(queue: str) -> bool:
    """Whether this names a task queue or a pool of an app, and not a queue of the bus."""
    return not is_bus_name(queue) or is_pool_name(queue)


def pool_of(queue: str) -> str:
    """The pool that has this name among the queues."""
    return parse(queue, prefix=False, env=False).detail[1]


def queue_address(prefix: str, env: str, app: str, queue: str) -> Address:
    """The address of a queue by the name it has in an app: `default`, or one of the bus, such as `embedding:actions`.

    A name of the bus is an address without prefix and env, the same in every app that shares them.
    """
    if not is_bus_name(queue):
        return task_queue(prefix, env, app, queue)
    found = parse(queue, prefix=False, env=False)
    if found.kind not in ("actions", "callbacks", "notifications"):
        raise OptionError(
            f"queue: {queue!r:.80} holds no jobs: {found.kind} are no queue of their own. "
            "Name the actions, callbacks or notifications of a service."
        )
    return msgspec.structs.replace(found, prefix=prefix, env=env)


@lru_cache(maxsize=16384)  # asked for every message
def is_bus_name(queue: str) -> bool:
    """Whether this names a queue of the bus: it has one of the reserved words as a part."""
    return ":" in queue and any(part in KINDS for part in queue.split(":"))


def place_of(address: Address) -> str:
    """A queue's address as signatures spell it: with the places of prefix and env, also where these are left out."""
    head = ":".join(part and encode(part, what="name") for part in (address.prefix, address.env))
    return f"{head}:{msgspec.structs.replace(address, prefix='', env='')}"


def shared_queue(queue: str) -> str:
    """The queue by which a subscription is known in the code: that of an instance is the service's."""
    address = parse(queue, prefix=False, env=False)
    return str(Address("", "", address.service, (), address.kind, address.detail)) if address.context else queue


@lru_cache(maxsize=4096)  # asked for every queue of the bus, by every look and scrape
def known_as(queue: str) -> str:
    """The name of any queue to those who count: that of a broadcast is not that of one process, gone after a start."""
    if is_bus_name(queue) and parse(queue, prefix=False, env=False).kind == "notifications":
        return shared_queue(queue)
    return queue


def parse(text: str, *, prefix: bool = True, env: bool = True) -> Address:
    """The address that `text` names. Say `prefix=False` or `env=False` where names go without them."""
    parts = text.split(":")
    at = next((index for index, part in enumerate(parts) if part in KINDS), None)
    if at is None:
        raise OptionError(f"{text[:80]!r} is not a queue's name: it has none of the parts {', '.join(KINDS)}.")
    leading = prefix + env
    if at < leading + 1:
        shape = ":".join(["{prefix}"] * prefix + ["{env}"] * env + ["{service}", parts[at]])
        raise OptionError(f"{text[:80]!r} is not a queue's name: too few parts. It should begin as {shape}.")
    kind = parts[at]
    head, detail = [decode(part) for part in parts[:at]], [decode(part) for part in parts[at + 1 :]]
    if "" in head:  # in an Address "" means left out; in a text it is a slip
        raise OptionError(f"{text[:80]!r} is not a queue's name: it has an empty part.")
    if kind != "dead_letter" and parts[-1] == "dead_letter":
        kind, detail = "dead_letter", [kind, *detail[:-1]]
    return Address(
        head[0] if prefix else "",
        head[leading - 1] if env else "",
        head[leading],
        tuple(head[leading + 1 :]),
        cast(Kind, kind),
        tuple(detail),
    )


def legacy_name(domain: str, action_type: str, tier: str, task_id: str) -> str:
    """A name of the older scheme: `execution:agent_run:professional:12345`."""
    parts = LegacyName(domain, action_type, tier, task_id)
    return ":".join(encode(part, what=what) for what, part in parts._asdict().items())


def parse_legacy(text: str) -> LegacyName:
    """The parts of a name of the older scheme."""
    parts = text.split(":")
    if len(parts) != 4:
        raise OptionError(f"{text[:80]!r} is not of the form {{domain}}:{{action_type}}:{{tier}}:{{task_id}}.")
    name = LegacyName(*(decode(part) for part in parts))
    legacy_name(*name)
    return name


def encode(segment: str, *, what: str) -> str:
    """One segment as it stands in a name; empty, too long and unwritable ones are refused."""
    if not segment or not isinstance(segment, str):
        raise OptionError(f"{what}: a text of at least one character is needed, found {segment!r}.")
    try:
        encoded = _ENCODED.sub(lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), segment)
        size = len(encoded.encode())
    except UnicodeEncodeError as error:
        raise OptionError(f"{what}: {segment[:40]!r} holds a lone surrogate, which is no text.") from error
    if size > LONGEST_SEGMENT:
        raise OptionError(
            f"{what}: {segment[:40]!r}… has {size} bytes encoded, the limit is {LONGEST_SEGMENT}. "
            "Choose a shorter name."
        )
    return encoded


def decode(segment: str) -> str:
    """The text of one segment of a name."""
    if _ENCODED.search(segment.replace("%", "")) or _BROKEN_ESCAPE.search(segment):
        raise OptionError(f"{segment[:40]!r} is not a part of a name: write ':', '{{', '%', white space… as %XX.")
    try:
        return unquote_to_bytes(segment).decode()
    except UnicodeError as error:
        raise OptionError(f"{segment[:40]!r} is not a part of a name: it does not stand for UTF-8 text.") from error


def _head(segment: str, what: str) -> None:
    """Parts before the kind must not be mistaken for it."""
    encode(segment, what=what)
    if segment in KINDS:
        raise OptionError(f"{what}: {segment!r} is a reserved word ({', '.join(KINDS)}). Choose another name.")
