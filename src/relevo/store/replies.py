"""What a server's refusal means, and who must act. The errors of client libraries do not leave the store."""

from __future__ import annotations

import re

from relevo.errors import OutOfMemory, ServerRefused, ServerUnavailable, StoreError


class ConnectionLost(ServerUnavailable):
    """The connection is gone. `sent`: the server may have carried the command out."""

    def __init__(self, message: str, *, sent: bool) -> None:
        super().__init__(message)
        self.sent = sent


class ScriptMissing(StoreError):
    """The server has forgotten the script; its text must be sent."""


class WrongType(ServerRefused):
    """A key holds a type that relevo never wrote there."""


class Late(StoreError):
    """A call arrived after its caller stopped waiting, or with a wrong number; `now_ms`: the server's time."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.now_ms = int(message.partition(" ")[2])


class NotNow(ServerUnavailable):
    """The server is starting or failing over: the same call will work soon."""


class SlotMoving(NotNow):
    """Some keys of the call are on another node already, some are not: it will work when all are there."""


class WrongNode(NotNow):
    """The key is on another node, or is looked for there while its slot moves to it."""

    def __init__(self, message: str) -> None:
        super().__init__(f"the server says: {message}")
        code, slot, address = message.split(" ")[:3]
        host, _, port = address.rpartition(":")
        self.slot = int(slot)
        #: Without a host if the server does not know it.
        self.host, self.port = host.strip("?"), int(port)
        #: Only for this call, which must be announced there (ASKING).
        self.is_moving = code == "ASK"


#: Servers before version 7 wrap the error of a command inside a script.
_OF_A_COMMAND = re.compile(r"^ERR Error running script .*?: -([A-Z]+ .*)", re.DOTALL)
#: The error of store/lua/include/guard.lua for a key that it may not set aside; the server itself names no key.
_WRONG_TYPE = re.compile(r"WRONGTYPE (\{.*?)(?: script: |$)", re.DOTALL)
_SOON = ("LOADING", "CLUSTERDOWN", "MASTERDOWN", "READONLY", "BUSY", "NOREPLICAS")
_ELSEWHERE = re.compile(r"(MOVED|ASK) \d{1,5} \S*:\d{1,5}( |$)")


def refusal(message: str) -> StoreError:
    """The error for an error reply."""
    if inner := _OF_A_COMMAND.search(message):
        message = inner[1]
    code = message.partition(" ")[0]
    if code == "NOSCRIPT":
        return ScriptMissing(message)
    if code == "LATE":
        return Late(message)
    if _ELSEWHERE.match(message):
        return WrongNode(message)
    if code == "TRYAGAIN":
        return SlotMoving(f"the slot of this queue moves to another node of the cluster: {message}")
    if code in _SOON:
        return NotNow(f"the server says: {message}")
    if code == "OOM" or "OOM command not allowed" in message:
        return OutOfMemory(
            "the server is at its memory limit (maxmemory) and takes no new jobs; "
            "let workers drain the queues, or give it more memory"
        )
    if code in ("NOAUTH", "WRONGPASS") or "invalid password" in message or "invalid username-password" in message:
        return ServerRefused("the server wants a (different) user name and password; put them in the URL")
    if code == "NOPERM" or "can't run this command" in message or "can't access" in message:
        return ServerRefused(f"the server's ACL forbids this to the user in the URL: {message}")
    if "WRONGTYPE" in message:
        named = _WRONG_TYPE.search(message)
        return WrongType(f"the server refused: {named[1] if named else message}")
    if code == "MISCONF":
        return ServerRefused(f"the server cannot write to its disk and refuses changes: {message}")
    if "DENIED" in code or "protected mode" in message:
        return ServerRefused(f"the server is in protected mode: set a password or connect over loopback ({message})")
    return ServerRefused(f"the server refused: {message}")
