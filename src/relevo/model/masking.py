"""What of a job's arguments is shown to people: values under names that speak of secrets are not.

A job is read by more people than may know a customer's token: on a screen that is shared, in a ticket that a dead
letter is pasted into. So what is shown over HTTP and on the command line passes through here. Where it is unclear
whether something is secret, it is hidden.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HIDDEN = "***"
#: Levels of lists and objects that are looked through; what is below them is hidden as a whole.
DEEPEST = 60

#: Anywhere in a name, however it is written: db_password, clientSecret, X-Api-Key.
_TELLING = re.compile(
    "password|passwd|passphrase|passcode|secret|apikey|authori[sz]ation|credential|privatekey|accesskey|signingkey"
)
#: Only as words of their own: a tokenizer is no secret.
_WORDS = frozenset({"token", "pwd", "auth", "bearer", "jwt", "cookie"})
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def plain(name: str) -> str:
    """A name as it is compared: `X-Api-Key`, `apiKey` and `api_key` are one."""
    return re.sub("[^a-z0-9]", "", name.lower())


def is_secret(name: str, marked: Iterable[str] = ()) -> bool:
    """Whether a value of this name is not for everybody: by what it is called, or because somebody marked it.

    >>> is_secret("access_token"), is_secret("tokenizer"), is_secret("card", ["card"])
    (True, False, True)
    """
    squeezed = plain(name)
    if _TELLING.search(squeezed) or squeezed.endswith("token"):
        return True
    if any(word.lower() in _WORDS for word in _SPLIT.split(name)):
        return True
    return any(squeezed == plain(mark) if plain(mark) else name == mark for mark in marked)


def masked(value: Any, marked: Iterable[str] = ()) -> Any:
    """A plain JSON value with what is secret in it hidden, however deep it stands.

    >>> masked({"user": "ana", "login": {"password": "1234"}})
    {'user': 'ana', 'login': {'password': '***'}}
    """
    return _masked(value, tuple(marked), DEEPEST)


def masked_call(
    args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None, names: Sequence[str], marked: Iterable[str] = ()
) -> tuple[list[Any] | None, dict[str, Any] | None]:
    """The arguments of a job with what is secret in them hidden. `names` are those of its positional parameters.

    The last name stands for all arguments that come after it, as that of `*tokens` does.

    >>> masked_call(["ana", "hunter2"], {"tries": 3}, ["user", "password"])
    (['ana', '***'], {'tries': 3})
    """
    marks = tuple(marked)
    shown = None
    if args is not None:
        by_place = [*names, *[names[-1] if names else ""] * (len(args) - len(names))]
        shown = [_named(name, value, marks, DEEPEST) for name, value in zip(by_place, args, strict=False)]
    return shown, None if kwargs is None else _masked(kwargs, marks, DEEPEST)


def _masked(value: Any, marked: tuple[str, ...], deeper: int) -> Any:
    match value:
        case Mapping() | list() | tuple() if deeper == 0:
            return HIDDEN
        case Mapping():
            return {name: _named(str(name), one, marked, deeper - 1) for name, one in value.items()}
        case list() | tuple():
            return [_masked(one, marked, deeper - 1) for one in value]
        case _:
            return value


def _named(name: str, value: Any, marked: tuple[str, ...], deeper: int) -> Any:
    if is_secret(name, marked):
        return HIDDEN
    if plain(name).endswith("tokens") and not isinstance(value, int | float):  # a number of tokens is no secret
        return HIDDEN
    return _masked(value, marked, deeper)
