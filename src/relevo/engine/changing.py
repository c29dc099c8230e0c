"""Change a job that has not started: its arguments, its priority, when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from relevo.engine import job_store as jobs
from relevo.engine.ids import made_ms
from relevo.engine.job import PRIORITY_DEFAULT, Envelope, State, write
from relevo.engine.options import Options, changed
from relevo.engine.push import NewJob
from relevo.errors import CannotChange, OptionError, TargetError, UnknownJob
from relevo.store.keys import QueueKeys
from relevo.store.plan import Argument, Call, Steps

if TYPE_CHECKING:
    from relevo.engine.engine import Engine

#: Where several processes change one job at the same moment.
TRIES = 5
_Fields = dict[str, msgspec.Raw]


def change(queue: QueueKeys, job: NewJob, *, before: bytes = b"", fresh: bool) -> Call[str]:
    """Change a job that has not started (`fresh`: that has never run): 'changed', or why not."""
    script = queue.script("engine/change_job")
    args: list[Argument] = [job.id, before, int(fresh), job.body, job.priority, job.when, job.tenant, job.weight]
    return Call(args, lambda reply: str(reply.decode()), script, queue.of(script))


def changing(
    engine: Engine,
    queue: str,
    id: str,
    args: Sequence[Any] | None,
    kwargs: Mapping[str, Any] | None,
    new: dict[str, Any],
) -> Steps[None]:
    """`job.change(…)`: `new` are options, as they were given."""
    if args is None and kwargs is None and not new:
        raise OptionError("change: give priority=, delay=, args= or kwargs=")
    keys, options = engine.keys_of(queue), changed(Options(), new)
    for _ in range(TRIES):
        seen: jobs.Seen = yield jobs.look(keys, id)
        _refuse(id, queue, seen.state)
        envelope = seen.envelope
        if envelope is None:
            raise CannotChange(f"job {id} cannot be changed: its body is unreadable", code="unreadable")
        fields = msgspec.json.decode(seen.body, type=_Fields)
        if args is not None or kwargs is not None:
            fields |= _arguments(engine, queue, envelope, args or (), kwargs or {})
        when = "="
        if "delay" in new:
            delay_ms = round((options.delay or 0.0) * 1000)
            when = f"+{delay_ms + 1}" if delay_ms else ""
            fields["d"] = msgspec.Raw(write((yield from engine.now_ms()) + delay_ms - made_ms(id)))
        priority = options.priority if "priority" in new else envelope.priority
        body = _body(fields, priority)
        if keys.signer is not None:
            body = keys.signer.signed("job", id, body)
        job = NewJob(id, priority, body, when, envelope.tenant, envelope.weight)
        code: str = yield change(keys, job, before=seen.body, fresh=args is not None or kwargs is not None)
        if code == "changed":
            return
        if code != "other":
            _refuse(id, queue, {"started": State.RUNNING, "ended": State.DONE}.get(code, State.UNKNOWN))
    raise CannotChange(f"job {id} was not changed: others change it at the same time; try again", code="other")


def _refuse(id: str, queue: str, state: State) -> None:
    if state is State.UNKNOWN:
        raise UnknownJob(f"no job {id} on {queue}: it never was, or its record has ended")
    if state is State.RUNNING:
        raise CannotChange(f"job {id} has started: only a job that has not can be changed", code="started")
    if state.has_ended:
        raise CannotChange(f"job {id} has ended: enqueue a new one", code="ended")


def _arguments(
    engine: Engine, queue: str, envelope: Envelope, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> _Fields:
    """The fields of new arguments, checked by the signature of the task."""
    if envelope.takes or envelope.headers is not None:
        raise OptionError(
            "change: the arguments of this job come from other jobs or from a message; give priority= or delay="
        )
    task = engine.task_for(queue, envelope.target)
    if task is None:
        raise TargetError(f"{engine.unknown_task(envelope.target)}; its arguments cannot be checked here")
    fragment = task.signature.encode(tuple(args), dict(kwargs), limit=engine.settings.max_payload)
    return {"a": msgspec.Raw(b"[]"), "k": msgspec.Raw(b"{}"), **msgspec.json.decode(b"{%b}" % fragment, type=_Fields)}


def _body(fields: _Fields, priority: int) -> bytes:
    """The body as clients write it: what scripts read comes first, arguments come last."""
    head = {"t": fields["t"]} | ({"p": msgspec.Raw(write(priority))} if priority != PRIORITY_DEFAULT else {})
    rest = {name: raw for name, raw in fields.items() if name not in ("t", "p", "a", "k", "s")}
    last = {name: fields[name] for name in ("a", "k") if name in fields and bytes(fields[name]) not in (b"[]", b"{}")}
    return write(head | rest | last)
