"""The relevo app of a Django project, made from its settings when first used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from relevo.app import Relevo
from relevo.django import settings as site_settings
from relevo.django.commit import checked
from relevo.django.endings import EndObserver
from relevo.django.settings import SiteSettings
from relevo.django.site_task import SiteTask
from relevo.engine.duty import Duty, Host
from relevo.engine.task import Task


class SiteApp(Relevo):
    """A `Relevo` whose settings are Django's and whose tasks know Django's transactions and connections."""

    #: What the Django settings say now.
    site: SiteSettings

    def __init__(self) -> None:
        site = site_settings.load()
        super().__init__(site.name)
        self.engine.task_class = SiteTask
        self.engine.home = "relevo.django.set_up:app"
        self.engine.duties.append(outbox_duties)
        self.engine.observers.append(end_observer)
        self._take(site)

    def follow_settings(self) -> None:
        """Take the Django settings as they are now: `override_settings` changed them."""
        self._take(site_settings.load())

    def _take(self, site: SiteSettings) -> None:
        self.site = site
        self.engine.rebind(site.relevo, name=site.name)

    def _register(self, func: Callable[..., Any], name: str | None, options: dict[str, Any]) -> Task[..., Any]:
        on_commit = checked(options.pop("on_commit", None))
        task = super()._register(func, name, options)
        assert isinstance(task, SiteTask)
        task.on_commit = on_commit
        return task


def outbox_duties(worker: Host) -> list[Duty[Any]]:
    """The duty of the outbox, where `RELEVO["outbox"]` is on."""
    if not app.site.outbox:
        return []
    from relevo.django.outbox.duty import OutboxDuty  # its table is there only if it is installed

    return [OutboxDuty(worker.engine)]


def end_observer(worker: Host, queue: str) -> EndObserver:
    """Announces ends of Django's tasks."""
    return EndObserver(worker.engine, queue)


app = SiteApp()
