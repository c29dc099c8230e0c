"""Limits and pauses of a queue, or of a task or a tenant in it, as forms."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError

from django import forms
from relevo.django.admin.pausing import PauseForm
from relevo.errors import OptionError
from relevo.limits.limit import limit_of

KINDS = ("queue", "task", "tenant")


class LimitForm(forms.Form):
    """A limit of the queue, of a task or of a tenant."""

    of = forms.ChoiceField(choices=[(kind, f"this {kind}" if kind == "queue" else f"a {kind}") for kind in KINDS])
    name = forms.CharField(required=False, max_length=200, help_text="Of the task or tenant.")
    concurrency = forms.IntegerField(
        required=False, min_value=0, label="At once", help_text="How many of its jobs may run at the same time."
    )
    rate = forms.CharField(required=False, max_length=40, help_text="How fast they may start: 10/s, 100/m.")
    burst = forms.IntegerField(required=False, min_value=1, help_text="How many may start together after a pause.")

    def clean(self) -> dict[str, Any]:
        """A limit that relevo can keep."""
        found: dict[str, Any] = super().clean() or {}
        _check_name(found)
        if not self.errors:
            try:
                limit_of(**self.terms())
            except OptionError as error:
                raise ValidationError(str(error)) from error
        return found

    def terms(self) -> dict[str, Any]:
        """What `Queue.limit` takes."""
        given = self.cleaned_data
        return {"concurrency": given["concurrency"], "rate": given["rate"] or None, "burst": given["burst"]}


class PausePartForm(PauseForm):
    """A pause of a task or a tenant."""

    of = forms.ChoiceField(choices=[(kind, f"a {kind}") for kind in KINDS[1:]])
    name = forms.CharField(max_length=200, help_text="Of the task or tenant.")
    field_order = ("of", "name", "reason", "until")


def _check_name(given: dict[str, Any]) -> None:
    if given.get("of") in KINDS[1:] and not given.get("name"):
        raise ValidationError(f"Name the {given['of']}.")


def part_of(given: dict[str, Any]) -> dict[str, Any]:
    """The task or the tenant that is meant, as `Queue.limit` takes it; nothing: the queue."""
    kind, name = given.get("of", ""), given.get("name", "")
    return {kind: name} if kind in KINDS[1:] and name else {}
