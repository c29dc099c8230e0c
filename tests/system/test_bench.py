"""The benchmarks: a run prints its figures and whether every job ran, and ends without leaving anything behind.

Runs are as short as can be: nothing is measured here. `RELEVO_CHAOS=1` runs the longer ones, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench import __main__ as command
from bench import report
from bench.bus import command as bus_command
from bench.bus import report as bus
from bench.bus.caller import Caller
from bench.compare import Change, changes, spread
from bench.figures import FIGURES
from bench.measures import FAMILIES, MEASURES
from bench.measures.doing import against, middle
from bench.measures.scaling import arithmetic
from bench.probe import Probe
from bench.products import PRODUCTS
from bench.run import failures
from bench.targets import TARGETS, judge

from tests.eventually import PATIENCE, eventually
from tests.process.harness import is_gone
from tests.servers import available
from tests.system.shell import Output

ROOT = Path(__file__).parents[2]
IS_NIGHTLY = os.environ.get("RELEVO_CHAOS") == "1"

#: What sleeps and computes takes its time on a machine that has other things to do.
pytestmark = pytest.mark.timeout(300)


def bench(*arguments: str) -> Output:
    words = [sys.executable, "-m", "bench", *arguments]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=280)
    return Output(done.returncode, done.stdout, done.stderr)


def server_of(engine: str) -> tuple[str, str]:
    binary = available(engine)
    assert binary is not None
    return "--server", binary


# Runs


def test_a_run_prints_its_figures_and_that_every_job_ran_once(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "results.json")
    quick = ("--scale", "0.001", "--repeat", "1", "--json", file, *server_of(engine))

    printed = bench("--measures", "one,drain,idle" if IS_NIGHTLY else "one,drain", *quick)

    assert printed.code == 0, printed.err
    found = json.loads(Path(file).read_text())
    assert found["machine"].keys() >= {"date", "processor", "cores", "python", "server", "commit"}
    assert list(found["products"]) == ["relevo", "relevo-blocking"]
    for product in found["products"].values():
        assert product["about"]["versions"]["relevo"] and product["about"]["recovers"]
        assert product["one"]["jobs_per_s"] > 0
        drain = product["drain"]
        assert drain["n"] == drain["ran"] >= 500
        assert (drain["twice"], drain["lost"]) == (0, 0)
        assert drain["jobs_per_s"] > 0 and drain["server_us_per_job"] > 0 and drain["commands_per_job"] > 0
        if IS_NIGHTLY:
            assert 0 < product["idle"]["p50_ms"] <= product["idle"]["p99_ms"]
            assert product["idle"]["lost"] == 0
    assert re.search(r"- relevo, drain: ([\d,]+) of \1 jobs ran, 0 of them more than once", printed.out)

    # A later run adds to the file, and the file makes a page.
    assert bench("--only", "relevo", "--measures", "memory", *quick).code == 0
    merged = json.loads(Path(file).read_text())
    assert merged["products"]["relevo"]["memory"]["bytes_per_job"] > 0
    assert merged["products"]["relevo"]["drain"] == found["products"]["relevo"]["drain"]
    page = report.markdown(merged["machine"], merged["products"])
    assert re.search(r"^\| relevo \| [\d,]+ ", page, re.MULTILINE)
    assert "### Cost" in page and "Reliability: lease per job" in page


@pytest.mark.skipif(not IS_NIGHTLY, reason="a minute: with RELEVO_CHAOS=1")
def test_real_work_is_shown_beside_the_arithmetic(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "results.json")

    printed = bench("--measures", "work", "--scale", "0.02", "--repeat", "1", "--json", file, *server_of(engine))

    assert printed.code == 0, printed.err
    assert "takes no part in these measures: relevo-blocking" in printed.err
    (product,) = json.loads(Path(file).read_text())["products"].values()
    assert set(product) == {"about", *FAMILIES["work"]}
    for name in FAMILIES["work"]:
        measure = product[name]
        assert measure["n"] == measure["ran"] >= 100, name
        assert (measure["twice"], measure["lost"]) == (0, 0), name
        assert re.search(rf"- relevo, {name}: ([\d,]+) of \1 jobs ran, 0 of them more than once", printed.out)
    shown_figures = [figure for key, figure in FIGURES.items() if key.partition(".")[0] in FAMILIES["work"]]
    assert [figure.key for figure in shown_figures if figure.of(product) is None] == []
    for key in ("work_await.1ms", "work_cpu.plain", "work_large.bulk", "work_slow.async", "scaling.noop_2"):
        assert FIGURES[f"{key}.jobs_per_s"].of(product) and FIGURES[f"{key}.of_arithmetic"].of(product), key
    assert product["work_priorities"]["urgent"]["n"] > 0 < product["work_priorities"]["normal"]["n"]
    scaling, sharing = product["scaling"], product["sharing"]
    assert (scaling["refused"], scaling["taken_back"], scaling["unsettled"]) == (0, 0, 0)
    # With tenants all get their share from the start; without, the first gets all of it.
    assert (sharing["few"]["fairness"], sharing["few"]["without_fairness"]) == (1, 0)
    page = bench("--report", file).out
    assert "### Scaling" in page and re.search(r"^\| no-op, processes: 4, jobs/s \| [\d,]+ \|$", page, re.MULTILINE)


def test_what_operators_wait_for_is_measured_on_a_full_server(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "ops.json"

    printed = bench("ops", "--scale", "0.001", "--times", "1", "--json", str(file), *server_of(engine))

    found = json.loads(file.read_text())
    assert found["sizes"] == {"ready": 1_000, "scheduled": 1_000, "dead": 1_000}, printed.err
    looks, slowest = found["looks"], found["calls_while_filling"]["most_ms"]
    some = {"health", "page of 50 dead letters", "metrics for Prometheus", "dry run of the purge", "clear of a queue"}
    assert some <= looks.keys()
    assert all(0 < look["median_ms"] <= look["longest_ms"] for look in looks.values())
    is_met = all(look["is_met"] and look["slowest_call_ms"] <= 10 for look in looks.values()) and slowest <= 10
    assert printed.code == (0 if is_met else 1)  # how quick the machine is, is not tested
    assert "1,000 ready, 1,000 scheduled, 1,000 dead" in printed.out


@pytest.mark.skipif(not IS_NIGHTLY, reason="ten seconds: with RELEVO_CHAOS=1")
def test_requests_are_measured_beside_a_list_for_every_answer(engine: str, tmp_path: Path) -> None:
    file = str(tmp_path / "results.json")
    few = ("--rounds", "1", "--requests", "200", "--in-flight", "20")

    printed = bench("bus", *few, "--json", file, *server_of(engine))

    assert printed.code == 0, printed.err
    found = json.loads(Path(file).read_text())["products"]
    assert list(found) == ["lists", "relevo", "relevo-blocking"]
    for way in found.values():
        requests = way["requests"]
        assert (requests["n"], requests["replies"]) == (400, 400)  # and those that come first, to warm up
        assert requests["requests_per_s"] > 0 < requests["p50_ms"] <= requests["p99_ms"]
        assert requests["server_us"] > 0 and len(requests["runs"]) == 1
    for name in ("lists", "relevo"):
        late = found[name]["late"]
        # A machine under load may also be late with what should come at once.
        assert late["replies"] + late["timeouts"] == late["n"] == 200 and late["timeouts"] >= 40, name
        assert (late["wrong"], late["lost"]) == (0, 0), name
    # A late answer stays in its list for ever.
    assert found["lists"]["keys"]["leaked"] == found["lists"]["late"]["timeouts"]
    assert (found["relevo"]["keys"]["leaked"], found["relevo"]["keys"]["without_end"]) == (0, 0)
    assert found["lists"]["requests"]["connections"] >= 20 > found["relevo"]["requests"]["connections"]
    assert re.search(r"^requests a second( +[\d,]+){3} +\d+\.\d\d× +≥ 3× +(yes|NO)$", printed.out, re.MULTILINE)
    assert re.search(r"^p99, ms( +[\d.,]+){3} +\d+\.\d\d× +≤ 0.1× +(yes|NO)$", printed.out, re.MULTILINE)
    assert re.search(r"round 1 of 1  relevo-blocking +[\d,]+ requests/s", printed.err)


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs the repository, not only its files")
def test_two_commits_are_compared_in_turns(engine: str) -> None:
    trees = _git("worktree", "list")

    printed = bench("--compare", "HEAD", "--measures", "one", "--scale", "0.01", "--rounds", "2", *server_of(engine))

    assert printed.code == 0, printed.err
    head, row = printed.out.splitlines()
    assert re.fullmatch(r" +HEAD \(\w{8}\)  this tree  new/old +spread *", head)
    assert re.match(r"enqueue one by one, jobs/s +[\d,]+ +[\d,]+ +\d+\.\d{3} +\d+\.\d{3} – \d+\.\d{3}  \w", row)
    assert _git("worktree", "list") == trees


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_ctrl_c_leaves_no_process_behind(engine: str) -> None:
    command = [sys.executable, "-m", "bench", "--only", "relevo", "--measures", "idle_cost", *server_of(engine)]
    running = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    try:
        # The server, the driver, the worker's supervisor and its worker.
        started = eventually(lambda: found if len(found := _descendants(running.pid)) >= 4 else None)
        running.send_signal(signal.SIGINT)
        running.send_signal(signal.SIGINT)
        assert running.wait(PATIENCE) == 130
    finally:
        running.kill()
        running.wait()
    eventually(lambda: all(is_gone(pid) for pid in started), what="all have ended")


def _descendants(pid: int) -> list[int]:
    try:
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []
    return children + [below for child in children for below in _descendants(child)]


# Refusals

REFUSED = [
    (("--measures", "drian"), 2, "unknown measure 'drian', did you mean 'drain'?"),
    (("--only", "relevo-blockin"), 2, "unknown product 'relevo-blockin', did you mean 'relevo-blocking'?"),
    (("--scale", "0"), 2, "a number above 0 is needed, found 0"),
    (("--profile", "f", "--only", "huey"), 2, "--only is relevo or relevo-blocking"),
    (("bus", "--in-flight", "0"), 2, "a whole number from 1 to 1,500 is needed, found 0"),
    (("--only", "huey", "--venvs", "none"), 1, "not installed: huey; to install: python -m bench --setup --peers huey"),
    (("--only", "huey", "--measures", "work_cpu"), 1, "takes no part in these measures: huey"),
    (("--compare", "no-such", "--measures", "one"), 1, "'no-such' is not a commit of this repository"),
]
#: Runs many command lines in one process, which takes a second to start, and prints how each ended.
_EACH = """
import contextlib, io, json, sys
from bench.__main__ import main
ends = []
for arguments in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            code = main(arguments)
        except SystemExit as end:
            code = end.code
    ends.append((code, err.getvalue()))
print(json.dumps(ends))
"""


def test_what_cannot_be_done_is_refused_with_what_to_do() -> None:
    lines = json.dumps([arguments for arguments, _, _ in REFUSED])
    run = [sys.executable, "-c", _EACH, lines]
    done = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    ends = json.loads(done.stdout.splitlines()[-1])
    for (arguments, code, words), (found, err) in zip(REFUSED, ends, strict=True):
        assert found == code and words in err, (arguments, found, err)


# What is counted


def test_the_probe_knows_which_jobs_ran_and_which_ran_twice(tmp_path: Path) -> None:
    probe = Probe(str(tmp_path / "probe"), 10)
    of_another_process = Probe(str(tmp_path / "probe"))
    assert not probe.any_ran(4)
    for i in (2, 0, 2, 9):
        of_another_process.hit(i)
    assert probe.any_ran(4)
    assert (probe.ran(4), probe.twice(4), probe.ran(10)) == (2, 1, 3)
    assert probe.starts(4) == [probe.started(2), probe.started(0)]
    assert probe.started(1) == 0
    assert probe.times(1, 3) == [0, probe.started(2), 0]


def test_the_run_in_the_middle_counts_with_the_deliveries_of_all() -> None:
    def run(per_s: int, lost: int) -> dict[str, int]:
        return {"jobs_per_s": per_s, "n": 10, "ran": 10 - lost, "twice": 1, "lost": lost}

    found = middle([run(300, 0), run(100, 2), run(200, 0)], "jobs_per_s")
    assert found == {"jobs_per_s": 200, "n": 30, "ran": 28, "twice": 3, "lost": 2, "runs": [300, 100, 200]}
    assert against(30, 40) == {"arithmetic": 40, "of_arithmetic": 0.75}


def test_more_processes_help_until_the_server_or_the_machine_is_busy() -> None:
    assert arithmetic(5, 20, processes=1, cores=2) == pytest.approx(50_000), "the worker's own core"
    assert arithmetic(5, 20, processes=2, cores=2) == pytest.approx(80_000), "25 µs of each job for two cores"
    assert arithmetic(5, 20, processes=2, cores=8) == pytest.approx(100_000), "two workers"
    assert arithmetic(5, 20, processes=9, cores=8) == pytest.approx(200_000), "the server, which has one core"


def test_jobs_that_did_not_run_are_a_failure() -> None:
    drain = {"n": 500, "ran": 497, "twice": 0, "lost": 3, "jobs_per_s": 9}
    assert failures({"relevo": {"drain": drain}}) == ["relevo, drain: 3 of 500 jobs DID NOT RUN"]
    assert failures({"relevo": {"drain": {**drain, "ran": 500, "lost": 0}}}) == []
    assert failures({"relevo": {"idle": {"error": "no"}}}) == ["relevo, idle: no"]


class Odd(Caller):
    """Answers some requests as one should not."""

    async def ask(self, text: str, timeout: float) -> Any:
        match text:
            case "text 3":
                return None
            case "text 4":
                return {"text": "text 5"}
            case "text 5":
                raise ConnectionError("gone")
            case "text 6":
                await asyncio.Event().wait()
        return {"text": text}


async def test_every_way_in_which_a_request_may_end_is_counted() -> None:
    found = await Odd().flood(10, in_flight=3, timeout=1, bound=2)

    assert (found["n"], found["replies"], found["timeouts"], found["wrong"]) == (10, 6, 1, 1)
    assert found["lost"] == 2  # an error, and no end at all
    assert found["trouble"] == "'text 4' was answered with {'text': 'text 5'}"
    assert len(found["ms"]) == 6


def test_requests_without_an_end_and_keys_that_stay_are_failures() -> None:
    requests = {"n": 100, "replies": 100, "timeouts": 0, "wrong": 0, "lost": 0, "trouble": ""}
    keys = {"leaked": 0, "without_end": 0}
    assert bus.failures({"relevo": {"requests": requests, "keys": keys}}) == []

    lost = {**requests, "replies": 97, "timeouts": 1, "lost": 2, "trouble": "RemoteError: no"}
    assert bus.failures({"relevo": {"late": lost}}) == [
        "relevo, late: of 100 requests 2 ended with neither reply nor timeout, 0 with the answer to another; "
        "RemoteError: no"
    ]
    assert "1 with the answer to another" in bus.failures({"lists": {"requests": {**requests, "wrong": 1}}})[0]

    assert bus.failures({"relevo": {"keys": {"leaked": 3, "without_end": 1}}}) == [
        "relevo: 3 keys leaked, 1 without a time limit"
    ]
    assert bus.failures({"lists": {"keys": {"leaked": 200, "without_end": 200}}}) == []  # that is how it is


def test_requests_are_judged_against_a_list_for_every_answer() -> None:
    def found(per_s: float, p99: float) -> dict[str, Any]:
        return {"requests": {"requests_per_s": per_s, "p99_ms": p99}}

    products = {"lists": found(1000, 100), "relevo": found(3500, 11)}
    by_key = {figure.key: bus.judge(figure, products) for figure in bus.COMPARED}
    assert by_key["requests.requests_per_s"] == (3.5, "≥ 3×", True)
    assert by_key["requests.p99_ms"] == (0.11, "≤ 0.1×", False)
    assert by_key["requests.p50_ms"] is None


def test_targets_are_judged_against_the_right_peers() -> None:
    def product(one: float, memory: float, **about: Any) -> dict[str, Any]:
        return {"about": about, "one": {"jobs_per_s": one}, "memory": {"bytes_per_job": memory}}

    products = {
        "relevo": product(150, 260),
        "huey": product(200, 100, is_async=False, recovers=False, cleans_up=True),
        "taskiq-stream": product(90, 90, is_async=True, recovers=True, cleans_up=False),
        "streaq": product(100, 250, is_async=True, recovers=True, cleans_up=True),
        "bullmq-node": product(900, 1, is_async=True, recovers=True, cleans_up=True),
    }
    found = [(one.target.against, one.peer, one.ratio, one.is_met) for one in judge(products)]
    assert found == [("async", "streaq", 1.5, True), ("huey", "huey", 0.75, False), ("safe", "streaq", 1.04, True)]


def test_every_target_is_about_a_known_figure_of_a_known_measure() -> None:
    assert {target.figure for target in TARGETS} <= set(FIGURES)
    assert {target.flavour for target in TARGETS} <= set(PRODUCTS)
    assert {key.partition(".")[0] for key in FIGURES} <= set(MEASURES)


def test_a_difference_is_claimed_only_if_chance_does_not_explain_it() -> None:
    assert spread([0.9, 1.0, 1.1, 1.2, 1.3]) == (0.9, 1.3)  # five turns: all of them
    # Of eleven turns, one odd one on each side is left out.
    assert spread([0.5, *[1.1 + i / 100 for i in range(9)], 3.0])[0] > 1

    def compared(*ratios: float) -> Change:
        turns = [({"drain": {"jobs_per_s": 100}}, {"drain": {"jobs_per_s": 100 * ratio}}) for ratio in ratios]
        return changes(turns)[0]

    assert compared(1.2, 1.1, 1.3, 1.2, 1.1).verdict == "better"
    assert compared(0.9, 0.8, 0.9, 0.7, 0.9).verdict == "WORSE"
    assert compared(1.2, 0.9, 1.3, 1.2, 1.1).verdict == "no difference seen"
    assert compared(1.2, 0.9, 1.3, 1.2, 1.1).ratio == pytest.approx(1.2)


def test_every_measure_and_every_option_is_documented() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text("utf-8")
    listed = re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)
    assert listed == list(MEASURES)
    helps = command._parser().format_help() + bus_command.parser().format_help()
    options = set(re.findall(r"--[a-z-]+", helps))
    assert {option for option in options if option not in page} == {"--help"}


def test_signed_jobs_are_measured_beside_unsigned_ones(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "signing.json"
    printed = bench("signing", "--jobs", "300", "--repeat", "1", "--json", str(file), *server_of(engine))
    assert printed.code == 0, printed.err
    figures = json.loads(file.read_text())["figures"]
    assert set(figures) == {"one", "bulk", "drain", "drain_results", "requests", "bytes_per_job"}
    assert all(min(figure.values()) > 0 for figure in figures.values())
    assert figures["bytes_per_job"]["signed"] > figures["bytes_per_job"]["plain"]


def test_failing_jobs_are_measured_beside_good_ones(engine: str, tmp_path: Path) -> None:
    file = tmp_path / "failing.json"
    printed = bench("failing", "--jobs", "300", "--repeat", "1", "--json", str(file), *server_of(engine))
    kinds = json.loads(file.read_text())["kinds"]
    assert printed.code == 0, printed.err
    assert [*kinds] == ["go well", "are tried again", "become dead letters"]
    assert kinds["go well"]["ratio"] == 1
    assert all(min(kind.values()) > 0 for kind in kinds.values())
