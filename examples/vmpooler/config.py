"""The configuration file of VMPooler, as it stands, for a pooler that runs on relevo.

Its sections are `:config:`, `:redis:` and `:pools:`, its keys those of the original, and each key has one place. What
stands elsewhere or is misspelt is refused with the right place or name: a limit that nobody reads is no limit.

The original counts some times in hours, others in minutes or seconds, and says which only in comments. So a bare number
is read in the key's own unit, refused where it looks like one of another, and never needed: "7d" and "90s" say it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from msgspec import Struct
from relevo.errors import OptionError, SettingsError
from relevo.text.durations import seconds, spoken
from relevo.text.nearest import did_you_mean

Read = Callable[[Any], Any]
Values = dict[str, Any]

#: What failed is gone after so long if nobody wants dead letters: as good as at once.
NO_DEAD_LETTERS = 1.0
ANY = 2**53
#: A bare number of seconds below this looks like one of hours (a week has 168) or minutes.
FEWEST_SECONDS = 180
#: A bare number of hours or minutes above this looks like one of seconds.
MOST_HOURS, MOST_MINUTES = 1_000, 1_440


class VmPool(Struct, frozen=True):
    """Machines of one kind that are kept in stock."""

    name: str
    template: str
    size: int
    aliases: tuple[str, ...]
    #: Seconds in which a new machine must have come up.
    timeout: float


class Config(Struct, frozen=True):
    """The file, read and checked. Times are seconds."""

    #: What `Relevo("vmpooler", **settings)` is given.
    settings: Values
    pools: tuple[VmPool, ...]
    prefix: str
    #: Attempts of a clone, the first one included.
    max_tries: int
    #: How often machines are looked at.
    vm_checktime: float
    #: How long somebody may keep one.
    vm_lifetime: float
    #: How long what is known of a machine or a request outlives it.
    data_ttl: float


# Readers: each takes what stands in the file and gives the value, or says in an OptionError what it needs.
def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise OptionError(f"true or false is needed, found {given!r:.60}")
    return given


def _text(given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise OptionError(f"a text is needed, found {given!r:.60}")
    return given


def _whole(least: int, most: int = ANY) -> Read:
    def read(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not least <= given <= most:
            up_to = f" to {most}" if most < ANY else ""
            raise OptionError(f"a whole number from {least}{up_to} is needed, found {given!r:.60}")
        return given

    return read


def _time(unit: str, size: int, least: float, most: float) -> Read:
    def read(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float):
            found = seconds(given)
        elif not 0 < given < math.inf:  # nor NaN
            raise OptionError(f"more than 0 is needed, found {given!r}")
        elif not least <= given <= most:
            raise OptionError(
                f"{given:g} would be {unit}, that is {spoken(given * size)}: "
                f'if it is meant, write "{spoken(given * size)}"'
            )
        else:
            found = seconds(given) * size
        if not found:
            raise OptionError("more than 0 is needed")
        return found

    return read


_SECONDS = _time("seconds", 1, FEWEST_SECONDS, 365 * 86_400)
_MINUTES = _time("minutes", 60, 1, MOST_MINUTES)
_HOURS = _time("hours", 3_600, 1, MOST_HOURS)


def _thresholds(given: Any) -> Values:
    return _section("health_thresholds", THRESHOLDS, given, lambda key: _elsewhere(key, "health_thresholds"))


def _texts(given: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in given) if isinstance(given, list) else (_text(given),)


#: Key -> how it is read, and its default. All three features are off unless the file says otherwise.
THRESHOLDS: dict[str, tuple[Read, Any]] = {
    "pending_queue_max": (_whole(0), 100),
    "ready_queue_max": (_whole(0), 500),
    "dlq_max_warning": (_whole(0), 100),
    "dlq_max_critical": (_whole(0), 1_000),
    "stuck_vm_age_threshold": (_SECONDS, 7_200.0),
    "stuck_vm_max_warning": (_whole(0), 10),
    "stuck_vm_max_critical": (_whole(0), 50),
}
CONFIG: dict[str, tuple[Read, Any]] = {
    "dlq_enabled": (_flag, False),
    "dlq_ttl": (_HOURS, 168 * 3_600.0),
    "dlq_max_entries": (_whole(1), 10_000),
    "purge_enabled": (_flag, False),
    "purge_interval": (_SECONDS, 3_600.0),
    "purge_dry_run": (_flag, False),
    "max_pending_age": (_SECONDS, 7_200.0),
    "max_ready_age": (_SECONDS, 86_400.0),
    "max_completed_age": (_SECONDS, 3_600.0),
    "max_orphaned_age": (_SECONDS, 86_400.0),
    "max_request_age": (_SECONDS, 86_400.0),
    "health_check_enabled": (_flag, False),
    "health_check_interval": (_SECONDS, 300.0),
    "health_thresholds": (_thresholds, {name: default for name, (_, default) in THRESHOLDS.items()}),
    "prefix": (_text, "vm-"),
    "max_tries": (_whole(1), 3),
    "timeout": (_MINUTES, 15 * 60.0),
    "vm_checktime": (_MINUTES, 60.0),
    "vm_lifetime": (_HOURS, 24 * 3_600.0),
}
REDIS: dict[str, tuple[Read, Any]] = {
    "server": (_text, ""),
    "port": (_whole(1, 65_535), 6_379),
    "password": (_text, ""),
    "data_ttl": (_HOURS, 168 * 3_600.0),
}
POOL: dict[str, tuple[Read, Any]] = {
    "name": (_text, None),
    "template": (_text, None),
    "size": (_whole(0), None),
    "alias": (_texts, ()),
    "timeout": (_MINUTES, None),
}
#: Where each key belongs, in the words of a refusal.
PLACES = {
    ":config:": CONFIG,
    "health_thresholds of :config:": THRESHOLDS,
    ":redis:": REDIS,
    "a pool of :pools:": POOL,
}
SECTIONS = (":config", ":redis", ":pools")
#: Pools of the pooler itself: requests, and sizes that were changed at run time.
OWN_POOLS = ("odrequest", "poolsize")


def load(path: str | Path | None = None) -> Config:
    """Read a file; without one, that of VMPOOLER_CONFIG, or vmpooler.yaml beside this module."""
    path = Path(path or os.environ.get("VMPOOLER_CONFIG") or Path(__file__).with_name("vmpooler.yaml"))
    try:
        return read(path.read_text("utf-8"))
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} cannot be read: it is not UTF-8") from error
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def read(text: str) -> Config:
    """Check a file's text. The first thing that is wrong is refused with `SettingsError`."""
    try:
        tree = yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.YAMLError as error:
        raise SettingsError(f"not valid YAML: {error}") from error
    tree = {} if tree is None else tree
    if not isinstance(tree, dict):
        raise SettingsError(f"sections such as :config: are needed, found {tree!r:.60}")
    for name in tree:
        if name not in SECTIONS:
            raise SettingsError(f"unknown section {name!r}{_section_meant(str(name))}")
    config = _section(":config:", CONFIG, tree.get(":config"), lambda key: _elsewhere(key, ":config:"))
    redis = _section(":redis:", REDIS, tree.get(":redis"), lambda key: _elsewhere(key, ":redis:"))
    _check_order(config["health_thresholds"])
    return Config(
        _settings(config, redis),
        _pools(tree.get(":pools"), config["timeout"]),
        config["prefix"],
        config["max_tries"],
        config["vm_checktime"],
        config["vm_lifetime"],
        redis["data_ttl"],
    )


class _Loader(yaml.SafeLoader):
    """YAML takes the last of two values of one key, in silence."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key, _ in node.value:
            name = key.value
            if not isinstance(name, str):
                raise SettingsError(f"line {key.start_mark.line + 1}: a key is a word")
            if name in seen:
                raise SettingsError(f"line {key.start_mark.line + 1}: {name!r} is there twice")
            seen.add(name)
        return super().construct_mapping(node, deep)


def _section(where: str, known: Mapping[str, tuple[Read, Any]], given: Any, meant: Callable[[str], str]) -> Values:
    if given is None:  # a section in which all is a comment
        given = {}
    if not isinstance(given, dict):
        raise SettingsError(f"{where} needs keys and values, found {given!r:.60}")
    found = {name: default for name, (_, default) in known.items()}
    for name, value in given.items():
        if name not in known:
            raise SettingsError(f"unknown key {name!r} under {where}{meant(str(name))}")
        try:
            found[name] = known[name][0](value)
        except OptionError as error:
            raise SettingsError(f"{where} {name}: {str(error).removeprefix('duration: ')}") from error
    return found


def _elsewhere(key: str, here: str) -> str:
    """The end of a refusal: where the key belongs, or which one is meant."""
    bare = key.strip(":")
    if bare != key and any(bare in keys for keys in PLACES.values()):
        return f", write {bare!r} without colons"
    for place, keys in PLACES.items():
        if key in keys:
            return f", it belongs under {place}"
    own = PLACES.get(here) or PLACES[f"{here} of :config:"]
    near = did_you_mean(key, own)
    if near:
        return near
    for place, keys in PLACES.items():
        if near := did_you_mean(key, keys):
            return f"{near} That belongs under {place}."
    return f". There are: {', '.join(own)}"


def _section_meant(name: str) -> str:
    if f":{name}" in SECTIONS:
        return f", write it with a colon in front, :{name}:"
    for place, keys in PLACES.items():
        if name in keys:
            return f", it is a key and belongs under {place}"
    near = did_you_mean(name, SECTIONS)
    return near or f". There are: {', '.join(f'{section}:' for section in SECTIONS)}"


def _check_order(limits: Values) -> None:
    for what in ("dlq_max", "stuck_vm_max"):
        low, high = limits[f"{what}_warning"], limits[f"{what}_critical"]
        if low and high and high < low:
            raise SettingsError(f"health_thresholds: {what}_critical ({high}) is below {what}_warning ({low})")


def _pools(given: Any, timeout: float) -> tuple[VmPool, ...]:
    if given is not None and not isinstance(given, list):
        raise SettingsError(f":pools: needs a list, found {given!r:.60}")
    pools: dict[str, VmPool] = {}
    for one in given or ():
        found = _section("a pool of :pools:", POOL, one, lambda key: _elsewhere(key, "a pool of :pools:"))
        for name in ("name", "template", "size"):
            if found[name] is None:
                raise SettingsError(f"a pool of :pools: has no {name}: {one!r:.80}")
        if found["name"] in (*pools, *OWN_POOLS):
            raise SettingsError(f"the name {found['name']!r} of a pool of :pools: is taken")
        own = found["timeout"] or timeout
        pools[found["name"]] = VmPool(found["name"], found["template"], found["size"], found["alias"], own)
    return tuple(pools.values())


def _settings(config: Values, redis: Values) -> Values:
    """What the keys of the file are called in relevo."""
    limits = config["health_thresholds"]
    settings = {
        # Off: as before there were dead letters. What fails leaves its state and is gone.
        "failure_ttl": config["dlq_ttl"] if config["dlq_enabled"] else NO_DEAD_LETTERS,
        "dead_max": config["dlq_max_entries"],
        "purge": ("observe" if config["purge_dry_run"] else "on") if config["purge_enabled"] else "off",
        "purge_every": config["purge_interval"],
        "purge_ages": {"pools": {"*": _ages(config)}},
        "health": config["health_check_enabled"],
        "health_every": config["health_check_interval"],
        "health_limits": {
            # The original calls twice the limit critical, and says so nowhere.
            "waiting_max": limits["pending_queue_max"],
            "waiting_critical": limits["pending_queue_max"] * 2,
            "ready_max": limits["ready_queue_max"],
            "ready_critical": limits["ready_queue_max"] * 2,
            "dead_warning": limits["dlq_max_warning"],
            "dead_critical": limits["dlq_max_critical"],
            "stuck_age": limits["stuck_vm_age_threshold"],
            "stuck_warning": limits["stuck_vm_max_warning"],
            "stuck_critical": limits["stuck_vm_max_critical"],
        },
    }
    if redis["server"]:
        secret = f":{quote(redis['password'], safe='')}@" if redis["password"] else ""
        settings["url"] = f"redis://{secret}{redis['server']}:{redis['port']}"
    return settings


def _ages(config: Values) -> Values:
    ended = {"age": config["max_completed_age"], "then": "removed"}
    return {
        "pending": config["max_pending_age"],
        # The limit is for what was made on demand; what is in stock may wait twice as long, 24 and 48 hours by default.
        "ready": {
            "age": config["max_ready_age"],
            "then": "completed",
            "classes": {"pool": config["max_ready_age"] * 2},
        },
        "completed": config["max_completed_age"],
        "orphaned": config["max_orphaned_age"],
        # states of which the file says nothing: as long as those before them
        "migrating": {"age": config["max_pending_age"], "then": "dead"},
        "discovered": {"age": config["max_orphaned_age"], "then": "completed"},
        # on-demand requests, and where they end
        "requested": {"age": config["max_request_age"], "then": "expired"},
        "filled": {"age": config["max_request_age"], "then": "expired"},
        "expired": ended,
        "failed": ended,
    }
