"""The outbox as an installed app: it brings the table."""

from __future__ import annotations

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """The app of the table `relevo_outbox_job`."""

    name = "relevo.django.outbox"
    label = "relevo_outbox"
    verbose_name = "relevo outbox"
