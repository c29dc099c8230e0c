"""JSON Schemas as Python annotations, as `relevo services NAME` shows them."""

from __future__ import annotations

from pydantic import BaseModel

from relevo.bus.cli.schema_view import signature, structures


class Page(BaseModel):
    number: int
    notes: dict[str, str] = {}


class Hit(BaseModel):
    id: int
    page: Page


class Query(BaseModel):
    text: str


def test_a_model_is_shown_by_its_name_with_its_fields() -> None:
    takes, gives = Query.model_json_schema(), Hit.model_json_schema()
    assert signature("search", takes, gives).lines(80) == ["search(text: str) -> Hit"]
    shown = [line for one in structures(takes, gives) for line in one.lines(80)]
    assert sorted(shown) == ["Hit(id: int, page: Page)", "Page(number: int, notes: dict[str, str] = {})"]


def test_a_model_in_an_argument_is_shown_by_its_name() -> None:
    takes = {"type": "object", "properties": {"page": Page.model_json_schema()}, "required": ["page"]}
    assert signature("keep", takes, {"type": "null"}).lines(80) == ["keep(page: Page) -> None"]
    assert [one.name for one in structures(takes, {"type": "null"})] == ["Page"]
