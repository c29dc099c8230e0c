"""IFDB's names in a Django site: `relevo.compat` with the app of `relevo.django`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connections, transaction

from relevo import Relevo
from relevo.compat import Enqueue, EnqueueOrGet, allow, configure, current
from relevo.django.site_app import SiteApp
from tests.django.shop import tasks
from tests.django.shop.models import Order
from tests.working import drained


@pytest.fixture
def site(shop: SiteApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteApp]:
    monkeypatch.setattr(current, "_current", current._Current())
    configure(shop)
    allow("tests.django.shop.tasks")
    yield shop


@pytest.fixture
def outboxed(outbox: SiteApp, monkeypatch: pytest.MonkeyPatch) -> Iterator[SiteApp]:
    monkeypatch.setattr(current, "_current", current._Current())
    configure(outbox)
    allow("tests.django.shop.tasks")
    yield outbox


def paid(one: Order) -> int:
    one.refresh_from_db()
    return one.paid


def test_functions_and_tasks_of_the_site_are_enqueued(site: SiteApp) -> None:
    one = Order.objects.create()
    jobs = [Enqueue(tasks.mark, one.pk), Enqueue(tasks.pay, one.pk)]
    drained(site)
    assert [job.status for job in jobs] == ["done", "done"]
    assert paid(one) == 2


def test_failure_handler_has_the_database(site: SiteApp) -> None:
    task = Enqueue(tasks.fail, 7, retries=0, onfail=tasks.mark_broken)
    drained(site)
    assert task.fail
    assert Order.objects.filter(name=f"broken [7] {task}").exists()
    connections.close_all()


def test_task_is_sent_when_the_transaction_commits(site: SiteApp) -> None:
    with transaction.atomic():
        task = Enqueue(tasks.mark, 1, name="Mark(1)")
        assert task.status == "unknown"
    assert task.status == "ready"
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        gone = Enqueue(tasks.mark, 1, name="Mark(1)")
        raise ZeroDivisionError
    assert gone.status == "unknown"


@pytest.mark.parametrize("kind", ["site", "outboxed"])
def test_names_in_a_transaction_mean_what_they_mean_elsewhere(kind: str, request: pytest.FixtureRequest) -> None:
    """Enqueue adds another task, EnqueueOrGet knows the id of the living one at once."""
    site: Relevo = request.getfixturevalue(kind)
    first = Enqueue(tasks.mark, 1, name="Mark(1)")
    with transaction.atomic():
        second = Enqueue(tasks.mark, 1, name="Mark(1)")
        found = EnqueueOrGet(tasks.mark, 1, name="Mark(1)")
        new = EnqueueOrGet(tasks.mark, 2, name="Mark(2)")
    assert found == first
    assert len({first, second, new}) == 3
    assert [task.status for task in (first, second, new)] == ["ready"] * 3
    assert [row.name for row in site.queue().jobs()] == ["Mark(1)", "Mark(1)", "Mark(2)"]


def test_task_that_depends_on_one_found_in_a_transaction_runs(site: SiteApp) -> None:
    one = Order.objects.create()
    first = Enqueue(tasks.mark, one.pk, name="Mark")
    with transaction.atomic():
        after = Enqueue(tasks.mark, one.pk, dependency=EnqueueOrGet(tasks.mark, one.pk, name="Mark"))
    assert after.status == "waiting"
    drained(site)
    assert (first.status, after.status, paid(one)) == ("done", "done", 2)
