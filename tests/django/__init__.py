"""Tests of relevo in a Django project, which is set up here: before anything imports its models."""

import os
import tempfile

#: Where the databases of this test process are; its children inherit it.
os.environ["SHOP_FOLDER"] = tempfile.mkdtemp(prefix="relevo-django-")
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.django.project.settings"

import django

django.setup()
