"""The table of the outbox."""

from __future__ import annotations

from django.db import models


class OutboxJob(models.Model):
    """A job that is not on its queue yet. Rows live for milliseconds, unless the server cannot be reached."""

    #: Of the job. Ids sort by age.
    id = models.CharField(max_length=20, primary_key=True)
    #: The app of relevo that it belongs to: several projects may share a database.
    app = models.CharField(max_length=200)
    queue = models.CharField(max_length=200)
    #: `NewJob` as JSON.
    job = models.TextField()

    class Meta:
        """Names in the database."""

        db_table = "relevo_outbox_job"
        verbose_name = "job in the outbox"
        verbose_name_plural = "jobs in the outbox"

    def __str__(self) -> str:
        return f"{self.id} on {self.queue}"
