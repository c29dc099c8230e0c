"""Pydantic models, attrs classes, registered types and numpy's values as arguments and results."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import pathlib
import typing
import uuid
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, Literal, TypeVar

import attrs
import msgspec
import numpy
import pydantic
import pytest
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, PositiveInt, computed_field

from relevo import Relevo
from relevo.codec import Signature
from relevo.codec.forms import Codec
from relevo.engine.message import Reply
from relevo.errors import ConfigurationError, OptionError, PayloadError, TargetError
from tests.unit.test_codec import ROOMY, Foreign, refusal, through

T = TypeVar("T")


class Color(enum.Enum):
    RED = "red"


class Item(BaseModel):
    sku: str
    price: decimal.Decimal = decimal.Decimal("1.50")


class Order(BaseModel):
    id: uuid.UUID
    items: list[Item]
    at: dt.datetime | None = None
    color: Color = Color.RED
    count: int = Field(default=1, gt=0)


class Page(BaseModel, Generic[T]):
    rows: list[T]


class Paid(BaseModel):
    kind: Literal["paid"] = "paid"
    cents: int


class Refused(BaseModel):
    kind: Literal["refused"] = "refused"
    why: str


class Aliased(BaseModel):
    model_config = ConfigDict(extra="forbid")
    size: int = Field(alias="theSize")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def double(self) -> int:
        return self.size * 2


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    at: dt.datetime
    some: set[int]


class Hiding(BaseModel):
    shown: int
    hidden: int = Field(default=0, exclude=True)


@pydantic.dataclasses.dataclass
class Checked:
    x: int = Field(gt=0)


class Holding(msgspec.Struct):
    order: Order
    n: int = 0


class Early(BaseModel):
    later: Later


@attrs.define
class Point:
    x: int
    tags: list[str] = attrs.field(factory=list)


ORDER = Order(id=uuid.UUID(int=5), items=[Item(sku="a"), Item(sku="b", price=decimal.Decimal("2"))])
ACCEPTED: list[tuple[Any, Any]] = [
    (Order, ORDER),
    (Order | None, None),
    (list[Order], [ORDER, ORDER]),
    (dict[str, Order], {"a": ORDER}),
    (Paid | Refused, Refused(why="no")),
    (Annotated[Paid | Refused, Field(discriminator="kind")], Paid(cents=3)),
    (Page[Order], Page[Order](rows=[ORDER])),
    (Aliased, Aliased(theSize=3)),
    (Strict, Strict(at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC), some={1, 2})),
    (Checked, Checked(4)),
    (Holding, Holding(ORDER, 2)),
    (list[Holding], [Holding(ORDER)]),
    (PositiveInt, 3),
    (Annotated[str, Field(max_length=3)], "abc"),
    (HttpUrl, HttpUrl("https://example.org/a")),
    ("Order", ORDER),
    (Early, lambda: Early(later=Later(y=1))),
    (Point, Point(1, ["a"])),
    (list[Point], [Point(1)]),
]


class Later(BaseModel):
    y: int


@pytest.mark.parametrize(("annotation", "value"), ACCEPTED, ids=lambda one: getattr(one, "__name__", None))
def test_models_come_back_equal_as_arguments_and_results(annotation: Any, value: Any) -> None:
    value = value() if annotation is Early else value
    signature = _taking(annotation)
    signature.check()
    (back,), _ = through(signature, value)
    assert back == value and type(back) is type(value)
    assert through(signature, value=value) == ((), {"value": value})
    assert signature.decode_result(signature.encode_result(value, limit=ROOMY)) == value


REFUSED: list[tuple[Any, Any, str]] = [
    (Order, ORDER.model_copy(update={"count": -1}), "'value'.count: input should be greater than 0"),
    (
        list[Order],
        [ORDER, ORDER.model_copy(update={"items": [Item.model_construct(sku=3)]})],
        "'value'[1].items[0].sku",
    ),
    (Order, {"id": str(uuid.UUID(int=5)), "items": []}, "a dict would come back as an Order"),
    (Item, ORDER, "'value'.sku: field required"),
    (Hiding, Hiding(shown=1, hidden=2), "'value'.hidden: 2 would come back as 0"),
    (PositiveInt, -1, "'value': input should be greater than 0"),
    (Checked, 0, "'value'"),
    (Holding, Holding(ORDER.model_copy(update={"count": -1})), "'value'.order: count: input should be greater than 0"),
    (Point, Point("1"), "'value'.x: expected `int`, got `str`"),  # type: ignore[arg-type]
    (Any, ORDER, "an Order would come back as a dict; "),
]


@pytest.mark.parametrize(("annotation", "value", "why"), REFUSED)
def test_models_that_do_not_fit_are_refused_with_the_path(annotation: Any, value: Any, why: str) -> None:
    message = refusal(_taking(annotation), value)
    assert message.startswith("task(): argument 'value'")
    assert why in message


def test_stored_arguments_are_validated_where_they_run() -> None:
    signature = _taking(Order)
    with pytest.raises(PayloadError, match=r"task\(\): argument 'value'\.count: input should be greater than 0"):
        signature.decode(b'[{"id":"00000000-0000-0000-0000-000000000005","items":[],"count":0}]', None)
    with pytest.raises(PayloadError, match=r"argument 'value'\.id: field required \(and 1 more\)"):
        signature.decode(None, b'{"value":{}}')
    with pytest.raises(PayloadError, match="the stored arguments do not fit: missing a required argument: 'value'"):
        signature.decode(None, None)


def test_parameters_of_every_kind_may_be_models() -> None:
    def task(a: Order, /, b: int, *rest: Item, c: Order | None = None, **others: Item) -> None: ...

    signature = Signature(task)
    item = Item(sku="x")
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((ORDER, 1), {}),
        ((ORDER, 1, item, item), {"c": ORDER, "a": item, "z": item}),
        ((ORDER,), {"b": 2, "c": None}),
    ]
    for args, kwargs in calls:
        assert through(signature, *args, **kwargs) == (args, kwargs)
    assert "argument '*rest'[0].sku: field required" in refusal(signature, ORDER, 1, ORDER)
    assert "argument 'z'.sku: field required" in refusal(signature, ORDER, 1, z=ORDER)
    assert "missing a required argument: 'b'" in refusal(signature, ORDER)


def test_a_reply_is_read_with_the_model_of_its_result() -> None:
    signature = _taking(Reply[Order])
    signature.check()
    raw = b'[{"status":"done","result":%b}]' % ORDER.model_dump_json().encode()
    (reply,), _ = signature.decode(raw, None)
    assert reply.result == ORDER


def test_the_digest_follows_the_fields_of_a_model() -> None:
    class Other(BaseModel):
        sku: str

    digests = {_taking(kind).digest for kind in (Item, Other, Order, Point, Any)}
    assert len(digests) == 5
    assert _taking(Item).digest == _taking(Item).digest


# -- what is refused when a task is defined ----------------------------------------------------------

UNSUPPORTED: list[tuple[Any, str]] = [
    (Foreign, "`tests.unit.test_codec.Foreign`, which is not something JSON can be read back to (relevo does not know"),
    (list[Foreign], "relevo does not know Foreign"),
    (dict[str, Foreign | None], "relevo does not know Foreign"),
    (Callable[[int], str], "relevo does not know Callable"),
    (Iterable[int], "relevo does not know Iterable"),
    (dt.date | uuid.UUID, "Type unions may not contain more than one str-like type"),
    (complex, "relevo does not know complex"),
    (numpy.ndarray, "relevo does not know ndarray"),
    (list[numpy.float64], "relevo does not know float64"),
    (type[Order], "a class is no value"),
    (list[type[Order]], "a class is no value"),
    (Order | Foreign, "Unable to generate pydantic-core schema for <class 'tests.unit.test_codec.Foreign'>"),
]


@pytest.mark.parametrize(("annotation", "why"), UNSUPPORTED, ids=lambda one: getattr(one, "__name__", None))
def test_an_annotation_that_json_cannot_be_read_back_to_is_refused_when_the_task_is_defined(
    annotation: Any, why: str
) -> None:
    app = Relevo("codec")

    def task(value: Any) -> None: ...

    task.__annotations__["value"] = annotation
    with pytest.raises(TargetError) as refused:
        app.task(task)
    assert "task(): argument 'value' is annotated `" in str(refused.value)
    assert why in str(refused.value)
    assert "app.codec.register(type, encode, decode)" in str(refused.value)

    def giver() -> None: ...

    giver.__annotations__["return"] = annotation
    with pytest.raises(TargetError, match=r"giver\(\): the result is annotated"):
        app.task(giver)
    with pytest.raises(TargetError, match="argument 'value' is annotated"):
        app.service("codec").action("take")(task)
    with pytest.raises(TargetError, match="argument 'value' is annotated"):
        app.service("codec").on("other.thing")(task)


def test_a_task_that_never_returns_is_no_fault() -> None:
    def task() -> typing.NoReturn:
        raise SystemExit

    Relevo("codec").task(task)


def test_a_class_that_is_defined_later_is_resolved_at_the_first_use() -> None:
    space: dict[str, Any] = {"__name__": "later_module", "app": Relevo("codec"), "BaseModel": BaseModel}
    before = "from __future__ import annotations\n@app.task\ndef task(value: Late, other: list[Late]) -> Late: ...\n"
    exec(before, space)
    exec("class Late(BaseModel):\n    x: int\n", space)
    late, signature = space["Late"], space["task"].signature
    assert through(signature, late(x=1), [late(x=2)]) == ((late(x=1), [late(x=2)]), {})
    assert signature.decode_result(b'{"x":3}') == late(x=3)
    with pytest.raises(PayloadError, match=r"'value'\.x: field required"):
        signature.decode(b"[{},[]]", None)


def test_a_class_that_is_defined_later_and_not_supported_is_refused_at_the_first_use() -> None:
    space: dict[str, Any] = {"__name__": "later_module", "app": Relevo("codec")}
    exec("from __future__ import annotations\n@app.task\ndef task(value: Late) -> None: ...\n", space)
    exec("class Late: ...\n", space)
    for _ in range(2):
        with pytest.raises(TargetError, match="relevo does not know Late"):
            space["task"].signature.encode((1,), {}, limit=ROOMY)
    with pytest.raises(TargetError, match="relevo does not know Late"):
        _ = space["task"].signature.digest


# -- registered types --------------------------------------------------------------------------------


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and other.cents == self.cents

    __hash__ = None  # type: ignore[assignment]


class Wallet(msgspec.Struct):
    money: Money


def test_a_registered_type_is_accepted_where_an_annotation_names_it(registered: None) -> None:
    for annotation, value in [
        (Money, Money(3)),
        (list[Money], [Money(3)]),
        (Money | None, Money(1)),
        (Wallet, Wallet(Money(5))),
        (pathlib.Path, pathlib.Path("/a/b")),
    ]:
        signature = _taking(annotation)
        signature.check()
        assert through(signature, value) == ((value,), {})
        assert signature.decode_result(signature.encode_result(value, limit=ROOMY)) == value
    assert "a Money would come back as an int; the parameter is annotated `Any`: make" in refusal(
        _taking(Any), Money(3)
    )
    assert "'value': no money" in refusal(_taking(Money), 0)


def test_a_type_is_registered_once_and_only_if_it_is_not_supported_already(registered: None) -> None:
    codec = Relevo("codec").codec
    codec.register(Money, _cents, _money)
    with pytest.raises(ConfigurationError, match="Money is registered already, with"):
        codec.register(Money, str, _money)
    supported: tuple[Any, ...] = (int, Order, Point, Color, dict)
    for known in supported:
        with pytest.raises(OptionError, match=f"{known.__name__} is supported already"):
            codec.register(known, str, known)
    with pytest.raises(OptionError, match="a class is needed, found list"):
        codec.register(list[Money], str, list)
    with pytest.raises(OptionError, match="are functions of one argument"):
        codec.register(Foreign, 5, str)  # type: ignore[arg-type]


def _cents(money: Money) -> int:
    return money.cents


def _money(cents: int) -> Money:
    if not cents:
        raise ValueError("no money")
    return Money(cents)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from relevo.codec import forms

    monkeypatch.setattr(forms, "_forms", {})
    Codec().register(Money, _cents, _money)
    Codec().register(pathlib.Path, str, pathlib.Path)


# -- numpy -------------------------------------------------------------------------------------------

NUMPY: list[tuple[Any, str]] = [
    (numpy.float64(1.5), "a numpy.float64 cannot be sent as JSON: pass .item(), or register it"),
    (numpy.int32(3), "a numpy.int32 cannot be sent as JSON: pass .item()"),
    (numpy.bool_(True), "cannot be sent as JSON: pass .item()"),
    (
        numpy.array([1, 2]),
        "a numpy.ndarray cannot be sent as JSON: pass .tolist(), or register it with app.codec.register(",
    ),
    ({"a": [numpy.int64(3)]}, "['a'][0]: a numpy.int64 cannot be sent as JSON: pass .item()"),
    ({numpy.int64(3): 1}, "a numpy.int64 cannot be sent as JSON: pass .item()"),
]


@pytest.mark.parametrize(("value", "why"), NUMPY, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("annotation", [Any, float, dict[str, list[float]]])
def test_values_of_numpy_are_refused_with_what_to_pass_instead(annotation: Any, value: Any, why: str) -> None:
    assert why in refusal(_taking(annotation), value)
    with pytest.raises(PayloadError) as refused:
        _taking(annotation).encode_result(value, limit=ROOMY)
    assert why in str(refused.value)


def _taking(annotation: Any) -> Signature:
    """As in the other tests of the codec, where this module's names are found."""

    def task(value: Any) -> Any:
        return value

    task.__annotations__ = {"value": annotation, "return": annotation}
    return Signature(task)
