"""Settings: where they come from, which one wins, and how a wrong one is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from relevo.errors import SettingsError
from relevo.settings import Settings, load
from relevo.text.masking import masked_url


def toml(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def relevo_toml(directory: Path, text: str) -> Path:
    return toml(directory / "relevo.toml", text)


def pyproject(directory: Path, text: str) -> Path:
    return toml(directory / "pyproject.toml", text)


def refusal(directory: Path, **sources: Any) -> str:
    with pytest.raises(SettingsError) as refused:
        load(directory=directory, **{"environ": {}, **sources})
    return str(refused.value)


def test_without_any_source_the_defaults_hold(tmp_path: Path) -> None:
    """One default per setting, in one place."""
    found = load(directory=tmp_path, environ={})
    assert found == Settings()
    assert (found.url, found.prefix, found.env, found.queue) == (None, "relevo", "dev", "default")
    assert (found.lease, found.result_ttl, found.failure_ttl) == (12.0, 300.0, 604_800.0)
    assert (found.max_payload, found.log_max) == (1_048_576, 65_536)
    assert (found.pool, found.allow) == (None, ())


def test_the_nearest_source_wins(tmp_path: Path) -> None:
    pyproject(tmp_path, "[tool.relevo]\nlease = 1\ngrace = 1\nretries = 1\nthreads = 1\n")
    relevo_toml(tmp_path, "lease = 2\ngrace = 2\nretries = 2\n")
    environ = {"RELEVO_LEASE": "3s", "RELEVO_GRACE": "3s"}
    found = load(arguments={"lease": "4s"}, directory=tmp_path, environ=environ)
    assert (found.lease, found.grace, found.retries, found.threads) == (4.0, 3.0, 2, 1)
    assert found.concurrency == Settings().concurrency


def test_files_are_found_in_the_nearest_parent(tmp_path: Path) -> None:
    pyproject(tmp_path, "[tool.relevo]\nthreads = 5\n")
    relevo_toml(tmp_path, "retries = 5\n")
    relevo_toml(tmp_path / "shop", "retries = 6\n")
    deep = tmp_path / "shop" / "src" / "mails"
    deep.mkdir(parents=True)
    found = load(directory=deep, environ={})
    assert (found.retries, found.threads) == (6, 5)


def test_what_other_programs_set_is_no_obstacle(tmp_path: Path) -> None:
    pyproject(tmp_path, "[project]\nname = 'x'\n[tool.other]\nlease = 'x'\n")
    of_kubernetes = ("SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT", "PORT_80_TCP", "PORT_80_TCP_ADDR")
    for environ in (
        {},
        *({f"{name}_{end}": "10.0.0.1" for end in of_kubernetes} for name in ("RELEVO", "RELEVO_WEB")),
        {"RELEVO_SRC": "/src", "RELEVO_IMAGE_TAG": "7"},  # these resemble no setting
        {"RELEVO_SERVER_BIN": "/usr/bin/valkey-server", "RELEVO_TEST_SERVER": "x", "RELEVO_APP": "shop:app"},
    ):
        assert load(directory=tmp_path, environ=environ) == Settings()


def test_the_working_directory_and_the_environment_are_read_unless_others_are_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    relevo_toml(tmp_path, "retries = 9\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RELEVO_THREADS", "9")
    found = load()
    assert (found.retries, found.threads) == (9, 9)


def test_redis_url_is_the_weakest_variable_and_stronger_than_files(tmp_path: Path) -> None:
    relevo_toml(tmp_path, "url = 'redis://file'\n")
    for environ, url in (
        ({}, "redis://file"),
        ({"REDIS_URL": "redis://host"}, "redis://host"),
        ({"RELEVO_URL": "redis://ours", "REDIS_URL": "redis://host"}, "redis://ours"),
        ({"REDIS_URL": "localhost:6379", "RELEVO_URL": "redis://ours"}, "redis://ours"),  # of another program
    ):
        assert load(directory=tmp_path, environ=environ).url == url
    assert "(from REDIS_URL)" in refusal(tmp_path, environ={"REDIS_URL": "localhost:6379"})


def test_an_empty_variable_and_an_argument_of_none_count_as_not_given(tmp_path: Path) -> None:
    relevo_toml(tmp_path, "url = 'redis://file'\nlease = 5\n")
    environ = {"RELEVO_URL": "", "REDIS_URL": "", "RELEVO_LEASE": ""}
    found = load(arguments={"url": None, "lease": None}, directory=tmp_path, environ=environ)
    assert (found.url, found.lease) == ("redis://file", 5.0)


def test_every_setting_can_be_given_as_a_variable(tmp_path: Path) -> None:
    given = {
        "url": ("rediss://x", "rediss://x"),
        "prefix": ("nooble4", "nooble4"),
        "env": ("prod", "prod"),
        "data_dir": ("/var/lib/x", "/var/lib/x"),
        "queue": ("mails", "mails"),
        "lease": ("20s", 20.0),
        "concurrency": ("7", 7),
        "threads": ("8", 8),
        "pool": ("2", 2),
        "grace": ("0s", 0.0),
        "max_payload": ("512KiB", 524_288),
        "queues": ("default:80, mail", ("default:80", "mail")),
        "result_ttl": ("1h30m", 5400.0),
        "failure_ttl": ("168h", 604_800.0),
        "dead_max": ("5", 5),
        "done_max": ("0", 0),
        "timeout": ("250ms", 0.25),
        "retries": ("0", 0),
        "max_crashes": ("1", 1),
        "log_max": ("1MB", 1_000_000),
        "unknown_task_ttl": ("2d", 172_800.0),
        "call_timeout": ("1.5s", 1.5),
        "server_check": ("strict", "strict"),
        "connect_timeout": ("1s", 1.0),
        "schedules": (
            '{"nightly": {"task": "shop.report", "cron": "30 2 * * *"}}',
            {"nightly": {"task": "shop.report", "cron": "30 2 * * *"}},
        ),
        "tiers": ("free=1, pro=4.5", {"free": 1.0, "pro": 4.5}),
        "max_requests": ("50", 50),
        "claim_check": ("1KiB", 1024),
        "signing_keys": ("k2:0123456789abcdef,k1:fedcba9876543210", ("k2:0123456789abcdef", "k1:fedcba9876543210")),
        "remote_tracebacks": ("yes", True),
        "web_tokens": ("admin:ana:0123456789abcdef", ("admin:ana:0123456789abcdef",)),
        "mask": ("iban, card", ("iban", "card")),
        "trace_max": ("0", 0),
        "conversation_ttl": ("2h", 7200.0),
        "orphan_age": ("3d", 259_200.0),
        "lifecycle": ("observe", "observe"),
        "otel": ("on", True),
        "health": ("on", True),
        "health_every": ("1m", 60.0),
        "health_limits": ('{"dead_warning": 5, "mail": {"slo": "30s"}}', {"dead_warning": 5, "mail": {"slo": 30.0}}),
        "purge": ("observe", "observe"),
        "purge_every": ("30m", 1800.0),
        "purge_ages": ('{"ready": "6h"}', {"ready": "6h"}),
        "allow": ("shop.mails, shop.bills", ("shop.mails", "shop.bills")),
        "imports": ("shop.mails, shop.*", ("shop.mails", "shop.*")),
    }
    assert set(given) == set(Settings.__struct_fields__)
    found = load(directory=tmp_path, environ={f"RELEVO_{name.upper()}": text for name, (text, _) in given.items()})
    assert msgspec.structs.asdict(found) == {name: value for name, (_, value) in given.items()}


def test_durations_and_sizes_are_taken_in_all_their_forms(tmp_path: Path) -> None:
    for written in (604_800, 604_800.0, "7d", "168h", timedelta(days=7)):
        assert load(arguments={"failure_ttl": written}, directory=tmp_path, environ={}).failure_ttl == 604_800.0
    for size in (1_048_576, "1048576", "1MiB", "1 mib", "1024KiB"):
        assert load(arguments={"max_payload": size}, directory=tmp_path, environ={}).max_payload == 2**20
    relevo_toml(tmp_path, 'failure_ttl = "7d"\nallow = ["shop.mails"]\n')
    assert load(directory=tmp_path, environ={}).allow == ("shop.mails",)


def test_an_unknown_setting_is_refused_with_the_right_one_in_every_source(tmp_path: Path) -> None:
    hint = "did you mean 'max_payload'?"
    assert refusal(tmp_path, arguments={"max_paylod": 1}) == (f"unknown setting 'max_paylod' in the arguments, {hint}")
    assert refusal(tmp_path, environ={"RELEVO_MAX_PAYLOD": "1"}) == (
        "unknown environment variable 'RELEVO_MAX_PAYLOD', did you mean 'RELEVO_MAX_PAYLOAD'?"
    )
    assert refusal(tmp_path, arguments={"zzzzz": 1}) == "unknown setting 'zzzzz' in the arguments"
    path = pyproject(tmp_path, "[tool.relevo]\nmax-payload = 1\n")
    assert refusal(tmp_path) == f"unknown setting 'max-payload' in [tool.relevo] of {path}, {hint}"
    path = relevo_toml(tmp_path / "a", "max_paylod = 1\n")
    pyproject(tmp_path / "a", "")
    assert refusal(tmp_path / "a") == f"unknown setting 'max_paylod' in {path}, {hint}"


def test_nested_and_misplaced_tables_are_refused_with_the_right_place(tmp_path: Path) -> None:
    pyproject(tmp_path, "[tool.relevo.worker]\nlease = 3\n")
    assert "unknown table [worker] in [tool.relevo] of" in refusal(tmp_path)
    pyproject(tmp_path, "")
    path = relevo_toml(tmp_path, "[tool.relevo]\nlease = 3\n")
    assert f"unknown table [tool] in {path}" in refusal(tmp_path)
    assert "stand at the top level" in refusal(tmp_path)
    relevo_toml(tmp_path, "[lease]\nx = 1\n")
    assert refusal(tmp_path).startswith("lease: not a duration")
    relevo_toml(tmp_path, "")
    pyproject(tmp_path, "tool.relevo = 3\n")
    assert "a table is needed, found 3" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "wrong", "needed"),
    [
        ("url", "localhost:6379", "redis://localhost:6379/0"),
        ("url", 7, "redis://localhost:6379/0"),
        ("prefix", "actions", "reserved"),
        ("env", "x" * 201, "200"),
        ("prefix", 5, "text"),
        ("queue", "", "at least one character"),
        ("queue", "dead_letter", "reserved"),
        ("data_dir", "  ", "text"),
        ("lease", "12", '"12s"'),
        ("lease", 0, "at least 1ms"),
        ("lease", True, "5m"),
        ("lease", -1, "zero or more"),
        ("timeout", float("inf"), "5m"),
        ("concurrency", 0, "from 1 to 100,000"),
        ("concurrency", "12.0", "whole number"),
        ("concurrency", "1e2", "whole number"),
        ("concurrency", True, "whole number"),
        ("concurrency", "9" * 5000, "whole number"),
        ("pool", 0, "from 1"),
        ("max_payload", 0, "from 1 B"),
        ("max_payload", "1 parsec", "512KiB"),
        ("max_payload", "1.5MB", "512KiB"),
        ("max_payload", "513MiB", "512 MiB"),
        ("max_payload", True, "512KiB"),
        ("allow", ["os", "not a module"], "'not a module'"),
        ("allow", ["os", 3], "found 3"),
        ("allow", {"os": 1}, "list of modules"),
        ("allow", "os,", "found ''"),
        ("tiers", {}, "a weight for each tier"),
        ("tiers", ["free"], "a weight for each tier"),
        ("tiers", "free", "a weight"),
        *(("tiers", {"free": weight}, "a weight from 0.01 to 64") for weight in (0, 65, "much", True)),
        ("remote_tracebacks", "maybe", "true or false"),
        ("lifecycle", "sometimes", "'on', 'observe' or 'off'"),
        ("max_requests", 0, "from 1 to"),
        ("signing_keys", ["short:secret"], "each key is id:secret, or service:id:secret"),
        ("signing_keys", ["nocolon-nocolon-nocolon"], "each key is id:secret"),
        ("signing_keys", 7, "a list of keys"),
        ("schedules", ["nightly"], "a table for each schedule is needed, found ['nightly']"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_its_need_and_its_source(
    tmp_path: Path, name: str, wrong: Any, needed: str
) -> None:
    message = refusal(tmp_path, arguments={name: wrong})
    assert needed in message
    assert message.endswith("(from the arguments)")
    assert message.startswith((f"{name}: ", f"{name}.free: "))
    with pytest.raises(SettingsError, match=rf"^{name}(\.free)?: "):
        Settings(**{name: wrong})


def test_a_wrong_value_names_the_variable_or_the_file_it_came_from(tmp_path: Path) -> None:
    assert refusal(tmp_path, environ={"RELEVO_LEASE": "12"}).endswith("(from RELEVO_LEASE)")
    assert refusal(tmp_path, environ={"RELEVO_SCHEDULES": "0 3 * * *"}).endswith("(from RELEVO_SCHEDULES)")
    path = pyproject(tmp_path, "[tool.relevo]\nlease = 'x'\n")
    assert refusal(tmp_path).endswith(f"(from [tool.relevo] of {path})")
    path = relevo_toml(tmp_path, "lease = 'x'\n")
    assert refusal(tmp_path).endswith(f"(from {path})")


def test_tables_stand_in_both_files_and_in_a_variable_as_json(tmp_path: Path) -> None:
    table = 'task = "shop.report"\nargs = [7]\nkwargs = { kind = "short" }\ncron = "30 2 * * *"\ntz = "Europe/Madrid"\n'
    nightly = {"task": "shop.report", "args": [7], "kwargs": {"kind": "short"}}
    nightly |= {"cron": "30 2 * * *", "tz": "Europe/Madrid"}
    pyproject(tmp_path, f"[tool.relevo.schedules.nightly]\n{table}")
    assert load(directory=tmp_path, environ={}).schedules == {"nightly": nightly}
    limits = '[health_limits]\ndead_warning = 5\n[health_limits.mail]\nslo = "30s"\n'
    often = "[schedules.often]\ntask = 'shop.fetch'\nevery = '10s'\n"
    relevo_toml(tmp_path, f'health_every = "2m"\n[schedules.late]\n{table}{often}{limits}')
    found = load(directory=tmp_path, environ={})
    assert found.schedules == {"late": nightly, "often": {"task": "shop.fetch", "every": "10s"}}
    assert (found.health_every, found.health_limits) == (120.0, {"dead_warning": 5, "mail": {"slo": 30.0}})
    for name in ("schedules", "health_limits", "purge_ages"):
        assert getattr(load(environ={f"RELEVO_{name.upper()}": "{}"}), name) == {}
        with pytest.raises(SettingsError, match=f"^{name}: JSON is needed in a variable, found '{{': "):
            load(environ={f"RELEVO_{name.upper()}": "{"})


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("shop.report", 'a table with task = "shop.report" is needed'),
        ({"cron": "@daily"}, "a table with task"),
        ({"task": "x"}, "a schedule needs cron="),
        ({"task": "x", "cron": "61 * * * *"}, "cron: the minute of '61 * * * *' is wrong"),
        ({"task": "x", "cron": "@daily", "tz": "Madrid"}, "did you mean 'Europe/Madrid'?"),
        ({"task": "x", "every": "1h", "overlap": "skpi"}, "did you mean 'skip'?"),
    ],
)
def test_a_wrong_schedule_is_refused_with_its_name(tmp_path: Path, table: Any, expected: str) -> None:
    message = refusal(tmp_path, arguments={"schedules": {"nightly": table}})
    assert message.startswith("schedules.nightly: ") and message.endswith("(from the arguments)")
    assert expected in message


@pytest.mark.parametrize("name", ["relevo.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    ("content", "line"),
    [(b"a = 1\nlease = = 3\n", "line 2"), (b"a = 1\n\nb = '''x", "line 3"), (b"a = 1\nb = '\xff'\n", "line 2")],
)
def test_a_broken_file_is_refused_with_its_path_and_line(tmp_path: Path, name: str, content: bytes, line: str) -> None:
    (tmp_path / name).write_bytes(content)
    message = refusal(tmp_path)
    assert str(tmp_path / name) in message
    assert line in message


def test_a_file_that_cannot_be_read_is_refused_not_skipped(tmp_path: Path) -> None:
    (tmp_path / "relevo.toml").mkdir()
    assert f"{tmp_path / 'relevo.toml'} cannot be read" in refusal(tmp_path)


def test_settings_cannot_be_changed_and_copies_are_checked() -> None:
    found = Settings()
    with pytest.raises(AttributeError):
        found.lease = 3.0  # type: ignore[misc]
    assert msgspec.structs.replace(found, lease=3.0).lease == 3.0
    with pytest.raises(SettingsError):
        msgspec.structs.replace(found, lease=-3.0)


def test_prefix_and_env_may_be_left_out(tmp_path: Path) -> None:
    found = load(arguments={"prefix": "", "env": ""}, directory=tmp_path, environ={})
    assert (found.prefix, found.env) == ("", "")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:S3CRET@db:6379/0", "redis://:***@db:6379/0"),
        ("rediss://shop:S3CRET@db/1", "rediss://shop:***@db/1"),
        ("redis://shop:S3@C:R/E?T@db/1", "redis://shop:***@db/1"),
        ("redis://S3CRET@db/1", "redis://***@db/1"),
        ("redis://db/1?db=2&password=S3CRET&x=1", "redis://db/1?db=2&password=***&x=1"),
        ("redis://db/1?sentinel_Password=S3CRET", "redis://db/1?sentinel_Password=***"),
        ("redis://db/1?password=S3@CRET", "redis://***"),
        ("redis://:S3?token=CRET@db", "redis://***"),
        ("unix://:S3CRET@/run/redis.sock?db=1", "unix://:***@/run/redis.sock?db=1"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock"),
        ("redis+sentinel://:S3CRET@a:1,b:2/main", "redis+sentinel://:***@a:1,b:2/main"),
        ("redis://:S3CRET@a,redis://:S3CRET@b", "redis://:***@b"),
        ("shop:S3CRET@db", "shop:***@db"),
        ("redis://:S3\nCRET@db", "redis://:***@db"),
    ],
)
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    """Secrets stay out of logs, also those of URLs that are not quite right."""
    assert masked_url(url) == shown
    assert not any(part in masked_url(url) for part in ("S3", "CRET", "C:R"))


def test_no_way_of_printing_settings_or_their_errors_shows_a_secret(tmp_path: Path) -> None:
    pretty = pytest.importorskip("rich.pretty")
    found = Settings(url="redis://shop:S3CRET@db/0", signing_keys=("k2:S3CRET9abcdef01234", "k1:fedcba9876543210"))
    for shown in (repr(found), str(found), f"{found}", pretty.pretty_repr(found)):
        assert "redis://shop:***@db/0" in shown and "k2:***" in shown
        assert "S3CRET" not in shown
    assert found.url == "redis://shop:S3CRET@db/0"
    for name, wrong in (("url", "shop:S3CRET@db"), ("url", ["redis://:S3CRET@db"]), ("signing_keys", ("k1-S3CRET",))):
        assert "S3CRET" not in refusal(tmp_path, arguments={name: wrong})
    assert "S3CRET" not in refusal(tmp_path, environ={"RELEVO_URL": "shop:S3CRET@db"})


def test_repr_shows_every_setting() -> None:
    assert eval(repr(Settings(lease=7.0)), {"Settings": Settings}) == Settings(lease=7.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("stuck_age", "write it as `stuck_age` under [health_limits]"),
        ("dlq_max_warning", "write it as `dead_warning` under [health_limits]"),
        ("pending_queue_max", "write it as `waiting_max` under [health_limits]"),
        ("health_check_enabled", "write it as `health`"),
        ("health_check_interval", "write it as `health_every`"),
        ("dlq_ttl", "write it as `failure_ttl`"),
        ("purge_enabled", 'write it as `purge = "on"`'),
        ("purge_dry_run", 'write it as `purge = "observe"`'),
        ("max_request_age", "write it as `requested` under [purge_ages]"),
        ("health_thresholds", "write it as [health_limits]"),
        ("data_ttl", "write it as `data_ttl` of app.pool(…)"),
        ("dead_ttl", "write it as `failure_ttl`"),
    ],
)
def test_a_limit_in_the_wrong_place_is_refused_with_the_right_one(name: str, message: str) -> None:
    variables = {f"RELEVO_{name.upper()}": "5"}
    for arguments, environ in (({name: 5}, {}), ({}, variables)):
        with pytest.raises(SettingsError, match="unknown setting") as refused:
            load(arguments=arguments, environ=environ)
        assert message in str(refused.value)


ABOVE = "it is a setting of its own, and stands above the head of the first table."


@pytest.mark.parametrize(
    ("table", "line", "right"),
    [
        ("purge_ages", "health = true", ABOVE),
        ("health_limits", 'purge = "on"', ABOVE),
        ("schedules", 'env = "prod"', ABOVE),
        ("tiers", "retries = 5", ABOVE),
        ("purge_ages", "purge_interval = 5", "write it as `purge_every`."),
        ("health_limits", "max_pending_age = 5", "write it as `pending` under [purge_ages]."),
    ],
)
def test_a_setting_inside_a_table_is_refused_with_its_place(tmp_path: Path, table: str, line: str, right: str) -> None:
    """In TOML, what stands below the head of a table belongs to it."""
    path = relevo_toml(tmp_path, f"[{table}]\n{line}\n")
    assert refusal(tmp_path) == f"unknown name {line.split()[0]!r} under [{table}] in {path}: {right}"


def test_modules_to_import_are_names_with_stars(tmp_path: Path) -> None:
    relevo_toml(tmp_path, 'imports = ["shop.mails", "shop.*", "shop.*.tasks"]\n')
    assert load(directory=tmp_path, environ={}).imports == ("shop.mails", "shop.*", "shop.*.tasks")
    assert load(directory=tmp_path, environ={"RELEVO_IMPORTS": "shop.mails, shop.*"}).imports == (
        "shop.mails",
        "shop.*",
    )


@pytest.mark.parametrize("wrong", ["*", "*.tasks", "shop/mails.py", "shop.", "", ".mails", "shop.m*", 7])
def test_what_is_no_module_to_import_is_refused(tmp_path: Path, wrong: Any) -> None:
    assert 'a module such as "shop.mails", or "shop.*", is needed' in refusal(tmp_path, arguments={"imports": [wrong]})


def test_modules_to_import_count_in_the_project_only(tmp_path: Path) -> None:
    relevo_toml(tmp_path, 'imports = ["evil"]\n')
    (tmp_path / "deep").mkdir()
    assert "imports in " in refusal(tmp_path / "deep")
