"""`relevo completion`: a script with which a shell completes commands, actions and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from relevo.cli.exits import Exit
from relevo.cli.options import Subparsers, command
from relevo.errors import ConfigurationError

SHELLS = ("bash", "zsh", "fish")
#: What is completed by names of files or directories, by the name in the help.
FILES, DIRECTORIES = ("FILE", "PATH"), ("DIR",)


def add(subparsers: Subparsers) -> None:
    """Add the command."""
    parser = command(
        subparsers,
        "completion",
        "print a script with which your shell completes relevo",
        about="""
        The script completes commands, actions, options and files. It is made once, and anew for a new version of
        relevo. Needs the extra relevo[completion].
        """,
        examples="""
        relevo completion bash > ~/.local/share/bash-completion/completions/relevo
        relevo completion zsh > "${fpath[1]}/_relevo"
        relevo completion fish > ~/.config/fish/completions/relevo.fish
        """,
        app=False,
    )
    parser.add_argument("shell", metavar="SHELL", choices=SHELLS, help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    print(script(args.shell))
    return Exit.OK


def script(shell: str) -> str:
    """The script for a shell."""
    try:
        import shtab
    except ImportError:
        raise ConfigurationError("completion needs the extra: pip install 'relevo[completion]'") from None
    from relevo.cli.main import whole_parser  # which loads all commands, this one too

    parser = whole_parser()
    for one in _parsers(parser):
        words = [action for action in one._actions if not action.option_strings]
        is_of_files = any(action.metavar in FILES for action in words)  # the app may be left out before the file
        for action in one._actions:
            if action.metavar in DIRECTORIES:
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.metavar in FILES or (is_of_files and action in words):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return str(shtab.complete(parser, shell))


def _parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parsers of all commands."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for one in groups[0].choices.values() if groups else ():
        yield one
        yield from _parsers(one)
