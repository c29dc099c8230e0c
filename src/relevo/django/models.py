"""What the admin shows, as models without a table: Django makes a content type and permissions of each, and nothing
else. Their rows are on the server of relevo.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class NoRows(models.Manager[Any]):
    """Finds nothing, and asks no database: there is no table. `dumpdata` and the like pass over it."""

    def get_queryset(self) -> models.QuerySet[Any]:
        """No rows."""
        return super().get_queryset().none()


class Shown(models.Model):
    """Something on the server of relevo."""

    #: Of a job its id, of a queue and of a schedule its name.
    id = models.CharField(primary_key=True, max_length=255)

    objects = NoRows()

    class Meta:
        abstract = True
        managed = False
        base_manager_name = "objects"

    def __str__(self) -> str:
        return self.id


class Job(Shown):
    """Jobs of all states."""

    class Meta(Shown.Meta):
        abstract = False
        default_permissions = ("view", "change", "delete")
        permissions = (
            ("view_output_job", "Can view output and tracebacks of jobs"),
            ("retry_job", "Can retry job"),
            ("cancel_job", "Can cancel job"),
        )


class DeadLetter(Shown):
    """Jobs that were given up."""

    class Meta(Shown.Meta):
        abstract = False
        verbose_name = "dead letter"
        default_permissions = ("view", "delete")
        permissions = (("retry_deadletter", "Can retry dead letter"),)


class Schedule(Shown):
    """Jobs that are enqueued by the clock."""

    class Meta(Shown.Meta):
        abstract = False
        default_permissions = ("view", "change", "delete")
        permissions = (("run_schedule", "Can run schedule now"),)


class Queue(Shown):
    """Queues, their pauses and limits."""

    class Meta(Shown.Meta):
        abstract = False
        default_permissions = ("view", "change", "delete")
