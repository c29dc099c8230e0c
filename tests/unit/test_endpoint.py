"""Server URLs: every spelling, and nonsense that is refused without showing a password."""

from __future__ import annotations

import ssl

import pytest

from relevo.errors import SettingsError
from relevo.store.endpoint import Endpoint, Location, Tls, read_url


def only(url: str) -> Endpoint:
    location = read_url(url)
    assert location.kind == "standalone"
    (seed,) = location.seeds
    return seed


@pytest.mark.parametrize(
    ("url", "endpoint"),
    [
        ("redis://", Endpoint("localhost")),
        ("redis://db", Endpoint("db", 6379)),
        ("valkey://db:7000", Endpoint("db", 7000)),
        ("redis://db:7000/3", Endpoint("db", 7000, db=3)),
        ("redis://db/", Endpoint("db")),
        ("redis://db?db=4", Endpoint("db", db=4)),
        ("redis://:7000", Endpoint("localhost", 7000)),
        ("redis://[::1]:7000/1", Endpoint("::1", 7000, db=1)),
        ("redis://[fe80::1]", Endpoint("fe80::1")),
        ("redis://:pw@db", Endpoint("db", password="pw")),
        ("redis://shop:pw@db", Endpoint("db", username="shop", password="pw")),
        ("redis://shop:p%40%2F%3A%23@db", Endpoint("db", username="shop", password="p@/:#")),
        ("redis://shop:p@w@db", Endpoint("db", username="shop", password="p@w")),
        ("redis://:@db", Endpoint("db", password="")),
        ("unix:///run/redis.sock", Endpoint(path="/run/redis.sock")),
        ("unix:///a%20b/redis.sock?db=2", Endpoint(path="/a b/redis.sock", db=2)),
        ("unix://:pw@/run/redis.sock", Endpoint(path="/run/redis.sock", password="pw")),
        ("unix:///run/me@home/redis.sock", Endpoint(path="/run/me@home/redis.sock")),
        ("rediss://db", Endpoint("db", tls=Tls())),
        ("valkeys://db:1/2", Endpoint("db", 1, db=2, tls=Tls())),
        (
            "rediss://db?ssl_ca_certs=/ca&ssl_certfile=/c&ssl_keyfile=/k&ssl_check_hostname=false",
            Endpoint("db", tls=Tls("/ca", "/c", "/k", True, False)),
        ),
        ("rediss://db?ssl_cert_reqs=none", Endpoint("db", tls=Tls(verify=False))),
    ],
)
def test_a_url_of_one_server_is_read(url: str, endpoint: Endpoint) -> None:
    found = only(url)
    if endpoint.path:
        found, endpoint = (Endpoint(path=e.path, db=e.db, password=e.password) for e in (found, endpoint))
    assert found == endpoint


@pytest.mark.parametrize(("scheme", "tls"), [("redis", None), ("valkey", None), ("rediss", Tls()), ("valkeys", Tls())])
def test_a_url_of_sentinels_names_the_primary_and_one_of_a_cluster_lists_nodes(scheme: str, tls: Tls | None) -> None:
    found = read_url(f"{scheme}+sentinel://u:p@a,b:7000/mymaster/2?sentinel_username=su&sentinel_password=sp")
    seeds = tuple(
        Endpoint(host, port, db=2, username="u", password="p", tls=tls) for host, port in (("a", 26379), ("b", 7000))
    )
    assert found == Location("sentinel", seeds, "mymaster", "su", "sp")
    found = read_url(f"{scheme}+cluster://a:1,b,[::1]:3")
    assert found.kind == "cluster"
    assert found.seeds == (Endpoint("a", 1, tls=tls), Endpoint("b", 6379, tls=tls), Endpoint("::1", 3, tls=tls))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "starts with ''"),
        ("localhost:6379", "starts with 'localhost:6379'"),
        ("redsi://db", "did you mean 'redis'"),
        ("http://db", "write redis://"),
        ("REDIS://db", "write redis://"),
        ("redis+cluter://db", r"did you mean 'redis\+cluster'"),
        ("redis://db:0", "port in the server URL: a number from 1 to 65535"),
        ("redis://db:65536", "found '65536'"),
        ("redis://db:six", "found 'six'"),
        ("redis://db:1:2", "found '1:2'"),
        ("redis://::1", "port"),
        ("redis://[::1", "IPv6"),
        ("redis://[nonsense]/0", "IPv6"),
        ("redis://db/first", "db in the server URL: a number"),
        ("redis://db/-1", "found '-1'"),
        ("redis://db/٣", "found '٣'"),
        ("redis://db/0/1", "too many path parts"),
        ("redis://db?database=1", r"unknown option 'database'"),
        ("redis://db?ssl_ca_cert=/x", "did you mean 'ssl_ca_certs'"),
        ("redis://db?ssl_ca_certs=/x", "write rediss://"),
        ("rediss://db?ssl_cert_reqs=optional", "'required' or 'none', found 'optional'"),
        ("redis://a,b", r"several hosts: write redis\+sentinel"),
        ("redis+cluster://a,,b", "comma too many"),
        ("redis+cluster://a,", "comma too many"),
        ("redis+cluster://a/1", "only database 0, found 1"),
        ("redis+sentinel://a", "names the primary"),
        ("redis+sentinel://a/", "names the primary"),
        ("unix://", "path of the socket"),
        ("unix://run/redis.sock", "path of the socket"),
    ],
)
def test_a_wrong_url_is_refused_with_the_right_form(url: str, says: str) -> None:
    with pytest.raises(SettingsError, match=says):
        read_url(url)


@pytest.mark.parametrize("secret", ["se/cret", "se?cret", "se#cret", "se/cr@et", "se:cret/1"])
def test_a_password_with_bare_signs_is_refused_and_not_shown(secret: str) -> None:
    for user in ("", "shop"):
        with pytest.raises(SettingsError) as error:
            read_url(f"redis://{user}:{secret}@db:6379/0")
        assert "se" not in str(error.value).replace("server", "").replace("Server", "")
        assert "cret" not in str(error.value)


def test_an_endpoint_is_shown_without_its_password() -> None:
    assert str(only("redis://shop:secret@db:7000/1")) == "db:7000"
    assert str(only("unix://:secret@/run/redis.sock")) == "/run/redis.sock"


def test_a_connection_is_greeted_as_the_url_says() -> None:
    for url, commands in (
        ("redis://db", []),
        ("redis://db/2", [("SELECT", "2")]),
        ("redis://:pw@db", [("AUTH", "pw")]),
        ("redis://shop:pw@db/2", [("AUTH", "shop", "pw"), ("SELECT", "2")]),
        ("redis://shop@db", []),
    ):
        assert only(url).greeting() == commands


def test_the_way_in_is_the_same_at_another_address() -> None:
    before = only("rediss://shop:pw@db:7000/2")
    after = before.at("other", 1)
    assert (after.host, after.port) == ("other", 1)
    assert (after.db, after.username, after.password, after.tls) == (2, "shop", "pw", Tls())


def test_certificates_are_checked_by_default() -> None:
    checked, unnamed, unchecked = Tls().context(), Tls(check_hostname=False).context(), Tls(verify=False).context()
    assert (checked.verify_mode, checked.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert (unnamed.verify_mode, unnamed.check_hostname) == (ssl.CERT_REQUIRED, False)
    assert (unchecked.verify_mode, unchecked.check_hostname) == (ssl.CERT_NONE, False)
