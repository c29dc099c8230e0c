"""Names of other systems on relevo: IFDB's task queue (`Enqueue`, `Worker`), and nooble4's `DomainQueueManager`."""

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

__all__ = [
    "CronTask",
    "DomainAction",
    "DomainQueueManager",
    "Enqueue",
    "EnqueueOrGet",
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
