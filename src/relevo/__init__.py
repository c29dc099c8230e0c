"""relevo: background jobs and messages between services, on Redis or Valkey.

from relevo import Relevo

app = Relevo("shop")

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

job = greet.enqueue("Ana")      # relevo worker shop:app   runs it
print(job.result(timeout=10))
"""

from relevo.version import __version__ as __version__

TYPE_CHECKING = False  # as in `typing`, whose import takes too long for a probe
if TYPE_CHECKING:
    from relevo.app import Relevo
    from relevo.bus.service import Service
    from relevo.dependencies.depends import Depends
    from relevo.engine.backoff import Backoff
    from relevo.engine.breaker import Breaker
    from relevo.engine.completion import as_completed
    from relevo.engine.context import JobContext, current_job
    from relevo.engine.handle import Job, JobInfo, Progress
    from relevo.engine.job import State
    from relevo.engine.job_events import JobEvent
    from relevo.engine.message import Fault, Message, Reply
    from relevo.engine.options import Priority
    from relevo.engine.settle import Failure
    from relevo.engine.soft_timeout import SoftTimeout
    from relevo.engine.task import Task
    from relevo.engine.verdicts import Cancel, Retry, Snooze
    from relevo.pools.pool import Entity, Pool
    from relevo.queues.queue import Lease, Queue
    from relevo.schedules.handle import Schedule, ScheduleInfo
    from relevo.upkeep.report import UpkeepReport
    from relevo.workflows.steps import chain, group
    from relevo.workflows.workflow import Workflow, WorkflowInfo, WorkflowProgress

__all__ = [
    "Backoff",
    "Breaker",
    "Cancel",
    "Depends",
    "Entity",
    "Failure",
    "Fault",
    "Job",
    "JobContext",
    "JobEvent",
    "JobInfo",
    "Lease",
    "Message",
    "Pool",
    "Priority",
    "Progress",
    "Queue",
    "Relevo",
    "Reply",
    "Retry",
    "Schedule",
    "ScheduleInfo",
    "Service",
    "Snooze",
    "SoftTimeout",
    "State",
    "Task",
    "UpkeepReport",
    "Workflow",
    "WorkflowInfo",
    "WorkflowProgress",
    "as_completed",
    "chain",
    "current_job",
    "group",
]

#: Where each name comes from, as above. They are imported when they are used: a probe (`python -m relevo.alive`) runs
#: every few seconds and needs none of them.
_FROM = {
    "Relevo": "app",
    "Service": "bus.service",
    "Depends": "dependencies.depends",
    "JobContext": "engine.context",
    "current_job": "engine.context",
    "Workflow": "workflows.workflow",
    "WorkflowInfo": "workflows.workflow",
    "WorkflowProgress": "workflows.workflow",
    "as_completed": "engine.completion",
    "chain": "workflows.steps",
    "group": "workflows.steps",
    "Job": "engine.handle",
    "JobEvent": "engine.job_events",
    "JobInfo": "engine.handle",
    "Progress": "engine.handle",
    "Backoff": "engine.backoff",
    "Breaker": "engine.breaker",
    "State": "engine.job",
    "Fault": "engine.message",
    "Message": "engine.message",
    "Reply": "engine.message",
    "Priority": "engine.options",
    "Cancel": "engine.verdicts",
    "Retry": "engine.verdicts",
    "Snooze": "engine.verdicts",
    "Entity": "pools.pool",
    "Pool": "pools.pool",
    "Lease": "queues.queue",
    "Queue": "queues.queue",
    "Schedule": "schedules.handle",
    "ScheduleInfo": "schedules.handle",
    "Failure": "engine.settle",
    "SoftTimeout": "engine.soft_timeout",
    "Task": "engine.task",
    "UpkeepReport": "upkeep.report",
}


if not TYPE_CHECKING:  # else type checkers would accept any name

    def __getattr__(name):
        from importlib import import_module

        if name in _FROM:
            value = globals()[name] = getattr(import_module(f"relevo.{_FROM[name]}"), name)
            return value
        try:
            return import_module(f"relevo.{name}")  # `import relevo` is enough for `relevo.errors`
        except ModuleNotFoundError as error:
            if error.name != f"relevo.{name}":
                raise
        raise AttributeError(f"module 'relevo' has no attribute {name!r}")

    def __dir__():
        return sorted({*globals(), *__all__})
