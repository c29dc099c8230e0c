"""What can be done to one or many objects of a page: chosen, asked for, performed, written down.

An action that loses something, or needs more input, shows a page of its own first. All of it is POST only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME, ActionForm
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from msgspec import Struct

from django import forms
from relevo.django.admin.page import RelevoAdmin
from relevo.errors import RelevoError, StoreError, message_of

T = TypeVar("T")

#: Objects that one request may act on: as many as a page shows.
MOST = 100
#: Refusals that are shown one by one.
SHOWN = 5


class Action(Struct, Generic[T], frozen=True, kw_only=True):
    """One kind of action."""

    name: str
    #: On a button: "Retry".
    label: str
    #: In the menu, before "selected jobs", where that differs.
    verb: str = ""
    #: In messages: "retried".
    done: str
    #: The permission: `relevo.<permission>_<model>`.
    permission: str
    #: Its name in the audit trail.
    deed: str
    #: Does it to one; '': done, else why not. A `RelevoError` is shown, too. It gets what the form gave, and as `by`
    #: the name of the user.
    perform: Callable[[T, dict[str, Any]], str]
    #: What is asked before, as it loses something.
    question: str = ""
    #: What else it needs to know.
    form: type[forms.Form] | None = None
    #: Whether it leaves nothing of the object.
    removes: bool = False
    #: Whether it can be chosen for an object, as its page shows it.
    fits: Callable[[Any], bool] = lambda _: True


class ActionPage(RelevoAdmin, Generic[T]):
    """A page with actions."""

    #: All of them, in the order of the menu.
    deeds: tuple[Action[T], ...] = ()

    def allowed(self, request: HttpRequest) -> list[Action[T]]:
        """The actions that this user may perform."""
        return [action for action in self.deeds if self.may(request, action.permission)]

    def action_form(self, request: HttpRequest) -> ActionForm | None:
        """The menu above a list; None: there is nothing to choose."""
        allowed = self.allowed(request)
        if not allowed:
            return None
        form = ActionForm(auto_id=None)
        plural = self.opts.verbose_name_plural
        form.fields["action"].choices = [
            ("", "---------"),
            *((action.name, f"{action.verb or action.label} selected {plural}") for action in allowed),
        ]
        return form

    # what the pages of one kind know
    def chosen(self, value: str) -> T:
        """The object that a checkbox stands for; what is none raises `ValueError`."""
        raise NotImplementedError

    def id_of(self, one: T) -> str:
        """Its id in the address of its page."""
        raise NotImplementedError

    def about(self, one: T) -> dict[str, Any]:
        """Where it is, for the audit trail."""
        return {}

    # how it goes
    def act(self, request: HttpRequest) -> HttpResponse:
        """Answer a POST of a list or of the page of one object."""
        action = next((one for one in self.deeds if one.name == request.POST.get("action")), None)
        if action is None:
            messages.warning(request, "No action selected.")
            return HttpResponseRedirect(request.get_full_path())
        if not self.may(request, action.permission):
            raise PermissionDenied
        values = request.POST.getlist(ACTION_CHECKBOX_NAME)[:MOST]
        try:
            objects = [self.chosen(value) for value in values]
        except ValueError:
            objects = []
        if not objects:
            plural = self.opts.verbose_name_plural
            messages.warning(request, f"{plural.capitalize()} must be selected before something can be done to them.")
            return HttpResponseRedirect(request.get_full_path())
        is_answered = request.POST.get("post") == "yes"
        form = action.form(request.POST if is_answered else None) if action.form else None
        if (action.question or form) and not (is_answered and (form is None or form.is_valid())):
            return self._ask(request, action, form, list(zip(values, objects, strict=True)))
        self._perform(request, action, objects, form.cleaned_data if form else {})
        return HttpResponseRedirect(self.back(request))

    def back(self, request: HttpRequest) -> str:
        """Where to go on: the list, or the page from which it was asked."""
        return request.get_full_path()

    def _ask(
        self, request: HttpRequest, action: Action[T], form: forms.Form | None, objects: Sequence[tuple[str, T]]
    ) -> HttpResponse:
        return self.answer(
            request,
            "confirm",
            title=action.label if action.form else "Are you sure?",
            crumb=action.label,
            action=action,
            form=form,
            objects=[(value, self.id_of(one), self._where(one)) for value, one in objects],
            checkbox=ACTION_CHECKBOX_NAME,
            back=self.back(request),
        )

    def _where(self, one: T) -> list[tuple[str, Any]]:
        return [(name, part) for name, part in self.about(one).items() if part != self.id_of(one)]

    def _perform(self, request: HttpRequest, action: Action[T], objects: list[T], given: dict[str, Any]) -> None:
        done: list[T] = []
        refused: list[str] = []
        details = {name: str(value) for name, value in given.items() if value not in (None, "")}
        with self.doing(request, action.deed, **details) as doing:
            try:
                for one in objects:
                    why = _tried(action, one, {**given, "by": request.user.get_username()})
                    if why:
                        refused.append(f"{self.id_of(one)}: {why}")
                        continue
                    done.append(one)
                    doing.tell(len(done), ids=[self.id_of(each) for each in done[:20]], **self.about(done[0]))
            finally:
                words = ", ".join(f"{name} {value}" for name, value in details.items())
                message = f"{action.done.capitalize()}{f': {words}' if words else ''}."
                self.log(request, [self.id_of(one) for one in done], message, is_gone=action.removes)
        self._say(request, action, len(done), refused)

    def _say(self, request: HttpRequest, action: Action[T], done: int, refused: list[str]) -> None:
        names = self.opts.verbose_name if done == 1 else self.opts.verbose_name_plural
        if done:
            messages.success(request, f"{done} {names} {action.done}.")
        for why in refused[:SHOWN]:
            messages.warning(request, f"Not {action.done}: {why}.")
        if len(refused) > SHOWN:
            messages.warning(request, f"{len(refused) - SHOWN} more were not {action.done}.")


def _tried(action: Action[T], one: T, given: dict[str, Any]) -> str:
    try:
        return action.perform(one, given)
    except StoreError:
        raise
    except RelevoError as error:
        return message_of(error)
