"""relevo: background jobs and messages between services, on Redis or Valkey.

from relevo import Relevo

app = Relevo("shop")

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

job = greet.enqueue("Ana")      # relevo worker shop:app   runs it
print(job.result(timeout=10))
"""

TYPE_CHECKING = False  # as in `typing`, whose import takes too long for a probe
if TYPE_CHECKING:
    from relevo.app import Relevo
    from relevo.bus import Service
    from relevo.context import JobContext, current_job
    from relevo.flow import Workflow, WorkflowInfo, WorkflowProgress, chain, group
    from relevo.handle import Job, JobInfo, Progress
    from relevo.model.backoff import Backoff
    from relevo.model.breaker import Breaker
    from relevo.model.job import State
    from relevo.model.message import Fault, Message, Reply
    from relevo.model.options import Priority
    from relevo.model.verdicts import Cancel, Retry, Snooze
    from relevo.pools import Entity, Pool
    from relevo.purging import PurgeReport
    from relevo.queue import Lease, Queue
    from relevo.schedules import Schedule, ScheduleInfo
    from relevo.store.settlement import Failure
    from relevo.task import Task

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Breaker",
    "Cancel",
    "Entity",
    "Failure",
    "Fault",
    "Job",
    "JobContext",
    "JobInfo",
    "Lease",
    "Message",
    "Pool",
    "Priority",
    "Progress",
    "PurgeReport",
    "Queue",
    "Relevo",
    "Reply",
    "Retry",
    "Schedule",
    "ScheduleInfo",
    "Service",
    "Snooze",
    "State",
    "Task",
    "Workflow",
    "WorkflowInfo",
    "WorkflowProgress",
    "chain",
    "current_job",
    "group",
]

#: Where each name comes from, as above. They are imported when they are used: a probe (`python -m relevo.alive`) runs
#: every few seconds and needs none of them.
_FROM = {
    "Relevo": "app",
    "Service": "bus",
    "JobContext": "context",
    "current_job": "context",
    "Workflow": "flow",
    "WorkflowInfo": "flow",
    "WorkflowProgress": "flow",
    "chain": "flow",
    "group": "flow",
    "Job": "handle",
    "JobInfo": "handle",
    "Progress": "handle",
    "Backoff": "model.backoff",
    "Breaker": "model.breaker",
    "State": "model.job",
    "Fault": "model.message",
    "Message": "model.message",
    "Reply": "model.message",
    "Priority": "model.options",
    "Cancel": "model.verdicts",
    "Retry": "model.verdicts",
    "Snooze": "model.verdicts",
    "Entity": "pools",
    "Pool": "pools",
    "PurgeReport": "purging",
    "Lease": "queue",
    "Queue": "queue",
    "Schedule": "schedules",
    "ScheduleInfo": "schedules",
    "Failure": "store.settlement",
    "Task": "task",
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
