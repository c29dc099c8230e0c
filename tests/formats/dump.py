"""Keys of a server as JSON that any server takes back, and the command that writes it:

python -m tests.formats.dump URL FILE       with the `src` of the version in question first in PYTHONPATH
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

Ask = Callable[..., Any]
"""Sends a command to the server and gives its reply."""


def dumped(ask: Ask) -> dict[str, Any]:
    """All keys of the server, and its time."""
    seconds, micros = ask("TIME")
    keys = [_one(ask, key) for key in sorted(ask("KEYS", "*"))]
    return {"now_ms": int(seconds) * 1000 + int(micros) // 1000, "keys": keys}


def restored(ask: Ask, dump: dict[str, Any]) -> None:
    """Put keys on a server as they were."""
    for name, kind, left_ms, values in dump["keys"]:
        key, *parts = map(_bytes, (name, *values))
        match kind:
            case "string":
                ask("SET", key, *parts)
            case "hash":
                ask("HSET", key, *parts)
            case "zset":
                ask("ZADD", key, *parts)
            case "list":
                ask("RPUSH", key, *parts)
            case "stream":
                for index in range(0, len(parts), 3):
                    ask("XADD", key, parts[index], parts[index + 1], parts[index + 2])
        if left_ms > 0:
            ask("PEXPIRE", key, left_ms)


def _one(ask: Ask, key: bytes) -> list[Any]:
    kind = _text(ask("TYPE", key))
    values: list[Any]
    match kind:
        case "string":
            values = [ask("GET", key)]
        case "hash":
            values = _flat(ask("HGETALL", key))
        case "zset":
            values = [one for name, score in _pairs(ask("ZRANGE", key, 0, -1, "WITHSCORES")) for one in (score, name)]
        case "list":
            values = ask("LRANGE", key, 0, -1)
        case _:
            raise ValueError(f"{key!r}: a {kind} is not dumped")
    return [_text(key), kind, ask("PTTL", key), list(map(_text, values))]


def _flat(found: Any) -> list[Any]:
    return [one for pair in found.items() for one in pair] if isinstance(found, dict) else list(found)


def _pairs(found: list[Any]) -> list[tuple[Any, Any]]:
    if found and isinstance(found[0], tuple | list):
        return [(name, score) for name, score in found]
    return list(zip(found[::2], found[1::2], strict=True))


def _text(value: Any) -> str:
    if isinstance(value, float):
        return repr(value) if value != int(value) else str(int(value))
    data = value if isinstance(value, bytes) else str(value).encode()
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()


def main() -> None:
    """Fill an empty server with a version of relevo, and write its keys down."""
    import redis

    from tests.formats.mixed import build, fill

    url, file = sys.argv[1:]
    client = redis.Redis.from_url(url)
    if client.dbsize():
        sys.exit(f"{url} is not empty")
    ids = fill(build(url=url))
    dump = {"ids": ids, **dumped(client.execute_command)}
    text = json.dumps(dump, indent=0, ensure_ascii=False).replace(f"{Path.cwd()}/", "")
    Path(file).write_text(text + "\n")
    print(f"{len(dump['keys'])} keys in {file}")


if __name__ == "__main__":
    main()
