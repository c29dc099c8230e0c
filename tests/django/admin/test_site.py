"""What the admin pages add to a site: no table, no migration, and permissions as those of models."""

from __future__ import annotations

import json
from io import StringIO

from django.apps import apps
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.core import checks
from django.core.management import call_command
from django.db import connection

from relevo.django import models
from relevo.django.admin import PAGES, register


def test_there_is_no_table_and_no_migration() -> None:
    assert not [
        name for name in connection.introspection.table_names() if name.startswith("relevo_") and "outbox" not in name
    ]
    call_command("makemigrations", check=True, dry_run=True, stdout=StringIO())
    assert models.Job.objects.count() == 0
    assert list(models.Job._base_manager.all()) == []


def test_dumpdata_passes_over_them() -> None:
    out = StringIO()
    call_command("dumpdata", "relevo", use_base_manager=True, stdout=out)
    assert json.loads(out.getvalue()) == []


def test_permissions_are_made_by_migrate() -> None:
    found = set(Permission.objects.filter(content_type__app_label="relevo").values_list("codename", flat=True))
    assert found == {
        *("view_job", "change_job", "delete_job", "view_output_job", "retry_job", "cancel_job"),
        *("view_deadletter", "delete_deadletter", "retry_deadletter"),
        *("view_schedule", "change_schedule", "delete_schedule", "run_schedule"),
        *("view_queue", "change_queue", "delete_queue"),
    }


def test_system_checks_find_nothing() -> None:
    assert [one for one in checks.run_checks() if "relevo" in str(one.obj)] == []


def test_pages_can_be_added_to_a_site_of_ones_own() -> None:
    own = admin.AdminSite(name="own")
    register(own)
    register(own)
    assert {model for model, _ in PAGES} == set(own._registry) <= set(apps.get_app_config("relevo").get_models())
