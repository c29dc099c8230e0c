"""`python -m relevo.alive PATH`: whether a worker is alive, for probes that run every few seconds.

`relevo worker --alive-file PATH` touches the file while the event loop of each of its processes runs and the server
answers. This module only checks the file's time: to start fast, it imports neither the app nor the rest of relevo.
"""

import os
import sys
import time

MAX_AGE = 60.0
USAGE = """\
usage: python -m relevo.alive PATH [--max-age SECONDS]

Whether a worker is alive: relevo worker --alive-file PATH
Exit code 0: yes. 1: no. 2: wrong usage.

  --max-age SECONDS   maximum age of the last sign of life, such as 60, 90s or 5m (default: 60)"""
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def main(arguments: list[str]) -> int:
    """Check the file and print the result; returns the exit code."""
    if "-h" in arguments or "--help" in arguments:
        print(USAGE)
        return 0
    try:
        path, max_age = _parsed(arguments)
    except ValueError as error:
        print(f"relevo.alive: {error}\n\n{USAGE}", file=sys.stderr)
        return 2
    try:
        age = time.time() - os.stat(path).st_mtime
    except OSError as error:
        print(f"not alive: {path}: {error.strerror}", file=sys.stderr)
        return 1
    if age > max_age:
        print(f"not alive: no sign of life for {age:.1f} s, {max_age:g} s are allowed", file=sys.stderr)
        return 1
    if age < -max_age:  # the clock was set back: a live worker would have touched the file since
        print(f"not alive: the last sign of life is {-age:.1f} s ahead of the clock", file=sys.stderr)
        return 1
    print(f"alive {max(0.0, age):.0f} s ago")
    return 0


def _parsed(arguments: list[str]) -> tuple[str, float]:
    paths: list[str] = []
    max_age = MAX_AGE
    rest = iter(arguments)
    for one in rest:
        name, equals, value = one.partition("=")
        if name == "--max-age":
            max_age = _seconds(value if equals else next(rest, ""))
        elif one.startswith("-"):
            raise ValueError(f"unknown option {one!r}")
        else:
            paths.append(one)
    if len(paths) != 1:
        raise ValueError(f"one path is needed, found {len(paths)}")
    return paths[0], max_age


def _seconds(text: str) -> float:
    unit = _UNITS.get(text[-1:], 0.0)
    number = text[:-1] if unit else text
    if not number.replace(".", "", 1).isdigit() or not number.isascii() or float(number) <= 0:
        raise ValueError(f"--max-age: seconds above zero are needed, such as 60, 90s or 5m, found {text!r}")
    return float(number) * (unit or 1.0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
