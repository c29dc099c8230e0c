"""The tasks of the site, and what its `core/taskqueue.py` says."""

from __future__ import annotations

from relevo.compat import configure
from relevo.django import app
from tests.django.oldqueue.models import Ran

configure(app)


def clone_file(url_id: int) -> None:
    Ran.objects.create(what=f"clone {url_id}")


def recode_game(url_id: int, *, into: str = "") -> None:
    Ran.objects.create(what=f"recode {url_id} {into}".strip())


def broken(url_id: int) -> None:
    raise ValueError(url_id)


def mark_broken(task: object, context: dict[str, object]) -> None:
    Ran.objects.create(what=f"broken {context['argv']}")


def import_games(append_urls: bool = False) -> None:
    Ran.objects.create(what=f"import {append_urls}")
