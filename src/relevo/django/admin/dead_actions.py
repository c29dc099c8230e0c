"""What can be done to dead letters: to those that are chosen, and to all that fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError
from msgspec import Struct

from django import forms
from relevo.dead.wanted import Filters
from relevo.django.admin.actions import Action
from relevo.django.admin.job_actions import AnyJob, discard, retry
from relevo.django.site_app import app
from relevo.errors import OptionError
from relevo.limits.limit import rate_of
from relevo.text.durations import seconds

#: Dead letters that one request acts on: some seconds. For more there is the replay.
MOST = 10_000
Tell = Callable[[int], None]


class ReplayForm(forms.Form):
    """How carefully."""

    canary = forms.BooleanField(
        required=False,
        initial=True,
        label="Canaries first",
        help_text="One, then ten, then the rest; and no more if one of these eleven fails.",
    )
    rate = forms.CharField(required=False, max_length=40, help_text="Such as 10/s or 100/m; empty: as fast as it goes.")
    patience = forms.CharField(initial="30m", max_length=40, help_text="How long canaries may take.")

    def clean_rate(self) -> str:
        """A rate that relevo can read."""
        return _read(self.cleaned_data["rate"], lambda text: rate_of(text) if text else None)

    def clean_patience(self) -> str:
        """A duration that relevo can read."""
        return _read(self.cleaned_data["patience"], lambda text: seconds(text, what="patience"))


def _read(text: str, reader: Callable[[str], Any]) -> str:
    try:
        reader(text.strip())
    except OptionError as error:
        raise ValidationError(str(error)) from error
    return text.strip()


class OfMany(Struct, frozen=True, kw_only=True):
    """Something that is done to all dead letters that fit."""

    name: str
    label: str
    done: str
    permission: str
    deed: str
    question: str
    #: Does it to so many, reports how many so far, gives how many.
    perform: Callable[[Filters, Tell], int] = lambda _, __: 0
    form: type[forms.Form] | None = None
    is_loss: bool = False
    is_of_group: bool = True
    starts_replay: bool = False


def _retry_all(wanted: Filters, tell: Tell) -> int:
    return app.dead.retry(all=True, limit=MOST, watch=tell, **wanted)


def _discard_all(wanted: Filters, tell: Tell) -> int:
    return app.dead.discard(all=True, limit=MOST, watch=tell, **wanted)


def _restore_all(wanted: Filters, tell: Tell) -> int:
    return app.dead.restore(all=True, queue=wanted.get("queue"), watch=tell)


EVERY = (
    OfMany(
        name="replay",
        label="Replay",
        done="replayed",
        permission="retry",
        deed="dead.replay",
        question="They are retried one after the other, the oldest first; it can be watched, stopped and resumed.",
        form=ReplayForm,
        starts_replay=True,
    ),
    OfMany(
        name="retry",
        label="Retry all",
        done="retried",
        permission="retry",
        deed="dead.retry",
        question=f"They are retried at once, {MOST:,} at most.",
        perform=_retry_all,
    ),
    OfMany(
        name="discard",
        label="Discard all",
        done="discarded",
        permission="delete",
        deed="dead.discard",
        question=f"They are removed, {MOST:,} at most. They can be restored for ten minutes.",
        perform=_discard_all,
        is_loss=True,
    ),
    OfMany(
        name="restore",
        label="Restore discarded",
        done="restored",
        permission="delete",
        deed="dead.restore",
        question="All dead letters that were discarded in the last ten minutes come back.",
        perform=_restore_all,
        is_of_group=False,
    ),
)

LETTER_ACTIONS: tuple[Action[AnyJob], ...] = (
    Action(name="retry", label="Retry", done="retried", permission="retry", deed="dead.retry", perform=retry),
    Action(
        name="discard",
        label="Discard",
        done="discarded",
        permission="delete",
        deed="dead.discard",
        perform=discard,
        question="They can be restored for ten minutes.",
        removes=True,
    ),
)
