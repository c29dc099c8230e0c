"""What the commands of the benchmarks have in common."""

from __future__ import annotations

import argparse


def parser(command: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """A parser of a command, with the options that each of them has."""
    found = argparse.ArgumentParser(
        prog=command,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    found.add_argument(
        "--server", metavar="BINARY", help="server program (default: redis-server, else the embedded one)"
    )
    return found
