"""Names of other systems on relevo: IFDB's task queue (`Enqueue`, `Worker`), nooble4's `DomainQueueManager`, and a
scheduler's `QueueManager`.
"""

from relevo.compat.current import allow, configure, current_app
from relevo.compat.ifdb import (
    CronTask,
    Enqueue,
    EnqueueOrGet,
    QueuedTask,
    RedisTaskQueue,
    TakenTask,
    Worker,
    execute_task,
    get_next_task,
    task_queue,
)
from relevo.compat.nooble4 import DomainAction, DomainQueueManager, clean_task_queues
from relevo.compat.scheduler import QueueManager

__all__ = [
    "CronTask",
    "DomainAction",
    "DomainQueueManager",
    "Enqueue",
    "EnqueueOrGet",
    "QueueManager",
    "QueuedTask",
    "RedisTaskQueue",
    "TakenTask",
    "Worker",
    "allow",
    "clean_task_queues",
    "configure",
    "current_app",
    "execute_task",
    "get_next_task",
    "task_queue",
]
