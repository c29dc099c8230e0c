"""The filters of `relevo dead`: which dead letters a command is about."""

from __future__ import annotations

import argparse
from typing import Any

from relevo.app import Relevo
from relevo.cli.options import add_stretch
from relevo.cli.refusing import refuse_unknown, refuse_unknown_queue
from relevo.dead.wanted import Filters
from relevo.text.masking import HIDDEN

#: Filter options, without the queue.
_FILTERS = ("task", "error", "reason", "came_from", "tenant", "text", "since", "until", "error_group", "permanent")


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add the filter options; `filters_of` reads them."""
    which = parser.add_argument_group("which dead letters")
    which.add_argument("--queue", metavar="NAME", help="only of this queue")
    which.add_argument("--task", metavar="NAME", help="only of this task")
    which.add_argument("--error", metavar="TEXT", help="only where the reason or the error holds this text")
    which.add_argument("--reason", metavar="REASON", help="only with this reason, such as retries_exhausted")
    which.add_argument("--came-from", metavar="STATE", help="only those that came from this state")
    which.add_argument("--tenant", metavar="NAME", help="only of this tenant")
    which.add_argument("--text", metavar="TEXT", help="only where this is in the arguments, messages or tracebacks")
    which.add_argument(
        "--error-group", metavar="HEX", help="only those of this error group: see `relevo dead error-groups`"
    )
    add_stretch(which, "died")
    add_permanence(which)


def add_permanence(parser: argparse._ActionsContainer) -> None:
    """Add the options for errors that would repeat, or that may not."""
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--permanent", action="store_true", default=None, help="only what would fail again as it is")
    kind.add_argument(
        "--transient", dest="permanent", action="store_false", default=None, help="only what may go well another time"
    )


def filters_of(args: argparse.Namespace) -> Filters:
    """The filters that the options give."""
    found: Filters = {"queue": args.queue}
    for name in _FILTERS:
        found[name] = getattr(args, name)  # type: ignore[literal-required]
    return found


def is_filtered(args: argparse.Namespace) -> bool:
    """Whether there is a filter besides the queue."""
    return any(getattr(args, name) is not None for name in _FILTERS)


def refuse_unknown_filters(app: Relevo, args: argparse.Namespace) -> None:
    """Refuse a queue, a task or a tenant that does not exist, where nothing was found."""
    refuse_unknown_queue(app, args.queue)
    if args.task is None and args.tenant is None:
        return
    groups = app.dead.error_groups(args.queue, limit=1000)
    refuse_unknown(app, "task", args.task, queue=args.queue, also=(name for one in groups for name in one.tasks))
    refuse_unknown(app, "tenant", args.tenant, queue=args.queue, also=(name for one in groups for name in one.tenants))


def refuse_what_finds_nothing(app: Relevo, args: argparse.Namespace) -> None:
    """The same, before anything is done; where there is such a letter, no name is looked for."""
    if not app.dead.list(limit=1, **filters_of(args)):
        refuse_unknown_filters(app, args)


def audit_details(args: argparse.Namespace) -> dict[str, Any]:
    """The filters for the audit trail; no text of dead letters, which may be a secret."""
    found: dict[str, Any] = {"ids": args.ids[:20]} if getattr(args, "ids", None) else {}
    for name, value in filters_of(args).items():
        if value is not None:
            found[name] = value if isinstance(value, bool) else HIDDEN if name == "text" else str(value)
    found |= {name: value for name in ("all", "limit") if (value := getattr(args, name, None))}
    found |= {"sign": True} if getattr(args, "sign", False) else {}
    return found | ({"undo": False} if getattr(args, "no_undo", False) else {})
