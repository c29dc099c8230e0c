"""`RELEVO` in the Django settings, and the system checks that look at it."""

from __future__ import annotations

from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command
from django.test import override_settings

from relevo.django import settings as site_settings
from relevo.django.checks import check_deployment, check_settings
from relevo.django.site_app import SiteApp
from relevo.errors import SettingsError


def ids(found: list[checks.CheckMessage]) -> list[str | None]:
    return [message.id for message in found]


def test_names_are_those_of_relevo_and_some_of_django() -> None:
    with override_settings(RELEVO={"retries": 7, "on_commit": False, "discover": ["jobs"]}, REDIS_URL="redis://h:1/2"):
        found = site_settings.load()
    assert (found.name, found.on_commit, found.discover) == ("tests", False, ("jobs",))
    assert (found.relevo.retries, found.relevo.url) == (7, "redis://h:1/2")


def test_url_of_relevo_comes_before_redis_url() -> None:
    with override_settings(RELEVO={"url": "redis://a:1"}, REDIS_URL="redis://b:1"):
        assert site_settings.load().relevo.url == "redis://a:1"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["retries"], "a dict such as"),
        ({"retrys": 5}, "unknown setting 'retrys', did you mean 'retries'?"),
        ({"retries": -1}, "retries: a whole number"),
        ({"on_commit": "yes"}, "True or False"),
        ({"discover": "not a module"}, "names of modules"),
        ({"name": ""}, "a text"),
    ],
)
def test_what_is_wrong_is_named_by_the_check(given: Any, words: str) -> None:
    with pytest.raises(SettingsError, match=words.replace("?", r"\?")), override_settings(RELEVO=given):
        site_settings.load()


def test_check_tells_of_wrong_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.conf import settings

    monkeypatch.setattr(settings, "RELEVO", {"retrys": 5})
    found = check_settings()
    assert ids(found) == ["relevo.E001"]
    assert "did you mean 'retries'" in found[0].msg
    assert "on_commit" in str(found[0].hint)


def test_check_of_the_deployment_wants_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.conf import settings

    monkeypatch.setattr(settings, "REDIS_URL", None)
    assert ids(check_deployment()) == ["relevo.W002"]
    monkeypatch.setattr(settings, "REDIS_URL", "redis://localhost:6379")
    assert ids(check_deployment()) == []


def test_project_of_the_tests_passes_its_checks() -> None:
    call_command("check", fail_level="WARNING")


def test_override_settings_binds_the_app_elsewhere_and_back(shop: SiteApp) -> None:
    name, url = shop.name, shop.settings.url
    with override_settings(RELEVO={"name": "other", "prefix": "p", "lease": "60s"}):
        assert (shop.name, shop.settings.prefix) == ("other", "p")
    assert (shop.name, shop.settings.url) == (name, url)


def test_override_settings_in_a_test_that_binds_the_app_stays_on_the_server_of_the_test(shop: SiteApp) -> None:
    from relevo.testing import bind

    before = shop.settings.url
    with bind(shop, url=before):
        prefix = shop.settings.prefix
        with override_settings(RELEVO={"name": shop.name, "retries": 9}, REDIS_URL="redis://production:6379"):
            assert (shop.settings.url, shop.settings.prefix, shop.settings.retries) == (before, prefix, 9)
    assert shop.settings.url == before
