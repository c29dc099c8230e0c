"""The tables of keys, scripts and layers in docs/internals, made from the source.

python -m tools.internals        writes docs/internals/keys.md, scripts.md and layers.md
"""

from __future__ import annotations

import inspect
import re
import tomllib
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path

from relevo.store.keys import QUEUE_KEYS, AppKeys, Key
from relevo.store.scripts import contract, names

HERE = Path(__file__).parents[1]
FOLDER = HERE / "docs/internals"
_MADE = "<!-- Made by `./dev docs` from {}: change that, not this page. -->"

_KEYS = f"""# Keys

{_MADE.format("src/relevo/store/keys.py")}

`src/relevo/store/keys.py` names every key. All keys of a queue begin with the queue's address as hash tag, as in
`{{relevo:dev:shop:actions:default}}:ready`, so a queue lives in one slot, every script is single-slot, and a cluster
needs no other names. A pool is addressed as a queue, `{{relevo:dev:shop:actions:pool:vms}}`; so is the bus,
`{{relevo:dev}}`.

The number of keys does not grow with the backlog, and when the work is done only keys with a time limit are left.
`tests/leaks.py` checks that after every test.

## Of a queue, a pool or the bus

"""

_APP_KEYS = """
## Of an app

Under the hash tag `{relevo:dev:shop}`. Queues of services that an app serves are listed here and on the list
of the bus. A name leaves `queues` and `pools` when it was not used for 30 days and holds nothing: workers check up to
100 names every two minutes (`engine/lists.py`), and what holds something counts as used.

"""

_SCRIPTS = f"""# Scripts

{_MADE.format("the headers of src/relevo/*/lua/*.lua")}

One operation is one file, `src/relevo/<feature>/lua/<verb>_<object>.lua`. It opens with its contract, from which the
Python side takes the order of keys and arguments (`src/relevo/store/scripts.py`). The keys are described in
[keys](keys.md). What a script answers is in its header, under `GIVES`.
"""


_LAYERS = f"""# Layers

{_MADE.format("[tool.importlinter] of pyproject.toml and the features' `__init__.py`")}

Imports point downwards only, those for type checkers included; `./dev check` refuses any other. What stands on one line
is one layer. The exceptions stand in `pyproject.toml`, each with its reason.

```text
{{}}
```

The commands (`<feature>/cli.py`) and routes (`<feature>/web.py`) of a feature belong to the top layer; only `cli` and
`web` import them.

A feature uses no other feature, except as this table says.

"""


def keys_page() -> str:
    """docs/internals/keys.md."""
    rows = [(_spelt(name, key), key.type, key.holds, key.ends) for name, key in QUEUE_KEYS.items()]
    head = ("key", "type", "holds", "what ends it")
    return _KEYS + _table(head, rows) + _APP_KEYS + _table(head, _app_rows())


def _spelt(name: str, key: Key) -> str:
    return f"`{name}:<{key.owner}>`" if key.owner else f"`{name}`"


def _app_rows() -> Iterator[tuple[str, ...]]:
    for name, one in vars(AppKeys).items():
        if not name.startswith("_"):
            owner = "" if isinstance(one, property) else f":<{list(inspect.signature(one).parameters)[1]}>"
            found = re.fullmatch(r"(\w+): (.*); ([^;]*)\.", inspect.getdoc(one) or "")
            if not found:
                raise ValueError(f"AppKeys.{name}: its docstring must be 'type: what it holds; what ends it.'")
            yield (f"`{name}{owner}`", *found.groups())


def scripts_page() -> str:
    """docs/internals/scripts.md."""
    parts = [_SCRIPTS]
    for feature, group in groupby(names(), lambda name: name.partition("/")[0]):
        rows = [_script_row(name) for name in group]
        parts.append(f"\n## {feature}\n\n" + _table(("script", "what it does", "keys", "arguments"), rows))
    return "".join(parts)


def _script_row(name: str) -> tuple[str, ...]:
    feature, _, operation = name.partition("/")
    source = (HERE / f"src/relevo/{feature}/lua/{operation}.lua").read_text("utf-8")
    header = source.partition("]]")[0].removeprefix("--[[ ")
    keys, arguments = contract(source)
    words = " ".join(f"`{word}`" for word in arguments)
    more = re.search(r"^ +then (.*?)\s*(?=^GIVES)", header, re.MULTILINE | re.DOTALL)
    if more:
        words += f"{'; then ' if words else ''}{' '.join(more[1].split())}"
    return (f"`{operation}`", first_sentence(header), " ".join(f"`{key}`" for key in keys), _escaped(words))


def first_sentence(header: str) -> str:
    """The first sentence of a script's header, on one line."""
    text = " ".join(re.split(r"\n\n|\nKEYS ", header)[0].split())
    found = re.match(r"(.*?[.])(?= |$)", text)
    return _escaped((found[1] if found else text).rstrip("."))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(line)} |\n" for line in (head, *rows)]
    return "".join([lines[0], "|---" * len(head) + "|\n", *lines[1:]])


def layers_page() -> str:
    """docs/internals/layers.md."""
    contracts = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    contract = next(one for one in contracts if one["type"] == "layers")
    features = next(line for line in contract["layers"] if "bus" in line).split(" | ")
    drawn = "\n".join(re.sub(r"[()]", "", line).replace(" : ", " | ") for line in contract["layers"])
    uses: dict[str, list[str]] = {feature: [] for feature in features}
    for line in contract["ignore_imports"]:
        pair = re.fullmatch(r"relevo\.(\w+)\.\*\* -> relevo\.(\w+)\.\*\*", line)
        if pair:
            uses[pair[1]].append(f"`{pair[2]}`")
    rows = [(f"`{name}`", _purpose(name), ", ".join(uses[name])) for name in sorted(features)]
    return _LAYERS.format(drawn) + _table(("feature", "what it is", "uses"), rows)


def _purpose(feature: str) -> str:
    """The first sentence of a feature's folder."""
    text = (HERE / f"src/relevo/{feature}/__init__.py").read_text("utf-8")
    return _escaped(text.removeprefix('"""').split("\n")[0].rstrip('."'))


PAGES = {"keys.md": keys_page, "scripts.md": scripts_page, "layers.md": layers_page}

if __name__ == "__main__":
    for page, make in PAGES.items():
        (FOLDER / page).write_text(make(), "utf-8")
