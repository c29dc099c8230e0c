"""Data directories that are not ours: what an attacker leaves there runs nothing and overwrites nothing."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from relevo.errors import EmbeddedServerError, UntrustedDirectory
from relevo.store.call_numbers import Numbers, ServerClock
from relevo.store.embedded.program import find_binary
from relevo.store.embedded.server import REMOVED_COMMANDS, ensure, status, stop, trust
from relevo.store.embedded.trust import records_place
from relevo.store.endpoint import Endpoint
from relevo.store.link import Link
from relevo.store.peers import peer_uid
from tests.eventually import PATIENCE
from tests.servers import ENGINES, available
from tests.system.shell import relevo

BINARIES = [pytest.param(binary, id=engine) for engine in ENGINES if (binary := available(engine))]
REDIS_62 = available("redis62")
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")
SECRET = "export PATH\n"
STRANGER = 12345

_MODULE = """
#include <stdio.h>
__attribute__((constructor)) static void ran(void) { FILE *f = fopen(RAN, "w"); if (f) fclose(f); }
"""


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "data"
    yield place
    if place.is_dir() and not place.is_symlink():
        os.chown(place, os.geteuid(), -1)
        place.chmod(0o700)
        with suppress(UntrustedDirectory):  # because of the files that the test put there, on which no server runs
            stop(place)


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The file that the attacker's code makes when it runs."""
    return tmp_path / "ran"


@pytest.fixture
def bashrc(tmp_path: Path) -> Path:
    """A file of this user's that must stay as it is."""
    path = tmp_path / "bashrc"
    path.write_text(SECRET)
    path.chmod(0o644)
    return path


def aof(*commands: str) -> bytes:
    """An append-only file."""
    words = [command.split(" ") for command in commands]
    return "".join(
        f"*{len(line)}\r\n" + "".join(f"${len(word)}\r\n{word}\r\n" for word in line) for line in words
    ).encode()


def planted(data: Path, ran: Path, *commands: str) -> None:
    """What an attacker leaves: a module that runs code when it is loaded, and a file that loads it, for any engine."""
    (data / "appendonlydir").mkdir(mode=0o700, parents=True)
    (data / "appendonlydir" / "appendonly.aof.manifest").write_text("file appendonly.aof.1.incr.aof seq 1 type i\n")
    for name in ("appendonlydir/appendonly.aof.1.incr.aof", "appendonly.aof"):
        (data / name).write_bytes(aof("SELECT 0", "SET a 1", *(commands or ("MODULE LOAD ./m.so",))))
    (data / "m.so").write_bytes(b"")
    if compiler := shutil.which("cc"):
        source = ran.with_suffix(".c")
        source.write_text(_MODULE)
        subprocess.run(
            [compiler, "-shared", "-fPIC", f'-DRAN="{ran}"', str(source), "-o", str(data / "m.so")], check=True
        )
    (data / "m.so").chmod(0o700)
    data.chmod(0o700)


def made(data: Path) -> None:
    """A directory that this user made, with data in it, and no server."""
    with redis.Redis.from_url(ensure(data)) as server:
        server.set("a", "1")
    stop(data)


def refused(data: Path) -> str:
    with pytest.raises(UntrustedDirectory) as error:
        ensure(data)
    return str(error.value)


# Directories of unknown origin


def test_data_directory_of_a_cloned_repository_runs_nothing(tmp_path: Path, ran: Path) -> None:
    """It belongs to the user who cloned it, so its owner says nothing."""
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    planted(theirs / ".relevo", ran)
    if git := shutil.which("git"):
        identity = ("-c", "user.name=x", "-c", "user.email=x@example.com")
        for step in (("init", "-q"), ("add", "-f", "."), (*identity, "commit", "-qm", "x")):
            subprocess.run([git, "-C", str(theirs), *step], check=True)
        subprocess.run([git, "clone", "-q", str(theirs), str(mine)], check=True)
    else:
        shutil.copytree(theirs, mine)
    (mine / ".relevo").chmod(0o755)
    before = {*mine.rglob(".relevo/*")}
    try:
        for words in (["status", "--name", "x"], ["doctor"], ["server", "start"]):
            result = relevo(*words, cwd=mine)
            assert (result.code, not ran.exists()) == (2, True)
            assert f"relevo server trust {mine / '.relevo'}" in result.err
        assert {*mine.rglob(".relevo/*")} == before
        described = relevo("server", "status", "--json", cwd=mine)
        assert (described.code, described.json["trusted"], described.json["running"]) == (2, False, False)
    finally:
        stop(mine / ".relevo")


@pytest.mark.parametrize("case", ["of another user", "above the project"])
def test_data_directory_above_a_project_runs_nothing(tmp_path: Path, ran: Path, case: str) -> None:
    """In a directory for all users, one of them leaves data for the commands of the others."""
    shared, project = tmp_path / "shared", tmp_path / "shared" / "victim" / "project"
    project.mkdir(parents=True)
    planted(shared / ".relevo", ran)
    if case == "of another user":
        if os.geteuid() != 0:
            pytest.skip("only root can make files of another user; the other case needs none")
        for path in (shared, shared / ".relevo", *(shared / ".relevo").rglob("*")):
            os.chown(path, STRANGER, STRANGER)
        shared.chmod(0o1777)
    else:
        (project / ".git").mkdir()
    result = relevo("status", "--name", "x", cwd=project)
    assert (result.code, not ran.exists()) == (2, True)
    assert f"{project / '.relevo'} does not exist" in result.err


@pytest.mark.parametrize("named", ["absolute", "settings"])
def test_directory_that_is_named_needs_trust_as_well(tmp_path: Path, data: Path, ran: Path, named: str) -> None:
    planted(data, ran)
    if named == "settings":
        (tmp_path / "relevo.toml").write_text('data_dir = "data"\n')
        result = relevo("status", "--name", "x", cwd=tmp_path)
    else:
        result = relevo("status", "--name", "x", cwd=tmp_path, RELEVO_DATA_DIR=str(data))
    assert result.code == 2 and "relevo server trust" in result.err
    assert not ran.exists()


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_directory_of_another_user_runs_nothing(data: Path, ran: Path, mode: int) -> None:
    planted(data, ran)
    for path in (data, *data.rglob("*")):
        os.chown(path, STRANGER, STRANGER)
    data.chmod(mode)
    assert f"belongs to uid {STRANGER}" in refused(data)
    with pytest.raises(UntrustedDirectory, match="belongs to"):
        trust(data)
    with pytest.raises(UntrustedDirectory, match="belongs to"):
        stop(data)
    assert status(data).trusted is False
    assert not ran.exists()
    assert not (data / "server.lock").exists(), "nothing was written there"


@pytest.mark.skipif(os.geteuid() == 0, reason="root owns everything that a test can find")
def test_directory_of_root_is_refused_to_a_user() -> None:
    assert "belongs to user root" in refused(Path("/usr"))


def test_directory_that_others_may_write_to_is_refused(data: Path) -> None:
    made(data)
    for mode in (0o770, 0o707, 0o1777):
        data.chmod(mode)
        assert "can be written by other users" in refused(data)
    assert f"relevo server trust {data}" in refused(data)
    assert trust(data) is True and stat.S_IMODE(data.stat().st_mode) == 0o700
    assert ensure(data)


def test_link_in_the_place_of_the_directory_is_refused(data: Path, tmp_path: Path) -> None:
    """It may come with a repository, and lead to the data of another project of this user."""
    made(data)
    (tmp_path / ".relevo").symlink_to(data)
    assert f"is a link to {data}" in refused(tmp_path / ".relevo")
    result = relevo("status", "--name", "x", cwd=tmp_path)
    assert result.code == 2 and "is a link" in result.err
    (tmp_path / "linked").symlink_to(tmp_path)  # above it, a link is as good as its target
    assert ensure(tmp_path / "linked" / "data") == ensure(data)


# Poison in a trusted directory


@pytest.mark.parametrize("binary", BINARIES)
def test_poisoned_file_of_a_trusted_directory_is_refused_and_nothing_runs(data: Path, ran: Path, binary: str) -> None:
    """`enable-module-command no` and protected configuration do not hold for a file that is read back."""
    poison = {
        "MODULE": "MODULE LOAD ./m.so",
        "CONFIG": f"config set dir {data.parent}",
        "DEBUG": "debug set-active-expire 0",
        "REPLICAOF": "REPLICAOF 127.0.0.1 1",
        "SLAVEOF": "slaveof 127.0.0.1 1",
        "MIGRATE": "MIGRATE 127.0.0.1 1 a 0 10",
    }
    assert poison.keys() < {*REMOVED_COMMANDS}
    for name, command in poison.items():
        planted(data, ran, command)
        assert trust(data) is True
        if binary == REDIS_62:
            shutil.rmtree(data / "appendonlydir")
        with pytest.raises(EmbeddedServerError, match=f"holds the command {name}, which relevo never writes"):
            ensure(data, binary=binary)
        assert not ran.exists() and not status(data).running
        shutil.rmtree(data)


@pytest.mark.parametrize("binary", BINARIES)
def test_scripts_of_a_poisoned_file_load_no_code_either(data: Path, ran: Path, binary: str) -> None:
    planted(data, ran, "EVAL return(redis.pcall('MODULE','LOAD','./m.so')) 0")
    trust(data)
    if binary == REDIS_62:
        shutil.rmtree(data / "appendonlydir")
    try:
        ensure(data, binary=binary)
    except EmbeddedServerError:
        pass  # some engines end here, others go on; neither loads it
    assert not ran.exists()


@pytest.mark.parametrize("binary", BINARIES)
def test_server_lacks_the_commands_that_reach_beyond_it(data: Path, binary: str) -> None:
    with redis.Redis.from_url(ensure(data, binary=binary)) as server:
        for name in REMOVED_COMMANDS:
            with pytest.raises(redis.ResponseError, match="unknown command"):
                server.execute_command(name, "GET", "x")


PLACES = [
    "server.conf",
    "server.conf.new",
    "server.log",
    "server.lock",
    "engine.json",
    "engine.json.new",
    "identity",
    "appendonly.aof",
    "appendonlydir/appendonly.aof.1.incr.aof",
]


@pytest.mark.parametrize("kind", ["symlink", "hard link", "pipe"])
@pytest.mark.parametrize("place", PLACES)
def test_strange_file_in_a_trusted_directory_is_refused(data: Path, bashrc: Path, place: str, kind: str) -> None:
    """Nothing is written where a link leads, and a pipe keeps no process waiting."""
    made(data)
    path = data / place
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    match kind:
        case "symlink":
            path.symlink_to(bashrc)
        case "hard link":
            path.hardlink_to(bashrc)
        case _:
            os.mkfifo(path)
    message = refused(data)
    assert f"{path} is not a plain file" in message
    assert bashrc.read_text() == SECRET
    assert stat.S_IMODE(bashrc.stat().st_mode) == 0o644
    assert not status(data).running


def test_doctor_overwrites_no_file_to_which_a_planted_link_leads(tmp_path: Path, bashrc: Path) -> None:
    data = tmp_path / ".relevo"
    data.mkdir(mode=0o700)
    (data / "server.conf").symlink_to(bashrc)
    for _ in range(2):
        assert relevo("doctor", cwd=tmp_path).code == 2
        assert bashrc.read_text() == SECRET
        assert relevo("server", "trust", str(data)).code == 2, "a directory with links is not worth trust"


def test_link_in_the_place_of_the_socket_is_replaced(data: Path, tmp_path: Path) -> None:
    made(data)
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(tmp_path / "theirs.sock"))
        theirs.listen()
        theirs.setblocking(False)
        (data / "server.sock").symlink_to(tmp_path / "theirs.sock")
        assert "is not a plain file" in refused(data)
        with pytest.raises(BlockingIOError):
            theirs.accept()


# Between the check and the use


def test_directory_that_is_exchanged_after_the_check_is_not_used(data: Path, tmp_path: Path, bashrc: Path) -> None:
    """Another user may rename what is in his own directory, or in one that all may write to, at any moment."""
    made(data)
    theirs, aside, program = tmp_path / "theirs", tmp_path / "aside", tmp_path / "server"
    theirs.mkdir(mode=0o700)
    for name in ("server.conf", "server.log", "server.conf.new", "engine.json.new"):
        (theirs / name).symlink_to(bashrc)
    # The version is asked after the check, and before anything is written.
    program.write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && mv {data} {aside} && mv {theirs} {data}\nexec {find_binary()} "$@"\n'
    )
    program.chmod(0o700)
    try:
        with pytest.raises(UntrustedDirectory):
            ensure(data, binary=str(program))
        assert bashrc.read_text() == SECRET
        assert "unixsocket" in (aside / "server.conf").read_text(), "it was written where the check had looked"
    finally:
        stop(aside)


@needs_root
def test_server_of_another_user_at_our_socket_is_not_talked_to(data: Path) -> None:
    """A user who may rename the directory could put another in its place, with a socket in it."""
    made(data)
    data.chmod(0o777)
    code = """
        import os, socket, sys
        os.chdir(sys.argv[1])
        os.setuid(12345)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind("server.sock")
        listener.listen()
        print("listens", flush=True)
        sys.stdin.read()
        """
    path = str(data / "server.sock")
    with subprocess.Popen(
        [sys.executable, "-c", "\n".join(line.strip() for line in code.splitlines()), str(data)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as listener:
        assert listener.stdout is not None and listener.stdout.readline() == "listens\n"
        data.chmod(0o700)
        with pytest.raises(UntrustedDirectory, match=f"belongs to uid {STRANGER}"):
            ensure(data)
        with pytest.raises(UntrustedDirectory, match=f"belongs to uid {STRANGER}"):
            Link(Endpoint(path=path, is_own=True), timeout=1, connect_timeout=1, numbers=Numbers(ServerClock(), 1))
        listener.communicate()


def test_the_user_at_the_other_end_of_a_socket_is_known() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert peer_uid(ours) in (os.geteuid(), None)


# Trust


@pytest.mark.parametrize("umask", [0, 0o077])
def test_new_directory_is_trusted_and_closed_whatever_the_umask(data: Path, umask: int) -> None:
    code = f"import os, sys\nos.umask({umask})\nfrom pathlib import Path\n"
    code += "from relevo.store.embedded.server import ensure\nensure(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(data)], check=True, timeout=PATIENCE)
    assert ensure(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    kept = [path for path in data.rglob("*") if path.is_file()]
    assert {"identity", ".gitignore", "server.conf", "server.log", "engine.json"} < {path.name for path in kept}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept} == {0o600}
    assert (data / ".gitignore").read_text() == "*\n"
    assert status(data).trusted is True


def test_empty_directory_is_taken_and_closed(data: Path) -> None:
    """A volume of a container, or one that was made beforehand."""
    data.mkdir()
    data.chmod(0o755)
    assert status(data).trusted is True
    assert ensure(data)
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_directory_of_an_earlier_version_works_again_once_it_is_trusted(data: Path) -> None:
    """It has no identity, and its server may still be running."""
    url = ensure(data)
    with redis.Redis.from_url(url) as server:
        server.set("a", "1")
    (data / "identity").unlink()
    (data / ".gitignore").unlink()
    message = refused(data)
    assert "earlier version of relevo" in message
    assert f"relevo server trust {data}" in message
    described = relevo("server", "status", "--data-dir", str(data), "--json")
    assert (described.code, described.json["trusted"], described.json["running"]) == (2, False, True)
    assert relevo("server", "stop", "--data-dir", str(data)).code == 0

    result = relevo("server", "trust", str(data), "--json")
    assert (result.code, result.json) == (0, {"trusted": True, "changed": True, "data_dir": str(data)})
    assert relevo("server", "trust", str(data)).out == f"{data} was trusted already\n"
    with redis.Redis.from_url(ensure(data)) as server:
        assert server.get("a") == b"1"
    assert (data / ".gitignore").read_text() == "*\n"
    doctor = relevo("doctor", "--json", RELEVO_DATA_DIR=str(data))
    assert doctor.json["data_dir"] == {"path": str(data), "trusted": True}
    assert {check["level"] for check in doctor.json["checks"] if check["name"] in ("access", "persistence")} == {"ok"}


def test_copy_a_moved_directory_and_a_successor_need_trust_of_their_own(data: Path, tmp_path: Path) -> None:
    made(data)
    other = tmp_path / "other"
    shutil.copytree(data, other)
    assert "or a copy" in refused(other)
    shutil.rmtree(data)
    planted(data, tmp_path / "ran")  # at the same place, perhaps with the same inode
    assert "relevo server trust" in refused(data)
    shutil.rmtree(data)
    made(other.rename(data))  # back at its place: it is the one that was made there
    assert ensure(data)


def test_trust_is_for_data_directories_only(tmp_path: Path) -> None:
    """A slip must not close a project to its group, or hide its files from git."""
    (tmp_path / "pyproject.toml").write_text("")
    tmp_path.chmod(0o755)
    for path, reason in ((tmp_path, "is not the data directory"), (tmp_path / "none", "does not exist")):
        result = relevo("server", "trust", str(path))
        assert result.code == 2 and reason in result.err
    assert [path.name for path in tmp_path.iterdir()] == ["pyproject.toml"]
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o755


@pytest.mark.parametrize("case", ["cannot be made", "open to others"])
def test_state_directory_that_cannot_be_used_is_reported_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """In a container or a service without a home."""
    state = tmp_path / "state"
    monkeypatch.setenv("XDG_STATE_HOME", str(state))
    if case == "cannot be made":
        state.write_text("")
    else:
        records_place().mkdir(parents=True)
        records_place().chmod(0o777)
    data = tmp_path / "data"
    with pytest.raises(EmbeddedServerError, match=r"Set XDG_STATE_HOME to a directory"):
        ensure(data)
    assert not data.exists()


def test_testing_kit_needs_no_state_directory_and_leaves_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from relevo.testing import server

    (tmp_path / "state").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("RELEVO_TEST_URL", raising=False)
    with server() as url, redis.Redis.from_url(url) as client:
        assert client.ping()


def test_records_of_directories_that_are_gone_end(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made(data)
    made(tmp_path / "gone")
    shutil.rmtree(tmp_path / "gone")
    assert len([*records_place().iterdir()]) == 2
    for record in records_place().iterdir():
        os.utime(record, (0, 0))
    made(tmp_path / "new")
    assert {record.read_text() for record in records_place().iterdir()} == {str(data), str(tmp_path / "new")}
    made(data)


def test_worker_stops_at_a_directory_that_is_not_trusted(tmp_path: Path, ran: Path) -> None:
    """Waiting would not help: a person must decide."""
    planted(tmp_path / ".relevo", ran)
    (tmp_path / "shop.py").write_text("from relevo import Relevo\napp = Relevo('shop')\n")
    result = relevo("worker", "shop:app", "--burst", cwd=tmp_path)
    assert result.code == 2
    assert "relevo server trust" in result.err and "Traceback" not in result.err
    assert not ran.exists()
