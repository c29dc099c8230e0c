"""Context variables that arrive where the job runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextvars import ContextVar

from relevo.errors import OptionError
from relevo.middleware.middleware import Call, Middleware


class ContextVars(Middleware):
    """Jobs see these context variables as the code that enqueued them did; their values must be texts.

    >>> app.middleware(ContextVars(request_id, locale))                   # doctest: +SKIP

    They travel as headers under their names. One that has no value there has none in the job either, or its default.
    """

    def __init__(self, *variables: ContextVar[str]) -> None:
        if not variables:
            raise OptionError("ContextVars needs the variables: ContextVars(request_id, locale)")
        for one in variables:
            if not isinstance(one, ContextVar):
                raise OptionError(f"ContextVars needs context variables, found {one!r:.80}")
        self._variables = variables

    def enqueue(self, call: Call) -> Iterator[None]:
        """Take their values."""
        for variable in self._variables:
            try:
                call.headers[variable.name] = variable.get()
            except LookupError:
                call.headers.pop(variable.name, None)
        yield

    def attempt(self, call: Call) -> Iterator[None]:
        """Give them these values."""
        tokens = [
            (variable, variable.set(call.headers[variable.name]))
            for variable in self._variables
            if variable.name in call.headers
        ]
        try:
            yield
        finally:
            for variable, token in reversed(tokens):
                variable.reset(token)
