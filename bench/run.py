"""Measures products one after another on one server."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import bullmq_node
from bench.measures.measure import Measure, Result
from bench.processes import ProductFailed
from bench.products import Product
from bench.progress import say
from bench.results import Results
from bench.rig import Rig
from bench.server import Server
from bench.venvs import modules_of, program_of


class Plan(NamedTuple):
    """How to measure."""

    measures: Sequence[Measure]
    scale: float
    repeat: int
    venvs: Path
    keep_logs: bool


def run(server: Server, products: Iterable[Product], plan: Plan, results: Results) -> None:
    """Measure each product. What was found is added at once, so that an interrupted run keeps it."""
    for product in products:
        began = time.monotonic()
        say(f"{product.name}:")
        take = _take_reference if product.is_reference else _take_product
        try:
            take(server, product, plan, results)
        except Exception as error:  # one product that fails must not end the others
            results.add(product.name, "about", _failed(error))
        say(f"{product.name}: {time.monotonic() - began:.0f} s")


def failures(products: dict[str, dict[str, Any]]) -> list[str]:
    """Measures that failed, and deliveries that were not complete, in words."""
    found = []
    for name, measures in products.items():
        for measure, result in measures.items():
            if error := result.get("error"):
                found.append(f"{name}, {measure}: {error}")
            elif lost := result.get("lost"):
                found.append(f"{name}, {measure}: {lost} of {result.get('n', '?')} jobs DID NOT RUN")
    return found


def takes_part(product: Product, measure: Measure) -> bool:
    """Whether a product is measured so."""
    if measure.only_ours and not product.is_ours:
        return False
    return not product.measures or measure.name in product.measures


def _take_product(server: Server, product: Product, plan: Plan, results: Results) -> None:
    python = program_of(product, plan.venvs)
    assert python is not None
    with Rig(server, product, python, scale=plan.scale, repeat=plan.repeat, keep_log=plan.keep_logs) as rig:
        try:
            date = time.strftime("%Y-%m-%d %H:%M", time.gmtime())
            results.add(product.name, "about", {**rig.about, "date": date, "load": round(os.getloadavg()[0], 2)})
        except ProductFailed:
            say(rig.log_tail())
            raise
        for measure in plan.measures:
            if takes_part(product, measure):
                results.add(product.name, measure.name, _take(measure, rig))


def _take(measure: Measure, rig: Rig) -> Result:
    began = time.monotonic()
    try:
        found = measure.take(rig)
    except Exception as error:  # nor one measure
        found = _failed(error) | {"log": rig.log_tail()}
    say(f"  {measure.name:14} {time.monotonic() - began:5.1f} s  {json.dumps(found)[:160]}")
    return found


def _take_reference(server: Server, product: Product, plan: Plan, results: Results) -> None:
    node = program_of(product, plan.venvs)
    assert node is not None
    names = [measure.name for measure in plan.measures if takes_part(product, measure)]
    found = bullmq_node.take(server, node, modules_of(product, plan.venvs), names, plan.scale)
    for name, result in found.items():
        results.add(product.name, name, result)


def _failed(error: Exception) -> Result:
    if not isinstance(error, ProductFailed):
        traceback.print_exception(error)
    return {"error": f"{type(error).__name__}: {error}"}
