"""Finds workflows by id, and that of the running job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from relevo.engine.context import current_job
from relevo.engine.finding import found
from relevo.engine.ids import LENGTH
from relevo.errors import UnknownJob
from relevo.store.plan import Steps
from relevo.workflows import store as flows
from relevo.workflows.workflow import Workflow

if TYPE_CHECKING:
    from relevo.engine.engine import Engine


def workflow(engine: Engine, id: str, queue: str | None) -> Steps[Workflow[Any]]:
    """The workflow with that id; UnknownJob if there is none."""
    name, _ = yield from found(engine, "workflow", id, queue, flows.look, lambda seen: seen is not None)
    return Workflow(engine, id, name)


def own_workflow(engine: Engine) -> Workflow[Any]:
    """The workflow of the running job."""
    me = current_job()
    if not me.flow:
        raise UnknownJob(f"job {me.id} belongs to no workflow")
    return Workflow(engine, me.flow[:LENGTH], me.flow[LENGTH:])
