"""Its table."""

from __future__ import annotations

from django.db import models


class Order(models.Model):
    """What jobs change."""

    name = models.CharField(max_length=200, default="")
    paid = models.IntegerField(default=0)
