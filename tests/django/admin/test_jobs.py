"""Jobs in the admin: the list, and one of them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client, override_settings

from relevo import chain
from relevo.django.admin.listing import PER_PAGE
from relevo.django.site_app import SiteApp
from relevo.engine.job import State
from relevo.queues.searching import LOOKED_AT
from tests.django.admin.conftest import Login
from tests.django.admin.pages import following, messages_of, rows_of, text_of
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.eventually import eventually
from tests.servers import Server
from tests.working import drained, working

LIST = "/admin/relevo/job/"
INDEX = "/admin/"


def detail(job: object) -> str:
    return f"{LIST}{job.id}/change/?queue={job.queue}"  # type: ignore[attr-defined]


def commands(server: Server) -> int:
    """Commands that the server has carried out, those inside of scripts included."""
    stats = server.ask("INFO", "commandstats")
    return sum(int(row["calls"]) for name, row in stats.items() if name != "cmdstat_info")


class TestList:
    def test_jobs_of_every_state_with_what_is_known_of_them(self, shop: SiteApp, client: Client) -> None:
        done = tasks.pay.using(name="Pay(1)", priority=7, tenant="acme", tags=["red"]).enqueue(
            Order.objects.create().pk
        )
        dead = tasks.pay.enqueue(10**9)
        drained(shop)
        ready, scheduled = tasks.pay.enqueue(1), tasks.pay.using(delay="1h").enqueue(1)
        cancelled = tasks.pay.enqueue(2)
        cancelled.cancel()
        waiting = tasks.pay.using(depends_on=[ready]).enqueue(3)
        page = client.get(LIST)
        assert rows_of(page) == [one.id for one in (ready, scheduled, waiting, dead, done, cancelled)]
        text = re.sub(r" (due|ended) [-0-9: ]*[0-9]( took [0-9.]+m?s)?", "", text_of(page))
        assert "Pay(1) tests.django.shop.tasks.pay acme red done default 7 1 " in text
        assert "LookupError: no order 1000000000 dead default 100 1 " in text
        assert "Ready (1) Scheduled (1) Waiting (1) Dead (1) Done (1) Cancelled (1)" in text

    def test_running_job_comes_first(self, shop: SiteApp, client: Client) -> None:
        ready = tasks.pay.enqueue(1)
        (lease,) = shop.queue().take(worker="me")
        later = tasks.pay.enqueue(2)
        page = client.get(LIST)
        assert rows_of(page) == [ready.id, later.id]
        assert re.search(r"running since [0-9:]+ default 100 1", text_of(page))
        lease.done()

    def test_filters(self, shop: SiteApp, client: Client) -> None:
        red = tasks.pay.using(tags=["red", "big"], tenant="acme", name="Pay(red)").enqueue(1)
        mail = tasks.speak.using(queue="mails", delay="1h").enqueue(None)
        other = tasks.tidy.enqueue()
        found: dict[str, list[Any]] = {
            "": [red, other, mail],
            "?state=ready": [red, other],
            "?queue=mails": [mail],
            "?task=tests.django.shop.tasks.tidy": [other],
            "?tenant=acme": [red],
            "?tag=big": [red],
            "?tag=bi": [],
            "?q=PAY(": [red],
            "?q=shop.tasks.speak": [mail],
            f"?q={mail.id}": [mail],
            "?state=ready&tag=red&queue=default": [red],
            "?state=nonsense&queue=none": [],
        }
        for query, jobs in found.items():
            priorities = {red.id: 0, other.id: 1, mail.id: 2}
            assert sorted(rows_of(client.get(LIST + query)), key=priorities.__getitem__) == [one.id for one in jobs], (
                query
            )

    def test_search_for_an_id_that_is_none(self, shop: SiteApp, client: Client) -> None:
        assert rows_of(client.get(f"{LIST}?q={shop.engine.new_id()}")) == []

    def test_pages_hold_each_job_once_while_others_go(self, shop: SiteApp, client: Client) -> None:
        jobs = tasks.pay.enqueue_many([((n,), {}) for n in range(2 * PER_PAGE + 7)])
        first = client.get(LIST)
        for job in jobs[:PER_PAGE]:  # what the first page has shown, its last job included
            job.cancel()
        rest = following(client, LIST + first.context_data["cl"].next_page)
        assert rows_of(first) == [one.id for one in jobs[:PER_PAGE]]
        living = [id for page in rest for id in page][: PER_PAGE + 7]
        assert living == [one.id for one in jobs[PER_PAGE:]]

    def test_filter_that_finds_little_reads_a_bounded_number_of_jobs_per_page(
        self, shop: SiteApp, client: Client
    ) -> None:
        tasks.pay.enqueue_many([((n,), {}) for n in range(LOOKED_AT + 500)])
        last = tasks.pay.using(tags=["red"]).enqueue(0)
        page = client.get(f"{LIST}?tag=red")
        assert (rows_of(page), bool(page.context_data["cl"].after)) == ([], True)
        assert "2,000 jobs were looked at" in text_of(page)
        assert following(client, f"{LIST}?tag=red") == [[], [last.id]]

    def test_page_costs_the_same_however_many_jobs_there_are(
        self, shop: SiteApp, server: Server, client: Client
    ) -> None:
        costs = []
        for count in (3 * PER_PAGE, 5_000):
            tasks.pay.enqueue_many([((n,), {}) for n in range(count)])
            page = client.get(f"{LIST}?state=ready")  # scripts are loaded by now
            second = LIST + page.context_data["cl"].next_page
            client.get(second)
            before = commands(server)
            client.get(second)
            costs.append(commands(server) - before)
        assert costs[0] == costs[1] < 6 * PER_PAGE

    @pytest.mark.parametrize("after", ["nonsense", "ready-1-x-default", "ready-x-", "-" * 50])
    def test_page_that_is_none(self, shop: SiteApp, client: Client, after: str) -> None:
        page = client.get(f"{LIST}?after={after}", follow=True)
        assert page.redirect_chain == [(LIST, 302)]
        assert "the `after` of a page is needed" in messages_of(page)[0]

    def test_server_that_is_away_is_a_page_of_its_own(self, shop: SiteApp, login: Login) -> None:
        client = login(all=True)
        with override_settings(
            RELEVO={"connect_timeout": "100ms", "call_timeout": "100ms"}, REDIS_URL="redis://127.0.0.1:1"
        ):
            page = client.get(LIST)
        assert (page.status_code, "127.0.0.1:1" in text_of(page)) == (503, True)


class TestDetail:
    def test_parameters_result_output_and_times(self, shop: SiteApp, client: Client) -> None:
        order = Order.objects.create()
        job = tasks.pay.using(name="Pay(1)", result_ttl="1h").enqueue(order.pk)
        drained(shop)
        text = text_of(client.get(detail(job)))
        assert f"Parameters id {order.pk} Result 1 Output It wrote nothing." in text
        assert all(word in text for word in ("Enqueued:", "Started:", "Ended:", "Took:", "Worker:", "Name: Pay(1)"))

    def test_every_attempt_with_its_traceback(self, shop: SiteApp, client: Client) -> None:
        job = tasks.pay.using(retries=2, backoff="0s").enqueue(10**9)
        with working(shop):
            eventually(lambda: job.state() is State.DEAD, what="the end")
        page = client.get(detail(job))
        assert page.content.decode().count("<details") == 3
        text = text_of(page)
        assert text.count("Traceback (most recent call last)") == 6  # in the output and in the attempts
        assert "dead retries_exhausted" in text

    def test_secrets_are_hidden(self, shop: SiteApp, client: Client) -> None:
        job = tasks.charge_card.enqueue("4111111111111111", password="hunter2-xyz")
        text = text_of(client.get(detail(job)))
        assert "card *** password" in text.replace('"', "")
        assert "4111" not in text and "hunter2" not in text

    def test_jobs_of_a_workflow_lead_to_it(self, shop: SiteApp, client: Client) -> None:
        flow = chain(tasks.tidy.s(), tasks.speak.si("de")).enqueue()
        page = client.get(f"{LIST}workflow/{flow.id}/")
        assert text_of(page).count("tests.django.shop.tasks.") == 2
        first = flow.info().members[0]
        assert f"/workflow/{flow.id}/" in client.get(detail(first)).content.decode()
        flow.cancel()

    def test_workflow_is_cancelled_and_retried(self, shop: SiteApp, client: Client, login: Login) -> None:
        flow = chain(tasks.tidy.s(), tasks.speak.si("de")).enqueue()
        address = f"{LIST}workflow/{flow.id}/"
        assert login("view_job").post(address, {"action": "retry"}).status_code == 403
        assert login("view_job").post(f"{address}?ask=cancel").status_code == 403
        assert client.post(address, {"action": "explode"}).status_code == 403
        assert "Its jobs that have not ended are cancelled" in text_of(client.get(f"{address}?ask=cancel"))
        assert flow.state() is not State.CANCELLED
        page = client.post(f"{address}?ask=cancel", follow=True)
        assert (flow.state(), messages_of(page)[0]) == (State.CANCELLED, "2 jobs of the workflow cancelled.")
        assert "retried." in messages_of(client.post(address, {"action": "retry"}, follow=True))[0]
        assert flow.state() is not State.CANCELLED
        names = [one.what for one in shop.audit.list(app=shop.name)]
        assert names == ["workflow.retry", "workflow.cancel"]
        flow.cancel()

    def test_job_that_is_gone_leads_to_the_list(self, shop: SiteApp, client: Client) -> None:
        page = client.get(f"{LIST}{shop.engine.new_id()}/change/", follow=True)
        assert page.redirect_chain == [(LIST, 302)]
        assert "it never was, or its record has ended" in messages_of(page)[0]


class TestPermissions:
    def test_index_lists_what_one_may_see(self, shop: SiteApp, login: Login) -> None:
        assert "Jobs View" in text_of(login("view_job").get(INDEX))
        assert "Relevo" not in text_of(login().get(INDEX))

    def test_without_the_permission_nothing_is_shown(self, shop: SiteApp, login: Login) -> None:
        job = tasks.pay.enqueue(1)
        client = login("retry_job", "cancel_job", "delete_job")
        addresses = [LIST, detail(job), f"{LIST}workflow/{job.id}/", f"{LIST}{job.id}/history/"]
        assert {client.get(one).status_code for one in addresses} == {403}
        assert login(is_staff=False, all=True).get(LIST).status_code == 302

    def test_output_and_tracebacks_have_a_permission_of_their_own(self, shop: SiteApp, login: Login) -> None:
        job = tasks.pay.enqueue(10**9)
        drained(shop)
        assert "Traceback" not in text_of(login("view_job").get(detail(job)))
        assert "Traceback" in text_of(login("view_job", "view_output_job").get(detail(job)))

    def test_only_actions_that_one_may_perform_are_offered(self, shop: SiteApp, login: Login) -> None:
        job = tasks.pay.enqueue(1)
        assert b'name="action"' not in login("view_job").get(LIST).content
        page = login("view_job", "cancel_job").get(LIST).content.decode()
        assert re.findall(r'<option value="(\w+)"', page) == ["cancel"]
        page = login("view_job", "cancel_job", "delete_job", "change_job").get(detail(job)).content.decode()
        assert re.findall(r'name="action" value="(\w+)"', page) == ["priority", "time", "cancel"]

    @pytest.mark.parametrize(
        ("action", "permission"),
        [
            ("retry", "retry_job"),
            ("cancel", "cancel_job"),
            ("discard", "delete_job"),
            ("run_now", "change_job"),
            ("priority", "change_job"),
            ("time", "change_job"),
        ],
    )
    def test_every_action_needs_its_permission(self, shop: SiteApp, login: Login, action: str, permission: str) -> None:
        job = tasks.pay.using(delay="1h").enqueue(1)
        every = {"retry_job", "cancel_job", "delete_job", "change_job", "view_output_job", "view_job"}
        asked = {
            "action": action,
            "_selected_action": f"{job.id}:{job.queue}",
            "post": "yes",
            "priority": 1,
            "delay": "1s",
        }
        assert login(*(every - {permission})).post(LIST, asked).status_code == 403
        assert login(permission, "view_job").post(LIST, asked).status_code == 302
        assert job.state() in (State.SCHEDULED, State.READY, State.CANCELLED)


class TestHostileJobs:
    def test_markup_in_names_and_arguments_is_text(self, shop: SiteApp, client: Client) -> None:
        evil = "<script>alert(1)</script>"
        job = tasks.speak.using(name=evil, tags=[evil], tenant=evil).enqueue(evil)
        for address in (LIST, detail(job), f"{LIST}?q={evil}&tag={evil}"):
            page = client.get(address).content.decode()
            assert evil not in page and "&lt;script&gt;" in page

    def test_body_that_cannot_be_read_hides_no_other_job(self, shop: SiteApp, server: Server, client: Client) -> None:
        job, other = tasks.pay.enqueue(1), tasks.pay.enqueue(2)
        server.ask("HSET", shop.engine.keys_of("default").key("jobs"), job.id, b"\xff{not an envelope")
        assert set(rows_of(client.get(LIST))) == {job.id, other.id}
        assert rows_of(client.get(f"{LIST}?task=tests.django.shop.tasks.pay")) == [other.id]
        assert "They were not kept." in text_of(client.get(detail(job)))
        shop.queue().clear()

    def test_record_that_cannot_be_read(self, shop: SiteApp, server: Server, client: Client) -> None:
        job = tasks.pay.enqueue(10**9)
        drained(shop)
        server.ask("SET", shop.engine.keys_of("default").own("ended", job.id), b"\xff", "PX", 60_000)
        assert rows_of(client.get(LIST)) == [job.id]
