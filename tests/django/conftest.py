"""A Django project for the tests: set up once per test process, on the server of the tests and files of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any
from uuid import uuid4

import pytest

#: Where the databases of this test process are; its children inherit it.
os.environ["SHOP_FOLDER"] = tempfile.mkdtemp(prefix="relevo-django-")
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.django.project.settings"

import django

#: django-celery-beat 2.9 does not know Django 6.1.
HAS_BEAT = django.VERSION < (6, 1) and find_spec("django_celery_beat") is not None
if HAS_BEAT:
    os.environ["SHOP_BEAT"] = "1"
django.setup()  # before anything imports models
os.environ.pop("SHOP_BEAT", None)

from django.core.management import call_command
from django.db import connections
from django.test import override_settings

from relevo.django import app as site_app
from relevo.django.discovery import discover
from relevo.django.outbox.models import OutboxJob
from relevo.django.site_app import SiteApp
from tests.conftest import PATIENT
from tests.leaks import leaks, remove
from tests.servers import Server


@pytest.fixture(scope="session", autouse=True)
def databases() -> Iterator[None]:
    """The tables, in files of this test process."""
    for alias in connections:
        call_command("migrate", run_syncdb=True, verbosity=0, database=alias)
    yield
    connections.close_all()
    shutil.rmtree(os.environ["SHOP_FOLDER"])


@pytest.fixture
def shop(server: Server) -> Iterator[SiteApp]:
    """The project's app on the test server, under a name of this test's own; it must leave nothing behind."""
    yield from site(server)


@pytest.fixture
def outbox(server: Server) -> Iterator[SiteApp]:
    """The same with its outbox on."""
    yield from site(server, outbox=True)
    assert not OutboxJob.objects.exists()


def site(server: Server, **settings: Any) -> Iterator[SiteApp]:
    """The project's app with these settings."""
    name = f"t{uuid4().hex[:12]}"
    with override_settings(RELEVO={"name": name, "env": "test", **PATIENT, **settings}, REDIS_URL=server.url):
        discover()
        yield site_app
        site_app.close()
    left = leaks(server, name)
    remove(server, name)
    assert not left, f"without an end: {left}"
