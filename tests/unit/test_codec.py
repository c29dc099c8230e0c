"""Values <-> bytes: what is accepted comes back equal, all else is refused by name and path."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import json
import math
import typing
import uuid
from collections import OrderedDict
from collections.abc import Callable
from typing import Annotated, Any, Literal, NamedTuple, ParamSpec, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo.codec import Signature
from relevo.codec.depth import MAX_DEPTH, is_too_deep
from relevo.errors import PayloadError, PayloadTooLarge, TargetError

if typing.TYPE_CHECKING:
    from somewhere import Unimportable  # type: ignore[import-not-found]

ROOMY = 1_000_000
MADRID = dt.timezone(dt.timedelta(hours=2))


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Line:
    sku: str
    count: int
    at: dt.datetime | None = None


@dataclasses.dataclass(eq=False)
class Faceless:
    x: int


@dataclasses.dataclass
class Picky:
    x: int

    def __post_init__(self) -> None:
        if self.x == 13:
            raise LookupError("not thirteen")


class Point(msgspec.Struct):
    x: int
    y: int


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    bones: int


class Options(TypedDict):
    deep: bool


class Pair(NamedTuple):
    left: int
    right: str


class Foreign:
    """A class that JSON knows nothing of."""


def bare(value):  # type: ignore[no-untyped-def]
    """A task without annotations."""


def charge(invoice: int, *, cents: int) -> str:
    return f"{invoice}:{cents}"


def taking(annotation: Any) -> Signature:
    """The signature of a task `task(value: annotation) -> annotation`."""

    def task(value: Any) -> Any:
        return value

    task.__annotations__ = {"value": annotation, "return": annotation}
    return Signature(task)


def label(value: Any) -> str:
    """An id that is the same in every process: a repr may hold an address."""
    return value if isinstance(value, str) and value.isascii() and value.isprintable() else type(value).__name__


def through(signature: Signature, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a worker would get them."""
    fragment = signature.encode(args, kwargs, limit=ROOMY)
    envelope = msgspec.json.decode(b"{" + fragment + b"}", type=dict[str, msgspec.Raw])
    return signature.decode(envelope.get("a"), envelope.get("k"))


def refusal(signature: Signature, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PayloadError) as refused:
        signature.encode(args, kwargs, limit=ROOMY)
    return str(refused.value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# -- what comes back ---------------------------------------------------------------------------------

PLAIN = [
    None, True, False, 0, -1, 2**53 + 1, 2**63, 2**64, -(2**63) - 1, 10**40, 0.1, -0.0, 1e308, 5e-324,
    "", "NUL \x00 inside", "emoji \U0001f680 and \u2028 and \x7f", 'quotes " and \\ and [ { ] }',
    [], {}, [1, "a", None, [2.5, {"k": [True]}]], {"": 0, "a.b": {"c": []}}, OrderedDict(a=1),
]  # fmt: skip


@pytest.mark.parametrize("value", PLAIN, ids=label)
def test_plain_json_values_come_back_equal_without_annotations(value: Any) -> None:
    signature = Signature(bare)
    assert through(signature, value) == ((value,), {})
    assert through(signature, value=value) == ((), {"value": value})
    (back,), _ = through(signature, value)
    assert type(back) is type(value) or isinstance(value, dict)
    assert signature.decode_result(signature.encode_result(value, limit=ROOMY)) == value


AWARE = dt.datetime(2026, 5, 1, 12, 30, 15, 123456, tzinfo=MADRID)
TYPED: list[tuple[Any, Any]] = [
    (bytes, b"\x00\xff"),
    (bytearray, bytearray(b"ab")),
    (dt.datetime, AWARE),
    (dt.datetime, dt.datetime(2026, 5, 1, 12, 30)),
    (dt.date, dt.date(2026, 5, 1)),
    (dt.time, dt.time(12, 30, 1)),
    (dt.timedelta, dt.timedelta(days=-3, microseconds=7)),
    (decimal.Decimal, decimal.Decimal("1.10000000000000000000000000000001")),
    (uuid.UUID, uuid.UUID(int=2**127 + 5)),
    (tuple, (1, "a")),
    (tuple[int, str], (1, "a")),
    (tuple[int, ...], (1, 2, 3)),
    (frozenset[str], frozenset("ab")),
    (dict[int, str], {1: "a", -2: "b"}),
    (dict[uuid.UUID, dt.date], {uuid.UUID(int=1): dt.date(2026, 1, 1)}),
    (Color, Color.RED),
    (Level, Level.LOW),
    (Line, Line("a", 2, AWARE)),
    (dict[str, list[Line]], {"x": [Line("a", 1), Line("b", 2)]}),
    (Point, Point(1, 2)),
    (Cat | Dog, Dog(3)),
    (Options, {"deep": True}),
    (Pair, Pair(1, "x")),
    (int | None, None),
    (int | str | list[int], [1]),
    (Literal["a", 1], "a"),
    (Annotated[int, msgspec.Meta(ge=0)], 3),
    (typing.Optional[dt.datetime], AWARE),  # noqa: UP045 - users write it both ways
    (float, 3),
    (object, {"a": [1]}),
    (TypeVar("T"), [1]),
    ("dt.date", dt.date(2026, 5, 1)),
    ("list['Line']", [Line("a", 1)]),
    (None, None),
]


@pytest.mark.parametrize(("annotation", "value"), TYPED, ids=label)
def test_annotated_values_come_back_equal_and_of_their_type(annotation: Any, value: Any) -> None:
    signature = taking(annotation)
    (back,), _ = through(signature, value)
    assert back == value
    assert type(back) is type(value) or annotation is float
    assert through(signature, value=value) == ((), {"value": value})
    assert signature.decode_result(signature.encode_result(value, limit=ROOMY)) == value


# -- what is refused ---------------------------------------------------------------------------------

REFUSED_BARE: list[tuple[Any, str]] = [
    ((1, 2), "a tuple would come back as a list; annotate the parameter (tuple[int, ...]) or pass a list"),
    ({1}, "a set would come back as a list; annotate the parameter (set[str])"),
    (b"x", "bytes would come back as a str; annotate the parameter (bytes)"),
    (decimal.Decimal(1), "a Decimal would come back as a str"),
    (AWARE, "a datetime would come back as a str; annotate the parameter (datetime)"),
    (uuid.UUID(int=1), "a UUID would come back as a str"),
    ({1: "a"}, "the key 1 would not come back as an int; annotate the parameter (dict[int, str]) or use text"),
    (Color.RED, "a Color would come back as a str"),
    (Line("a", 1), "a Line would come back as a dict; annotate the parameter (Line)"),
    (Point(1, 2), "a Point would come back as a dict"),
    (math.nan, "nan has no JSON form"),
    (math.inf, "inf has no JSON form"),
    ("a\ud800", "holds a lone surrogate (U+D800 at index 1)"),
    ({"\udfff": 1}, "a key holds a lone surrogate (U+DFFF at index 0)"),
    (Foreign(), "a Foreign cannot be sent as JSON. Supported: None, bool, int"),
    ({(1, 2): 3}, "cannot be sent as JSON"),
    ({10**5000: 1}, "cannot be sent as JSON"),
    ([10**5000], "[0]: cannot be sent as JSON: Exceeds the limit"),
    (10**5000, "cannot be sent as JSON: Exceeds the limit"),
    (msgspec.UNSET, "cannot be sent as JSON"),
    (msgspec.Raw(b'1],"k":{"evil":1'), ""),
]


@pytest.mark.parametrize(("value", "why"), REFUSED_BARE, ids=label)
def test_what_would_come_back_changed_is_refused_when_enqueued(value: Any, why: str) -> None:
    signature = Signature(bare)
    assert refusal(signature, value).startswith("bare(): argument 'value'")
    assert why in refusal(signature, value)
    assert why in refusal(signature, value=value)
    with pytest.raises(PayloadError, match=r"^bare\(\): result") as refused:
        signature.encode_result(value, limit=ROOMY)
    assert why.replace("the parameter", "the return type") in str(refused.value)


REFUSED_TYPED: list[tuple[Any, Any, str]] = [
    (int, True, "'value': expected `int`, got `bool`"),
    (int, "7", "'value': expected `int`, got `str`"),
    (float, math.nan, "'value': nan has no JSON form"),
    (float, 2**53 + 1, "'value': an int would come back as a float"),
    (decimal.Decimal, decimal.Decimal("NaN"), "'value': Decimal('NaN') would come back as Decimal('NaN')"),
    (tuple[int, ...], [1], "a list would come back as a tuple; the parameter is annotated `tuple[int, ...]`"),
    (dict, {"a": (1,)}, "'value'['a']: a tuple would come back as a list; the parameter is annotated `dict`"),
    (dict[int, str], {"x": "a"}, "'value': a key does not fit: expected `int`, got `str`"),
    (list[Line], [Line("a", 1), Line("b", "2")], "'value'[1].count: expected `int`, got `str`"),  # type: ignore[arg-type]
    (list[Line], [Line("a", 1), Line("b", math.inf)], "'value'[1].count: inf has no JSON"),  # type: ignore[arg-type]
    (Line, {"sku": "a", "count": 1}, "'value': a dict would come back as a Line"),
    (Line, Line("\ud801", 1), "'value'.sku: holds a lone surrogate"),
    (Point, Point(Foreign(), 2), "'value'.x: a Foreign cannot be sent"),  # type: ignore[arg-type]
    (Faceless, Faceless(1), "which does not compare equal (==) to it"),
    (Picky, Picky(1).__class__.__new__(Picky), "'value'"),
    (Color, "red", "'value': a str would come back as a Color"),
    (Literal["a"], "b", "'value': invalid enum value 'b'"),
    (Annotated[int, msgspec.Meta(ge=0)], -1, "'value': expected `int` >= 0"),
    (None, 1, "'value': expected `null`, got `int`"),
    (Foreign, Foreign(), "The annotation `test_codec.Foreign` is not something JSON can be read back to"),
    (list[Foreign], [1, Foreign()], "'value'[1]: a Foreign cannot be sent as JSON. The annotation"),
    (
        dt.date | uuid.UUID,
        dt.date(2026, 1, 1),
        "is not something JSON can be read back to (Type unions may not contain more than one str-like type",
    ),
    (
        "Unimportable",
        (1,),
        "The annotation `Unimportable` cannot be resolved: a name in it is not defined. Supported: ",
    ),
]


@pytest.mark.parametrize(("annotation", "value", "why"), REFUSED_TYPED, ids=label)
def test_what_does_not_fit_its_annotation_is_refused_with_the_path(annotation: Any, value: Any, why: str) -> None:
    message = refusal(taking(annotation), value)
    assert message.startswith("task(): argument 'value'")
    assert why.replace("test_codec", __name__) in message


def test_the_path_leads_to_the_part_at_fault() -> None:
    message = refusal(Signature(bare), {"items": [1, [{"at": (2,)}]]})
    assert message.startswith("bare(): argument 'value'['items'][1][0]['at']: a tuple would come back as a list; ")
    assert "argument 'value'[0]['b'].x: nan" in refusal(Signature(bare), [{"a": 1, "b": Faceless(math.nan)}])  # type: ignore[arg-type]


P: Any = ParamSpec("P")  # type: ignore[misc]


@pytest.mark.parametrize(
    "annotation",
    [Foreign, list[Foreign], Callable[[int], str], dt.date | uuid.UUID, "Unimportable", "not an annotation",
     "1/0", 5, typing.ClassVar[int], typing.Final[int], typing.Unpack[Options], P.args, P.kwargs, complex, type,
     typing.NoReturn, typing.Self, enum.Enum, typing.NewType("N", int), Level | Color, list[tuple[int]] | set[int],
     typing.Iterable[int], typing.Generic, ..., NotImplemented, typing.Required[int], [int]],
    ids=label,
)  # fmt: skip
def test_no_annotation_is_too_strange_for_plain_values(annotation: Any) -> None:
    signature = taking(annotation)
    for value in (1, "a", [1], {"a": None}):
        try:
            assert through(signature, value) == ((value,), {})
            assert through(signature, value=value) == ((), {"value": value})
        except PayloadError as refused:
            # Those that msgspec does understand may well say no to some.
            assert any(why in str(refused) for why in ("expected", "invalid enum", "would come back"))


def test_annotations_that_cannot_be_read_back_let_plain_values_pass() -> None:
    for annotation in (Foreign, list[Foreign], dt.date | uuid.UUID, "Unimportable", Callable[[], int]):
        for value in (1, "a", [1], {"a": None}):
            assert through(taking(annotation), value) == ((value,), {})


def test_one_annotation_that_cannot_be_resolved_leaves_the_others_in_force() -> None:
    def task(a: Unimportable, b: dt.date) -> None: ...

    assert through(Signature(task), 1, dt.date(2026, 1, 1)) == ((1, dt.date(2026, 1, 1)), {})
    assert "'b': expected `date`" in refusal(Signature(task), 1, 2)


# -- signatures --------------------------------------------------------------------------------------


def test_the_fragment_holds_only_what_the_caller_passed() -> None:
    def task(a: int = 1, b: int = 2, *, c: int = 3) -> None: ...

    signature = Signature(task)
    assert signature.encode((), {}, limit=ROOMY) == b""
    assert signature.encode((7,), {}, limit=ROOMY) == b'"a":[7]'
    assert signature.encode((), {"c": 9}, limit=ROOMY) == b'"k":{"c":9}'
    assert Signature(charge).encode((7,), {"cents": 990}, limit=ROOMY) == b'"a":[7],"k":{"cents":990}'
    for args, kwargs in [((), {}), ((7,), {}), ((7, 8), {}), ((), {"b": 1}), ((7,), {"b": 1, "c": 2})]:
        assert through(signature, *args, **kwargs) == (args, kwargs)


def test_parameters_of_every_kind_are_typed() -> None:
    def task(a: dt.date, /, b: bytes, *rest: Color, c: frozenset[int], **others: tuple[int, int]) -> None: ...

    day = dt.date(2026, 1, 1)
    signature = Signature(task)
    args = (day, b"x", Color.RED, Color.BLUE)
    kwargs = {"c": frozenset({1}), "anything": (1, 2), "a": (3, 4), "rest": (5, 6)}
    assert through(signature, *args, **kwargs) == (args, kwargs)
    assert through(signature, day, b=b"x", c=frozenset()) == ((day,), {"b": b"x", "c": frozenset()})
    assert "argument '*rest'[1]: invalid enum value 'green'" in refusal(signature, day, b"x", Color.RED, "green", c={1})
    assert "argument 'more': expected `array`" in refusal(signature, day, b"x", c={1}, more=5)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {"c": {1}}, "'a'"),
        ((), {"c": {1}, "a": (1, 2), "b": b""}, "'a'"),
        ((day,), {"c": {1}}, "'b'"),
        ((day, b""), {}, "'c'"),
        ((day, b""), {"b": b"", "c": {1}}, "multiple values for argument 'b'"),
    ]
    for given_args, given_kwargs, names in wrong:
        assert names in refusal(signature, *given_args, **given_kwargs)


def test_functions_that_take_anything_get_it() -> None:
    def task(*args, **kwargs): ...  # type: ignore[no-untyped-def]

    signature = Signature(task)
    args, kwargs = (1, "a", *range(500)), {"x": [1], "args": 2, "kwargs": 3}
    assert through(signature, *args, **kwargs) == (args, kwargs)
    assert through(signature) == ((), {})
    assert "argument '*args'[2]" in refusal(signature, 1, 2, (3,))


def test_names_of_options_belong_to_the_task_when_it_has_them() -> None:
    names = ["name", "priority", "cron", "retries", "func", "self", "cls", "limit", "args", "kwargs", "a", "k"]
    names += ["__init__", "__struct_fields__", "f0", "ñ"]
    space: dict[str, Any] = {}
    exec(f"def task({', '.join(names)}): ...\ndef anything(**kwargs: int): ...", space)
    kwargs = {name: i for i, name in enumerate(names)}
    assert (
        through(Signature(space["task"]), **kwargs) == through(Signature(space["anything"]), **kwargs) == ((), kwargs)
    )
    assert through(Signature(space["task"]), *kwargs.values()) == (tuple(kwargs.values()), {})


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [
        ((), {"cents": 1}, "missing a required argument: 'invoice'"),
        ((7,), {}, "'cents'"),
        ((7, 8), {"cents": 1}, "too many positional arguments"),
        ((7,), {"cents": 1, "tip": 2}, "'tip'"),
        ((7,), {"cents": 1, "invoice": 2}, "'invoice'"),
    ],
)
def test_arguments_that_do_not_fit_the_signature_are_refused_when_enqueued_and_when_read(
    args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    message = refusal(Signature(charge), *args, **kwargs)
    assert message.startswith("charge(): ") and named in message
    assert "it takes (invoice: 'int', *, cents: 'int')" in message
    stored = [msgspec.json.encode(args) if args else None, msgspec.json.encode(kwargs)]
    for stored_kwargs in (stored[1], *([] if kwargs else [None])):
        with pytest.raises(PayloadError, match=r"^charge\(\): the stored arguments do not fit: ") as refused:
            Signature(charge).decode(stored[0], stored_kwargs)
        assert named in str(refused.value) and "enqueued for another version" in str(refused.value)


def test_wrapped_partial_and_callable_objects_are_typed_too() -> None:
    @functools.wraps(charge)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    class Charger:
        def __call__(self, day: dt.date) -> None: ...

    assert "charge(): argument 'cents': expected `int`" in refusal(Signature(wrapped), 1, cents="x")
    assert through(Signature(functools.partial(charge, cents=5)), 7) == ((7,), {})
    assert "charge(): argument 'invoice': expected" in refusal(Signature(functools.partial(charge, cents=5)), "x")
    assert refusal(Signature(Charger()), 1) == "Charger(): argument 'day': expected `date`, got `int`"


def test_what_has_no_signature_is_no_target() -> None:
    with pytest.raises(TargetError, match="a task is a function, found 5"):
        Signature(5)  # type: ignore[arg-type]
    with pytest.raises(TargetError, match="no signature"):
        Signature(max)


# -- without the first argument ----------------------------------------------------------------------


def rest(signature: Signature, *args: Any, **kwargs: Any) -> bytes:
    return signature.encode_rest(args, kwargs, limit=ROOMY)


def behind(signature: Signature, first: bytes, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments as a worker would get them when another job's result is put in front of the encoded ones."""
    envelope = msgspec.json.decode(b"{" + rest(signature, *args, **kwargs) + b"}", type=dict[str, msgspec.Raw])
    values = msgspec.json.decode(envelope.get("a", b"[]"), type=list[msgspec.Raw])
    return signature.decode(msgspec.json.encode([msgspec.Raw(first), *values]), envelope.get("k"))


def refusal_of_rest(signature: Signature, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(PayloadError) as refused:
        rest(signature, *args, **kwargs)
    return str(refused.value)


def test_the_first_argument_can_be_left_out_for_the_result_of_another_job() -> None:
    assert rest(Signature(charge), cents=990) == b'"k":{"cents":990}'
    assert behind(Signature(charge), b"7", cents=990) == ((7,), {"cents": 990})

    def task(a: int = 1, b: int = 2, *, c: int = 3) -> None: ...

    assert rest(Signature(task)) == b""
    assert rest(Signature(task), 5, c=6) == b'"a":[5],"k":{"c":6}'


def test_the_others_are_typed_by_their_own_parameters() -> None:
    def task(a: dt.date, /, b: bytes, *rest: Color, c: frozenset[int], **others: tuple[int, int]) -> None: ...

    signature = Signature(task)
    kwargs = {"c": frozenset({1}), "anything": (1, 2), "a": (3, 4)}
    day = dt.date(2026, 1, 1)
    assert behind(signature, b'"2026-01-01"', b"x", Color.RED, **kwargs) == ((day, b"x", Color.RED), kwargs)
    assert "argument 'b': expected `bytes`, got `int`" in refusal_of_rest(signature, 5, c={1})
    assert "argument '*rest'[1]: invalid enum value" in refusal_of_rest(signature, b"", Color.RED, "green", c={1})
    assert "argument 'more': expected `array`" in refusal_of_rest(signature, b"", c={1}, more=5)
    assert "argument 'value'[0]: nan has" in refusal_of_rest(Signature(lambda first, value: None), [math.nan])


def test_a_rest_of_arguments_takes_the_first_as_well() -> None:
    def task(*days: dt.date, scale: int = 1) -> None: ...

    day = dt.date(2026, 1, 1)
    assert behind(Signature(task), b'"2026-01-01"', day, scale=2) == ((day, day), {"scale": 2})
    assert behind(Signature(task), b'"2026-01-01"') == ((day,), {})
    assert "argument '*days'[0]: expected `date`" in refusal_of_rest(Signature(task), 5)


def test_missing_and_surplus_arguments_are_refused_and_the_first_is_explained() -> None:
    rows: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((), {}, "'cents'"),
        ((8,), {"cents": 1}, "too many positional arguments"),
        ((), {"cents": 1, "tip": 2}, "'tip'"),
    ]
    for args, kwargs, named in rows:
        message = refusal_of_rest(Signature(charge), *args, **kwargs)
        assert message.startswith("charge(): ") and named in message
        assert "(invoice: 'int', *, cents: 'int')" in message
        assert "the first of which is the result of what comes before" in message


def test_the_argument_that_is_left_out_cannot_be_given_by_name() -> None:
    def task(value: Any, **others: Any) -> None: ...

    assert "argument 'invoice' is given" in refusal_of_rest(Signature(charge), invoice=7, cents=1)
    assert "argument 'value' is given" in refusal_of_rest(Signature(task), value=7)


def test_a_function_without_a_first_argument_is_refused() -> None:
    def nothing() -> None: ...
    def named(*, value: int) -> None: ...
    def others(**values: int) -> None: ...

    for func in (nothing, named, others, functools.partial(charge, invoice=7)):
        message = refusal_of_rest(Signature(func))
        assert "() takes no argument for the result of what comes before; use .si(…)" in message
        assert Signature(func).first is None


def test_a_first_argument_that_is_known_is_put_in_front_and_checked() -> None:
    def task(days: tuple[dt.date, ...], *scales: int, unit: str = "") -> None: ...

    signature = Signature(task)
    assert signature.encode_rest((), {}, limit=ROOMY, first=b"[]") == b'"a":[[]]'
    assert signature.encode_rest((2,), {"unit": "m"}, limit=ROOMY, first=b"[]") == b'"a":[[],2],"k":{"unit":"m"}'
    with pytest.raises(PayloadError, match=r"^task\(\): argument 'days'\[0\]: invalid RFC3339"):
        signature.encode_rest((), {}, limit=ROOMY, first=b'["yesterday"]')


def test_the_limit_holds_without_the_first_argument_too() -> None:
    with pytest.raises(PayloadTooLarge, match=r"^<lambda>\(\): arguments: 106 bytes"):
        Signature(lambda first, value: None).encode_rest(("x" * 98,), {}, limit=105)


# -- at the worker -----------------------------------------------------------------------------------


def test_a_changed_type_is_refused_with_the_path() -> None:
    def task(lines: list[Line], *, days: dict[str, dt.date] | None = None) -> None: ...

    for args, kwargs, why in (
        (b'[[{"sku":"a","count":1},{"sku":"a","count":"1"}]]', None, r"'lines'\[1\].count: expected `int`, got `str`$"),
        (b'[[{"sku":"a"}]]', None, r"'lines'\[0\]: .* missing required field `count`"),
        (b"[[]]", b'{"days":{"a":"yesterday"}}', r"'days'\[...\]: invalid RFC3339"),
    ):
        with pytest.raises(PayloadError, match=rf"^task\(\): argument {why}"):
            Signature(task).decode(args, kwargs)
    with pytest.raises(PayloadError, match=r"^task\(\): result: "):
        taking(int).decode_result(b'"x"')


def test_whatever_a_class_of_the_user_raises_is_a_refusal() -> None:
    with pytest.raises(PayloadError, match=r"^task\(\): argument 'value': .*not thirteen"):
        taking(Picky).decode(b'[{"x":13}]', None)
    with pytest.raises(PayloadError, match="not thirteen"):
        taking(Picky).decode_result(b'{"x":13}')


HOSTILE = [
    b"", b"[", b"]", b"{", b"}", b"nul", b"[1,]", b'"', b"\xff", b'["\xff"]', b'["\\ud800"]', b'{"\xff":1}', b"[1e999]",
    b"[[" * 50_000, b"[" * 100_000, b'{"a":' * 100_000, b"[" * 100_000 + b"]" * 100_000,
    b'{"value":' * 100_000 + b"1" + b"}" * 100_000, b'["' + b"[" * 500_000, b"[" + b"9" * 5000 + b"]", b"\x00" * 1000,
]  # fmt: skip


@pytest.mark.parametrize("raw", HOSTILE, ids=lambda raw: repr(raw[:12]))
def test_hostile_bytes_are_refused_and_nothing_else(raw: bytes) -> None:
    for signature in (Signature(bare), Signature(charge), taking(Line), taking(dict[int, set[int]])):
        for args, kwargs in ((raw, None), (None, raw), (msgspec.Raw(raw), msgspec.Raw(raw))):
            with pytest.raises(PayloadError):
                signature.decode(args, kwargs)
        with pytest.raises(PayloadError):
            signature.decode_result(raw)


# -- limits ------------------------------------------------------------------------------------------


def test_more_bytes_than_the_limit_are_refused_with_size_and_limit() -> None:
    """The limit counts bytes, not characters."""
    signature = Signature(bare)
    fragment = signature.encode(("é" * 10,), {}, limit=28)
    assert len(fragment) == 28
    with pytest.raises(PayloadTooLarge, match=r"bare\(\): arguments: 28 bytes encoded, the limit is 27") as refused:
        signature.encode(("é" * 10,), {}, limit=27)
    assert (refused.value.size, refused.value.limit) == (28, 27)
    with pytest.raises(PayloadTooLarge, match=r"bare\(\): result: 22 bytes"):
        signature.encode_result("é" * 10, limit=21)


def test_values_up_to_the_depth_limit_pass_and_deeper_ones_are_refused() -> None:
    signature = Signature(bare)
    assert through(signature, nested(MAX_DEPTH)) == ((nested(MAX_DEPTH),), {})
    assert through(signature, value=nested(MAX_DEPTH)) == ((), {"value": nested(MAX_DEPTH)})
    assert signature.decode_result(signature.encode_result(nested(MAX_DEPTH), limit=ROOMY)) == nested(MAX_DEPTH)
    for levels in (MAX_DEPTH + 1, 100_000):
        assert refusal(signature, nested(levels)).startswith("bare(): argument 'value': nested too deeply")
        assert "argument 'value': nested too deeply" in refusal(signature, value=nested(levels))
        with pytest.raises(PayloadError, match=r"bare\(\): result: nested too deeply"):
            signature.encode_result(nested(levels), limit=ROOMY)
        raw = b"[" * (levels + 1) + b"]" * (levels + 1)
        for args, kwargs in ((raw, None), (None, b'{"value":' + raw[1:-1] + b"}")):
            with pytest.raises(PayloadError, match="nested too deeply"):
                signature.decode(args, kwargs)
        with pytest.raises(PayloadError, match=r"bare\(\): result: nested too deeply"):
            signature.decode_result(raw)


def test_a_value_that_holds_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert "holds itself" in refusal(Signature(bare), loop)


def test_brackets_inside_text_are_not_depth() -> None:
    signature = Signature(bare)
    for text in ("[" * 5000, '"[' * 5000, '\\"{' * 5000, "\\" * 5001 + "[" * 300):
        value = [text, {text: text}, "x"]
        assert through(signature, value) == ((value,), {})


# -- properties --------------------------------------------------------------------------------------

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ANY_TEXT, inner, max_size=4),
    max_leaves=20,
)
NUMBERED = st.dictionaries(st.integers(), st.none())
ODD = JSON | st.binary() | st.dates() | st.tuples(st.integers()) | NUMBERED | st.decimals()


def is_carried_by_json(value: Any) -> bool:
    """Judged by another library, part by part."""
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, str):
        return not any(0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, dict):
        return all(isinstance(k, str) and is_carried_by_json(k) and is_carried_by_json(v) for k, v in value.items())
    if isinstance(value, list):
        return all(map(is_carried_by_json, value))
    return value is None or isinstance(value, bool | int)


@given(ODD)
@example({"a": [math.nan]})
def test_any_value_comes_back_equal_or_is_refused(value: Any) -> None:
    signature = Signature(bare)
    if is_carried_by_json(value):
        assert through(signature, value) == ((value,), {})
        assert json.loads(b"{" + signature.encode((value,), {}, limit=ROOMY) + b"}") == {"a": [value]}
    else:
        assert refusal(signature, value).startswith("bare(): argument 'value'")


@given(
    st.binary(),
    st.datetimes(timezones=st.none() | st.timezones()),
    st.decimals(allow_nan=False),
    st.lists(st.builds(Line, st.text(), st.integers())),
    st.dictionaries(st.integers(), st.tuples(st.sampled_from(Color), st.timedeltas())),
)
def test_typed_values_come_back_equal(
    a: bytes, b: dt.datetime, c: decimal.Decimal, d: list[Line], e: dict[int, tuple[Color, dt.timedelta]]
) -> None:

    def task(
        a: bytes, b: dt.datetime, c: decimal.Decimal, *, d: list[Line], e: dict[int, tuple[Color, dt.timedelta]]
    ) -> None: ...

    signature = Signature(task)
    try:
        back = through(signature, a, b, c, d=d, e=e)
    except PayloadError as refused:
        # Offsets with seconds, infinite decimals, and hours that a zone has twice have no exact JSON form.
        assert "argument 'b'" in str(refused) or "argument 'c'" in str(refused)
    else:
        assert back == ((a, b, c), {"d": d, "e": e})


@given(JSON.filter(is_carried_by_json), st.lists(ODD, max_size=2), st.dictionaries(st.sampled_from("bcxy"), ODD))
def test_arguments_behind_the_first_come_back_equal_or_are_refused_as_with_it(
    first: Any, args: list[Any], kwargs: dict[str, Any]
) -> None:
    signature = Signature(lambda a, b=0, *rest, c=1, **others: 0)
    raw = msgspec.json.encode(first)
    try:
        expected = through(signature, first, *args, **kwargs)
    except PayloadError:
        assert refusal_of_rest(signature, *args, **kwargs).startswith("<lambda>(): ")
    else:
        assert behind(signature, raw, *args, **kwargs) == expected
        whole = signature.encode((first, *args), kwargs, limit=ROOMY)
        assert signature.encode_rest(tuple(args), kwargs, limit=ROOMY, first=raw) == whole


SHAPES = [
    Signature(bare), Signature(charge), taking(Line), taking(dict[int, set[int]]), taking(Picky), taking(Cat | Dog),
    taking(decimal.Decimal), taking(msgspec.Raw), Signature(lambda *a, **k: 0), Signature(lambda a, /, b=1, *, c=2: 0),
]  # fmt: skip
SCRAPS = st.lists(
    st.sampled_from([b"[", b"]", b"{", b"}", b'"', b"\\", b",", b":", b"1", b"-", b"e", b"null", b'"a"', b'"value":',
                     b'"x":13', b"\xff", b"\\ud800", b"\\u0000", b" "])
    | st.binary(max_size=3),
    max_size=30,
).map(b"".join)  # fmt: skip


@given(st.sampled_from(SHAPES), st.none() | SCRAPS, st.none() | SCRAPS)
def test_reading_any_bytes_gives_arguments_or_a_refusal(
    signature: Signature, args: bytes | None, kwargs: bytes | None
) -> None:
    with contextlib.suppress(PayloadError):
        values, named = signature.decode(args, kwargs)
        assert (type(values), type(named)) == (tuple, dict)
    with contextlib.suppress(PayloadError):
        signature.decode_result(args or b"")


@given(SCRAPS | JSON.filter(is_carried_by_json).map(msgspec.json.encode), st.integers(0, 6))
def test_depth_is_what_a_parser_would_find(raw: bytes, levels: int) -> None:
    def depth(value: Any) -> int:
        match value:
            case dict():
                return 1 + max(map(depth, value.values()), default=0)
            case list():
                return 1 + max(map(depth, value), default=0)
        return 0

    try:
        parsed = msgspec.json.decode(raw)
    except (msgspec.DecodeError, ValueError):
        return
    assert is_too_deep(raw, levels) == (depth(parsed) > levels)
