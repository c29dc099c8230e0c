"""The pooler of examples/vmpooler: run as its page shows, with its provider killed; and its configuration file."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevo import Relevo
from relevo.errors import SettingsError
from relevo.settings import Settings
from relevo.testing.leaks import leaks
from relevo.upkeep.rules import ages_of
from tests.conftest import AppFactory
from tests.servers import Server
from tests.system.shown import Shown, demonstrated, without_time

FOLDER = Path(__file__).parents[2] / "examples" / "vmpooler"
DAY = 86_400_000
#: The complete example of the seed, byte for byte.
SEED = """\
---
:config:
  # Existing config...
  
  # Dead-Letter Queue
  dlq_enabled: true
  dlq_ttl: 168  # hours (7 days)
  dlq_max_entries: 10000
  
  # Auto-Purge
  purge_enabled: true
  purge_interval: 3600  # seconds (1 hour)
  purge_dry_run: false
  max_pending_age: 7200  # seconds (2 hours)
  max_ready_age: 86400  # seconds (24 hours)
  max_completed_age: 3600  # seconds (1 hour)
  max_orphaned_age: 86400  # seconds (24 hours)
  
  # Health Checks
  health_check_enabled: true
  health_check_interval: 300  # seconds (5 minutes)
  health_thresholds:
    pending_queue_max: 100
    ready_queue_max: 500
    dlq_max_warning: 100
    dlq_max_critical: 1000
    stuck_vm_age_threshold: 7200  # 2 hours
    stuck_vm_max_warning: 10
    stuck_vm_max_critical: 50

:redis:
  # Existing redis config...
"""  # noqa: W293


# The whole of it, with real processes
@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with demonstrated(FOLDER, tmp_path_factory.mktemp("vmpooler")) as found:
        yield found


def test_machine_goes_through_its_states_and_is_replaced_in_the_stock(shown: Shown) -> None:
    """Pending, ready, running, migrating, completed."""
    assert (shown.code, shown.err) == (0, ""), "the demo ends by itself"
    cloned = shown.at(r"clone vm-debian-12-\w+: cloned from templates/debian-12")
    # Two processes write these: the second may be faster.
    shown.at(r"check vm-debian-12-\w+: ready at 10\.0\.0\.3", cloned)
    given = shown.at(r"demo vm-debian-12-\w+ is handed out, moved to host-2, and given back", cloned)
    shown.at(r"destroy vm-debian-12-\w+: destroyed", given)
    shown.at(r"clone vm-debian-12-\w+: cloned .*", given)


def test_workers_that_are_killed_in_the_middle_of_a_clone_are_replaced_and_the_request_is_filled(shown: Shown) -> None:
    killed = shown.at(r"demo kill -9 \d+ \d+, which are both workers, in the middle of a clone")
    for process in re.findall(r"\d\d+", shown.lines[killed]):
        shown.at(rf"supervisor worker process {process} died after .* \(killed by SIGKILL\); another starts .*", killed)
    ready = shown.at(r"request req-\w+: ready, vm-req-\w+-1", killed)
    assert sum("-1: cloned" in line for line in shown.lines[killed:ready]) == 1
    shown.at(r"demo req-\w+ is ready all the same, vm-req-\w+-1 is given back", ready)


def test_checks_wait_for_a_killed_provider_and_only_what_it_lost_is_given_up(shown: Shown) -> None:
    killed = shown.at(r"demo kill -9 \d+, which is the provider; it has lost vm-centos-7-\w+")
    lost = shown.lines[killed].rpartition(" ")[2]
    back = shown.at("demo the provider is there again", shown.at(rf"provider {lost}: the provider does not answer.*"))
    shown.at(r"provider the provider answers again, after \d+\.\d s", back)
    shown.at(rf"check {lost}: there is no such machine, given up in ready", back)
    assert sum("given up in ready" in line for line in shown.lines) == 1
    shown.at(rf"dead ready: {lost}, failed: Unreachable: there is no such machine")


def test_health_has_reasons_and_in_the_end_only_that_workers_were_killed(shown: Shown) -> None:
    first = shown.at("health healthy")
    then = shown.at(r"health degraded; .*clone: 1 dead letters?, its limit is 1.*", first)
    shown.at("health degraded; 2 workers lost in the last 15 minutes", then)


def test_nothing_is_left(shown: Shown) -> None:
    shown.at("left 0 entities, 0 jobs, 0 dead letters, 0 machines")
    app = Relevo("looking", data_dir=str(shown.data))
    assert leaks(app.engine.run, "*") == []
    app.close()


def test_the_page_shows_what_is_printed(shown: Shown) -> None:
    """Every line as often as there: attempts, dead letters, what a dry run lists and the purge then does.

    Names are those of another run, and so is the order of what happens side by side.
    """

    def plain(lines: list[str]) -> list[str]:
        # how often depends on the time
        often = ("the provider does not answer", "the provider answers again", "run again")
        kept = [line for line in lines if not any(words in line for words in often)]
        names = r"(?<=vm-centos-7-)\w+|(?<=vm-debian-12-)\w{8}|req-\w+(-\d)?|kill -9 \d+( \d+)?|10\.0\.0\.\d+|for \d+ s"
        names += r"|(?<=worker process )\d+ died after [\d.]+ s"
        names += r"|(?<=health degraded; ).*"  # for what else it is: another test
        return sorted(re.sub(names, "…", line) for line in kept)

    page = (FOLDER / "README.md").read_text("utf-8")
    printed = page.partition("$ python examples/vmpooler/demo.py\n")[2].partition("```")[0].splitlines()
    assert plain([without_time(line) for line in printed]) == plain(shown.lines)


# The configuration file
@pytest.fixture(scope="module")
def config() -> Any:
    spec = importlib.util.spec_from_file_location("vmpooler_config", FOLDER / "config.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings_of(config: Any, text: str) -> Settings:
    """As relevo understands what the file was made into."""
    return Settings(**config.read(text).settings)


def test_the_complete_example_of_the_seed_is_accepted_as_it_stands(config: Any) -> None:
    settings = settings_of(config, SEED)
    assert (settings.failure_ttl, settings.dead_max) == (7 * 86_400, 10_000)
    assert (settings.purge, settings.purge_every) == ("on", 3_600)
    assert (settings.health, settings.health_every) == (True, 300)
    assert settings.health_limits == {
        "waiting_max": 100, "waiting_critical": 200, "ready_max": 500, "ready_critical": 1_000, "dead_warning": 100,
        "dead_critical": 1_000, "stuck_age": 7_200, "stuck_warning": 10, "stuck_critical": 50,
    }  # fmt: skip


def test_ages_of_the_file_are_the_rules_of_the_purge(config: Any) -> None:
    rules = ages_of(settings_of(config, SEED).purge_ages).of_pool("centos-7")
    found = {state: (rule.age_ms, rule.then) for state, rule in rules.items()}
    assert found == {
        "pending": (DAY // 12, "dead"),
        "ready": (DAY, "completed"),
        "completed": (DAY // 24, "removed"),
        "orphaned": (DAY, "expired"),
        "requested": (DAY, "expired"),
        "filled": (DAY, "expired"),
        "expired": (DAY // 24, "removed"),
        "failed": (DAY // 24, "removed"),
        "migrating": (DAY // 12, "dead"),
        "discovered": (DAY, "completed"),
    }
    assert (rules["ready"].of("ondemand").age_ms, rules["ready"].of("pool").age_ms) == (DAY, 2 * DAY)


@pytest.mark.parametrize("text", ["", ":config:\n:redis:\n:pools:\n"])
def test_all_features_are_off_unless_the_file_switches_them_on(config: Any, text: str) -> None:
    """What fails leaves its state and is gone, as before there were dead letters."""
    settings = settings_of(config, text)
    assert (settings.failure_ttl, settings.purge, settings.health) == (1, "off", False)
    assert settings.url is None
    ages = ages_of(settings.purge_ages).of_pool("any")
    assert (ages["pending"].age_ms, ages["requested"].age_ms) == (DAY // 12, DAY)


def test_what_fails_without_dead_letters_leaves_its_state_and_is_gone(
    config: Any, app_factory: AppFactory, server: Server
) -> None:
    """As before; its data can still be read."""
    file = config.read(":redis:\n  data_ttl: 24\n")
    app = app_factory(**file.settings)
    pool = app.pool("vms", data_ttl=file.data_ttl)
    pool.add("vm-1", template="centos-7")
    letter = pool.fail("vm-1", "broken") or ""
    assert pool.counts() == {}
    assert server.command("PTTL", pool.keys.own("ended", letter)) <= 1_000
    assert server.command("TTL", pool.keys.own("entity", "vm-1")) > 86_000


@pytest.mark.parametrize(
    ("keys", "name", "value"),
    [
        ("dlq_enabled: true", "failure_ttl", 7 * 86_400),
        ("dlq_enabled: true\n  dlq_ttl: 2d", "failure_ttl", 2 * 86_400),
        ("dlq_ttl: 24", "failure_ttl", 1),
        ("dlq_max_entries: 5", "dead_max", 5),
        ("purge_enabled: true", "purge", "on"),
        ("purge_enabled: true\n  purge_dry_run: true", "purge", "observe"),
        ("purge_dry_run: true", "purge", "off"),
        ("purge_interval: 600", "purge_every", 600),
        ("health_check_enabled: true", "health", True),
        ("health_check_interval: 1m", "health_every", 60),
    ],
)
def test_each_key_is_the_setting_of_relevo_that_means_the_same(config: Any, keys: str, name: str, value: Any) -> None:
    assert getattr(settings_of(config, f":config:\n  {keys}\n"), name) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        # misplaced: section 1 of the seed has the keys of dead letters under :redis:, its complete example does not
        (":redis:\n  dlq_ttl: 168\n", "unknown key 'dlq_ttl' under :redis:, it belongs under :config:"),
        (":config:\n  dlq_max_warning: 1\n", "it belongs under health_thresholds of :config:"),
        (":config:\n  health_thresholds:\n    dlq_ttl: 1\n", "it belongs under :config:"),
        (":pools:\n- {name: a, template: b, size: 1, max_tries: 1}\n", "it belongs under :config:"),
        ("dlq_ttl: 168\n", "'dlq_ttl', it is a key and belongs under :config:"),
        # misspelt
        (":config:\n  dlq_tll: 168\n", "'dlq_tll' under :config:, did you mean 'dlq_ttl'?"),
        (":config:\n  :dlq_ttl: 168\n", "write 'dlq_ttl' without colons"),
        (":redis:\n  purge_intervall: 3600\n", "did you mean 'purge_interval'? That belongs under :config:."),
        (":redis:\n  colour: red\n", ". There are: server, port, password, data_ttl"),
        ("config:\n  dlq_ttl: 168\n", "write it with a colon in front, :config:"),
        (":confg:\n", "did you mean ':config'?"),
        # of the wrong kind
        (":config:\n  dlq_enabled: 'true'\n", ":config: dlq_enabled: true or false is needed, found 'true'"),
        (":config:\n  dlq_max_entries: 0\n", "a whole number from 1 is needed, found 0"),
        (":config:\n  max_pending_age: soon\n", "not a duration: 'soon'"),
        (":config:\n  max_pending_age: 0\n", "more than 0 is needed, found 0"),
        (":config:\n  max_pending_age: .nan\n", "more than 0 is needed, found nan"),
        (":config:\n  ? [a]\n  : 3\n", "line 2: a key is a word"),
        (":redis:\n  port: 99999\n", "a whole number from 1 to 65535 is needed, found 99999"),
        (":config:\n  health_thresholds: 7\n", "health_thresholds needs keys and values, found 7"),
        # in the wrong unit
        (":config:\n  dlq_ttl: 604800\n", 'would be hours, that is 25200d: if it is meant, write "25200d"'),
        (":config:\n  max_pending_age: 2\n", 'would be seconds, that is 2s: if it is meant, write "2s"'),
        # against itself
        (":config:\n  dlq_ttl: 1\n  dlq_ttl: 2\n", "line 3: 'dlq_ttl' is there twice"),
        (":config:\n  health_thresholds:\n    dlq_max_warning: 2000\n", "dlq_max_critical (1000) is below"),
        (":pools:\n- {name: a, template: b, size: 1}\n- {name: a, template: c, size: 1}\n", "the name 'a'"),
        (":pools:\n- {name: a, size: 1}\n", "has no template"),
        (":pools:\n  a: 1\n", ":pools: needs a list"),
        ("- 7\n", "sections such as :config: are needed"),
        (":config: [\n", "not valid YAML"),
    ],
)
def test_settings_without_effect_are_refused_with_the_right_ones(config: Any, text: str, words: str) -> None:
    with pytest.raises(SettingsError) as refused:
        config.read(text)
    assert words in str(refused.value)


def test_the_server_of_the_file_is_used(config: Any) -> None:
    assert settings_of(config, ":redis:\n  server: h\n").url == "redis://h:6379"
    text = ":redis:\n  server: h\n  port: 7000\n  password: 'p@ss/word'\n"
    assert settings_of(config, text).url == "redis://:p%40ss%2Fword@h:7000"


def test_a_file_that_is_refused_is_named(config: Any, tmp_path: Path) -> None:
    path = tmp_path / "vmpooler.yaml"
    with pytest.raises(SettingsError, match=r"vmpooler\.yaml cannot be read: No such file"):
        config.load(path)
    for content, why in ((b":config:\n  dlq_tll: 1\n", ": unknown key 'dlq_tll'"), (b"\xff\xfe", ".*it is not UTF-8")):
        path.write_bytes(content)
        with pytest.raises(SettingsError, match=rf"vmpooler\.yaml{why}"):
            config.load(path)


def test_the_example_file_has_every_key_with_a_comment(config: Any) -> None:
    text = (FOLDER / "vmpooler.yaml").read_text("utf-8")
    config.load(FOLDER / "vmpooler.yaml")
    for keys in config.PLACES.values():
        for key in keys:
            assert re.search(rf"^ +(?:# |- )?{key}: *\S*", text, re.MULTILINE), f"{key} is missing"
