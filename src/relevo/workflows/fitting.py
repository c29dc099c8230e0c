"""Checks whether a result can ever fit the argument that it is passed to.

Only certain errors are refused: both sides are annotated with plain types of Python, and no JSON of the one is JSON of
the other. Everything else is checked by the worker, which decodes the result by the parameter's annotation.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, get_args, get_origin

from relevo.errors import PayloadError
from relevo.workflows.steps import Step

#: Text may be bytes in base64, and a float may be a whole number. A bool is not decoded as a number.
_FORMS: dict[type, str] = {
    type(None): "null",
    bool: "bool",
    int: "number",
    float: "number",
    str: "text",
    bytes: "text",
    bytearray: "text",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    dict: "object",
}


def refuse_misfit(step: Step[Any, Any], givers: Iterable[Step[Any, Any] | None], *, is_list: bool) -> None:
    """Refuse a step that can never use these results; None stands for a list of unknown items."""
    first = step.task.signature.first
    assert first is not None, "the caller has encoded the other arguments"
    results = {one.task.signature: one.task.signature.result for one in givers if one is not None}
    types = [result.type for result in results.values()] or [list]
    if never_fits_list(types, first.type) if is_list else never_fits(types[0], first.type):
        named = " and ".join(f"{giver.name}() -> {result.annotation}" for giver, result in results.items())
        found = f"the list of results of {named or 'groups'}" if is_list else named or "a list of results"
        raise PayloadError(
            f"{step.task.signature.name}(): argument {first.name!r} is annotated `{first.annotation}`, and never fits "
            f"what comes before: {found}. Use .si(…) for a call that takes nothing from there"
        )


def never_fits(given: Any, wanted: Any) -> bool:
    """Whether no value of the type `given` can be read as the type `wanted`."""
    one, other = _form(given), _form(wanted)
    return "" not in (one, other) and one != other


def never_fits_list(given: Iterable[Any], wanted: Any) -> bool:
    """The same for a list of values of these types."""
    if never_fits(list, wanted):
        return True
    if get_origin(wanted) in (list, set, frozenset):
        (item,) = get_args(wanted)
        return any(never_fits(one, item) for one in given)
    return False


def _form(hint: Any) -> str:
    plain = get_origin(hint) or hint
    return _FORMS.get(plain, "") if isinstance(plain, type) else ""
