"""Options of tasks and jobs: what each takes, and a refusal of anything else that names the option."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from relevo import Relevo
from relevo.engine.backoff import Backoff
from relevo.engine.options import ALIASES, ONE_JOB_ONLY, TASK_ONLY, Options, Parent, Priority, changed
from relevo.errors import OptionError, TargetError

NAN, INF = float("nan"), float("inf")


class Named:
    """Something with a target, as a task is."""

    target = "shop.broken"


class Dependable:
    """Something to wait for, as a job is."""

    def __init__(self, id: Any = "a", queue: Any = "q") -> None:
        self.id, self.queue, self._engine = id, queue, self
        self.name = "shop"


class Enqueued:
    """Something that holds a job, as what `Enqueue` of relevo.compat returns."""

    job = Dependable()


def one(option: str, value: Any) -> Options:
    return changed(Options(), {option: value})


@pytest.mark.parametrize(
    ("option", "value", "becomes"),
    [
        ("queue", "mails", "mails"),
        ("priority", 0, 0),
        ("priority", 1023, 1023),
        ("priority", Priority.HIGH, 50),
        ("retries", 0, 0),
        ("retries", 10_000, 10_000),
        ("backoff", "5s", Backoff.fixed(5)),
        ("backoff", [1, "1m"], Backoff("list", jitter=0.0, steps=(1.0, 60.0))),
        ("retry_on", OSError, (OSError,)),
        ("retry_on", [OSError, KeyError], (OSError, KeyError)),
        ("give_up_on", (ValueError,), (ValueError,)),
        ("give_up_on", (), ()),
        ("timeout", "1h30m", 5400.0),
        ("timeout", None, None),
        ("soft_timeout", "25s", 25.0),
        ("result_ttl", 0, 0.0),
        ("failure_ttl", timedelta(days=7), 604_800.0),
        ("expires", "10s", 10.0),
        ("max_crashes", 1, 1),
        ("on_failure", "shop.broken", "shop.broken"),
        ("on_failure", Named(), "shop.broken"),
        ("on_failure", None, None),
        ("executor", "process", "process"),
        ("secret", ["card"], ("card",)),
        ("tags", ["a", "b"], ("a", "b")),
        ("tenant", "tenant 7", "tenant 7"),
        ("weight", 0.01, 0.01),
        ("weight", 64, 64),
        ("delay", "5m", 300.0),
        ("delay", 0, 0.0),
        ("name", "charge-7", "charge-7"),
        ("unique", True, "until_done"),
        ("unique", False, "no"),
        ("unique", None, ""),
        ("unique", "queued", "queued"),
        ("unique", "10m", 600.0),
        ("unique", 0.001, 0.001),
        ("on_conflict", "replace", "replace"),
        ("depends_on", None, ()),
        ("depends_on", Dependable(), (Parent("a", "q", "shop"),)),
        ("depends_on", (Dependable(), "wait"), (Parent("a", "q", "shop", "wait"),)),
        ("depends_on", (Dependable(), Dependable("b")), (Parent("a", "q", "shop"), Parent("b", "q", "shop"))),
        (
            "depends_on",
            [Dependable(), (Dependable("b", "r"), "run")],
            (Parent("a", "q", "shop"), Parent("b", "r", "shop", "run")),
        ),
        ("depends_on", [Dependable(), (Dependable(), "run")], (Parent("a", "q", "shop", "run"),)),
        ("depends_on", Enqueued(), (Parent("a", "q", "shop"),)),
    ],
)
def test_an_option_is_read(option: str, value: Any, becomes: Any) -> None:
    assert getattr(one(option, value), option) == becomes


def test_a_time_is_read_with_its_zone() -> None:
    assert one("eta", datetime(2030, 1, 1, tzinfo=UTC)).eta_ms == 1_893_456_000_000


WRONG: dict[str, list[Any]] = {
    "queue": ["", 7, None, "a\nb", "x" * 201, b"mails"],
    "priority": [-1, 1024, 1.0, "high", None, True, NAN],
    "retries": [-1, 10_001, 2.5, "3", None, True],
    "backoff": [[], "soon", "5", -1, None, True, b"1s", [None]],
    "retry_on": [None, "OSError", [OSError()], 1, int],
    "give_up_on": [None, "OSError", [OSError, "x"], object],
    "timeout": [0, -1, "30", "", True, NAN, INF, [], "0s"],
    "soft_timeout": [0, -1, "30", "", True, NAN, INF, [], "0s"],
    "result_ttl": [-1, None, "300", "soon", True, NAN],
    "failure_ttl": [-1, None, "7", "a week", 10**12, False],
    "expires": [-1, "10", "later", True, INF],
    "max_crashes": [0, 1001, 1.5, "3", None, True],
    "breaker": ["", "often", "0 in 1m", "5 in 60", "5 in 0s", 5, True, "101 in 1m"],
    "on_failure": ["", 7, [], len, "a\nb"],
    "executor": ["", "threads", None, 1, True],
    "secret": ["a", None, 7, [1], [""]],
    "tags": ["a", None, 7, [1], [""], ["a\n"], {"a": 1}],
    "tenant": [None, 7, "a\tb", "x" * 201],
    "weight": [0, -1, 65, "2", None, True, NAN, INF],
    "delay": [-1, "5", "soon", True, NAN, INF, datetime(2030, 1, 1, tzinfo=UTC)],
    "eta": [datetime(2030, 1, 1), datetime(2201, 1, 1, tzinfo=UTC), "2030-01-01", 0, None, date(2030, 1, 1)],
    "name": [None, 7, "a\nb", "x" * 256, b"n"],
    "unique": ["", "always", "10", 0, 0.0001, -1, NAN, [], b"queued"],
    "on_conflict": ["", "fail", None, 1],
    "depends_on": [
        *("0123456789abcdefghij", 7, True, {"a": 1}, object(), [None], [Dependable(id=None)], [Dependable(queue=7)]),
        *([Dependable(), "id"], [(Dependable(), "stop")], (Dependable(), "stop"), [(Dependable(), None)]),
        [(Dependable(), "cancel", "run")],
    ],
}


@pytest.mark.parametrize("option", WRONG)
def test_a_wrong_value_is_refused_by_the_name_of_the_option(option: str) -> None:
    for value in WRONG[option]:
        with pytest.raises(OptionError, match=rf"^{option}\b"):
            one(option, value)
            pytest.fail(f"{value!r} was taken")


def test_every_option_is_in_the_table_of_wrong_values() -> None:
    known = {"eta" if name == "eta_ms" else name for name in Options.__struct_fields__}
    assert known == set(WRONG)


@pytest.mark.parametrize(("alias", "option"), ALIASES.items())
def test_an_alias_is_another_name_of_an_option(alias: str, option: str) -> None:
    value: Any = 5 if option == "delay" else "acme"
    assert one(alias, value) == one(option, value)
    with pytest.raises(OptionError, match=rf"^{alias}\b"):
        one(alias, object())


@pytest.mark.parametrize(
    ("wrong", "hint"),
    [
        *(("retrys", ", did you mean 'retries'\\?"), ("time_out", ", did you mean 'timeout'\\?")),
        ("group", ": the option is tenant="),
        *(("count_down", ", did you mean 'countdown'\\?"), ("resultttl", ", did you mean 'result_ttl'\\?")),
        *(("zzz", "$"), ("eta_ms", "")),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest_one(wrong: str, hint: str) -> None:
    with pytest.raises(OptionError, match=rf"^unknown option '{wrong}'{hint}"):
        one(wrong, 1)


@pytest.mark.parametrize(
    ("options", "refuse", "of"),
    [(TASK_ONLY, TASK_ONLY, "@app.task(...)"), (ONE_JOB_ONLY | {"countdown"}, ONE_JOB_ONLY, ".using(...)")],
    ids=["of tasks", "of one job"],
)
def test_an_option_in_the_wrong_place_is_refused(options: frozenset[str], refuse: frozenset[str], of: str) -> None:
    for option in options:
        with pytest.raises(OptionError, match=re.escape(f"{option!r} is an option of {of}")):
            changed(Options(), {option: ()}, refuse=refuse)


def test_delay_and_eta_together_are_refused() -> None:
    with pytest.raises(OptionError, match="give one of them"):
        changed(Options(), {"delay": 5, "eta": datetime(2030, 1, 1, tzinfo=UTC)})


def test_the_last_of_delay_and_eta_counts() -> None:
    later = changed(Options(), {"delay": 5})
    at = changed(later, {"eta": datetime(2030, 1, 1, tzinfo=UTC)})
    assert (at.delay, at.eta_ms) == (None, 1_893_456_000_000)
    again = changed(at, {"delay": 7})
    assert (again.delay, again.eta_ms) == (7.0, None)


def test_options_are_changed_in_a_copy() -> None:
    before = Options()
    after = changed(before, {"retries": 9, "tenant": "acme"})
    assert (before.retries, before.tenant) == (3, "")
    assert (after.retries, after.tenant) == (9, "acme")
    assert changed(before, {}) == before


def test_the_usual_levels_have_names_and_lower_runs_first() -> None:
    assert [Priority.CRITICAL, Priority.HIGH, Priority.NORMAL, Priority.LOW] == [0, 50, 100, 150]
    assert Options().priority == Priority.NORMAL


def test_a_function_that_no_child_process_can_import_is_refused_when_it_is_registered() -> None:
    app = Relevo("shop")

    def local() -> None: ...

    for func in (local, lambda: None):
        with pytest.raises(TargetError, match="where a child process cannot import it: move it to the module"):
            app.task(name="local", executor="process")(func)
    with pytest.raises(TargetError, match=r"Sender\.send is a method of an object"):
        app.task(name="method", executor="process")(Sender().send)
    app.task(name="local")(local)


class Sender:
    def send(self) -> None: ...
