"""`relevo dead`: list the dead letters, retry, edit, discard, export or import them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import closing

from relevo.app import Relevo
from relevo.cli import target
from relevo.cli.ending import as_ctrl_c
from relevo.cli.options import Subparsers, add_app, add_json, add_page, command, group
from relevo.cli.screen import Screen
from relevo.cli.words import add_name
from relevo.dead.cli import deeds, looking
from relevo.dead.cli import export as moving
from relevo.dead.cli import replays as runs
from relevo.dead.cli.filters import add_filters, add_permanence

ID = "01k9q4w2zhq3mf7d0a2f"

#: What each action does. `relevo dead` alone is `relevo dead list`, and `relevo dead ID` is `relevo dead show ID`.
ACTIONS: dict[str, Callable[[Screen, Relevo, argparse.Namespace], int]] = {
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
    actions = group(
        subparsers,
        "dead",
        "list, group, retry, edit, discard or move dead letters",
        about="""
        Dead letters are jobs that were given up, kept with their whole history. `relevo dead` alone lists them, and
        `relevo dead ID` shows one.
        """,
        examples=f"""
        relevo dead error-groups -A shop:app                        what is wrong, the largest problem first
        relevo dead error-groups -A shop:app --permanent            what no retry will fix
        relevo dead list -A shop:app --error Timeout --since 2h
        relevo dead show {ID} --name shop
        relevo dead retry {ID} --name shop
        relevo dead retry --error-group 9f86d081884c7d65 --canary --rate 100/m --yes --name shop
        relevo dead discard --all --queue mails --name shop         asks first; `restore` undoes it
        """,
    )
    for one in (*_of_looking(actions), *_of_deeds(actions), *_of_moving(actions), *_of_runs(actions)):
        add_json(one)
        add_app(one)


def _of_looking(actions: Subparsers) -> list[argparse.ArgumentParser]:
    listing = command(
        actions,
        "list",
        "newest first: all, or those that the filters leave",
        examples="""
        relevo dead list -A shop:app
        relevo dead list --name shop --task shop.charge --since 2h --limit 20
        """,
    )
    add_page(listing)
    add_filters(listing)
    show = command(
        actions,
        "show",
        "one of them with its history",
        examples=f"""
        relevo dead show {ID} -A shop:app
        relevo dead show {ID} --name shop --json
        """,
    )
    add_name(show, "id", metavar="ID")
    show.add_argument("--queue", metavar="NAME", help="only of this queue")
    groups = command(
        actions,
        "error-groups",
        "grouped by error, the largest problem first",
        examples="""
        relevo dead error-groups -A shop:app
        relevo dead error-groups --name shop --queue mails --transient
        """,
    )
    add_page(groups)
    groups.add_argument("--queue", metavar="NAME", help="only of this queue")
    add_permanence(groups)
    return [listing, show, groups]


def _of_deeds(actions: Subparsers) -> list[argparse.ArgumentParser]:
    retry = command(
        actions,
        "retry",
        "run them again, from the start",
        about="""
        Name them by their ids, by filters such as --task, or by --all. With --rate or --canary it is a tracked run,
        which `relevo dead runs` shows and `relevo dead resume` resumes.
        """,
        examples=f"""
        relevo dead retry {ID} -A shop:app
        relevo dead retry --all --yes --name shop
        relevo dead retry --error Timeout --canary --rate 100/m --name shop
        """,
    )
    retry.add_argument("--rate", metavar="N/UNIT", help="without ids: so many per second, minute, …: 10/s, 100/m")
    retry.add_argument(
        "--canary", action="store_true", help="without ids: one, then ten, then the rest; stop if one of these fails"
    )
    retry.add_argument(
        "--sign", action="store_true", help="sign those without a valid signature: only if you know who made them"
    )
    discard = command(
        actions,
        "discard",
        "discard them; for ten minutes they can be restored",
        examples=f"""
        relevo dead discard {ID} -A shop:app
        relevo dead discard --task shop.charge --until 2d --name shop
        """,
    )
    discard.add_argument("--no-undo", action="store_true", help="they are gone at once, to make room on the server")
    restore = command(
        actions,
        "restore",
        "bring back what was discarded in the last ten minutes",
        examples=f"""
        relevo dead restore {ID} -A shop:app
        relevo dead restore --task shop.charge --name shop
        """,
    )
    for deed in (retry, discard, restore):
        add_name(deed, "ids", metavar="ID", nargs="*", help="which; or filters, or --all")
        deed.add_argument("--all", action="store_true", help="all; of a queue with --queue")
        if deed is not restore:  # which removes nothing, so it does not ask
            deed.add_argument("--yes", action="store_true", help="without ids: do not ask")
        deed.add_argument("--limit", type=int, metavar="N", help="without ids: at most so many, the oldest first")
        add_filters(deed)
    edit = command(
        actions,
        "edit",
        "run one with other arguments, as a new job",
        about="What is not given stays unchanged. With -A the arguments are checked by the task's signature.",
        examples=f"""
        relevo dead edit {ID} -A shop:app --args '[8]'
        relevo dead edit {ID} -A shop:app --args '[8]' --kwargs '{{"cents": 5}}'
        """,
    )
    add_name(edit, "id", metavar="ID")
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
        examples="""
        relevo dead export -A shop:app > letters.jsonl
        relevo dead export -o letters.jsonl --queue mails --name shop
        """,
    )
    export.add_argument("-o", "--output", metavar="FILE", default="-", help="where to (default: standard output)")
    add_filters(export)
    load = command(
        actions,
        "import",
        "import dead letters that export wrote, each once",
        about="Exit code 1 if a line is no dead letter; the others are imported all the same.",
        examples="""
        relevo dead import letters.jsonl --name shop
        zcat letters.jsonl.gz | relevo dead import - --name shop
        """,
    )
    add_name(load, "file", metavar="FILE", help="- for standard input")
    return [export, load]


def _of_runs(actions: Subparsers) -> list[argparse.ArgumentParser]:
    show = command(
        actions,
        "runs",
        "tracked runs of the last week",
        examples=f"""
        relevo dead runs -A shop:app
        relevo dead runs {ID} --name shop --json
        """,
    )
    add_name(show, "run", metavar="RUN", nargs="?", help="only this one")
    add_page(show)
    resume = command(
        actions,
        "resume",
        "resume a run that was stopped, or whose process died",
        examples=f"""
        relevo dead resume {ID} -A shop:app
        relevo dead resume {ID} --name shop --json
        """,
    )
    stop = command(
        actions,
        "stop",
        "ask a run to stop after its next step",
        examples=f"""
        relevo dead stop {ID} -A shop:app
        relevo dead stop {ID} --name shop --json
        """,
    )
    for one in (resume, stop):
        add_name(one, "run", metavar="RUN")
    return [show, resume, stop]


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    with closing(target.find(args)) as app, as_ctrl_c():
        return ACTIONS[args.action](Screen(), app, args)
