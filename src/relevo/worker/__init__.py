"""The worker: fetch, execute, settle."""

from relevo.worker.worker import Worker

__all__ = ["Worker"]
