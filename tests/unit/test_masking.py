"""What of a job's arguments is shown to people."""

from __future__ import annotations

import copy
from typing import Any

import msgspec
import pytest

from relevo import Relevo
from relevo.errors import OptionError
from relevo.text.masking import DEEPEST, is_masked, is_secret, masked, masked_call, masked_text


class Payment(msgspec.Struct):
    card: str


SECRET = """
    password PASSWORD db_password userPassword dbpassword passwd passphrase pwd pg_pwd
    secret client_secret clientSecret SECRET_KEY
    token access_token accessToken authtoken X-Auth-Token token_id
    api_key apiKey apikey X-API-Key stripe-api-key
    Authorization proxy_authorization auth credentials aws_credential private_key accessKeyId signing_key jwt cookie
    card_number cardNumber cardnumber credit_card cvv cvv2 cvc pin PIN pin_code pins otp one_time_code ssn iban IBAN
    dsn SENTRY_DSN database_url DATABASE_URL db_uri connection_string connectionString session_id sessionid PHPSESSID
    connect.sid encryption_key encryptionKey ssh_key sshKeys hmac_key signature X-Signature webhook_url slackWebhookUrl
    csrf_token pass smtp_pass oauth set-cookie
"""
PLAIN = """
    user author authorship tokenizer tokenize key keys monkey passenger compass bypass authored primary_key id number
    card expiry pages text pass_rate jwtx
    pinned spin opinion pinboard option otpauthor dsnx discard_number session sessions url base_url connection
    signatory ssnippet ibanez card_holder webhook webhook_id first_pass max_tokens author_id authority
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
        ([["Authorization", "Bearer x"], ["Accept", "*"]], [["Authorization", "***"], ["Accept", "*"]]),
        (["psql", "--password", "x", "--host", "db"], ["psql", "--password", "***", "--host", "db"]),
        (
            {"at": "https://ana:pw@db/x", "body": '{"pin": 1234}'},
            {"at": "https://ana:***@db/x", "body": '{"pin": ***}'},
        ),
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


# Credentials inside texts


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("no such invoice: 13", "no such invoice: 13"),
        # URLs
        ("GET https://ana:pw@api.example.com/x?y=1: 500", "GET https://ana:***@api.example.com/x?y=1: 500"),
        ("https://ghp_x@github.com/a", "https://***@github.com/a"),
        (
            "redis://:a/b@db:6379/0 and amqp://u:p@h1,amqp://u:q@h2",
            "redis://:***@db:6379/0 and amqp://u:***@h1,amqp://u:***@h2",
        ),
        ("<a href='https://u:p@h/x'>", "<a href='https://u:***@h/x'>"),
        ("https://h/download?access_token=abc&n=1#top", "https://h/download?access_token=***&n=1#top"),
        (
            "https://h:80/@ana https://[::1]:80/@b https://h?mail=a@b.c",
            "https://h:80/@ana https://[::1]:80/@b https://h?mail=a@b.c",
        ),
        # headers
        ("401 for Bearer abc.def-1", "401 for Bearer ***"),
        ("the bearer of this letter, basic usage", "the bearer of this letter, basic usage"),
        ("Basic dXNlcjpwdw== was refused", "Basic *** was refused"),
        ("Authorization: Digest user=a, response=b\nAccept: */*", "Authorization: ***\nAccept: */*"),
        ("curl -H 'X-Api-Key: abc' -H \"Cookie: a=b; c=d\" url", "curl -H 'X-Api-Key: ***' -H \"Cookie: ***\" url"),
        # assignments
        ("API_KEY=abc DEBUG=1", "API_KEY=*** DEBUG=1"),
        ("export RELEVO_WEB_TOKENS=admin:ana:x,viewer:bob:y; run", "export RELEVO_WEB_TOKENS=***; run"),
        ("User(name='ana', password='a\\'b', n=1)", "User(name='ana', password='***', n=1)"),
        ("Server=h;Password=x;User=u", "Server=h;Password=***;User=u"),
        ("psql --password x --host=h", "psql --password *** --host=h"),
        ("card_number: 4111 1111 1111 1111 ok", "card_number: *** ok"),
        ("tokens=abc max_tokens=100 tokens=7", "tokens=*** max_tokens=100 tokens=7"),
        (r"a\npassword=x\ntoken=y\nuser=z", r"a\npassword=***\ntoken=***\nuser=z"),
        ("def f(token: str, password=None): token == other", "def f(token: str, password=None): token == other"),
        ("queue auth:actions, spin=1 pinned=2 opinion: 3", "queue auth:actions, spin=1 pinned=2 opinion: 3"),
        # JSON and pairs
        (
            '{"login": {"password": "x", "tokens": ["a", "b"]}, "secret": {"a": [{}, "}"]}, "pin":12,"z": 1}',
            '{"login": {"password": "***", "tokens": ***}, "secret": ***, "pin":***,"z": 1}',
        ),
        (r'{"body": "{\"password\": \"x\\\"y\", \"z\": 1}"}', r'{"body": "{\"password\": \"***\", \"z\": 1}"}'),
        ("[('Authorization', 'Bearer x'), (b'token', b'y')]", "[('Authorization', '***'), (b'token', b'***')]"),
        # private keys
        (
            "-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest",
            "-----BEGIN RSA PRIVATE KEY-----***-----END RSA PRIVATE KEY-----\nrest",
        ),
    ],
)
def test_credentials_inside_texts_are_hidden(text: str, shown: str) -> None:
    assert masked_text(text) == shown
    assert masked_text(shown) == shown
    assert is_masked(shown) is (text != shown)


def test_names_that_are_marked_are_hidden_inside_texts() -> None:
    assert masked_text('{"card": "4111", "n": 1} card=4112', ["card"]) == '{"card": "***", "n": 1} card=***'
    assert not is_masked("**bold*** text")


SIZE = 2**20


@pytest.mark.parametrize(
    "part",
    [
        *(
            "a",
            "a ",
            "=",
            '"',
            "(",
            "\\",
            "-",
            "://",
            "://a:@/",
            "://@",
            "x: ",
            "token=",
            "token=(",
            "token='",
            'token=\\"',
        ),
        *("['a',", "bearer ", "--token ", "-----BEGIN PRIVATE KEY-----", '{"token":[{', "token=,", "authorization: "),
        *("token= ", "aaaa:aaaa@", "[token", '{"password": "x", "n": [1, 2]}, ', "token=\\", "basic a"),
    ],
)
def test_a_megabyte_of_anything_is_looked_through(part: str) -> None:
    """In a time that grows with its length: what grows with its square takes hours, and runs into the time limit."""
    masked_text(part * (SIZE // len(part)))
    masked_text(part + "a" * SIZE + part)


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
