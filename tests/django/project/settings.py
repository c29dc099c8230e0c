"""Its settings. The test run gives the place of the database and the name of the app."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

HAS_TASKS = importlib.util.find_spec("django.tasks") is not None

SECRET_KEY = "for tests only"
USE_TZ = True
DEBUG = False
ALLOWED_HOSTS = ["testserver", "127.0.0.1"]
ROOT_URLCONF = "tests.django.project.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "relevo.django",
    "relevo.django.outbox",
    "tests.django.shop",
    "tests.django.mails",
    "tests.django.oldqueue",
    *([] if HAS_TASKS else ["django_tasks"]),
    # Celery takes a while to import, so only test processes do, and not those that they start.
    *(["django_celery_beat"] if os.environ.get("SHOP_BEAT") else []),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    }
]
STATIC_URL = "static/"
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
_FOLDER = os.environ.get("SHOP_FOLDER", ".")
DATABASES: dict[str, Any] = {
    alias: {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(_FOLDER, f"{alias}.sqlite3"),
        "OPTIONS": {
            "timeout": 60,
        },
        "TEST": {"NAME": os.path.join(_FOLDER, f"{alias}.sqlite3")},
    }
    for alias in ("default", "archive")
}
REDIS_URL = os.environ.get("REDIS_URL")
RELEVO: dict[str, Any] = {
    "name": os.environ.get("SHOP_APP", "shop"),
    "env": "test",
    "lease": os.environ.get("SHOP_LEASE", "60s"),
    "call_timeout": "30s",
    "connect_timeout": "30s",
    "outbox": os.environ.get("SHOP_OUTBOX") == "1",
}
TASKS: dict[str, Any] = {
    "default": {"BACKEND": "relevo.django.Backend", "QUEUES": ["default", "mails"]},
    "prompt": {"BACKEND": "relevo.django.Backend", "QUEUES": [], "OPTIONS": {"ENQUEUE_ON_COMMIT": False}},
}
