"""Arguments without a dash: which of them names the app, and which are the names and ids that a command is about.

Every command takes its app as `-A module:app` or as the first of these words. The forms that leave out the action, such
as `relevo job ID` for `relevo job show ID`, are written out here, too.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import Any

#: A module and the app in it. Queues of services have names of this form, too.
_APP = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
#: Commands about what has an id; the others are about names, which may resemble an action.
_BY_ID = ("job", "workflow", "dead")
#: Options that name an app.
_NAMING = ("-A", "--app", "--name")


def looks_like_app(word: str) -> bool:
    """Whether it has the form `module:app`."""
    return _APP.fullmatch(word) is not None


def take_app(parser: argparse.ArgumentParser) -> None:
    """Let the first word name the app; before `add_name`."""
    parser.add_argument("module_app", nargs="?", metavar="MODULE:APP", help="the app to import, as with -A")
    parser.set_defaults(names=(), parser=parser)


def add_name(parser: argparse.ArgumentParser, dest: str, *, nargs: str | None = None, **options: Any) -> None:
    """Add a word that the command is about; only the last one may be several (`nargs` of `*` or `+`)."""
    parser.add_argument(dest, nargs=nargs, **options)
    parser.set_defaults(names=(*parser.get_default("names"), (dest, nargs)))


def assign(args: argparse.Namespace, surplus: Sequence[str]) -> None:
    """Give each word its place: the app, then names. `surplus` are arguments that the parser could not place."""
    parser: argparse.ArgumentParser = args.parser
    names: tuple[tuple[str, str | None], ...] = args.names
    words = [*_placed(args, ("module_app", *(dest for dest, _ in names))), *surplus]
    least = sum(nargs in (None, "+") for _, nargs in names)
    most = None if names and names[-1][1] in ("*", "+") else len(names)
    given = "-A" if args.app else "--name" if getattr(args, "name", None) else ""
    if words and not given and _is_app(args, words, least, most):
        args.app = words.pop(0)
    wrong = [word for word in surplus if word.startswith("-")] or ([] if most is None else words[most:])
    if wrong:
        parser.error(_too_many(args, wrong, given))
    for dest, nargs in names:
        if nargs in ("*", "+"):
            setattr(args, dest, words)
        else:
            setattr(args, dest, words.pop(0) if words else None)


def _placed(args: argparse.Namespace, places: Sequence[str]) -> list[str]:
    """The words as the parser placed them, in their order."""
    found: list[str] = []
    for place in places:
        value = getattr(args, place)
        found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def _is_app(args: argparse.Namespace, words: Sequence[str], least: int, most: int | None) -> bool:
    """Whether the first word names the app. Where it might be the name of a queue, only if nothing else names one."""
    if most is not None and len(words) > most:
        return True
    is_named = "RELEVO_APP" in os.environ or not args.needs_app
    return len(words) > least and not is_named and looks_like_app(words[0])


def _too_many(args: argparse.Namespace, wrong: Sequence[str], given: str) -> str:
    if looks_like_app(wrong[0]) and given:
        return f"the app is given twice: by {wrong[0]!r} and by {given}"
    hint = f"; `relevo {args.command} show {wrong[0]}` shows one" if getattr(args, "action", None) == "list" else ""
    return f"unrecognized arguments: {' '.join(wrong)}{hint}"


def app_last(arguments: list[str]) -> list[str]:
    """`-A module:app` may also stand before the command, as with Celery."""
    if arguments[:1] in (["-A"], ["--app"]) and len(arguments) > 2:
        return [*arguments[2:], *arguments[:2]]
    if arguments and arguments[0].startswith("--app="):
        return [*arguments[1:], arguments[0]]
    return arguments


def with_action(arguments: list[str], actions: Collection[str]) -> list[str]:
    """Write out the action of a command that was left out: `list`, or `show` where a name follows the command."""
    command, *rest = arguments
    if "list" not in actions or rest[:1] in (["-h"], ["--help"]):
        return arguments
    if rest and (rest[0] in actions or _is_misspelt(rest[0], actions, by_id=command in _BY_ID)):
        return arguments
    return [command, "show" if _begin_with_name(rest) else "list", *rest]


def _is_misspelt(word: str, actions: Collection[str], *, by_id: bool) -> bool:
    """Whether this is a misspelt action rather than the name of something; an id resembles none."""
    return bool(get_close_matches(word, actions, n=1, cutoff=0.6 if by_id else 0.8))


def _begin_with_name(rest: Sequence[str]) -> bool:
    if not rest or rest[0].startswith("-"):
        return "--" in rest
    is_named = "RELEVO_APP" in os.environ or any(one.startswith(_NAMING) for one in rest)
    is_alone = len(rest) == 1 or rest[1].startswith("-")
    return is_named or not (looks_like_app(rest[0]) and is_alone)
