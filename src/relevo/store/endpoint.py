"""Where a server is: URLs read into values, every way of saying it checked."""

from __future__ import annotations

import re
import ssl
from typing import Literal
from urllib.parse import parse_qsl, unquote

from msgspec import Struct

from relevo.errors import SettingsError
from relevo.text.nearest import did_you_mean

Kind = Literal["standalone", "sentinel", "cluster"]


class Tls(Struct, frozen=True):
    """How a TLS connection is checked."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    verify: bool = True
    check_hostname: bool = True

    def context(self) -> ssl.SSLContext:
        """A context for sockets."""
        made = ssl.create_default_context(cafile=self.ca_certs)
        made.check_hostname = self.verify and self.check_hostname
        if not self.verify:
            made.verify_mode = ssl.CERT_NONE
        if self.certfile:
            made.load_cert_chain(self.certfile, self.keyfile)
        return made


class Endpoint(Struct, frozen=True):
    """One server to connect to."""

    host: str = ""
    port: int = 6379
    path: str = ""  # of a unix socket, instead of host and port
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: Tls | None = None
    is_own: bool = False  # an embedded server, which must run as this user

    def __str__(self) -> str:
        return self.path or f"{self.host}:{self.port}"  # never the password

    def at(self, host: str, port: int) -> Endpoint:
        """The same way in, at another address."""
        return Endpoint(host, port, "", self.db, self.username, self.password, self.tls)

    def greeting(self) -> list[tuple[str, ...]]:
        """The commands that open a connection."""
        commands: list[tuple[str, ...]] = []
        if self.password is not None:
            commands.append(("AUTH", self.username, self.password) if self.username else ("AUTH", self.password))
        if self.db:
            commands.append(("SELECT", str(self.db)))
        return commands


class Location(Struct, frozen=True):
    """A URL, read: one server, sentinels that know it, or nodes of a cluster."""

    kind: Kind
    seeds: tuple[Endpoint, ...]
    #: Name under which sentinels know the primary.
    primary: str = ""
    sentinel_username: str | None = None
    sentinel_password: str | None = None


_SCHEMES: dict[str, tuple[Kind, bool]] = {}
for _name in ("redis", "valkey"):
    _SCHEMES |= {
        _name: ("standalone", False),
        _name + "s": ("standalone", True),
        _name + "+sentinel": ("sentinel", False),
        _name + "s+sentinel": ("sentinel", True),
        _name + "+cluster": ("cluster", False),
        _name + "s+cluster": ("cluster", True),
    }
_SCHEMES["unix"] = ("standalone", False)
_OPTIONS = (
    "db",
    "ssl_ca_certs",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_cert_reqs",
    "ssl_check_hostname",
    "sentinel_username",
    "sentinel_password",
)


def read_url(url: str) -> Location:
    """Read a server URL.

    `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS), `unix:///path?db=0`,
    `redis+sentinel://host:port,host:port/primary[/db]`, `redis+cluster://host:port,host:port`;
    the same with `valkey` for `redis`.
    """
    scheme, sep, _ = url.partition("://")
    if not sep or scheme not in _SCHEMES:
        raise SettingsError(
            f"the server URL starts with {scheme[:20]!r}{did_you_mean(scheme, _SCHEMES)}; "
            "write redis://, rediss://, unix://, redis+sentinel:// or redis+cluster:// (or valkey…)"
        )
    kind, secure = _SCHEMES[scheme]
    parts = _Parts(url)
    userinfo, _, hosts = parts.netloc.rpartition("@")
    # A password with a bare / ? or # ends the host too early. What is behind it must not show up in a message.
    if parts.fragment or (not userinfo and "@" in parts.query) or (scheme != "unix" and "@" in parts.path):
        raise SettingsError("the server URL holds / ? # or @ in its password; write them as %2F %3F %23 %40")
    options = _options(parts.query)
    if not secure and (needless := [name for name in options if name.startswith("ssl_")]):
        raise SettingsError(f"{needless[0]} in the server URL, but it does not ask for TLS: write rediss://")
    username, colon, password = userinfo.partition(":")
    tls = _tls(options) if secure else None
    path = [unquote(segment) for segment in parts.path.split("/") if segment]
    primary = ""
    if kind == "sentinel":
        if not path:
            raise SettingsError("a sentinel URL names the primary: redis+sentinel://host:26379/mymaster")
        primary = path.pop(0)
    common = {
        "username": unquote(username) or None,
        "password": unquote(password) if colon else None,
        "tls": tls,
    }
    if scheme == "unix":
        if not parts.path or hosts:  # unix://run/redis.sock would be the host "run"
            raise SettingsError("a unix URL needs the path of the socket: unix:///run/redis.sock?db=0")
        database = _number("db", options.get("db", "0"), 0, 1_000_000)
        return Location(kind, (Endpoint(path=unquote(parts.path), db=database, **common),))  # type: ignore[arg-type]
    if len(path) > 1:
        raise SettingsError(f"the server URL has too many path parts: /{'/'.join(path)}; only /db is expected")
    database = _number("db", path[0] if path else options.get("db", "0"), 0, 1_000_000)
    if kind == "cluster" and database:
        raise SettingsError(f"a cluster has only database 0, found {database}")
    usual = 26379 if kind == "sentinel" else 6379
    seeds = tuple(
        Endpoint(host, port, db=database, **common)  # type: ignore[arg-type]
        for host, port in (_host(one, usual) for one in (hosts or "localhost").split(","))
    )
    if kind == "standalone" and len(seeds) > 1:
        raise SettingsError("several hosts: write redis+sentinel:// or redis+cluster://")
    return Location(kind, seeds, primary, options.get("sentinel_username"), options.get("sentinel_password"))


class _Parts:
    """A URL, cut up. By hand: urllib knows one host per URL, and its releases differ in what they do with several."""

    def __init__(self, url: str) -> None:
        rest, _, self.fragment = url.partition("://")[2].partition("#")
        rest, _, self.query = rest.partition("?")
        self.netloc, slash, path = rest.partition("/")
        self.path = slash + path


def _options(query: str) -> dict[str, str]:
    found = dict(parse_qsl(query, keep_blank_values=True))
    for name in found:
        if name not in _OPTIONS:
            raise SettingsError(f"unknown option {name!r} in the server URL{did_you_mean(name, _OPTIONS)}")
    return found


def _tls(options: dict[str, str]) -> Tls:
    demand = options.get("ssl_cert_reqs", "required")
    if demand not in ("none", "required"):
        raise SettingsError(f"ssl_cert_reqs is 'required' or 'none', found {demand!r}")
    return Tls(
        options.get("ssl_ca_certs"),
        options.get("ssl_certfile"),
        options.get("ssl_keyfile"),
        demand == "required",
        options.get("ssl_check_hostname", "true").lower() in ("1", "true", "yes"),
    )


def _host(text: str, usual_port: int) -> tuple[str, int]:
    if not text:
        raise SettingsError("the server URL has an empty host: there is a comma too many")
    if "[" in text or "]" in text:  # [::1]:6379
        address = re.fullmatch(r"\[([0-9a-fA-F:.]*:[0-9a-fA-F:.]*(?:%.+)?)\](?::(.*))?", text)
        if address is None:
            raise SettingsError("the server URL's host cannot be read; IPv6 is written redis://[::1]:6379/0")
        host, port = address[1], address[2] or ""
    else:
        host, _, port = text.partition(":")
    return unquote(host) or "localhost", _number("port", port, 1, 65535) if port else usual_port


def _number(what: str, text: str, low: int, high: int) -> int:
    if not text.isascii() or not text.isdigit() or not low <= int(text) <= high:
        raise SettingsError(f"{what} in the server URL: a number from {low} to {high} is needed, found {text!r}")
    return int(text)
