"""The text of a cron expression: its fields, their meaning in words, and error messages."""

from __future__ import annotations

import re
from calendar import month_name
from datetime import datetime

from cronsim import CronSim, CronSimError

from relevo.errors import OptionError
from relevo.text.nearest import did_you_mean

ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

#: Characters. A list of all sixty minutes has 169.
LONGEST = 300

_NAMES = ("second", "minute", "hour", "day of the month", "month", "day of the week")
_LOWEST = (0, 0, 0, 1, 1, 1)
_HIGHEST = (59, 59, 23, 31, 12, 7)
_ALLOWED = (
    "0-59",
    "0-59",
    "0-23",
    "1-31, L (the last day) or LW (the last weekday)",
    "1-12 or JAN-DEC",
    "0-7 or SUN-SAT (0 and 7 are Sunday), 5L (the last Friday) or FRI#2 (the second Friday)",
)
_RANGE = re.compile("([0-9]+|[A-Z]{3})-([0-9]+|[A-Z]{3})")
#: Start of the search for a first match. Fixed, so that the check does not depend on the current day.
_ANY_DAY = datetime(2000, 1, 1)


def fields_of(expression: str) -> str:
    """The five or six fields of a checked expression or of an alias such as `@daily`."""
    return ALIASES.get(expression, expression)


def read(expression: object) -> str:
    """The expression as stored, with single spaces; refuses one that can never fire with `OptionError`.

    Refusals are fast, too: the search for a first match ends after 50 years, some 20 ms. The rarest dates, such as a
    Monday on 29 February, are 40 years apart.
    """
    if not isinstance(expression, str) or not expression.strip() or len(expression) > LONGEST:
        raise OptionError(
            f"cron: text of 1 to {LONGEST} characters is needed, such as '30 2 * * *', found {expression!r:.80}"
        )
    text = " ".join(expression.split())
    if text.startswith("@"):
        text = text.lower()
        if text == "@reboot":
            raise OptionError("cron: '@reboot' is no time that workers could agree on; enqueue the job at the start")
        if text not in ALIASES:
            raise OptionError(f"cron: unknown word {text!r:.80}{did_you_mean(text, ALIASES)}")
    _refuse(text, fields_of(text).upper().split())
    return text


def words(expression: str) -> str:
    """The meaning of a checked expression in words: `at 02:30 every day`."""
    parts = fields_of(expression).split()
    if len(parts) == 5:
        parts = ["0", *parts]
    for index, (unit, size) in enumerate((("seconds", 60), ("minutes", 60), ("hours", 24))):
        if not (step := re.fullmatch(r"\*/0*([1-9][0-9]*)", parts[index])):
            continue
        if (distance := int(step[1])) == size:
            parts[index] = "0"
        # The step restarts with each minute, hour or day: only a divisor of that gives even intervals.
        alone = parts[:index] == ["0"] * index and parts[index + 1 :] == ["*"] * (5 - index)
        if alone and 1 < distance < size and size % distance == 0:
            return f"every {distance} {unit}"
    text = CronSim(" ".join(parts), _ANY_DAY).explain()
    return re.sub(r"\b[0-9]*[123]th\b", lambda ordinal: _ordinal(ordinal[0]), text[0].lower() + text[1:])


def _ordinal(text: str) -> str:
    """Correct the library's `21th` to `21st`."""
    number = int(text[:-2])
    if number % 100 in (11, 12, 13):
        return text
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}[number % 10] }"


def _refuse(text: str, parts: list[str]) -> None:
    if len(parts) not in (5, 6):
        hint = " For a fixed distance use every=." if len(parts) < 3 else ""
        raise OptionError(
            "cron: 5 fields are needed (minute, hour, day of the month, month, day of the week), or 6 with the second "
            f"in front, found {len(parts)} in {text!r:.80}.{hint}"
        )
    start = 6 - len(parts)
    for index, part in enumerate(parts, start):
        for term in part.split(","):
            if why := _fault(index, term):
                raise OptionError(
                    f"cron: the {_NAMES[index]} of {text!r:.80} is wrong at {term!r:.40}: {why}. Allowed are "
                    f"{_ALLOWED[index]}, and *, lists (1,5), ranges (1-5) and steps (*/5)."
                )
    try:
        possible = next(CronSim(" ".join(parts), _ANY_DAY), None) is not None
    except CronSimError:  # each field is right by itself, but no chosen month is that long
        possible = False
    if not possible:
        raise OptionError(f"cron: {text!r:.80} never comes: {_never(*parts[-3:])}")


def _fault(index: int, term: str) -> str:
    """The fault in one term of a field; empty if there is none."""
    lowest, highest = _LOWEST[index], _HIGHEST[index]
    if "?" in term:
        return "there is no '?', write * for any"
    base, slash, step = term.partition("/")
    ends = _RANGE.fullmatch(base)
    if slash and step.isdecimal() and step.isascii():
        # The library reads these in unexpected ways: */90 as every hour, L/2 as L, 5-5/10 as 5-59/10.
        if base in ("L", "LW"):
            return "a last day has no steps"
        if ends and ends[1] == ends[2]:
            return f"a range of one has no steps, write {ends[1]} or {ends[1]}-{highest}/{step[:20]}"
        if len(step.lstrip("0")) > 2 or int(step) > highest - lowest + 1:
            return f"a step of {step[:20]} is longer than all of {lowest}-{highest}; for a fixed distance use every="
        if int(step) == 0:
            return "a step is 1 or more"
    if _is_term(index, term):
        return ""
    if ends and not _is_term(index, base) and all(_is_term(index, end) for end in ends.groups()):
        begin, end = ends.groups()
        around = f"{begin}-{highest}" if end in ("SUN", "0") else f"{begin}-{highest},{lowest}-{end}"
        return f"the range runs backwards, write {around}"
    return "it is out of range" if term.isdecimal() else "it is not understood"


def _is_term(index: int, term: str) -> bool:
    if len(term) > 20 or "," in term or len(term.split()) != 1:
        return False
    parts = ["*"] * 6
    parts[index] = term
    try:
        CronSim(" ".join(parts), _ANY_DAY)
    except CronSimError:
        return False
    return True


def _never(day: str, month: str, weekday: str) -> str:
    if weekday.startswith("*") and day[0].isdigit():
        months = sorted(CronSim(f"0 0 * {month} *", _ANY_DAY).months)
        if len(months) < 12:
            return f"there is no day {day} in {' or '.join(month_name[number] for number in months)}"
    return f"no day is both {day!r} as a day of the month and {weekday!r} as a day of the week in the month {month!r}"
