"""Replays of dead letters: started and led by this process in a thread, watched, stopped and resumed by any.

If the process dies, the replay stays as it is, and its page offers to resume it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect

from relevo.audit.trail import Doing
from relevo.dead.replay import Replay
from relevo.dead.wanted import Filters
from relevo.django.admin.page import RelevoAdmin, asking
from relevo.django.site_app import app
from relevo.errors import message_of

log = logging.getLogger("relevo.django")

Lead = Callable[[Callable[[Replay], None]], Replay]
#: How many are listed.
NEWEST = 50


class ReplayPages(RelevoAdmin):
    """The pages of replays."""

    def replay_urls(self) -> list[Any]:
        """The list and one of them."""
        return [
            self.url("replays/", self.replays_view, "replays"),
            self.url("replays/<str:object_id>/", self.replay_view, "replay"),
        ]

    def start_replay(self, request: HttpRequest, wanted: Filters, given: dict[str, Any]) -> str:
        """Start one: its id."""
        who = request.user.get_username()
        doing = self.doing(request, "dead.replay", **wanted)

        def lead(watch: Callable[[Replay], None]) -> Replay:
            rate, patience = given["rate"] or None, given["patience"]
            return app.dead.replay(
                all=True, rate=rate, canary=given["canary"], patience=patience, who=who, watch=watch, **wanted
            )

        return _led(lead, doing, 0).id

    @asking
    def replays_view(self, request: HttpRequest) -> HttpResponse:
        """Replays of the last week."""
        self.demand_view(request)
        now_ms: int = app.engine.run(app.engine.now_ms())
        rows = [(run, self.reverse("replay", run.id), standing_of(run, now_ms)) for run in app.dead.runs(limit=NEWEST)]
        return self.answer(request, "replays", title="Replays", runs=rows)

    @asking
    def replay_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """How one goes; stop and resume."""
        self.demand_view(request)
        if request.method == "POST":
            self._act(request, object_id)
            return HttpResponseRedirect(request.get_full_path())
        run = app.dead.run(object_id)
        now_ms: int = app.engine.run(app.engine.now_ms())
        return self.answer(
            request,
            "replay",
            title="Replay",
            subtitle=run.id,
            run=run,
            standing=standing_of(run, now_ms),
            may_retry=self.may(request, "retry"),
            list_url=self.reverse("replays"),
        )

    def _act(self, request: HttpRequest, id: str) -> None:
        self.demand(request, "retry")
        match request.POST.get("action"):
            case "stop":
                if app.dead.stop(id):
                    with self.doing(request, "dead.replay_stop", id=id) as doing:
                        doing.tell(1)
                    messages.success(request, "It stops after its next step.")
                else:
                    messages.warning(request, "No process leads it: there is nothing to stop.")
            case "resume":
                before, who = app.dead.run(id), request.user.get_username()
                doing = self.doing(request, "dead.replay_resume", id=id)
                _led(lambda watch: app.dead.resume(id, who=who, watch=watch), doing, before.retried)
                messages.success(request, "It goes on.")
            case _:
                raise PermissionDenied


def standing_of(run: Replay, now_ms: int) -> str:
    """Its state in one word."""
    return "interrupted" if run.is_silent(now_ms) else run.state


def _led(lead: Lead, doing: Doing, retried: int) -> Replay:
    """Lead a replay in a thread, of which `retried` dead letters were retried before; its state after the first step.

    The audit entry is written when this process stops leading it: only then is its count known.
    """
    first: Future[Replay] = Future()

    def seen(run: Replay) -> None:
        doing.tell(run.retried - retried, id=run.id)
        if not first.done():
            first.set_result(run)

    def led() -> None:
        try:
            with doing:
                run = lead(seen)
        except BaseException as error:  # noqa: BLE001  # the request reports it, or else the log
            if first.done():
                log.warning("replay %s: %s", first.result().id, message_of(error))
            else:
                first.set_exception(error)
        else:
            if not first.done():
                first.set_result(run)

    threading.Thread(target=led, name="relevo-replay", daemon=True).start()
    return first.result()
