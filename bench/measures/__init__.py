"""Everything that can be measured, by name. A new module of measures is added to one of the lists."""

from __future__ import annotations

from bench.measures import (
    backlog,
    delayed,
    drain,
    enqueue,
    groups,
    idle,
    large,
    priorities,
    scaling,
    sharing,
    slow,
    work,
)
from bench.measures.measure import Measure

_MODULES = (enqueue, drain, idle, backlog, delayed)
#: What only relevo is asked for, and only when named.
_WORK = (work, large, priorities, slow, scaling, sharing, groups)

#: In the order in which they are taken.
MEASURES: dict[str, Measure] = {measure.name: measure for module in (*_MODULES, *_WORK) for measure in module.MEASURES}
#: Several under one name.
FAMILIES: dict[str, tuple[str, ...]] = {"work": tuple(measure.name for module in _WORK for measure in module.MEASURES)}
