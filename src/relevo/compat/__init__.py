"""Names of other systems on relevo: IFDB's task queue (`Enqueue`, `Worker`), and nooble4's `DomainQueueManager`."""

from relevo.compat.ifdb import CronTask, Enqueue, EnqueueOrGet, QueuedTask, Worker, allow, configure, current_app
from relevo.compat.nooble4 import DomainAction, DomainQueueManager, clean_task_queues

__all__ = [
    "CronTask",
    "DomainAction",
    "DomainQueueManager",
    "Enqueue",
    "EnqueueOrGet",
    "QueuedTask",
    "Worker",
    "allow",
    "clean_task_queues",
    "configure",
    "current_app",
]
