"""`python -m bench`: measure relevo on this machine and print a table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys


def main() -> int:
    """Measure what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="*", help="enqueue, drain, latency, backlog (default: all)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the jobs")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--server", metavar="BINARY", help="server program (default: the embedded one)")
    args = parser.parse_args()
    from bench.parts import server

    scale = 1 if args.quick else 5
    with server(args.server) as running:
        os.environ["BENCH_URL"] = running.url
        from bench import measures

        chosen = {
            "enqueue": lambda: measures.enqueue(running, 4_000 * scale),
            "drain": lambda: measures.drain(running, 40_000 * scale),
            "latency": lambda: measures.latency(running, 100 * scale),
            "backlog": lambda: measures.backlog(running, 10_000, 60_000 * scale),
        }
        unknown = [name for name in args.what if name not in chosen]
        if unknown:
            parser.error(f"no measure {unknown[0]!r}; there are {', '.join(chosen)}")
        rows = []
        info = running.info()
        engine = (info.get("valkey_version") and f"Valkey {info['valkey_version']}") or f"Redis {info['redis_version']}"
        if not args.json:
            print(
                f"Python {platform.python_version()}, {engine}, {os.cpu_count()} cores, unix socket, no persistence\n"
            )
        for name in args.what or chosen:
            for row in chosen[name]():
                rows.append(row)
                if not args.json:
                    value = f"{row.value:,.0f}" if row.value >= 100 else f"{row.value:.2f}"
                    print(f"{row.name:34} {value:>10} {row.unit:10} {row.note}", flush=True)
        if args.json:
            print(json.dumps([vars(row) for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
