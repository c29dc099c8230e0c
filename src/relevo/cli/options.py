"""Options that commands share, and how a command is added to the parser."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from datetime import datetime
from typing import TypeAlias

from relevo.cli import words
from relevo.errors import OptionError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


#: How the examples begin, whose lines are left as they are.
EXAMPLES = "examples:\n"


class HelpFormatter(argparse.HelpFormatter):
    """Fills paragraphs to the width of the terminal, and leaves examples as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLES):
            return textwrap.indent(text, indent)
        return "\n\n".join(super(HelpFormatter, self)._fill_text(one, width, indent) for one in text.split("\n\n"))


def command(
    subparsers: Subparsers, name: str, summary: str, *, about: str = "", examples: str, app: bool = True
) -> argparse.ArgumentParser:
    """Add a command: `summary` for the list of commands, `about` and `examples` for its own help.

    Its first word may name the app, unless it is about none; `add_app` adds the options that do so.
    """
    parser = _parser(subparsers, name, summary, about, examples)
    if app:
        words.take_app(parser)
    return parser


def group(subparsers: Subparsers, name: str, summary: str, *, about: str = "", examples: str) -> Subparsers:
    """Add a command that consists of actions; returns where to add them, as commands."""
    parser = _parser(subparsers, name, summary, about, examples)
    return parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)


def _parser(subparsers: Subparsers, name: str, summary: str, about: str, examples: str) -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=summary,
        description=textwrap.dedent(about).strip() or f"{summary[0].upper()}{summary[1:]}.",
        epilog=EXAMPLES + textwrap.indent(textwrap.dedent(examples).strip(), "  "),
        formatter_class=HelpFormatter,
        allow_abbrev=False,  # --al must not mean --all
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, errors too")


def add_app(parser: argparse.ArgumentParser, *, needed: bool = True) -> None:
    """Add the options that name the app; `target.find` reads them. Without `needed`, the command does without, too."""
    chosen = add_module(parser, needed=needed)
    chosen.add_argument("--name", metavar="NAME", help="the app's name, instead of importing it")
    chosen.add_argument("--env", metavar="ENV", help="with --name: the environment (default: RELEVO_ENV, else dev)")
    chosen.add_argument(
        "--url", metavar="URL", help="with --name: the server, without a password (default: RELEVO_URL, REDIS_URL)"
    )


def add_module(parser: argparse.ArgumentParser, *, needed: bool = True) -> argparse._ArgumentGroup:
    """Add the option that names the app by its module, for a command that needs the code."""
    parser.set_defaults(needs_app=needed)
    chosen = parser.add_argument_group("which app")
    chosen.add_argument("-A", "--app", metavar="MODULE:APP", help="import it; or set RELEVO_APP")
    return chosen


def add_page(parser: argparse.ArgumentParser, limit: int = 50) -> None:
    """Add the options of a list that is shown in pages."""
    parser.add_argument("--limit", type=whole, default=limit, metavar="N", help=f"at most so many (default: {limit})")
    parser.add_argument("--after", default="", metavar="PLACE", help="continue there: `next` of the page before")


def offset_of(args: argparse.Namespace) -> int:
    """`--after` of a list whose places are numbers."""
    if not args.after:
        return 0
    if not (args.after.isascii() and args.after.isdigit() and len(args.after) <= 9):
        raise OptionError(f"--after: {args.after!r:.40} is no place in this list; give `next` of the page before")
    return int(args.after)


def next_of(items: Sequence[object], args: argparse.Namespace) -> str | None:
    """Where the next page of such a list begins."""
    return str(offset_of(args) + args.limit) if len(items) == args.limit else None


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
