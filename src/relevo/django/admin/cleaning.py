"""Removes records of jobs that ended long ago, as many as one request may take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from django import forms
from relevo.django.maintenance import clean_up, count_old

if TYPE_CHECKING:
    from relevo.django.admin.page import RelevoAdmin

#: Records removed by one request: a second or two.
MOST = 10_000


class CleanUpForm(forms.Form):
    """How old."""

    days = forms.FloatField(
        min_value=0, initial=7, label="Ended more than", help_text="days ago. What waits or runs is never touched."
    )


def clean_up_page(page: RelevoAdmin, request: HttpRequest) -> HttpResponse:
    """Asks how old, shows how many, removes them."""
    form = CleanUpForm(request.POST or None)
    count = None
    if request.method == "POST" and form.is_valid():
        seconds = form.cleaned_data["days"] * 86_400
        if request.POST.get("post") == "yes":
            gone = clean_up(older_than=seconds, dry_run=False, who=request.user.get_username(), most=MOST)
            more = " There are more: clean up again." if gone >= MOST else ""
            messages.success(request, f"{gone:,} records of ended jobs removed.{more}")
            return HttpResponseRedirect(page.changelist_url())
        count = count_old(older_than=seconds)
    return page.answer(
        request, "clean_up", title="Clean up", form=form, count=count, most=MOST, back=page.changelist_url()
    )
