"""Stores jobs in the outbox, and moves them from there to their queues: each exactly once.

A relay holds its rows locked while it pushes them, and deletes them before it lets go: no two relays have the same row.
One that dies in between leaves its rows. They are pushed again, and the server knows for a week which it has stored.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

import msgspec
from django.db import connections, router, transaction

from relevo.django.commit import Call
from relevo.django.outbox.models import OutboxJob
from relevo.engine.engine import Engine
from relevo.engine.push import CHUNK, NewJob, chunks, forget_once, push_rich
from relevo.errors import OptionError, StoreError
from relevo.store.plan import Steps
from relevo.worker import kill_points as faults

#: How long the server knows a job that it got from an outbox and whose row may still be there: a long outage.
ONCE_MS = 7 * 86_400_000


def store(alias: str, calls: Sequence[Call]) -> None:
    """Write jobs to the outbox, in the open transaction of that database."""
    now_ms = int(time.time() * 1000)
    OutboxJob.objects.using(alias).bulk_create([_row(call, now_ms) for call in calls], batch_size=CHUNK)


def _row(call: Call, now_ms: int) -> Any:
    task, id = call.task, call.job.id
    if task.options.depends_on:
        raise OptionError(
            f"depends_on: whether a parent lives is asked of the server, so {task.target} cannot wait in the outbox; "
            "use .using(on_commit=False), in transaction.on_commit if need be"
        )
    job = msgspec.json.encode(task._new_job(id, call.fragment, now_ms)).decode()
    return OutboxJob(id=id, app=task.engine.name, queue=task.options.queue, job=job)


def relay(engine: Engine, alias: str, ids: Collection[str] | None = None) -> dict[str, str]:
    """Move up to `CHUNK` jobs, the oldest or these, to their queues: which job has the name of each, mostly its own.

    Jobs that another relay is moving are left to it. StoreError: none was moved.
    """
    with transaction.atomic(using=alias):
        rows = _locked(engine, alias, ids)
        owners: dict[str, str] = {}
        if rows:
            _at("outbox_locked")
            owners = engine.client.run(_pushing(engine, rows), patience=0)
            _at("outbox_pushed")
            OutboxJob.objects.using(alias).filter(pk__in=[row.pk for row in rows]).delete()
            _at("outbox_deleted")
    if rows:
        _at("outbox_committed")
        with suppress(StoreError):  # they end by themselves
            engine.client.run(_forgetting(engine, rows), patience=0)
    return owners


def databases() -> list[str]:
    """The databases that have an outbox."""
    return [
        alias
        for alias in connections
        if router.allow_migrate_model(alias, OutboxJob)
        and OutboxJob._meta.db_table in connections[alias].introspection.table_names()
    ]


def _locked(engine: Engine, alias: str, ids: Collection[str] | None) -> list[Any]:
    rows = OutboxJob.objects.using(alias)
    has = connections[alias].features
    if has.has_select_for_update:
        query = rows.select_for_update(skip_locked=has.has_select_for_update_skip_locked)
    else:  # SQLite: a write, even one that changes nothing, locks the database for all other writers
        rows.filter(pk="").update(queue="")
        query = rows.all()
    query = query.filter(app=engine.name).order_by("pk")
    return list((query if ids is None else query.filter(pk__in=ids))[:CHUNK])


def _pushing(engine: Engine, rows: Sequence[Any]) -> Steps[dict[str, str]]:
    owners: dict[str, str] = {}
    for queue, some in groupby(sorted(rows, key=lambda row: (row.queue, row.pk)), key=lambda row: row.queue):
        jobs = [msgspec.json.decode(row.job, type=NewJob) for row in some]
        yield from engine.list_queue(queue)
        for part in chunks(len(job.body) for job in jobs):
            found: list[str] = yield push_rich(engine.keys_of(queue), jobs[part], once_ms=ONCE_MS)
            owners.update(zip((job.id for job in jobs[part]), found, strict=True))
    return owners


def _forgetting(engine: Engine, rows: Sequence[Any]) -> Steps[None]:
    for queue in {row.queue for row in rows}:
        yield forget_once(engine.keys_of(queue), [row.pk for row in rows if row.queue == queue])


def _at(point: faults.Point) -> None:
    if faults.ACTIVE:
        faults.at(point)
