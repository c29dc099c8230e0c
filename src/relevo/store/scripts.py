"""The Lua scripts: files with a contract, read once.

A script opens with its contract. Its KEYS and ARGV names are read from that header and become the local variables of
the script, so the contract cannot drift from the code below it. A script with several keys receives only the part that
their names share, the hash tag of the queue, and spells the keys itself: that is less to send and to read in each call.
Keys that most calls do not need are spelt where a line says `-- @spell names`.
Parts shared by several scripts are inserted where a line says `-- @include name`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable

#: Tests may shift the time that scripts read by an offset in a key; never used outside tests.
_SHIFTED = "local now = time[1] * 1000 + math.floor(time[2] / 1000)"


#: Scripts that store jobs or hand them out: workers and producers begin with one of these.
_STORING = frozenset(
    {
        "engine/push",
        "engine/push_with_options",
        "engine/turn",
        "bus/send_requests",
        "bus/send_message",
        "bus/store_callback",
        "bus/publish_event",
        "pools/add_entity",
    }
)

#: Keys that the caller chooses: a list of names, a worker, what a job carries, a report on health.
_CHOSEN = frozenset({"list", "worker", "bag", "health"})

#: Keys that a script spells where it needs them, because most calls do not.
_SPELL = re.compile(r"-- @spell ([a-z ]+)$", re.MULTILINE)


class Script:
    """One operation of the store."""

    def __init__(self, name: str, source: str, guard: str = "") -> None:
        self.name = name
        self.is_storing = name in _STORING
        self.keys, self.args = contract(source)
        lines = [guard] if guard else []
        #: Whether it receives the hash tag of its keys instead of the keys.
        self.spells_keys = len(self.keys) > 1 and _CHOSEN.isdisjoint(self.keys)
        if self.spells_keys:
            later = {name for names in _SPELL.findall(source) for name in names.split()}
            lines.append(_spelt(name for name in self.keys if name not in later))
            source = _SPELL.sub(lambda match: _spelt(match[1].split()), source)
        elif self.keys:
            lines.append(f"local {', '.join(self.keys)} = unpack(KEYS)")
        if self.args:
            lines.append(f"local {', '.join(self.args)} = unpack(ARGV, 1, {len(self.args)})")
        # The header's line count is kept, so that line numbers in errors are those of the file.
        self.text = (" ".join(lines) + " " + source).encode()
        self.sha = hashlib.sha1(self.text, usedforsecurity=False).hexdigest().encode()

    def __repr__(self) -> str:
        return f"<Script {self.name}>"


def _spelt(names: Iterable[str]) -> str:
    """Local variables with these keys."""
    names = list(names)
    return f"local {', '.join(names)} = " + ", ".join(f"KEYS[1] .. '{name}'" for name in names)


def contract(source: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of KEYS and ARGV in a script's header."""
    header = source.partition("]]")[0]
    names: dict[str, list[str]] = {"KEYS": [], "ARGV": [], "GIVES": []}
    section = ""
    for line in header.splitlines():
        opened = re.match(r"(KEYS|ARGV|GIVES)\b", line)
        if opened:
            section = opened[1]
        if section and section != "GIVES" and re.match(r"(KEYS  |ARGV  |      )[a-z]", line):
            names[section] += re.split(r"  +", line[6:].strip())[0].split()
    return tuple(names["KEYS"]), tuple(names["ARGV"])


def _folder(feature: str) -> Traversable:
    return files("relevo").joinpath(feature, "lua")


def _include(source: str) -> str:
    def part(match: re.Match[str]) -> str:
        text = _folder(match[1]).joinpath("include", match[2] + ".lua").read_text("utf-8").rstrip("\n")
        return _include(text)

    return re.sub(r"^ *-- @include (\w+)/(\w+)$", part, source, flags=re.MULTILINE)


@cache
def _guard() -> str:
    """The code that precedes every script (store/lua/include/guard.lua), in one line."""
    text = _include(_folder("store").joinpath("include", "guard.lua").read_text("utf-8"))
    return " ".join(re.sub(r"(^| )--.*", "", line).strip() for line in text.splitlines())


@cache
def script(name: str, clock_key: str = "") -> Script:
    """The script of that name. With `clock_key`, one that runs in the shifted time that tests keep there."""
    feature, _, operation = name.partition("/")
    source = _include(_folder(feature).joinpath(operation + ".lua").read_text("utf-8"))
    if clock_key:
        shift = f" + tonumber(redis.call('GET', '{clock_key}') or 0)"
        source = source.replace(_SHIFTED, _SHIFTED + shift)
    return Script(name, source.replace("redis.call(", "call("), _guard())


@cache
def plain_command() -> Script:
    """One command, its name and arguments in ARGV, carried out as in scripts: behind store/lua/include/guard.lua."""
    return Script("command", "return call(unpack(ARGV))", _guard())


def names() -> list[str]:
    """The names of all scripts, each as `feature/operation`."""
    found = []
    for feature in files("relevo").iterdir():
        folder = feature.joinpath("lua")
        if folder.is_dir():
            found += [
                f"{feature.name}/{e.name.removesuffix('.lua')}" for e in folder.iterdir() if e.name.endswith(".lua")
            ]
    return sorted(found)
