"""`python -m bench ops`: its options, its table, and its exit code."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from bench import options, report
from bench.ops.filling import Full
from bench.ops.looks import Found, Slow, deeds, looks, take, take_once
from bench.progress import say
from bench.results import machine
from bench.server import Server

#: Milliseconds that no call of a script may keep the server busy.
LONGEST_CALL_MS = 10.0

EPILOG = """\
examples:
  python -m bench ops                                 six minutes, most of them for filling and clearing the server
  python -m bench ops --scale 0.1                     a tenth of it
  python -m bench ops --json ops.json                 numbers for a program

exit codes: 0 all as quick as it must be, 1 something is not, 2 wrong usage"""


def perform(args: argparse.Namespace) -> int:
    """Fill a server, look at it as operators do, and print how long that took."""
    sizes = {name: max(1_000, round(n * args.scale)) for name, n in (("ready", 10**6), ("scheduled", 10**6))}
    with Server(args.server) as server:
        about = machine(server)
        full = Full(server.url, **sizes, dead=max(1_000, round(100_000 * args.scale)))
        server.watch_slow()
        began = time.monotonic()
        full.fill()
        filling = Slow.of(server.slow_ms())
        say(f"  filled in {time.monotonic() - began:.0f} s, {server.memory() / 2**20:,.0f} MiB")
        found = [take(server, look, args.times) for look in looks(full)]
        found += [take_once(server, deed) for deed in deeds(full)]
        full.app.close()
    told = json.dumps(_told(about, full, found, filling), indent=1)
    if args.json and args.json != "-":
        Path(args.json).write_text(told + "\n")
    print(told if args.json == "-" else _table(about, full, found, filling))
    missed = [one for one in found if not one.is_met or one.slowest_call_ms > LONGEST_CALL_MS]
    return 1 if missed or filling.most_ms > LONGEST_CALL_MS else 0


def _told(about: dict[str, Any], full: Full, found: list[Found], filling: Slow) -> dict[str, Any]:
    looks = {one.name: {**one._asdict(), "is_met": one.is_met} for one in found}
    return {"machine": about, "sizes": full.sizes, "looks": looks, "calls_while_filling": filling._asdict()}


def _table(about: dict[str, Any], full: Full, found: list[Found], filling: Slow) -> str:
    rows = []
    for one in found:
        target = "" if one.most_ms is None else f"≤ {one.most_ms:g}"
        met = "" if one.most_ms is None else "yes" if one.is_met else "NO"
        took = [f"{one.median_ms:.1f}", f"{one.longest_ms:.1f}"]
        rows.append([one.name, *took, target, met, _call(one.slowest_call_ms), f"{one.longest_call_ms:.1f}"])
    filled = [_call(filling.most_ms), f"{filling.longest_ms:.1f}"]
    rows.append(["filling the server, draining into dead letters", "", "", "", "", *filled])
    head = ["", "median, ms", "longest, ms", "target", "", f"slowest call, ms (≤ {LONGEST_CALL_MS:g})", "once"]
    sizes = ", ".join(f"{n:,} {name}" for name, n in full.sizes.items())
    return "\n\n".join([report.plain(about, {}), f"{sizes}", report.columns(head, rows)])


def _call(ms: float) -> str:
    return "< 0.2" if not ms else f"{ms:.1f}{' NO' if ms > LONGEST_CALL_MS else ''}"


def parser() -> argparse.ArgumentParser:
    """Its options."""
    found = options.parser(
        "python -m bench ops",
        "Measure what operators wait for, at a million waiting, a million scheduled and 100,000 dead jobs.",
        EPILOG,
    )
    add = found.add_argument
    add("--scale", type=_part, default=1.0, metavar="X", help="a part of these sizes (default: 1)")
    add("--times", type=int, default=20, metavar="N", help="each look is taken so often (default: 20)")
    add("--json", metavar="FILE", help="write the numbers to a file; - prints them instead of a table")
    return found


def _part(text: str) -> float:
    number = float(text)
    if not 0 < number <= 10:
        raise argparse.ArgumentTypeError(f"a number above 0 and up to 10 is needed, found {text}")
    return number
