"""`python -m bench`: measures relevo, alone or beside its peers."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import NoReturn

from bench import failing, options, report, signing
from bench.bus import command as bus
from bench.compare import compare
from bench.measures import FAMILIES, MEASURES
from bench.measures.measure import Measure
from bench.ops import command as ops
from bench.processes import ProductFailed, end_leftovers, refuse_other_systems
from bench.products import BLOCKING, PEERS, PRODUCTS, RELEVO, Product
from bench.profiling import profile
from bench.progress import say
from bench.results import Results, machine, read
from bench.run import Plan, failures, run, takes_part
from bench.server import Server
from bench.venvs import default_folder, install, program_of
from relevo.errors import RelevoError
from relevo.text.nearest import did_you_mean

EPILOG = """\
examples:
  python -m bench                                    relevo alone, some minutes
  python -m bench --measures drain,idle --scale 0.3  a quick look
  python -m bench --measures work                    relevo under real work: against plain arithmetic
  python -m bench --setup --peers huey,dramatiq      install these two, each in an environment of its own
  python -m bench --peers huey,dramatiq --json f     relevo and these two; added to what f holds
  python -m bench --report f                         f as Markdown
  python -m bench --compare HEAD~3                   what changed since, measured in turns
  python -m bench --profile stacks.json              where the time of a drain goes, for speedscope
  python -m bench bus                                request and reply, see python -m bench bus --help
  python -m bench failing                            jobs that fail in masses beside jobs that go well
  python -m bench signing                            what signing_keys cost, against the same without
  python -m bench ops                                what operators wait for on a full server

BENCH_PIN=0 leaves the choice of cores to the system. docs/benchmarks.md says how to read the numbers."""


def main(argv: list[str] | None = None) -> int:
    """Do what is asked for; the exit code is 1 where something failed or a job was not run."""
    words = sys.argv[1:] if argv is None else argv
    other = {"bus": bus, "ops": ops, "failing": failing, "signing": signing}.get(words[0]) if words else None
    parser = other.parser() if other else _parser()
    args = parser.parse_args(words[1:] if other else words)
    refuse_other_systems()
    signal.signal(signal.SIGINT, _interrupt)
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        return other.perform(args) if other else _perform(parser, args)
    except (ProductFailed, RelevoError) as error:
        say(f"python -m bench: {error}")
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        end_leftovers()


def _perform(parser: argparse.ArgumentParser, args: argparse.Namespace) -> int:
    named = _known(parser, "measure", args.measures, [*MEASURES, *FAMILIES])
    measures = [MEASURES[one] for name in named for one in FAMILIES.get(name, (name,))]
    products = _products(parser, args)
    if args.list:
        return _list(args.venvs)
    if args.report:
        found = read(args.report)
        print(report.markdown(found["machine"], found["products"]))
        return 0
    if args.setup:
        refused = [reason for product in products if (reason := install(product, args.venvs))]
        for reason in refused:
            say(reason)
        return 1 if refused else 0
    if args.compare or args.profile:
        flavour = products[0]
        if not flavour.is_ours or len(args.compare or ()) > 2:
            parser.error(
                "--compare takes one or two commits; with it or --profile, --only is relevo or relevo-blocking"
            )
        if args.profile:
            return profile(args.profile, flavour, args.server, args.scale)
        return compare(args.compare, measures, flavour, args.server, rounds=args.rounds, scale=args.scale)
    return _measure(args, products, measures or [one for one in MEASURES.values() if not one.only_asked])


def _measure(args: argparse.Namespace, products: list[Product], measures: list[Measure]) -> int:
    idle = [product for product in products if not any(takes_part(product, measure) for measure in measures)]
    if idle:
        say(f"takes no part in these measures: {', '.join(product.name for product in idle)}")
    products = [product for product in products if product not in idle]
    missing = [product.name for product in products if program_of(product, args.venvs) is None]
    advice = f"not installed: {', '.join(missing)}; to install: python -m bench --setup --peers {','.join(missing)}"
    if missing:
        say(advice)
    products = [product for product in products if product.name not in missing]
    results = Results(args.json)
    with Server(args.server) as server:
        results.machine = machine(server)
        run(server, products, Plan(measures, args.scale, args.repeat, args.venvs, args.keep_logs), results)
    print(results.as_json() if args.json == "-" else report.plain(results.machine, results.products))
    if missing:
        say(advice)
    failed = failures(results.added)
    for failure in failed:
        say(f"FAILED: {failure}")
    return 1 if failed or not products else 0


def _products(parser: argparse.ArgumentParser, args: argparse.Namespace) -> list[Product]:
    if args.only:
        return [PRODUCTS[name] for name in _known(parser, "product", args.only, PRODUCTS)]
    every = [product.name for product in PEERS]
    peers = every if args.peers == "all" else _known(parser, "peer", args.peers, every)
    ours = [] if args.setup else [RELEVO, BLOCKING]
    return [*ours, *(PRODUCTS[name] for name in peers)]


def _known(parser: argparse.ArgumentParser, what: str, given: str, known: Iterable[str]) -> list[str]:
    names = [name.strip() for name in given.split(",") if name.strip()]
    known = list(known)
    for name in names:
        if name not in known:
            parser.error(f"unknown {what} {name!r}{did_you_mean(name, known) or '.'} There are: {', '.join(known)}")
    return names


def _list(venvs: Path) -> int:
    print("measures:")
    for measure in MEASURES.values():
        print(f"  {measure.name:16} {measure.about}{' (only when named)' if measure.only_asked else ''}")
    for name, members in FAMILIES.items():
        print(f"  {name:16} all of: {', '.join(members)}")
    print("products:")
    for product in PRODUCTS.values():
        where = "this tree" if product.is_ours else "installed" if program_of(product, venvs) else "not installed"
        print(f"  {product.name:16} {where}")
    return 0


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ctrl-C ends what was started; another one must not end the ending."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _more_than_zero(text: str) -> float:
    number = float(text)
    if not 0 < number < 1000:
        raise argparse.ArgumentTypeError(f"a number above 0 is needed, found {text}")
    return number


def _at_least_one(text: str) -> int:
    number = int(text)
    if not 1 <= number < 1000:
        raise argparse.ArgumentTypeError(f"a whole number from 1 on is needed, found {text}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = options.parser(
        "python -m bench",
        "Measure relevo, alone or beside its peers, on a server of its own.",
        EPILOG,
    )
    add = parser.add_argument
    add("--peers", default="", metavar="NAMES", help="measure these as well, with commas, or all")
    add("--only", default="", metavar="NAMES", help="measure exactly these products")
    add("--measures", default="", metavar="NAMES", help="take only these measures, with commas; work: relevo's own")
    add("--scale", type=_more_than_zero, default=1.0, help="shorter (0.3) or longer (2) runs")
    add("--repeat", type=_at_least_one, default=3, help="runs of each throughput measure; the median counts")
    add("--json", metavar="FILE", help="add the results to a file; - prints them instead of tables")
    add("--venvs", type=Path, default=default_folder(), metavar="DIR", help="environments of the peers (BENCH_VENVS)")
    add("--keep-logs", action="store_true", help="keep what drivers and workers wrote, and say where")
    add("--list", action="store_true", help="list measures and products")
    add("--setup", action="store_true", help="install the peers that are named, and measure nothing")
    add("--report", metavar="FILE", help="print results of --json as Markdown")
    add("--compare", nargs="+", metavar="COMMIT", help="measure OLD and NEW (default: this tree) in turns")
    add("--rounds", type=_at_least_one, default=5, help="turns of --compare")
    add("--profile", metavar="FILE", help="sample relevo's worker with py-spy while it drains (.json: speedscope)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
