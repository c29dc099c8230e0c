"""Functions in classes as tasks."""

from __future__ import annotations

from typing import Any

import pytest

from relevo import Relevo
from relevo.engine.task import Task
from relevo.errors import TargetError


def test_a_method_is_refused_when_its_class_is_defined_with_the_right_way() -> None:
    app = Relevo("methods")
    registrations: list[Any] = [
        app.task,
        app.task(retries=2),
        app.service("s").action("send"),
        app.service("s").on("a.b"),
    ]
    for register in registrations:
        with pytest.raises(
            TargetError, match=r"Mailer\.send is a method; a worker has no Mailer to call it on"
        ) as wrong:

            class Mailer:
                @register  # type: ignore[untyped-decorator]
                def send(self, to: str) -> None: ...

        assert "app.task(name='send')(the_mailer.send)" in str(wrong.value)
    with pytest.raises(TargetError, match="is a method"):

        class Shop:
            @classmethod
            @app.task
            def make(cls) -> None: ...

    assert app.tasks == {}


def test_static_methods_and_bound_methods_are_tasks() -> None:
    app = Relevo("methods")

    class Mailer:
        @staticmethod
        @app.task
        def outer(to: str) -> str:
            return to

        @app.task
        @staticmethod
        def inner(to: str) -> str:
            return to

        def send(self, to: str) -> str:
            return f"{type(self).__name__} {to}"

    send: Task[..., str] = app.task(name="send")(Mailer().send)
    assert (Mailer.outer("a"), Mailer().inner("b"), send("c")) == ("a", "b", "Mailer c")
    for task in (Mailer.outer, Mailer.inner, send):
        assert task.signature.encode(("x",), {}, limit=1000) == b'"a":["x"]'


def test_a_function_whose_first_argument_is_called_self_is_a_task() -> None:
    @Relevo("methods").task
    def of(self: int) -> int:
        return self

    assert of(3) == 3
