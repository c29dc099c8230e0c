"""The table, as IFDB has it."""

from __future__ import annotations

from django.db import models


class TaskQueueElement(models.Model):
    """A task."""

    name = models.CharField(max_length=255)
    command_json = models.CharField(max_length=512)
    priority = models.IntegerField(default=100)
    onfail_json = models.CharField(max_length=512, null=True, blank=True)
    retries_left = models.IntegerField(default=3)
    retry_minutes = models.IntegerField(default=2000)
    cron = models.CharField(max_length=32, null=True, blank=True)
    enqueue_time = models.DateTimeField()
    scheduled_time = models.DateTimeField(null=True, blank=True)
    start_time = models.DateTimeField(null=True, blank=True)
    finish_time = models.DateTimeField(null=True, blank=True)
    dependency = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL)
    pending = models.BooleanField(default=True)
    success = models.BooleanField(default=False)
    fail = models.BooleanField(default=False)
    log = models.TextField(blank=True)


class Ran(models.Model):
    """A task ran."""

    what = models.CharField(max_length=100)
