"""How long and why something is paused, as a form."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError

from django import forms
from relevo.errors import OptionError
from relevo.text.durations import seconds


class PauseForm(forms.Form):
    """Why, and until when."""

    reason = forms.CharField(required=False, max_length=500, help_text="Shown wherever the pause is.")
    until = forms.CharField(
        required=False, max_length=40, label="For", help_text="Such as 30m or 2h; empty: until it is resumed."
    )

    def clean_until(self) -> str:
        """A duration that relevo can read."""
        text: str = self.cleaned_data["until"].strip()
        if text:
            try:
                seconds(text, what="until")
            except OptionError as error:
                raise ValidationError(str(error)) from error
        return text


def pause_of(given: dict[str, Any], by: str) -> dict[str, Any]:
    """The options of `pause`."""
    return {"reason": given["reason"], "until": given["until"] or None, "by": by}
