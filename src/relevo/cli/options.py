"""Options that commands share, and how a command is added to the parser."""

from __future__ import annotations

import argparse
import textwrap
from datetime import datetime
from typing import TypeAlias

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def command(
    subparsers: Subparsers, name: str, summary: str, *, about: str = "", examples: str
) -> argparse.ArgumentParser:
    """Add a command: `summary` for the list of commands, `about` and `examples` for its own help."""
    return subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(about).strip() or f"{summary[0].upper()}{summary[1:]}.",
        epilog="examples:\n" + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,  # --al must not mean --all
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")


def add_app(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the app; `target.find` reads them."""
    chosen = parser.add_argument_group("which app")
    chosen.add_argument("-A", "--app", metavar="MODULE:APP", help="import it; or set RELEVO_APP")
    chosen.add_argument("--name", metavar="NAME", help="the app's name, instead of importing it")
    chosen.add_argument("--env", metavar="ENV", help="with --name: the environment (default: RELEVO_ENV, else dev)")
    chosen.add_argument(
        "--url", metavar="URL", help="with --name: the server, without a password (default: RELEVO_URL, REDIS_URL)"
    )


def add_stretch(parser: argparse._ActionsContainer, what: str) -> None:
    """Add `--since` and `--until`, for what happened between them."""
    parser.add_argument("--since", type=_moment, metavar="TIME", help=f"{what} since: 2h (ago), or 2026-11-16T08:00")
    parser.add_argument("--until", type=_moment, metavar="TIME", help=f"{what} until then")


def _moment(text: str) -> datetime | str:
    """A time, in this machine's zone if it has none, or a duration (how long ago)."""
    if "-" not in text:
        return text  # parsed, and refused, as a duration
    try:
        return datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(f"a time such as 2026-11-16T08:00, or 2h, is needed: {text[:40]!r}") from None


def whole(text: str) -> int:
    """A number from 1 to 1000, for argparse."""
    if not (text.isascii() and text.isdigit() and len(text) <= 4 and 1 <= int(text) <= 1000):
        raise argparse.ArgumentTypeError(f"a whole number from 1 to 1000 is needed, found {text[:40]!r}")
    return int(text)


def pause(text: str) -> float:
    """Seconds between 0.1 and a day, for argparse."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"seconds from 0.1 to 86400 are needed, found {text[:40]!r}")
    return seconds
