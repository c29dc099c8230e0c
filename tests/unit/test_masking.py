"""What of a job's arguments is shown to people."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from relevo import Relevo
from relevo.errors import OptionError
from relevo.model.masking import DEEPEST, is_secret, masked, masked_call


class Payment(msgspec.Struct):
    card: str


SECRET = """
    password PASSWORD db_password userPassword dbpassword passwd passphrase pwd pg_pwd
    secret client_secret clientSecret SECRET_KEY
    token access_token accessToken authtoken X-Auth-Token token_id
    api_key apiKey apikey X-API-Key stripe-api-key
    Authorization proxy_authorization auth credentials aws_credential private_key accessKeyId signing_key jwt cookie
"""
PLAIN = """
    user author authorship tokenizer tokenize key keys monkey passenger compass bypass authored primary_key id number
    card iban expiry pages text pass_rate jwtx
"""


def test_names_of_secrets_are_recognized_and_others_not_masked() -> None:
    names = [*SECRET.split(), *PLAIN.split(), "", "***"]
    assert [name for name in names if is_secret(name)] == SECRET.split()
    assert [name for name in ("card", "Card", "CARD", "c-a-r-d", "cards") if not is_secret(name, ["card"])] == ["cards"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, None),
        (7, 7),
        ("password", "password"),
        ({"password": None}, {"password": "***"}),
        ({"login": {"user": "ana", "password": ["a", "b"]}}, {"login": {"user": "ana", "password": "***"}}),
        ([{"token": 1}, [{"token": 2}]], [{"token": "***"}, [{"token": "***"}]]),
        ({"max_tokens": 100, "tokens": ["a"]}, {"max_tokens": 100, "tokens": "***"}),
        ({"head": {"Authorization": "Bearer x", "Accept": "*"}}, {"head": {"Authorization": "***", "Accept": "*"}}),
    ],
)
def test_values_under_such_names_are_hidden_however_deep(value: Any, shown: Any) -> None:
    before = copy.deepcopy(value)
    assert masked(value) == shown
    assert value == before, "the given value is not changed"


def test_what_is_too_deep_to_look_through_is_hidden() -> None:
    value: Any = {"password": "x"}
    for _ in range(DEEPEST + 500):
        value = [value]
    shown = masked(value)
    for _ in range(DEEPEST):
        (shown,) = shown
    assert shown == "***"


@pytest.mark.parametrize(
    ("args", "names", "shown"),
    [
        (["ana", "x"], ["user", "password"], ["ana", "***"]),
        (["ana"], ["user", "password"], ["ana"]),
        (["ana", "x", "y"], ["user", "secrets"], ["ana", "***", "***"]),
        (["ana", {"password": "x"}], [], ["ana", {"password": "***"}]),
        ([], ["user"], []),
        (None, ["user"], None),
    ],
)
def test_arguments_are_hidden_by_the_names_of_their_places(args: Any, names: list[str], shown: Any) -> None:
    assert masked_call(args, {"n": 1, "pwd": "x"}, names) == (shown, {"n": 1, "pwd": "***"})


# What tasks mark


def test_a_task_marks_only_arguments_that_it_has() -> None:
    app = Relevo("shop")
    with pytest.raises(OptionError, match="no argument 'crad', did you mean 'card'"):

        @app.task(secret=["crad"])
        def charge(card: str) -> None: ...

    @app.task(secret=["anything"])
    def accept(**data: str) -> None: ...

    with pytest.raises(OptionError, match=r"an option of @app\.task"):
        accept.using(secret=["other"])
    with pytest.raises(OptionError, match="a list of texts"):
        app.task(secret="data")(accept.func)


def test_an_action_marks_fields_of_its_struct() -> None:
    service = Relevo("shop").service("billing")

    @service.action("pay", secret=["card"])
    def pay(payment: Payment) -> None: ...

    with pytest.raises(OptionError, match="no argument 'crad'"):

        @service.action("refund", secret=["crad"])
        def refund(card: str) -> None: ...
