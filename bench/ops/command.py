"""`python -m bench ops`: its options, its table, and its exit code."""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

from bench import report
from bench.ops.filling import Full
from bench.ops.looks import Found, looks, take
from bench.progress import say
from bench.results import machine
from bench.server import Server

#: Milliseconds that no call of a script may keep the server busy.
LONGEST_CALL_MS = 10.0

EPILOG = """\
examples:
  python -m bench ops                                 five minutes, most of them for filling the server
  python -m bench ops --scale 0.1                     a tenth of it
  python -m bench ops --json                          numbers for a program

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
        filling = server.slowest_ms()
        say(f"  filled in {time.monotonic() - began:.0f} s, {server.memory() / 2**20:,.0f} MiB")
        found = [take(server, look, args.times) for look in looks(full)]
        full.app.close()
    if args.json:
        print(json.dumps(_told(about, full, found, filling), indent=1))
    else:
        print(_table(about, full, found, filling))
    missed = [one for one in found if not one.is_met or one.slowest_call_ms > LONGEST_CALL_MS]
    return 1 if missed or filling > LONGEST_CALL_MS else 0


def _told(about: dict[str, Any], full: Full, found: list[Found], filling: float) -> dict[str, Any]:
    looks = {one.name: {**one._asdict(), "is_met": one.is_met} for one in found}
    return {"machine": about, "sizes": full.sizes, "looks": looks, "slowest_call_while_filling_ms": filling}


def _table(about: dict[str, Any], full: Full, found: list[Found], filling: float) -> str:
    rows = []
    for one in found:
        target = "" if one.most_ms is None else f"≤ {one.most_ms:g}"
        met = "" if one.most_ms is None else "yes" if one.is_met else "NO"
        rows.append(
            [one.name, f"{one.median_ms:.1f}", f"{one.longest_ms:.1f}", target, met, _call(one.slowest_call_ms)]
        )
    rows.append(["filling the server, draining into dead letters", "", "", "", "", _call(filling)])
    head = ["", "median, ms", "longest, ms", "target", "", f"slowest call, ms (≤ {LONGEST_CALL_MS:g})"]
    sizes = ", ".join(f"{n:,} {name}" for name, n in full.sizes.items())
    return "\n\n".join([report.plain(about, {}), f"{sizes}", report.columns(head, rows)])


def _call(ms: float) -> str:
    return "< 0.2" if not ms else f"{ms:.1f}{' NO' if ms > LONGEST_CALL_MS else ''}"


def parser() -> argparse.ArgumentParser:
    """Its options."""
    found = argparse.ArgumentParser(
        prog="python -m bench ops",
        description="Measure what operators wait for, at a million waiting, a million scheduled and 100,000 dead jobs.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = found.add_argument
    add("--scale", type=_part, default=1.0, metavar="X", help="a part of these sizes (default: 1)")
    add("--times", type=int, default=20, metavar="N", help="each look is taken so often (default: 20)")
    add("--json", action="store_true", help="print JSON instead of a table")
    add("--server", metavar="BINARY", help="server program (default: redis-server, else the embedded one)")
    return found


def _part(text: str) -> float:
    number = float(text)
    if not 0 < number <= 10:
        raise argparse.ArgumentTypeError(f"a number above 0 and up to 10 is needed, found {text}")
    return number
