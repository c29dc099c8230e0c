"""What people may see of values and texts: secrets in them read `***`.

A job is read by more people than may know a customer's token: on a screen that is shared, in a log, in a ticket that a
dead letter is pasted into. Two things are hidden: values under a name that speaks of secrets (`masked`,
`masked_call`), and credentials inside texts, such as a message of an error (`masked_text`). Where it is unclear whether
something is secret, it is hidden. The time this takes grows with the length of a text, and no faster.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

HIDDEN = "***"
#: Levels of lists and objects that are looked through; what is below them is hidden as a whole.
DEEPEST = 60

#: Anywhere in a name, however it is written: db_password, clientSecret, X-Api-Key.
_TELLING = re.compile(
    "password|passwd|passphrase|passcode|secret|apikey|authori[sz]ation|credential|privatekey|accesskey|signingkey"
)
#: Only as words of their own: neither `tokenizer` nor `pinned` nor `opinion` is a secret. What Django, Rails and Sentry
#: hide, without what is no secret in most programs (`key`, `session`, `email`).
_WORDS = frozenset(
    {
        *("token", "pwd", "pgpass", "auth", "oauth", "bearer", "jwt", "cookie", "csrf", "xsrf", "signature"),
        *("cvv", "cvc", "pin", "otp", "totp", "ssn", "iban", "dsn"),
    }
)
#: The same, of two words or three, in one or parted: card_number, cardNumber, cardnumber; but not discard_number.
_COMPOUNDS = frozenset(
    {
        *("cardnumber", "cardno", "creditcard", "debitcard", "securitycode", "cardcode", "routingnumber"),
        *("socialsecurity", "passportnumber", "taxid", "bankaccount"),
        *("databaseurl", "databaseuri", "dburl", "dburi", "webhookurl", "webhookuri"),
        *("connectionstring", "connectionuri", "connectionurl", "connstring", "connstr"),
        *("sessionid", "sessionkey", "sessiontoken", "phpsessid", "jsessionid", "connectsid"),
        *("encryptionkey", "decryptionkey", "sshkey", "gpgkey", "pgpkey", "rsakey", "aeskey", "hmackey", "tlskey"),
        *("sslkey", "masterkey", "sharedkey", "deploykey", "hostkey", "storagekey", "accountkey", "servicekey"),
        *("onetimecode", "verificationcode", "recoverycode", "backupcode", "accesscode", "mfacode", "authcode"),
        *("dbpass", "userpass", "smtppass", "mailpass", "mysqlpass", "redispass", "ftppass", "sudopass", "rootpass"),
    }
)
#: Words of a compound.
_MOST_WORDS = 3
_SPLIT = re.compile(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
#: Characters: what is longer is a text, and no name.
_LONGEST_NAME = 200
#: The first of a pair, and what stands before a value on a command line.
_LABEL = re.compile(rf"[\w.-]{{1,{_LONGEST_NAME}}}")
_OPTION_NAME = re.compile(rf"--[\w.-]{{1,{_LONGEST_NAME}}}")


def plain(name: str) -> str:
    """A name as it is compared: `X-Api-Key`, `apiKey` and `api_key` are one."""
    return re.sub("[^a-z0-9]", "", name.lower())


def is_secret(name: str, marked: Iterable[str] = ()) -> bool:
    """Whether a value of this name is secret: by its name, or because it is `marked`.

    >>> is_secret("access_token"), is_secret("tokenizer"), is_secret("card", ["card"])
    (True, False, True)
    """
    if any(plain(name) == plain(mark) if plain(mark) else name == mark for mark in marked):
        return True
    return _known(name) if len(name) <= _LONGEST_NAME else _speaks_of_secrets(name)


def _speaks_of_secrets(name: str) -> bool:
    squeezed = plain(name)
    if squeezed == "pass" or squeezed.endswith("token") or _TELLING.search(squeezed):
        return True
    words = [word.lower().rstrip("0123456789") for word in _SPLIT.split(name)]
    words = [word for word in words if word]
    if any(_is_among(_WORDS, word) for word in words):
        return True
    return any(
        _is_among(_COMPOUNDS, "".join(words[first:last]))
        for first in range(len(words))
        for last in range(first + 1, min(first + _MOST_WORDS, len(words)) + 1)
    )


_known = lru_cache(4096)(_speaks_of_secrets)


def _is_among(known: frozenset[str], word: str) -> bool:
    """Whether it is known, or several of it are; but for `tokens`, of which there may be a number."""
    return word in known or (word != "tokens" and word.removesuffix("s") in known)


def masked(value: Any, marked: Iterable[str] = ()) -> Any:
    """A plain JSON value with what is secret in it hidden, however deep it stands.

    >>> masked({"user": "ana", "login": {"password": "1234"}, "at": "https://ana:1234@example.com"})
    {'user': 'ana', 'login': {'password': '***'}, 'at': 'https://ana:***@example.com'}
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
        case str():
            return masked_text(value, marked)
        case Mapping() | list() | tuple() if deeper == 0:
            return HIDDEN
        case Mapping():
            return {name: _named(str(name), one, marked, deeper - 1) for name, one in value.items()}
        case list() | tuple():
            return [_named(name, one, marked, deeper - 1) for name, one in zip(_names_in(value), value, strict=True)]
        case _:
            return value


def _names_in(values: Sequence[Any]) -> list[str]:
    """What names the values of a list: of a pair the first one, of a command line the option before; '': nothing."""
    needed = _LABEL if len(values) == 2 else _OPTION_NAME
    before = ["", *values[:-1]] if values else []
    return [one if isinstance(one, str) and needed.fullmatch(one) else "" for one in before]


def _named(name: str, value: Any, marked: tuple[str, ...], deeper: int) -> Any:
    if is_secret(name, marked):
        return HIDDEN
    if plain(name).endswith("tokens") and not isinstance(value, int | float):
        return HIDDEN
    return _masked(value, marked, deeper)


# Texts. Each expression takes what it has begun to read, or fails after a bounded number of steps, so the time it takes
# grows with the length of a text, whatever stands in it. (`++` and `*+` never give back what they took.)

_PRIVATE_KEY = re.compile(r"(-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----).*?(?:(?=-----END )|\Z)", re.DOTALL)
_AFTER_SCHEME = re.compile(r"(?<=://)[^\s\"'<>\\`]++")
_AUTHORIZED = re.compile(r"\b(bearer|basic)([ \t]{1,8})([A-Za-z0-9._~+/-]++=*+)", re.IGNORECASE)
#: password=  "password":  X-Api-Key:  and what else stands between a name and its value
_ASSIGNED = re.compile(
    r"""(?<![\w.-])(?P<name>[\w.-]++)
        (?: \\*+["'] [ \t]{0,8}+ (?: => | =(?!=) | :(?![:/]) )
          | [ \t]{0,8}+ (?: => | := | =(?!=) | :(?=[ \t]) ) )
        [ \t]{0,8}+""",
    re.VERBOSE,
)
#: ("password",
_PAIRED = re.compile(r"""[\[(]\s{0,8}+b?(\\*+["'])(?P<name>[\w.-]++)\1\s{0,8}+,\s{0,8}+(?=b?\\*+["'])""")
#: --password
_OPTION = re.compile(r"(?<![\w.-])(?P<name>--[\w.-]++)[ \t]{1,8}+(?=[^\s=:-])")

_QUOTED = re.compile(r"""[bBfFrRuU]{0,2}(\\*+)(["'])""")
_QUOTE = re.compile(r"""(?<!\\)(\\*+)(["'\n])""")
_BRACKET = re.compile(r"""([\[({])|[\])}]|(?<!\\)(\\*+)(["'])""")
#: Up to white space, a quote, or what parts it from what comes next. The digits of a card may stand in groups.
_BARE = re.compile(
    r"""(?: [^\s&"'`<>\\,;)\]}]++
          | (?<=\d{4})[ ](?=\d{4}(?![\w:/.-]))
          | \\(?![nrt"'])
          | [,;](?! [\s"'\[({] | [\w.-]{1,50}= | \Z )
          | [)\]}](?! [\s"'`\[({)\]},;:.] | \Z ) )*+""",
    re.VERBOSE,
)
#: Of these headers the value is several words.
_HEADER = re.compile(r"(?:authori[sz]ation|cookie)$")
_LINE = re.compile(r"[^\n\"'\\]*+")
#: No secret: what is not there yet, or hidden already, and types in a signature.
_NOTHING = frozenset({"", HIDDEN, "none", "null", "nil", "true", "false", "str", "bytes", "int", "bool"})


def masked_text(text: str, marked: Iterable[str] = ()) -> str:
    """A text with the credentials in it hidden: of URLs, headers, assignments, JSON, pairs and private keys.

    >>> masked_text("https://ana:1234@example.com answered 401 to Bearer eyJhbGciOi, API_KEY=abc")
    'https://ana:***@example.com answered 401 to Bearer ***, API_KEY=***'
    """
    marks = tuple(marked)
    if "PRIVATE KEY" in text:
        text = _PRIVATE_KEY.sub(rf"\1{HIDDEN}", text)
    for sign, named in (("", _ASSIGNED), (",", _PAIRED), ("--", _OPTION)):
        if sign in text:  # much faster than to search for the rest of it
            text = _without_values(named, text, marks)
    if "://" in text:
        text = _AFTER_SCHEME.sub(_without_userinfo, text)
    small = text.lower()
    return _AUTHORIZED.sub(_without_token, text) if "bearer" in small or "basic" in small else text


def is_masked(text: str) -> bool:
    """Whether something is hidden in a text, as `masked` and `masked_text` do it."""
    if HIDDEN not in text or text == HIDDEN:
        return text == HIDDEN
    other = text.replace(HIDDEN, "czNjcmV0OnMz")  # hidden wherever a secret may stand, also as user:password in base64
    return masked_text(other) != other


def masked_url(url: str) -> str:
    """A URL of a server, which may be half-typed, with every secret in it hidden.

    >>> masked_url("redis://shop:s3cret@db:6379/0?ssl_password=x")
    'redis://shop:***@db:6379/0?ssl_password=***'
    """
    query = re.compile(r"([?&][^=&]*(?:pass|pwd|secret|token|auth)[^=&]*=)[^&]*", re.IGNORECASE)
    shown = query.sub(r"\1***", url)
    if "@" in url and "@" not in shown:  # was it before the host or in the query? Then show neither.
        return re.sub(r"^([a-z][a-z0-9+.-]*://)?.*", r"\1***", url, count=1, flags=re.IGNORECASE | re.DOTALL)
    # Up to the last @, since passwords hold unescaped ones. A lone part before @ may be a password too.
    return re.sub(r"^([^:/@]*://)?([^:@/]*:)?.*@", r"\1\2***@", shown, count=1, flags=re.DOTALL)


def _without_values(named: re.Pattern[str], text: str, marked: tuple[str, ...]) -> str:
    """The text without the values that stand behind secret names."""
    shown: list[str] = []
    at = done = 0
    while (found := named.search(text, at)) is not None:
        at, name = found.end(), found["name"][-_LONGEST_NAME:]
        if text.endswith("\\", 0, found.start("name")) and name[0] in "nrt" and is_secret(name[1:], marked):
            name = name[1:]  # behind an end of line that is written out
        if not (is_secret(name, marked) or plain(name).endswith("tokens")):
            continue
        first, last = _value(text, at, name)
        value = text[first:last]
        if value.lower() in _NOTHING or (value.isdecimal() and not is_secret(name, marked)):
            continue
        shown += text[done:first], HIDDEN
        at = done = last
    return "".join((*shown, text[done:])) if shown else text


def _value(text: str, at: int, name: str) -> tuple[int, int]:
    """Where the value that begins here begins and ends, without its quotes."""
    if quoted := _QUOTED.match(text, at):
        return quoted.end(), _closing_quote(text, quoted.end(), quoted[1], quoted[2])[0]
    if text.startswith(("(", "[", "{"), at):
        return at, _end_of_brackets(text, at)
    found = (_LINE if _HEADER.search(plain(name)) else _BARE).match(text, at)
    return at, found.end() if found else at


def _closing_quote(text: str, at: int, escapes: str, mark: str) -> tuple[int, int]:
    """Where it begins and ends; in JSON inside of JSON it is escaped. A quote that is not closed ends with its line."""
    for quote in _QUOTE.finditer(text, at):
        if quote[2] == "\n":
            return quote.start(), quote.start()
        if quote[2] == mark and (len(quote[1]) <= len(escapes) if escapes else len(quote[1]) % 2 == 0):
            return quote.start(), quote.end()
    return len(text), len(text)


def _end_of_brackets(text: str, at: int) -> int:
    """Behind the bracket that closes; where none does, the text was cut off."""
    depth = 0
    while (found := _BRACKET.search(text, at)) is not None:
        at = found.end()
        if found[3]:
            at = _closing_quote(text, at, found[2], found[3])[1]
            continue
        depth += 1 if found[1] else -1
        if depth == 0:
            return at
    return len(text)


def _without_userinfo(found: re.Match[str]) -> str:
    return "://".join(map(_without_password, found[0].split("://")))  # of several URLs without a gap between them


def _without_password(rest: str) -> str:
    """What comes after `scheme://`, without a password, or a lone part before `@`, which may be a token."""
    end = min((place for place in map(rest.find, "/?#") if place >= 0), default=len(rest))
    host = rest[:end]
    if "@" not in host:
        # A password that holds `/` and is not escaped: what stands behind `:` is no port.
        port = host.rpartition(":")[2]
        if "@" not in rest or ":" not in host or host.endswith("]") or port.isdecimal():
            return rest
        end = len(rest)
    given, _, server = rest[:end].rpartition("@")
    user, colon, _ = given.partition(":")
    return f"{user + colon if colon else ''}{HIDDEN}@{server}{rest[end:]}"


def _without_token(found: re.Match[str]) -> str:
    scheme, gap, given = found.groups()
    if given.isalpha() and (given.islower() or given.isupper() or given.istitle()):  # "the bearer of this letter"
        return found[0]
    if scheme.lower() == "basic" and not _is_basic(given):  # "basic e2e tests"
        return found[0]
    return f"{scheme}{gap}{HIDDEN}"


def _is_basic(given: str) -> bool:
    try:
        return b":" in base64.b64decode(given, validate=True)
    except (binascii.Error, ValueError):
        return False
