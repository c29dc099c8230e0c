"""Names of the bus: services, contexts, actions, and their queues."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from relevo.errors import OptionError
from relevo.text.names import Address, Kind

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}")
_ACTION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,99}(\.[A-Za-z0-9_][A-Za-z0-9_-]{0,99}){0,7}")


def service_name(given: Any) -> str:
    """The name of a service: the part of a type before the first dot."""
    if not isinstance(given, str) or not _NAME.fullmatch(given):
        raise OptionError(f"a service's name is letters, digits, _ and -, such as 'embedding', found {given!r:.80}")
    return given


def action_name(given: Any) -> str:
    """The name of an action within its service: 'generate_batch', 'document.parse'."""
    if not isinstance(given, str) or not _ACTION.fullmatch(given):
        raise OptionError(f"an action's name is letters, digits, _, - and dots, such as 'save', found {given!r:.80}")
    return given


def parts_of(type: Any) -> tuple[str, str]:
    """The service and the action of a type such as 'embedding.generate_batch'."""
    found = _parts(type) if isinstance(type, str) else None
    if found is None:
        raise OptionError(f"a message's type is service.action, such as 'embedding.generate_batch', found {type!r:.80}")
    return found


@lru_cache(maxsize=4096)
def _parts(type: str) -> tuple[str, str] | None:
    service, _, action = type.partition(".")
    return (service, action) if _NAME.fullmatch(service) and _ACTION.fullmatch(action) else None


def context_of(given: Any) -> tuple[str, ...]:
    """A context, given as one part or as several: 'tenant_a', ('tenant_a', 'session_1')."""
    if given is None:
        return ()
    parts = (given,) if isinstance(given, str) else tuple(given) if isinstance(given, list | tuple) else (given,)
    return Address("", "", "service", parts).context


@lru_cache(maxsize=4096)  # called for every message; checking a name takes longer than all else
def queue_of(service: str, context: tuple[str, ...], kind: Kind, *detail: str) -> str:
    """The name of a service's queue, as apps know it: `embedding:tenant_xyz:actions`."""
    return str(Address("", "", service, context, kind, detail))
