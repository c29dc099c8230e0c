"""Everything that can be measured, by name. A new module of measures is added to the list at the end."""

from __future__ import annotations

from bench.measures import backlog, delayed, drain, enqueue, idle
from bench.measures.measure import Measure

_MODULES = (enqueue, drain, idle, backlog, delayed)

#: In the order in which they are taken.
MEASURES: dict[str, Measure] = {measure.name: measure for module in _MODULES for measure in module.MEASURES}
