"""Settings of the site. What it writes lies below IFDB_VAR."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parents[1]
VAR_DIR = Path(os.environ.get("IFDB_VAR", BASE_DIR / "var"))
VAR_DIR.mkdir(parents=True, exist_ok=True)

SECRET_KEY = os.environ.get("IFDB_SECRET_KEY", "an example has no secrets")
DEBUG = True
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "ifdb.urls"
WSGI_APPLICATION = "ifdb.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "core",  # before relevo.django: its command setup_periodic_tasks is the one of this site
    "games",
    "relevo.django",
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
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR_DIR / "ifdb.sqlite3",
        # Web processes and the worker write to one file: wait for each other, and say from the start that we write.
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL"},
    }
}
LANGUAGE_CODE = "en-us"
TIME_ZONE = "Europe/Moscow"
USE_TZ = True
STATIC_URL = "static/"

#: Files of games, and what was made of them for the interpreter.
UPLOADS_DIR = VAR_DIR / "uploads"
RECODES_DIR = VAR_DIR / "recodes"
#: No file of a game is larger.
UPLOAD_MOST = 50 * 2**20

#: The sources of games and news; by default those of `python -m sources`.
SOURCES_URL = os.environ.get("IFDB_SOURCES", "http://127.0.0.1:8001")
DISCORD_WEBHOOK = f"{SOURCES_URL}/discord"

#: The pause before the first retry, which doubles. The database queue waited 2000 minutes.
RETRY_AFTER = os.environ.get("IFDB_RETRY_AFTER", "2s")

# Redis Configuration
REDIS_URL = os.environ.get("REDIS_URL")  # without one: the embedded server
RELEVO = {
    "name": "ifdb",
    "prefix": os.environ.get("IFDB_PREFIX", "ifdb"),
    "data_dir": os.environ.get("RELEVO_DATA_DIR", str(VAR_DIR / "redis")),
    "discover": ["taskqueue", "tasks"],
    "allow": ["games.tasks", "core.feedfetcher"],
}
