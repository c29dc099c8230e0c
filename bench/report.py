"""Results as tables for people: plain for a terminal, Markdown for a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.figures import FIGURES, OWN, TABLES, Figure, shown
from bench.products import PRODUCTS
from bench.targets import Verdict, judge

Products = dict[str, dict[str, Any]]


def in_order(products: Products) -> list[str]:
    """Names of the products that were measured: ours, the peers, the references."""
    return [name for name in PRODUCTS if name in products]


def plain(machine: dict[str, Any], products: Products) -> str:
    """For a terminal: a row for each number, a column for each product."""
    names = in_order(products)
    parts = [_machine(machine)]
    rows = [
        [
            figure.label,
            *(shown(figure.of(products[name])) for name in names),
        ]
        for figure in _measured([figure for table in TABLES.values() for figure in table], products)
    ]
    parts.append(columns(["", *names], rows))
    parts.append(_deliveries(products))
    if verdicts := judge(products):
        parts.append(
            columns(["relevo against its targets", "ours", "peer", "", "ratio", "target", ""], _judged(verdicts))
        )
    return "\n\n".join(part for part in parts if part)


def markdown(machine: dict[str, Any], products: Products) -> str:
    """For a document: a table for each subject, a row for each product, then targets, deliveries and settings."""
    names = in_order(products)
    parts = [_machine(machine)]
    for title, figures in TABLES.items():
        measured = _measured(figures, products)
        with_some = [name for name in names if any(figure.of(products[name]) is not None for figure in measured)]
        if measured and title in OWN:
            rows = [[figure.label, *(shown(figure.of(products[name])) for name in with_some)] for figure in measured]
            parts += [f"### {title}", _table(["", *with_some], rows)]
        elif measured:
            head = ["product", *(figure.label for figure in measured)]
            rows = [[name, *(shown(figure.of(products[name])) for figure in measured)] for name in with_some]
            parts += [f"### {title}", _table(head, rows)]
    if beside := _beside_floor(products, names):
        parts += ["### Beside the floor", beside]
    if verdicts := judge(products):
        head = ["measure", "relevo", "best peer", "its value", "ratio", "target", "met"]
        parts += ["### Against the targets", _table(head, _judged(verdicts))]
    parts += ["### Delivery", _deliveries(products), "### Products", _settings(products, names)]
    return "\n\n".join(part for part in parts if part)


def _machine(machine: dict[str, Any]) -> str:
    pinned = "server on the first core, everything else on the others" if machine.get("pinned") else "not pinned"
    return (
        f"relevo {machine.get('commit')}, {machine.get('date')}: {machine.get('processor')}, {machine.get('cores')} "
        f"cores ({pinned}), {machine.get('system')}, Python {machine.get('python')}, {machine.get('server')}, "
        "loopback TCP, no persistence"
    )


def _measured(figures: Sequence[Figure], products: Products) -> list[Figure]:
    return [figure for figure in figures if any(figure.of(found) is not None for found in products.values())]


def _beside_floor(products: Products, names: list[str]) -> str:
    """What is bound by round trips, as a multiple of what raw sockets reached in the same minute."""
    pairs = {
        "enqueue one by one": ("one.jobs_per_s", "floor.round_trips_per_s"),
        "idle start, p50": ("idle.p50_ms", "floor.start_p50_ms"),
        "enqueue to result, p50": ("rtt.p50_ms", "floor.result_p50_ms"),
    }
    rows = []
    for name in names:
        found = [[FIGURES[key].of(products[name]) for key in pair] for pair in pairs.values()]
        if any(value and floor for value, floor in found):
            rows.append([name, *(f"{value / floor:.2f}×" if value and floor else "–" for value, floor in found)])
    return _table(["product", *pairs], rows) if rows else ""


def _judged(verdicts: list[Verdict]) -> list[list[str]]:
    return [
        [
            verdict.target.title,
            shown(verdict.ours),
            verdict.peer or "–",
            shown(verdict.theirs),
            "–" if verdict.theirs is None else f"{verdict.ratio:.2f}×",
            str(verdict.target),
            "yes" if verdict.is_met else "NO",
        ]
        for verdict in verdicts
    ]


def _deliveries(products: Products) -> str:
    """Every drain, in one sentence each."""
    lines = []
    for name in in_order(products):
        for measure, found in products[name].items():
            if "ran" in found:
                told = f"{found['ran']:,} of {found['n']:,} jobs ran, {found['twice']:,} of them more than once"
                lines.append(f"- {name}, {measure}: {told}" + (" – JOBS ARE MISSING" if found["lost"] else ""))
    return "\n".join(lines)


def _settings(products: Products, names: list[str]) -> str:
    lines = []
    for name in names:
        about = products[name].get("about", {})
        versions = ", ".join(f"{package} {version}" for package, version in about.get("versions", {}).items())
        lines.append(
            f"- **{name}** ({versions}): {about.get('settings', '')}. Reliability: {about.get('reliability', '')}."
        )
    return "\n".join(lines)


def columns(head: list[str], rows: list[list[str]]) -> str:
    """A table for a terminal."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in [head, *rows]
    ]
    return "\n".join(line.rstrip() for line in lines)


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
