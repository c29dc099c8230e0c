"""How far up settings and data are looked for, and which files are believed."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from relevo.errors import SettingsError
from relevo.project import foreign, foreign_entry, project_of, user
from relevo.settings import data_directory, load, settings_files

STRANGER = 12345
DIRECTORY, FILE, LINK = stat.S_IFDIR, stat.S_IFREG, stat.S_IFLNK
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of another user")


def made(*directories: Path) -> None:
    for one in directories:
        one.mkdir(parents=True, exist_ok=True)


def found(kind: int, mode: int, uid: int, links: int = 1) -> os.stat_result:
    return os.stat_result((kind | mode, 0, 0, links, uid, 0, 0, 0, 0, 0))


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the files of tests are, the search ends there."""
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture
def ordinary(monkeypatch: pytest.MonkeyPatch) -> int:
    """A user who is not root."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    return 1000


# How far up


def test_search_ends_at_the_root_of_the_project(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    made(deep, tmp_path / ".git")
    project = project_of(deep)
    assert project.root == project.folders[-1] == tmp_path
    assert project.above[0] == tmp_path.parent and project.above[-1] == Path("/")
    (tmp_path / "a" / "pyproject.toml").write_text("")
    assert project_of(deep).root == tmp_path, "packages of one repository share what is at its top"
    (tmp_path / ".git").rmdir()
    assert project_of(deep).root == tmp_path / "a"
    made(tmp_path / "a" / "b" / ".git")
    assert project_of(deep).folders == (deep, tmp_path / "a" / "b")


def test_search_ends_at_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    made(tmp_path / "home" / "x", tmp_path / ".git")
    assert project_of(tmp_path / "home" / "x").folders == (tmp_path / "home" / "x", tmp_path / "home")


def test_search_ends_below_a_directory_for_all(tmp_path: Path) -> None:
    assert Path("/tmp") not in project_of(Path("/tmp/x")).folders
    made(tmp_path / "all" / "x")
    (tmp_path / "all").chmod(0o1777)
    assert project_of(tmp_path / "all" / "x").folders == (tmp_path / "all" / "x",)


@needs_root
def test_search_ends_below_a_directory_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "theirs" / "a" / "mine"
    made(mine, theirs / ".relevo", theirs / ".git")
    os.chown(theirs, STRANGER, -1)
    assert project_of(mine).folders == (mine, mine.parent)
    monkeypatch.chdir(mine)
    assert data_directory(".relevo") == mine / ".relevo"


def test_data_directory_is_looked_for_in_the_project_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One above it is not used silently, and its owner learns why his jobs are not to be seen."""
    root, deep = tmp_path / "proj", tmp_path / "proj" / "a"
    made(deep, root / ".git", tmp_path / ".relevo")
    monkeypatch.chdir(deep)
    for _ in range(2):
        assert data_directory(".relevo") == deep / ".relevo"
    (record,) = caplog.records
    assert record.getMessage() == (f"{tmp_path / '.relevo'} is not used: it is above {root}, the root of the project")
    made(root / ".relevo")
    assert data_directory(".relevo") == root / ".relevo"


# Which files


def test_settings_outside_of_the_project_are_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root, deep = tmp_path / "proj", tmp_path / "proj" / "a"
    made(deep)
    (root / "pyproject.toml").write_text("[tool.relevo]\nretries = 7\n")
    outside = tmp_path / "relevo.toml"
    outside.write_text('url = "redis://theirs"\nallow = ["posix"]\n')
    (tmp_path / "pyproject.toml").write_text("[tool.relevo]\nthreads = 7\n")
    for _ in range(2):
        settings = load(directory=deep, environ={})
        assert (settings.url, settings.allow, settings.retries, settings.threads) == (None, (), 7, 32)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert caplog.records[0].getMessage().startswith(f"{outside} is not used: it is above {root}, the root of")
    assert settings_files(deep) == [f"[tool.relevo] of {root / 'pyproject.toml'}"]


def test_allow_counts_in_the_project_only(tmp_path: Path) -> None:
    deep = tmp_path / "a"
    made(deep)
    path = tmp_path / "relevo.toml"
    path.write_text("retries = 7\n")
    assert load(directory=deep, environ={}).retries == 7
    path.write_text("retries = 7\nallow = ['shop.mails']\n")
    with pytest.raises(SettingsError, match=rf"allow in {path}: the file is above the working directory, and no pypro"):
        load(directory=deep, environ={})
    assert load(directory=tmp_path, environ={}).allow == ("shop.mails",)
    (tmp_path / "pyproject.toml").write_text("")
    assert load(directory=deep, environ={}).allow == ("shop.mails",)


@needs_root
@pytest.mark.parametrize("name", ["relevo.toml", "pyproject.toml"])
def test_settings_of_another_user_in_the_project_are_an_error(tmp_path: Path, name: str) -> None:
    deep, path = tmp_path / "a", tmp_path / name
    made(deep, tmp_path / ".git")
    path.write_text(f"{'[tool.relevo]' if name == 'pyproject.toml' else ''}\nurl = 'redis://theirs'\n")
    os.chown(path, STRANGER, -1)
    with pytest.raises(SettingsError, match=rf"{path} is not trusted: it belongs to uid {STRANGER}"):
        load(directory=deep, environ={})
    os.chown(path, 0, -1)
    os.chown(tmp_path, STRANGER, -1)
    with pytest.raises(SettingsError, match=rf"{path} is not trusted: its directory belongs to uid {STRANGER}"):
        load(directory=tmp_path, environ={})
    if name == "pyproject.toml":  # every project has one, mostly without a word for relevo
        path.write_text("[project]\nname = 'x'\n")
        assert load(directory=tmp_path, environ={}).url is None


@needs_root
@pytest.mark.parametrize("is_link", [False, True])
def test_settings_of_another_user_above_the_working_directory_are_ignored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_link: bool
) -> None:
    """In a directory of this user's that others may write to. Nothing of the file is read, so it may be a pipe."""
    deep, path = tmp_path / "a", tmp_path / "relevo.toml"
    made(deep)
    if is_link:  # to a file of this user's, that was not meant for this place
        (tmp_path / "other.toml").write_text("url = 'redis://other'\n")
        path.symlink_to("other.toml")
    else:
        os.mkfifo(path)
    os.chown(path, STRANGER, -1, follow_symlinks=False)
    for _ in range(2):
        assert load(directory=deep, environ={}).url is None
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{path} is not used: it belongs to uid {STRANGER}. Give settings as RELEVO_")


def test_a_pipe_in_the_place_of_a_settings_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "relevo.toml")
    with pytest.raises(SettingsError, match=r"relevo\.toml cannot be read: it is not a file"):
        load(directory=tmp_path, environ={})


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (found(FILE, 0o666, 1000), None),
        (found(DIRECTORY, 0o777, 1000), None),
        (found(FILE, 0o644, 0), None),
        (found(DIRECTORY, 0o755, 0), None),
        (found(DIRECTORY, 0o1777, 0), None),
        (found(LINK, 0o777, 0), None),
        (found(FILE, 0o664, 0), "it belongs to root, and other users may write to it"),
        (found(FILE, 0o646, 0), "it belongs to root, and other users may write to it"),
        (found(DIRECTORY, 0o777, 0), "it belongs to root, and other users may write to it"),
        (found(FILE, 0o600, STRANGER), f"it belongs to uid {STRANGER}"),
        (found(LINK, 0o777, STRANGER), f"it belongs to uid {STRANGER}"),
    ],
)
def test_only_what_other_users_cannot_write_is_believed(
    ordinary: int, what: os.stat_result, reason: str | None
) -> None:
    assert user() == ordinary
    assert foreign(what, "it") == reason


def test_second_name_of_a_file_in_a_directory_for_all_is_not_believed(ordinary: int) -> None:
    """Where the system allows it, another user can give a file of ours a second name there."""
    shared, own = found(DIRECTORY, 0o1777, 0), found(DIRECTORY, 0o755, ordinary)
    assert foreign_entry(shared, found(FILE, 0o644, ordinary)) is None
    assert "a second name" in (foreign_entry(shared, found(FILE, 0o644, ordinary, links=2)) or "")
    assert foreign_entry(own, found(FILE, 0o644, ordinary, links=2)) is None
