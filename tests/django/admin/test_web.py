"""The site of `relevo web` beside the admin, for those who are logged in there."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from django.core.asgi import get_asgi_application
from django.test import Client, override_settings

from relevo.django.site_app import SiteApp
from relevo.django.web import CHANGE, DELETE, LOOK, with_relevo
from relevo.engine.job import State
from relevo.errors import ConfigurationError
from tests.django.admin.conftest import Login
from tests.django.shop import tasks

AT = "/admin/relevo/web"
TOKEN = "c" * 32


def ask(shop: SiteApp, method: str, path: str, client: Client | None = None, **headers: str) -> httpx.Response:
    """A request to the site with the cookies of a browser."""

    async def asked() -> httpx.Response:
        transport = httpx.ASGITransport(with_relevo(get_asgi_application(), at=AT), raise_app_exceptions=False)
        cookies = {name: one.value for name, one in client.cookies.items()} if client else {}
        given = {"Cookie": "; ".join(f"{name}={value}" for name, value in cookies.items()), **headers}
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as browser:
            try:
                return await browser.request(method, path, headers={k: v for k, v in given.items() if v})
            finally:
                await shop.aclose()

    return asyncio.run(asked())


def error(answer: httpx.Response) -> tuple[int, Any]:
    return answer.status_code, answer.json()["error"]


def test_site_of_django_stays_where_it_is(shop: SiteApp) -> None:
    assert "Log in" in ask(shop, "GET", "/admin/login/").text
    assert ask(shop, "GET", f"{AT}-other/").status_code in (302, 404)


def test_who_is_not_logged_in_is_refused(shop: SiteApp, login: Login) -> None:
    assert error(ask(shop, "GET", f"{AT}/api/v1/queues")) == (401, "Unauthorized")
    assert ask(shop, "GET", f"{AT}/metrics").status_code == 401
    assert error(ask(shop, "GET", f"{AT}/api/v1/queues", login(is_staff=False, all=True)))[0] == 401
    forged = Client()
    forged.cookies["sessionid"] = "x" * 32
    assert error(ask(shop, "GET", f"{AT}/api/v1/queues", forged))[0] == 401


@pytest.mark.parametrize(
    ("permissions", "role"),
    [(LOOK, "viewer"), ((*LOOK, *CHANGE), "operator"), ((*LOOK, *CHANGE, *DELETE), "admin")],
)
def test_permissions_of_the_admin_make_the_role(
    shop: SiteApp, login: Login, permissions: tuple[str, ...], role: str
) -> None:
    found = ask(shop, "GET", f"{AT}/api/v1/me", login(*permissions)).json()
    assert (found["name"][:4], found["role"], found["app"]) == ("ana-", role, shop.name)


def test_single_permission_is_not_enough(shop: SiteApp, login: Login) -> None:
    answer = ask(shop, "GET", f"{AT}/api/v1/queues", login("view_job", *DELETE))
    assert error(answer) == (403, "Forbidden")
    assert "relevo.view_deadletter" in answer.json()["message"]


def test_change_needs_the_role_and_the_token_against_forgery(shop: SiteApp, login: Login) -> None:
    job = tasks.pay.enqueue(1)
    cancel = f"{AT}/api/v1/jobs/{job.id}/cancel"
    viewer, operator = login(*LOOK), login(*LOOK, *CHANGE)
    for client in (viewer, operator):
        client.get("/admin/")
        client.cookies["csrftoken"] = TOKEN
    assert "which is made of" in ask(shop, "POST", cancel, viewer, **{"X-CSRFToken": TOKEN}).json()["message"]
    assert error(ask(shop, "POST", cancel, operator)) == (403, "Forbidden")
    assert error(ask(shop, "POST", cancel, operator, **{"X-CSRFToken": "d" * 32}))[0] == 403
    evil = {"X-CSRFToken": TOKEN, "Origin": "https://evil.example"}
    assert error(ask(shop, "POST", cancel, operator, **evil))[0] == 403
    assert job.state() is State.READY
    assert ask(shop, "POST", cancel, operator, **{"X-CSRFToken": TOKEN}).status_code == 200
    assert job.state() is State.CANCELLED
    entry = shop.audit.list(limit=1, app=shop.name, what="job.cancel")[0]
    assert (entry.via, entry.who[:4]) == ("http", "ana-")


def test_programs_use_tokens(shop: SiteApp) -> None:
    bearer = {"Authorization": "Bearer correct-horse-battery"}
    assert ask(shop, "GET", f"{AT}/api/v1/me", **bearer).status_code == 401
    with override_settings(
        RELEVO={"name": shop.name, "env": "test", "web_tokens": ["viewer:bot:correct-horse-battery"]}
    ):
        assert ask(shop, "GET", f"{AT}/api/v1/me", **bearer).json()["name"] == "bot"
        assert ask(shop, "GET", f"{AT}/metrics", **bearer).status_code == 200


@pytest.mark.parametrize("at", ["", "relevo", "/relevo/"])
def test_path_that_is_none(at: str) -> None:
    with pytest.raises(ConfigurationError, match="at: a path"):
        with_relevo(get_asgi_application(), at=at)
