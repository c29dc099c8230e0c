"""People of the site, each with the permissions that a test gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.test import Client

from relevo.django.site_app import SiteApp
from tests.django.admin.browser import live_site

Login = Callable[..., Client]


@pytest.fixture
def users() -> Iterator[Callable[..., User]]:
    """Makes members of the staff with these permissions, or (`all=True`) one who may do everything."""
    made: list[User] = []

    def make(*permissions: str, all: bool = False, is_staff: bool = True) -> User:
        user = User.objects.create_user(f"ana-{uuid4().hex[:8]}", password="pw", is_staff=is_staff, is_superuser=all)
        found = Permission.objects.filter(content_type__app_label="relevo", codename__in=permissions)
        assert found.count() == len(permissions), permissions
        user.user_permissions.set(found)
        made.append(user)
        return user

    yield make
    LogEntry.objects.filter(user__in=made).delete()
    for user in made:
        user.delete()


@pytest.fixture
def login(shop: SiteApp, users: Callable[..., User]) -> Login:
    """A browser in which such a person is logged in; forged requests are refused in it as in any other."""

    def enter(*permissions: str, **options: Any) -> Client:
        client = Client()
        client.force_login(users(*permissions, **options))
        return client

    return enter


@pytest.fixture
def client(login: Login) -> Client:
    """One who may do everything."""
    return login(all=True)


@pytest.fixture
def site(shop: SiteApp) -> Iterator[str]:
    """The address of the project's site, served by this process."""
    with live_site() as address:
        yield address
