"""`relevo dead`: list the dead letters, retry, edit, discard, export or import them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.ending import as_ctrl_c
from relevo.cli.options import Subparsers, add_app, add_json, command, whole
from relevo.cli.screen import Screen
from relevo.dead.cli import deeds, looking
from relevo.dead.cli import export as moving
from relevo.dead.cli import replays as runs
from relevo.dead.cli.filters import add_filters, add_permanence

ID = "01k9q4w2zhq3mf7d0a2f"

_ACTIONS: dict[str, Callable[[Screen, Relevo, argparse.Namespace], int]] = {
    "list": looking.letters,
    "show": looking.show,
    "error-groups": looking.error_groups,
    "retry": deeds.each,
    "discard": deeds.each,
    "restore": deeds.restore,
    "edit": deeds.edit,
    "export": moving.export,
    "import": moving.load,
    "runs": runs.show,
    "resume": runs.resume,
    "stop": runs.stop,
}


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "dead",
        "list, group, retry, edit, discard or move dead letters",
        about="Dead letters are jobs that were given up, kept with their whole history.",
        examples=f"""
        relevo dead error-groups -A shop:app                        what is wrong, the largest problem first
        relevo dead error-groups -A shop:app --permanent                  what no retry will fix
        relevo dead list -A shop:app --error Timeout --since 2h
        relevo dead show {ID} --name shop
        relevo dead retry {ID} --name shop
        relevo dead retry --all --error-group 9f86d081884c7d65 --canary --rate 100/m --yes --name shop
        relevo dead discard --all --queue mails --name shop         asks first; `restore` undoes it
        """,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", title="actions", required=True)
    for one in (*_of_looking(actions), *_of_deeds(actions), *_of_moving(actions), *_of_runs(actions)):
        add_json(one)
        add_app(one)


def _of_looking(actions: Subparsers) -> list[argparse.ArgumentParser]:
    listing = command(actions, "list", "newest first", examples="relevo dead list --name shop --limit 20")
    listing.add_argument("--limit", type=whole, default=50, metavar="N", help="at most so many (default: 50)")
    listing.add_argument("--after", default="", metavar="PLACE", help="continue where the last list ended")
    add_filters(listing)
    show = command(actions, "show", "one of them with its history", examples=f"relevo dead show {ID} --name shop")
    show.add_argument("id", metavar="ID")
    show.add_argument("--queue", metavar="NAME", help="only of this queue")
    groups = command(
        actions, "error-groups", "grouped by error", examples="relevo dead error-groups --name shop --queue mails"
    )
    groups.add_argument("--limit", type=whole, default=50, metavar="N", help="at most so many (default: 50)")
    groups.add_argument("--queue", metavar="NAME", help="only of this queue")
    add_permanence(groups)
    return [listing, show, groups]


def _of_deeds(actions: Subparsers) -> list[argparse.ArgumentParser]:
    retry = command(
        actions,
        "retry",
        "run them again, from the start",
        about="With --rate or --canary, a tracked run: `relevo dead runs` shows it, `relevo dead resume` resumes it.",
        examples="""
        relevo dead retry --all --yes --name shop
        relevo dead retry --all --error Timeout --canary --rate 100/m --name shop
        """,
    )
    retry.add_argument("--rate", metavar="N/UNIT", help="with --all: so many per second, minute, …: 10/s, 100/m")
    retry.add_argument(
        "--canary", action="store_true", help="with --all: one, then ten, then the rest; stop if one of these fails"
    )
    retry.add_argument(
        "--sign", action="store_true", help="sign those without a valid signature: only if you know who made them"
    )
    discard = command(
        actions,
        "discard",
        "discard them; for ten minutes they can be restored",
        examples=f"relevo dead discard {ID} --name shop",
    )
    discard.add_argument("--no-undo", action="store_true", help="they are gone at once, to make room on the server")
    for deed in (retry, discard):
        deed.add_argument("ids", metavar="ID", nargs="*")
        deed.add_argument("--all", action="store_true", help="all that the filters and --limit leave")
        deed.add_argument("--yes", action="store_true", help="with --all: do not ask")
        deed.add_argument("--limit", type=int, metavar="N", help="with --all: at most so many, the oldest first")
        add_filters(deed)
    restore = command(
        actions,
        "restore",
        "bring back what was discarded in the last ten minutes",
        examples="relevo dead restore --all --name shop",
    )
    restore.add_argument("ids", metavar="ID", nargs="*")
    restore.add_argument("--all", action="store_true", help="all that can be")
    restore.add_argument("--queue", metavar="NAME", help="only of this queue")
    edit = command(
        actions,
        "edit",
        "run one with other arguments, as a new job",
        about="What is not given stays unchanged. With -A the arguments are checked by the task's signature.",
        examples=f"""relevo dead edit {ID} -A shop:app --args '[8]' --kwargs '{{"cents": 5}}'""",
    )
    edit.add_argument("id", metavar="ID")
    edit.add_argument("--args", metavar="JSON", help="a list: all arguments that are not named")
    edit.add_argument("--kwargs", metavar="JSON", help="an object: all arguments that are named")
    edit.add_argument("--queue", metavar="NAME", help="the queue it died in")
    return [retry, discard, restore, edit]


def _of_moving(actions: Subparsers) -> list[argparse.ArgumentParser]:
    export = command(
        actions,
        "export",
        "write them as lines of JSON",
        about="They stay where they are. What is written holds arguments and tracebacks: keep it as you keep those.",
        examples="relevo dead export -o letters.jsonl --queue mails --name shop",
    )
    export.add_argument("-o", "--output", metavar="FILE", default="-", help="where to (default: standard output)")
    add_filters(export)
    load = command(
        actions,
        "import",
        "import dead letters that export wrote, each once",
        about="Exit code 1 if a line is no dead letter; the others are imported all the same.",
        examples="relevo dead import letters.jsonl --name shop",
    )
    load.add_argument("file", metavar="FILE", help="- for standard input")
    return [export, load]


def _of_runs(actions: Subparsers) -> list[argparse.ArgumentParser]:
    show = command(actions, "runs", "tracked runs of the last week", examples="relevo dead runs --name shop")
    show.add_argument("run", metavar="RUN", nargs="?", help="only this one")
    resume = command(
        actions,
        "resume",
        "resume a run that was stopped, or whose process died",
        examples=f"relevo dead resume {ID} --name shop",
    )
    stop = command(actions, "stop", "ask a run to stop", examples=f"relevo dead stop {ID} --name shop")
    for one in (resume, stop):
        one.add_argument("run", metavar="RUN")
    return [show, resume, stop]


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with closing(target.find(args)) as app, as_ctrl_c():
        return _ACTIONS[args.action](Screen(), app, args)
