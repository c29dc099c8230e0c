"""Pydantic models and other typed values through a real server: tasks, actions, callbacks, events and descriptions."""

from __future__ import annotations

import asyncio
import pathlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Literal

import attrs
import pytest
from pydantic import BaseModel, Field

from relevo import Relevo
from relevo.bus.asyncapi import document
from relevo.bus.catalogue import catalogue
from relevo.engine.message import Reply
from relevo.errors import OptionError, PayloadError, RemoteError, ResultNotKept
from tests.answering import answering
from tests.eventually import PATIENCE
from tests.servers import Server
from tests.system.shell import relevo
from tests.unit.test_asyncapi import check
from tests.working import working

if TYPE_CHECKING:
    Unimportable = dict[str, int]


class Item(BaseModel):
    sku: str
    count: int = Field(default=1, gt=0)


class Order(BaseModel):
    id: int
    items: list[Item]


class Receipt(BaseModel):
    order: Order
    cents: int


class Cash(BaseModel):
    kind: Literal["cash"] = "cash"
    cents: int


class Card(BaseModel):
    kind: Literal["card"] = "card"
    number: str


@attrs.define
class Point:
    x: int
    y: int = 0


ORDER = Order(id=7, items=[Item(sku="a", count=2)])


async def test_a_task_takes_and_gives_models(app: Relevo) -> None:
    seen: list[Any] = []

    @app.task
    async def charge(order: Order, *, to: Point, previous: Receipt | None = None) -> Receipt:
        seen.append((order, to, previous))
        return Receipt(order=order, cents=990)

    @app.task
    async def total(receipt: Receipt) -> int:
        return receipt.cents

    async with answering(app):
        job = await charge.aenqueue(ORDER, to=Point(1), previous=Receipt(order=ORDER, cents=1))
        assert await job.aresult(timeout=PATIENCE) == Receipt(order=ORDER, cents=990)
        assert seen == [(ORDER, Point(1), Receipt(order=ORDER, cents=1))]
        found = await app.ajob(job.id)
        assert await found.aresult(timeout=PATIENCE) == Receipt(order=ORDER, cents=990)
        step = charge.s(ORDER, to=Point(2)) | total.s()
        assert await (await step.aenqueue()).aresult(timeout=PATIENCE) == 990
    with pytest.raises(PayloadError, match=r"charge\(\): argument 'order'\.items\[0\]\.count: input should be greater"):
        charge.enqueue(Order.model_construct(id=1, items=[Item.model_construct(sku="a", count=0)]), to=Point(1))


async def test_a_result_that_is_not_the_model_is_not_kept(app: Relevo) -> None:
    @app.task
    async def charge() -> Receipt:
        return {"cents": 5}  # type: ignore[return-value]

    async with answering(app):
        with pytest.raises(ResultNotKept, match=r"charge\(\): result\.order: field required"):
            await (await charge.aenqueue()).aresult(timeout=PATIENCE)


async def test_actions_take_models_as_a_whole_or_by_name_and_answer_with_them(bus: Relevo) -> None:
    svc, me, seen = bus.service("shop"), bus.service("me"), list[Any]()

    @svc.action("whole")
    async def whole(order: Order) -> Receipt:
        seen.append(order)
        return Receipt(order=order, cents=1)

    @svc.action("named")
    async def named(order: Order, to: Point) -> Receipt:
        seen.append((order, to))
        return Receipt(order=order, cents=2)

    @svc.action("either")
    async def either(paid: Cash | Card) -> str:
        return type(paid).__name__

    @svc.action("point")
    async def point(point: Point) -> Point:
        return Point(point.y, point.x)

    async with answering(bus):
        for data in (ORDER, ORDER.model_dump()):
            assert await me.arequest("shop.whole", data, returns=Receipt) == Receipt(order=ORDER, cents=1)
            answer = await me.arequest("shop.named", {"order": data, "to": Point(3)}, returns=Receipt)
            assert answer == Receipt(order=ORDER, cents=2)
        assert seen == [ORDER, (ORDER, Point(3))] * 2
        assert await me.arequest("shop.either", Card(number="1")) == "Card"
        assert await me.arequest("shop.point", Point(1, 2), returns=Point) == Point(2, 1)
        assert await me.arequest("shop.whole", ORDER) == {"order": ORDER.model_dump(), "cents": 1}
        with pytest.raises(RemoteError, match=r"argument 'order'\.items: field required"):
            await me.arequest("shop.whole", {"id": 7})
        with pytest.raises(PayloadError, match=r"the answer is not .*Order.*: id: field required"):
            await me.arequest("shop.whole", ORDER, returns=Order)
        with pytest.raises(PayloadError, match=r"shop\.whole: .*greater than 0"):
            await me.arequest("shop.whole", Order.model_construct(id=1, items=[Item.model_construct(sku="a", count=0)]))
        with pytest.raises(OptionError, match=r"returns: `.*` is not something JSON can be read back to"):
            await me.arequest("shop.whole", ORDER, returns=complex)


async def test_callbacks_and_events_are_called_with_models(bus: Relevo) -> None:
    shop, desk = bus.service("shop"), bus.service("desk")
    done: asyncio.Queue[Any] = asyncio.Queue()

    @shop.action("charge")
    async def charge(order: Order) -> Receipt:
        await shop.areport(order.items[0])
        return Receipt(order=order, cents=5)

    @desk.action("charged")
    async def charged(reply: Reply[Receipt]) -> None:
        done.put_nowait(reply.result)
        await shop.apublish("sold", reply.result)

    @desk.on("shop.sold")
    async def sold(receipt: Receipt) -> None:
        done.put_nowait(receipt)

    async with answering(bus):
        await desk.asend("shop.charge", ORDER, on_reply="charged", timeout="1h")
        for _ in range(2):
            assert await asyncio.wait_for(done.get(), PATIENCE) == Receipt(order=ORDER, cents=5)


async def test_a_handler_whose_annotation_is_never_defined_gets_no_raw_data(bus: Relevo) -> None:
    called = []

    @bus.service("shop").action("whole")
    async def whole(order: Unimportable) -> None:
        called.append(order)

    async with answering(bus):
        with pytest.raises(RemoteError, match="argument 'order' is annotated `Unimportable`, which cannot be resolved"):
            await bus.service("me").arequest("shop.whole", {"order": 1})
    assert called == []


async def test_models_are_described_with_their_json_schema(bus: Relevo, server: Server) -> None:
    svc = bus.service("shop")

    @svc.action("whole")
    async def whole(order: Order) -> list[Receipt]:
        """Takes an order."""
        return []

    @svc.action("named")
    async def named(order: Order | None, to: Point) -> Reply[Receipt]:
        raise NotImplementedError

    async with answering(bus):
        found = document(await bus.engine.arun(catalogue(bus.engine)))
        with_shell = await asyncio.to_thread(
            relevo, "services", "shop", url=server.url, RELEVO_PREFIX=bus.settings.prefix, RELEVO_ENV="test"
        )
    check(found)
    schemas = found["components"]["schemas"]
    assert schemas["Item"]["properties"]["count"]["exclusiveMinimum"] == 0
    assert schemas["Item"]["required"] == ["sku"]
    assert {"Order", "Item", "Receipt", "Point"} <= schemas.keys()
    assert found["components"]["messages"]["shop.whole"]["payload"]["properties"]["items"]["items"] == {
        "$ref": "#/components/schemas/Item"
    }
    assert "whole(id: int, items: list[Item]) -> list[Receipt]" in with_shell.out
    assert "named(order: Order | None, to: Point)" in with_shell.out


def test_models_reach_tasks_in_a_process_of_their_own(app: Relevo) -> None:
    from tests.system import model_tasks

    with model_tasks.app.engine.rebound(url=app.settings.url, env="test"), working(model_tasks.app):
        job = model_tasks.doubled.enqueue(model_tasks.Amount(cents=4), pathlib.PurePosixPath("/a"))
        assert job.result(timeout=PATIENCE) == model_tasks.Amount(cents=8)


def test_pydantic_is_imported_only_by_those_who_use_it() -> None:
    code = (
        "import sys, relevo\n"
        "app = relevo.Relevo('codec')\n"
        "@app.task(name='add')\n"
        "def add(x: int, y: list[str] | None = None) -> float: return 0.5\n"
        "add.signature.encode((1,), {}, limit=1000)\n"
        "sys.exit('pydantic' in sys.modules or 'numpy' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
