"""Dead letters in the admin: the list, error groups, retry and discard of all that fit, replays."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.test import Client

from relevo.django.site_app import SiteApp
from relevo.engine.handle import Job
from relevo.engine.job import State
from tests.django.admin.conftest import Login
from tests.django.admin.pages import following, messages_of, rows_of, text_of
from tests.django.shop import tasks
from tests.eventually import eventually
from tests.working import drained, working

LIST = "/admin/relevo/deadletter/"
AnyJob = Job[Any]


@pytest.fixture
def dead(shop: SiteApp) -> list[AnyJob]:
    """Three dead letters of one error group, and one of another; the newest last."""
    jobs: list[AnyJob] = [tasks.pay.using(tenant="acme").enqueue(10**9 + n) for n in range(3)]
    drained(shop)
    jobs.append(tasks.stumble.using(name="Stumble(1)").enqueue())
    drained(shop)
    return jobs


def group_of(shop: SiteApp, job: AnyJob) -> str:
    return job.info().fingerprint


class TestList:
    def test_newest_first_with_what_went_wrong(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        page = client.get(LIST)
        assert (rows_of(page)[0], set(rows_of(page))) == (dead[3].id, {job.id for job in dead})
        text = text_of(page)
        assert "Stumble(1) tests.django.shop.tasks.stumble ValueError: over a stone" in text
        assert "LookupError: no order 1000000002" in text

    def test_filters(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        (*paid, stumbled) = dead
        found = {
            "?q=stone": [stumbled],
            "?q=lookup": paid,
            "?task=tests.django.shop.tasks.stumble": [stumbled],
            "?tenant=acme": paid,
            f"?error_group={group_of(shop, stumbled)}": [stumbled],
            "?queue=default": dead,
            "?permanent=no": dead,
            "?permanent=yes": [],
        }
        for query, jobs in found.items():
            assert set(rows_of(client.get(LIST + query))) == {one.id for one in jobs}, query

    def test_pages(self, shop: SiteApp, client: Client, dead: list[AnyJob], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("relevo.django.admin.dead.PER_PAGE", 3)
        pages = following(client, LIST)
        assert ([len(page) for page in pages], {id for page in pages for id in page}) == (
            [3, 1],
            {one.id for one in dead},
        )

    def test_detail_has_the_history_and_the_actions_of_dead_letters(
        self, shop: SiteApp, client: Client, dead: list[AnyJob]
    ) -> None:
        page = client.get(f"{LIST}{dead[3].id}/change/?queue=default")
        assert "Traceback (most recent call last)" in text_of(page)
        assert 'value="retry"' in page.content.decode() and 'value="cancel"' not in page.content.decode()

    def test_job_that_is_no_dead_letter_any_more(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        dead[0].retry()
        page = client.get(f"{LIST}{dead[0].id}/change/", follow=True)
        assert (page.redirect_chain, "is ready, no dead letter" in messages_of(page)[0]) == ([(LIST, 302)], True)


class TestActions:
    def test_chosen_ones(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        asked = {"action": "retry", "_selected_action": [f"{job.id}:default" for job in dead[:2]]}
        assert messages_of(client.post(LIST, asked, follow=True)) == ["2 dead letters retried."]
        asked = {"action": "discard", "_selected_action": f"{dead[2].id}:default"}
        assert "Discard 1 dead letter?" in text_of(client.post(LIST, asked))
        assert messages_of(client.post(LIST, {**asked, "post": "yes"}, follow=True)) == ["1 dead letter discarded."]
        states = [job.state() for job in dead]
        assert states == [State.READY, State.READY, State.UNKNOWN, State.DEAD]

    def test_all_of_an_error_group(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        group = group_of(shop, dead[0])
        page = client.get(f"{LIST}error-groups/")
        assert "LookupError" in text_of(page) and f"/every/retry/?error_group={group}" in page.content.decode()
        address = f"{LIST}every/retry/?error_group={group}"
        assert "3 dead letters fit" in text_of(client.get(address))
        assert [job.state() for job in dead] == [State.DEAD] * 4, "a look changes nothing"
        assert messages_of(client.post(address, follow=True)) == ["3 dead letters retried."]
        assert [job.state() for job in dead] == [State.READY] * 3 + [State.DEAD]
        entry = shop.audit.list(limit=1, app=shop.name)[0]
        assert (entry.what, entry.count, entry.about["error_group"]) == ("dead.retry", 3, group)

    def test_all_are_discarded_and_restored(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        assert "4 dead letters fit" in text_of(client.get(f"{LIST}every/discard/"))
        assert messages_of(client.post(f"{LIST}every/discard/", follow=True)) == ["4 dead letters discarded."]
        assert rows_of(client.get(LIST)) == []
        assert messages_of(client.post(f"{LIST}every/restore/", follow=True)) == ["4 dead letters restored."]
        assert len(rows_of(client.get(LIST))) == 4

    def test_unknown_deed(self, shop: SiteApp, client: Client) -> None:
        assert client.post(f"{LIST}every/explode/").status_code == 404


class TestReplays:
    def test_canaries_stop_a_replay_whose_cause_is_not_fixed(
        self, shop: SiteApp, client: Client, dead: list[AnyJob]
    ) -> None:
        with working(shop):
            page = client.post(f"{LIST}every/replay/", {"canary": "on", "rate": "", "patience": "30m"}, follow=True)
            address = page.redirect_chain[-1][0]
            eventually(lambda: "stopped" in text_of(client.get(address)), what="the end of the replay")
        text = text_of(client.get(address))
        assert ("Retried: 1" in text, "Canaries that succeeded: 0" in text) == (True, True)
        assert "Resume" in text
        assert "stopped" in text_of(client.get(f"{LIST}replays/"))
        ended()
        entry = shop.audit.list(limit=1, app=shop.name, what="dead.replay")[0]
        assert (entry.count, entry.who[:4], entry.via) == (1, "ana-", "django-admin")

    def test_replay_goes_to_its_end_and_can_be_resumed(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        page = client.post(f"{LIST}every/replay/", {"rate": "1/h", "patience": "30m"}, follow=True)
        address = page.redirect_chain[-1][0]
        assert messages_of(client.post(address, {"action": "stop"}, follow=True)) == ["It stops after its next step."]
        eventually(lambda: "stopped" in text_of(client.get(address)), what="the stop")
        ended()
        run = shop.dead.runs()[0]
        assert (run.retried, shop.dead.run(run.id).state) == (1, "stopped")
        assert messages_of(client.post(address, {"action": "resume"}, follow=True)) == ["It goes on."]
        assert messages_of(client.post(address, {"action": "stop"}, follow=True)) == ["It stops after its next step."]
        ended()

    def test_what_cannot_be_read_is_asked_again(self, shop: SiteApp, client: Client, dead: list[AnyJob]) -> None:
        page = client.post(f"{LIST}every/replay/", {"rate": "fast", "patience": "soon"})
        assert "Please correct the errors below." in text_of(page)
        assert shop.dead.runs() == []

    def test_replay_that_is_none(self, shop: SiteApp, client: Client) -> None:
        page = client.get(f"{LIST}replays/{shop.engine.new_id()}/", follow=True)
        assert page.redirect_chain == [(LIST, 302)]


def ended() -> None:
    """No thread of this process leads a replay any more."""
    eventually(lambda: not [one for one in threading.enumerate() if one.name == "relevo-replay"], what="the threads")


@pytest.mark.parametrize(
    ("address", "permission"),
    [
        ("", "view_deadletter"),
        ("error-groups/", "view_deadletter"),
        ("replays/", "view_deadletter"),
        ("every/retry/", "retry_deadletter"),
        ("every/replay/", "retry_deadletter"),
        ("every/discard/", "delete_deadletter"),
        ("every/restore/", "delete_deadletter"),
    ],
)
def test_every_page_needs_its_permission(shop: SiteApp, login: Login, address: str, permission: str) -> None:
    every = {"view_deadletter", "retry_deadletter", "delete_deadletter"}
    assert login(*(every - {permission})).get(LIST + address).status_code == 403
    assert login(permission).get(LIST + address).status_code == 200


def test_actions_of_dead_letters_are_not_those_of_jobs(shop: SiteApp, login: Login, dead: list[AnyJob]) -> None:
    client = login("view_deadletter", "retry_job", "delete_job")
    for action in ("retry", "discard"):
        asked = {"action": action, "_selected_action": f"{dead[0].id}:default", "post": "yes"}
        assert client.post(LIST, asked).status_code == 403
