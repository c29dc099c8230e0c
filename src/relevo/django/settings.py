"""The settings of relevo in a Django project: `RELEVO = {...}` and `REDIS_URL`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings as site
from msgspec import Struct

from relevo.errors import OptionError, SettingsError
from relevo.settings import Settings
from relevo.settings import load as load_settings
from relevo.text.nearest import did_you_mean

#: Names in `RELEVO` that are Django's own: all others are settings of relevo.
OWN = ("name", "on_commit", "outbox", "discover")


class SiteSettings(Struct, frozen=True, kw_only=True):
    """What `RELEVO` says about Django; `relevo` holds the settings of relevo itself."""

    #: The app's name, part of its keys. By default that of the package that holds the Django settings.
    name: str
    #: Jobs enqueued in a transaction are sent when it commits: a job that reads the database must find what it is for.
    on_commit: bool = True
    #: Jobs enqueued in a transaction are stored in the database, in the transaction itself, and relayed by workers.
    outbox: bool = False
    #: Modules of each installed app in which workers look for tasks.
    discover: tuple[str, ...] = ("tasks",)
    relevo: Settings


def load() -> SiteSettings:
    """Read the Django settings; the first wrong one is refused with `SettingsError`."""
    given = getattr(site, "RELEVO", {})
    if not isinstance(given, Mapping):
        raise SettingsError(f'RELEVO: a dict such as {{"retries": 5}} is needed, found {given!r:.80}')
    rest = {name: value for name, value in given.items() if name not in OWN}
    for name in rest:
        if name not in Settings.__struct_fields__:
            known = [*OWN, *Settings.__struct_fields__]
            raise SettingsError(f"RELEVO: unknown setting {name!r:.80}{did_you_mean(str(name), known)}")
    rest.setdefault("url", getattr(site, "REDIS_URL", None) or None)
    return SiteSettings(
        name=_text("name", given.get("name", _project_name())),
        on_commit=_switch("on_commit", given.get("on_commit", True)),
        outbox=_switch("outbox", given.get("outbox", False)),
        discover=_names("discover", given.get("discover", ("tasks",))),
        relevo=load_settings(arguments=rest),
    )


def _project_name() -> str:
    module = str(getattr(site, "SETTINGS_MODULE", None) or getattr(site, "ROOT_URLCONF", None) or "django")
    return module.partition(".")[0]


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise SettingsError(f"RELEVO[{name!r}]: a text is needed, found {given!r:.80}")
    return given


def _switch(name: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise SettingsError(f"RELEVO[{name!r}]: True or False is needed, found {given!r:.80}")
    return given


def _names(name: str, given: Any) -> tuple[str, ...]:
    found = (given,) if isinstance(given, str) else given
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) and one.isidentifier() for one in found):
        raise SettingsError(f'RELEVO[{name!r}]: names of modules such as ["tasks"] are needed, found {given!r:.80}')
    return tuple(found)


def checked_alias(what: str, alias: Any) -> str:
    """The alias of a database; refused if `DATABASES` has none of that name."""
    from django.db import connections

    if not isinstance(alias, str) or alias not in connections:
        known = ", ".join(connections)
        raise OptionError(f"{what}: True, False or the alias of a database ({known}) is needed, found {alias!r:.80}")
    return alias
