"""Access to the HTTP API: roles, tokens, origins and addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from relevo.errors import OptionError, SettingsError
from relevo.settings import load
from relevo.web.access import Caller, Role, caller_of, host_of, is_loopback, is_same_origin, token_of

TOKENS = [token_of(f"{role}:{role}-ana:{role}-0123456789abcdef") for role in ("viewer", "operator", "admin")]


def test_a_token_is_read_and_its_secret_is_not_shown() -> None:
    token = token_of("operator:ana@desk.example:abc_DEF-0123.456~+/==")
    assert (token.role, token.name, token.secret) == (Role.OPERATOR, "ana@desk.example", "abc_DEF-0123.456~+/==")
    assert "abc_DEF" not in f"{token!r} {token} {token.__rich_repr__()}"


def test_the_token_of_a_producer_may_name_tasks() -> None:
    caller = caller_of(f"Bearer {'x' * 16}", [token_of(f"producer shop.mails.* shop.report:web:{'x' * 16}")])
    assert caller is not None and (caller.name, caller.role) == ("web", Role.PRODUCER)
    asked = ("shop.mails.send", "shop.mails.", "shop.report", "shop.reports", "SHOP.report", "other.shop.report")
    assert [task for task in asked if caller.may_enqueue(task)] == ["shop.mails.send", "shop.mails.", "shop.report"]
    assert Caller("web", Role.PRODUCER).may_enqueue("anything")


@pytest.mark.parametrize(
    "text",
    [
        *("viewer shop.*:ana:0123456789abcdef", " :ana:0123456789abcdef", "producer,x:ana:0123456789abcdef"),
        *("", "admin", "admin:ana", "admin:ana:", "admin::0123456789abcdef", "ADMIN:ana:0123456789abcdef", None, 7),
        *("admin:ana:0123456789abcdefü", "admin:ana:0123456789abc def", "admin:ana:0123456789:abcdef"),
        "admin:ana:===============",
    ],
)
def test_a_malformed_token_is_refused(text: object) -> None:
    with pytest.raises(OptionError, match="role:name:secret"):
        token_of(text)


@pytest.mark.parametrize(
    ("header", "caller"),
    [
        ("Bearer admin-0123456789abcdef", Caller("admin-ana", Role.ADMIN)),
        ("bearer  viewer-0123456789abcdef ", Caller("viewer-ana", Role.VIEWER)),
        *(
            (f"Bearer {secret}", None)
            for secret in ("admin-0123456789abcde", "admin-0123456789abcdefg", "\udcff", "***")
        ),
        *((header, None) for header in ("Bearer ADMIN-0123456789abcdef", "Basic admin-0123456789abcdef")),
        *((header, None) for header in ("admin-0123456789abcdef", "Bearer", "Bearer ", "")),
    ],
)
def test_only_the_bearer_of_a_token_is_known(header: str, caller: Caller | None) -> None:
    assert caller_of(header, TOKENS) == caller
    assert Role.VIEWER < Role.OPERATOR < Role.ADMIN


LOOPBACK = ["localhost", "LOCALHOST", "localhost.", "127.0.0.1", "127.8.9.1", "::1", "[::1]"]
ELSEWHERE = [
    *("", "0.0.0.0", "::", "10.0.0.7", "evil", "127.1", "0x7f000001", "2130706433", "[::1", "localhost..", "[]"),
    *("localhost.evil.example", "127.0.0.1.evil.example", "::ffff:127.0.0.1.evil"),
]


def test_this_machine_is_known_by_its_names_and_by_no_other() -> None:
    assert [host for host in LOOPBACK + ELSEWHERE if is_loopback(host)] == LOOPBACK


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost:8420", "localhost"),
        ("[::1]:8420", "::1"),
        ("127.0.0.1", "127.0.0.1"),
        ("evil.example:80", "evil.example"),
        ("", ""),
        ("[::1", ""),
        ("user@localhost", ""),
        ("evil.example@localhost", ""),
        ("localhost#.evil.example", ""),
        ("localhost/evil.example", ""),
        ("LOCALHOST", "localhost"),
        (":8420", ""),
    ],
)
def test_a_host_header_is_taken_apart(header: str, host: str) -> None:
    assert host_of(header) == host


@pytest.mark.parametrize(
    ("origin", "host", "same"),
    [
        ("http://localhost:8420", "localhost:8420", True),
        ("http://localhost", "localhost:80", True),
        ("http://localhost:80", "localhost", True),
        ("https://ops.example.com", "ops.example.com", True),  # behind a proxy that ends TLS
        ("https://ops.example.com", "OPS.example.com:443", True),
        ("http://[::1]:8420", "[::1]:8420", True),
        ("http://localhost:8421", "localhost:8420", False),
        ("http://127.0.0.1:8420", "localhost:8420", False),
        ("http://evil.example", "localhost:8420", False),
        ("http://localhost.evil.example:8420", "localhost:8420", False),
        ("null", "localhost:8420", False),
        ("", "localhost:8420", False),
        ("file://", "localhost:8420", False),
        ("chrome-extension://localhost:8420", "localhost:8420", False),
        ("http://localhost:port", "localhost:8420", False),
        ("http://[::1", "[::1]:8420", False),
        ("http://localhost:8420", "", False),
    ],
)
def test_only_a_page_of_this_server_has_its_origin(origin: str, host: str, same: bool) -> None:
    assert is_same_origin(origin, host) is same


# In the settings


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"web_tokens": 7}, "a list of tokens"),
        ({"web_tokens": ["0123456789abcdef"]}, "role:name:secret"),
        ({"web_tokens": ["root:ana:0123456789abcdef"]}, "one of producer, viewer, operator, admin"),
        ({"web_tokens": ["admin:a na:0123456789abcdef"]}, "a name has letters"),
        ({"web_tokens": ["admin:ana:0123456789abcde"]}, "16 characters or more"),
        ({"web_tokens": ["admin:ana:0123456789 abcdef"]}, "openssl rand"),
        ({"web_tokens": ["admin:ana:0123456789abcdef", "viewer:ana:fedcba9876543210"]}, "a name of its own"),
        ({"mask": 7}, "names of arguments"),
        ({"mask": [""]}, "names of arguments"),
    ],
)
def test_settings_of_the_http_api_are_checked(given: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=says) as refused:
        load(arguments=given, directory=tmp_path, environ={})
    assert "0123456789" not in str(refused.value)


def test_web_tokens_are_never_shown(tmp_path: Path) -> None:
    found = load(arguments={"web_tokens": ["admin:ana:0123456789abcdef"]}, directory=tmp_path, environ={})
    assert "0123456789abcdef" not in repr(found)
    assert "admin:ana:***" in repr(found)
