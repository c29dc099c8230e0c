"""The table: finding its model, locking rows, and writing marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.apps import apps
from django.core.management.base import CommandError
from django.db import connections

from relevo.django.migration.marks import MARK

#: The model's name where none is given.
MODEL = "TaskQueueElement"
#: Without these it is another table.
NEEDED = ("command_json", "dependency", "enqueue_time", "log", "name", "pending", "priority", "retries_left")


class Table:
    """The rows of one model in one database."""

    def __init__(self, model: str | None = None, database: str = "default") -> None:
        self.model: Any = _model(model)
        self.label: str = self.model._meta.label
        self.database = database

    @property
    def rows(self) -> Any:
        """All rows."""
        return self.model._base_manager.using(self.database)

    def pending(self) -> list[tuple[Any, Any]]:
        """(key, key of the row it waits for) of all pending rows, the oldest first."""
        rows = self.rows.filter(pending=True).order_by("enqueue_time", "pk")
        return list(rows.values_list("pk", "dependency_id"))

    def locked(self, keys: Iterable[Any]) -> list[Any]:
        """These rows, locked until the transaction ends; without those that are not pending any more."""
        rows = self.rows.filter(pending=True)
        has = connections[self.database].features
        if not has.has_select_for_update:  # SQLite: a write, even one that changes nothing, locks for all other writers
            rows.filter(pk=-1).update(pending=True)
            return list(rows.filter(pk__in=list(keys)).order_by("enqueue_time", "pk"))
        return list(rows.select_for_update().filter(pk__in=list(keys)).order_by("enqueue_time", "pk"))

    def save(self, rows: Sequence[Any], *columns: str) -> None:
        """Write these columns."""
        if rows:
            self.rows.bulk_update(rows, columns, batch_size=50)

    def marked(self) -> Any:
        """Rows that were moved, or came back."""
        return self.rows.filter(log__contains=MARK)

    def moved(self) -> Any:
        """Rows that were moved and have not come back."""
        return self.marked().filter(pending=False, success=False, fail=False)

    def fits(self, column: str, text: str) -> bool:
        """Whether the column takes this text."""
        most = getattr(self.model._meta.get_field(column), "max_length", None)
        return most is None or len(text) <= most


def _model(name: str | None) -> Any:
    if name is not None:
        try:
            found = apps.get_model(name)
        except (LookupError, ValueError) as error:
            raise CommandError(f"--model: {error}") from error
    else:
        all = [one for one in apps.get_models() if one.__name__ == MODEL]
        if len(all) != 1:
            why = "none" if not all else ", ".join(one._meta.label for one in all)
            raise CommandError(f"which model is the queue? Say --model app.Model; called {MODEL} are: {why}")
        found = all[0]
    columns = {field.name for field in found._meta.get_fields()}
    if missing := [column for column in NEEDED if column not in columns]:
        raise CommandError(f"{found._meta.label} is another table: it has no {', '.join(missing)}")
    return found
