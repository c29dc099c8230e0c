"""relevo: background jobs and messages between services, on Redis or Valkey.

from relevo import Relevo

app = Relevo("shop")

@app.task
def greet(name: str) -> str:
    return f"hello {name}"

job = greet.enqueue("Ana")      # relevo worker shop:app   runs it
print(job.result(timeout=10))
"""

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
from relevo.queue import Lease, Queue
from relevo.schedules import Schedule, ScheduleInfo
from relevo.store.settlement import Failure
from relevo.task import Task

__version__ = "0.1.0"

__all__ = [
    "Backoff",
    "Breaker",
    "Cancel",
    "Failure",
    "Fault",
    "Job",
    "JobContext",
    "JobInfo",
    "Lease",
    "Message",
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
    "State",
    "Task",
    "Workflow",
    "WorkflowInfo",
    "WorkflowProgress",
    "chain",
    "current_job",
    "group",
]
