"""The settings of an installation, gathered once into one frozen value.

The nearest source wins: arguments, then `RELEVO_*` variables, then `relevo.toml`, then `[tool.relevo]` of
`pyproject.toml`, then the defaults written here. Both files are looked for in the directory and above it, up to
the root of the project (`project.py`). An unknown name is refused, wherever it stands: a misspelt limit is a limit that
is not set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import msgspec

from relevo.errors import OptionError, SettingsError
from relevo.health.thresholds import ELSEWHERE, NAMES, read_limits
from relevo.project import find_settings, is_own, project_of, warn_once
from relevo.schedules.schedule import TIMES, schedule_of
from relevo.text import durations, names
from relevo.text.masking import masked_url
from relevo.text.nearest import did_you_mean
from relevo.text.slots import queues_with_slots
from relevo.upkeep.rules import AGES_ELSEWHERE, ages_of

Read = Callable[[str, Any], Any]
"""Takes a setting's name and what was given for it, and gives its value or raises OptionError."""

Given = tuple[str, Any, str]
"""The name of a setting, what was given for it, and where."""


def _text(name: str, given: Any) -> str:
    if not isinstance(given, str) or not given.strip():
        raise OptionError(f"{name}: a text is needed, found {given!r}.")
    return given


def _url(name: str, given: Any) -> str | None:
    if given is None:
        return None
    if not isinstance(given, str) or not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://.", given):
        # Never the raw value: a half-typed URL holds its password all the same.
        found = masked_url(given) if isinstance(given, str) else type(given).__name__
        raise OptionError(f"{name}: a URL such as redis://localhost:6379/0 is needed, found {found!r}.")
    return given


def _label(name: str, given: Any) -> str:
    """A part of every queue's address; prefix and env may be left out with ""."""
    if name == "queue":
        names.task_queue("", "", "app", given)
    elif given != "":
        names.Address(**{"prefix": "", "env": "", "service": "app", name: given})
    return str(given)


def _queues(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if isinstance(found, dict):
        raise OptionError(f"{name}: a list of queues is needed; targets such as slo stand under [health_limits.mail].")
    if not isinstance(found, list | tuple):
        raise OptionError(f'{name}: a list of queues is needed, such as ["default", "mail:20"], found {given!r:.80}.')
    for queue in queues_with_slots(name, found):
        names.queue_address("", "", "app", queue)
    return tuple(found)


def _duration(name: str, given: Any, *, least: float) -> float:
    found = durations.seconds(given, what=name)
    if found < least:
        raise OptionError(f"{name}: at least {durations.spoken(least)} is needed, found {given!r}.")
    return found


def _whole(name: str, given: Any, *, least: int, most: int) -> int:
    if isinstance(given, str) and re.fullmatch("[0-9]{1,18}", given.strip()):
        given = int(given)  # a variable holds nothing but text
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= most:
        raise OptionError(f"{name}: a whole number from {least:,} to {most:,} is needed, found {given!r}.")
    return given


def _pool(name: str, given: Any) -> int | None:
    return None if given is None else _whole(name, given, least=1, most=1_000)


_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _size(name: str, given: Any, *, least: int) -> int:
    if isinstance(given, str) and (parts := re.fullmatch(r"([0-9]{1,18})\s*([A-Za-z]*)", given.strip())):
        unit = _SIZES.get(parts[2].lower())
        given = given if unit is None else int(parts[1]) * unit
    # 512 MiB is the most that the server keeps under one key.
    if not isinstance(given, int) or isinstance(given, bool) or not least <= given <= 2**29:
        raise OptionError(
            f"{name}: a size from {least} B to 512 MiB is needed, found {given!r}. "
            'Give bytes, or text such as "512KiB" or "1MB".'
        )
    return given


# A variable holds nothing but text: lists stand there with commas, tables as JSON.
def _parts(given: Any) -> Any:
    return [part.strip() for part in given.split(",")] if isinstance(given, str) else given


def _json(name: str, given: Any) -> Any:
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given)
    except msgspec.DecodeError as error:
        raise OptionError(f"{name}: JSON is needed in a variable, found {given!r:.80}: {error}") from error


def _modules(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if not isinstance(found, list | tuple):
        raise OptionError(f"{name}: a list of modules is needed, found {given!r}.")
    for module in found:
        if not isinstance(module, str) or not all(part.isidentifier() for part in module.split(".")):
            raise OptionError(f'{name}: a module such as "shop.mails" is needed, found {module!r}.')
    return tuple(found)


def _imports(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if not isinstance(found, list | tuple):
        raise OptionError(f'{name}: a list of modules is needed, such as ["shop.mails", "shop.*"], found {given!r}.')
    for module in found:
        first, *rest = module.split(".") if isinstance(module, str) else [""]
        if not first.isidentifier() or not all(part.isidentifier() or part == "*" for part in rest):
            raise OptionError(f'{name}: a module such as "shop.mails", or "shop.*", is needed, found {module!r}.')
    return tuple(found)


def _schedules(name: str, given: Any) -> dict[str, dict[str, Any]]:
    given = _json(name, given)
    if not isinstance(given, dict):
        raise OptionError(f"{name}: a table for each schedule is needed, found {given!r:.80}.")
    for schedule, table in given.items():
        if not isinstance(table, dict) or not isinstance(table.get("task"), str):
            raise OptionError(f'{name}.{schedule}: a table with task = "shop.report" is needed, found {table!r:.80}.')
        times = {key: value for key, value in table.items() if key in TIMES}
        try:
            schedule_of(name=schedule, target=table["task"], **times)
        except OptionError as error:
            raise OptionError(f"{name}.{schedule}: {error}") from error
    return given


_TIERS = {"free": 1.0, "advance": 2.0, "professional": 4.0, "enterprise": 8.0}


def _tiers(name: str, given: Any) -> dict[str, float]:
    if isinstance(given, str):  # a variable holds nothing but text: "free=1,enterprise=8"
        given = {tier: weight for tier, _, weight in (part.partition("=") for part in given.split(","))}
    if not isinstance(given, dict) or not given:
        raise OptionError(f"{name}: a weight for each tier is needed, such as free=1, found {given!r:.80}.")
    weights = {}
    for tier, weight in given.items():
        try:
            weights[str(tier).strip()] = 0.0 if isinstance(weight, bool) else float(weight)
        except (TypeError, ValueError):
            weights[str(tier).strip()] = 0.0
    for tier, found in weights.items():
        if not tier or not tier.isprintable() or not 0.01 <= found <= 64:
            raise OptionError(f"{name}.{tier}: a weight from 0.01 to 64 is needed, found {given!r:.80}.")
    return weights


_SIGNING_KEY = re.compile(r"([A-Za-z0-9_-]{1,100}:)?[A-Za-z0-9]{1,50}:[^:]{16,}")


def _signing_keys(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if not isinstance(found, list | tuple):
        raise OptionError(f"{name}: a list of keys is needed, each as name:secret.")
    for key in found:  # never the key itself: messages of errors are logged
        if not isinstance(key, str) or not _SIGNING_KEY.fullmatch(key):
            raise OptionError(
                f"{name}: each key is id:secret, or service:id:secret; the id letters and digits, the secret 16 "
                "characters or more, without colons."
            )
    names = [key.rpartition(":")[0] for key in found]
    if len(set(names)) < len(names):
        raise OptionError(f"{name}: each key has a name of its own, found {', '.join(names)}.")
    return tuple(found)


def _web_tokens(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if not isinstance(found, list | tuple):
        raise OptionError(f"{name}: a list of tokens is needed, each as role:name:secret.")
    if not found:
        return ()
    from relevo.web.access import token_of  # here, so that programs without tokens need not wait for it

    try:  # never the token itself: messages of errors are logged
        tokens = [token_of(one) for one in found]
    except OptionError as error:
        raise OptionError(f"{name}: {error}") from None
    if len({token.name for token in tokens}) < len(tokens):
        raise OptionError(f"{name}: each token has a name of its own, found {', '.join(one.name for one in tokens)}.")
    return tuple(found)


def _mask(name: str, given: Any) -> tuple[str, ...]:
    found = _parts(given)
    if not isinstance(found, list | tuple) or not all(isinstance(one, str) and one.strip() for one in found):
        raise OptionError(f'{name}: a list of names of arguments is needed, such as ["iban"], found {given!r:.80}.')
    return tuple(found)


def _switch(name: str, given: Any) -> bool:
    if isinstance(given, str) and given.strip().lower() in ("true", "1", "yes", "on", "false", "0", "no", "off"):
        return given.strip().lower() in ("true", "1", "yes", "on")
    if not isinstance(given, bool):
        raise OptionError(f"{name}: true or false is needed, found {given!r:.80}.")
    return given


def _health_limits(name: str, given: Any) -> dict[str, Any]:
    return read_limits(name, _json(name, given))


def _purge_ages(name: str, given: Any) -> dict[str, Any]:
    found: dict[str, Any] = _json(name, given)
    ages_of(found, what=name)
    return found


def _lifecycle(name: str, given: Any) -> str:
    if given not in ("on", "observe", "off"):
        raise OptionError(f"{name}: 'on', 'observe' or 'off' is needed, found {given!r:.80}.")
    return str(given)


def _server_check(name: str, given: Any) -> str | None:
    if given not in ("strict", "warn", "off", None):
        raise OptionError(f"{name}: 'strict', 'warn' or 'off' is needed, found {given!r:.80}.")
    return given  # type: ignore[no-any-return]


# Below a millisecond the store would see zero, and zero means "at once" or "no limit" to the server.
_SPAN = partial(_duration, least=0.001)
_SPAN_OR_NONE = partial(_duration, least=0.0)


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Every setting, checked; durations are seconds, sizes are bytes. Printing it hides the password.

    A setting is given as an argument, as `RELEVO_LEASE="20s"`, or as `lease = "20s"` in a file.
    """

    # The server. None starts the embedded one, so that the first example runs with nothing installed.
    # REDIS_URL is understood too, because hosts of applications set it.
    url: Annotated[str | None, _url] = None

    # First part of every name, so that several programs can share one server.
    prefix: Annotated[str, _label] = "relevo"

    # Second part of every name. "dev", because forgetting to say "prod" must not reach production's queues.
    env: Annotated[str, _label] = "dev"

    # Where the embedded server keeps its data: beside the program, in sight, easy to delete.
    data_dir: Annotated[str, _text] = ".relevo"

    # The queue of tasks that name none.
    queue: Annotated[str, _label] = "default"

    # Queues that workers serve, each with a number of slots if it is to have so many: "mail:20". None: all of the app.
    queues: Annotated[tuple[str, ...], _queues] = ()

    # Seconds a worker's claim lasts without a sign of life. A killed worker's job must run again within 15,
    # which leaves 3 to notice it.
    lease: Annotated[float, _SPAN] = 12.0

    # Jobs at once in one process: coroutines mostly wait, and 100 of them keep a core busy.
    concurrency: Annotated[int, partial(_whole, least=1, most=100_000)] = 100

    # Threads for plain functions: they wait for databases and HTTP; 32 is what Python's own pool stops at.
    threads: Annotated[int, partial(_whole, least=1, most=10_000)] = 32

    # Processes for functions that compute. None is one for each core: more would only take turns.
    pool: Annotated[int | None, _pool] = None

    # Seconds that SIGTERM leaves to running jobs: what Kubernetes allows before it kills.
    grace: Annotated[float, _SPAN_OR_NONE] = 30.0

    # Bytes of arguments or result, encoded. Larger ones slow all clients of the server; pass a reference.
    max_payload: Annotated[int, partial(_size, least=1)] = 2**20

    # Seconds a result is kept: enough for the caller that waits, too short to become a database.
    result_ttl: Annotated[float, _SPAN_OR_NONE] = 300.0

    # Seconds a dead letter is kept: a week, so that a failure of Friday night is there after a holiday.
    failure_ttl: Annotated[float, _SPAN] = 604_800.0

    # Dead letters kept per queue, the oldest go first: an outage must not fill the server's memory.
    dead_max: Annotated[int, partial(_whole, least=1, most=10_000_000)] = 10_000

    # Finished jobs kept per queue for people to look at: a few screens full.
    done_max: Annotated[int, partial(_whole, least=0, most=10_000_000)] = 1_000

    # Seconds one attempt may take unless the task says otherwise: a hung job must end some day.
    timeout: Annotated[float, _SPAN] = 600.0

    # Attempts after the first. With growing pauses, three outlast a restart of whatever was down.
    retries: Annotated[int, partial(_whole, least=0, most=1_000)] = 3

    # Workers one job may take down before it is given up as poison. One may be bad luck, three are not.
    max_crashes: Annotated[int, partial(_whole, least=1, most=1_000)] = 3

    # Bytes of output kept per attempt: some 600 lines, head and tail.
    log_max: Annotated[int, partial(_size, least=0)] = 2**16

    # Seconds a job waits for a worker that knows its task: longer than any deployment in steps.
    unknown_task_ttl: Annotated[float, _SPAN] = 86_400.0

    # Seconds to wait for the server's answer. It answers in under a millisecond; after five seconds it has a fault.
    call_timeout: Annotated[float, _SPAN] = 5.0

    # Seconds to open a connection: room for one lost packet, which is sent again after a second.
    connect_timeout: Annotated[float, _SPAN] = 3.0

    # What workers and producers do with a server whose eviction policy deletes jobs: refuse it ("strict"),
    # log one WARNING ("warn"), or do not look ("off"). None: "strict" with env="prod", where jobs matter, else "warn".
    server_check: Annotated[str | None, _server_check] = None

    # Schedules by name, for what an operator may change without touching code:
    # [schedules.nightly] task = "shop.report", cron = "30 2 * * *", tz = "Europe/Madrid".
    schedules: Annotated[dict[str, dict[str, Any]], _schedules] = {}

    # Shares of tenants by their tier: a message of weight 8 goes before eight of weight 1. Doubling from one to the
    # next is felt under load, and the lowest still gets its part.
    tiers: Annotated[dict[str, float], _tiers] = msgspec.field(default_factory=lambda: dict(_TIERS))

    # Requests of one process that wait for an answer at the same time; more wait for their turn within their own time.
    # Enough for a busy service, few enough to notice that the other one is down before memory does.
    max_requests: Annotated[int, partial(_whole, least=1, most=1_000_000)] = 1_000

    # Bytes of a message's data from which on it travels beside the message, and is fetched by the one that handles it:
    # lists of messages stay quick to read whatever is sent.
    claim_check: Annotated[int, partial(_size, least=1)] = 2**16

    # Keys for signing jobs, messages and results, each "id:secret", or "service:id:secret" for what one service says.
    # The first (of each service) signs, all are accepted. None by default; with some, what is not signed does not run.
    signing_keys: Annotated[tuple[str, ...], _signing_keys] = ()

    # Whether the caller of a request is shown our traceback. Not by default: it tells of files and values.
    remote_tracebacks: Annotated[bool, _switch] = False

    # Who may use the HTTP API, as role:name:secret. None by default: then one is made for each run of `relevo web`.
    web_tokens: Annotated[tuple[str, ...], _web_tokens] = ()

    # Names of arguments that are hidden from people, besides those that speak of secrets by themselves. None by
    # default: what is secret in a program only its authors know.
    mask: Annotated[tuple[str, ...], _mask] = ()

    # Messages whose way `relevo trace` can tell, of all services together: a few megabytes.
    trace_max: Annotated[int, partial(_whole, least=0, most=10_000_000)] = 10_000

    # Seconds that it is known what was made in a conversation, after the last of it: what was made ends by itself.
    conversation_ttl: Annotated[float, _SPAN] = 3_600.0

    # Seconds without any activity after which something without a worker is an orphan.
    orphan_age: Annotated[float, _SPAN] = 86_400.0

    # Whether what is left of ended tasks and orphans is removed ("on"), only logged ("observe"), or left alone ("off").
    lifecycle: Annotated[str, _lifecycle] = "on"

    # Whether spans are made for OpenTelemetry. Off: who has no collector should not pay for them.
    otel: Annotated[bool, _switch] = False

    # Whether workers check the app's health, keep the report for `app.health(cached=True)`, and log when it
    # changes. Off, because the operator decides; `app.health()` and `relevo health` always answer.
    health: Annotated[bool, _switch] = False

    # Seconds between two such looks, by whichever worker comes first: five minutes is soon enough for what is kept; who
    # wants to know it now asks.
    health_every: Annotated[float, partial(_duration, least=1.0)] = 300.0

    # What is degraded and what is unhealthy, for all queues and for each:
    # [health_limits] dead_warning = 100; [health_limits.mail] slo = "30s". The defaults: health/thresholds.py.
    health_limits: Annotated[dict[str, Any], _health_limits] = {}

    # Whether workers end and remove what is in its state for too long ("on"), only log what they would do ("observe"),
    # or leave it alone ("off"). Off: what is too old for a queue is for its owner to say.
    purge: Annotated[str, _lifecycle] = "off"

    # Seconds between two purges of an app, by whichever worker comes first. Limits are hours, so an hour is enough.
    purge_every: Annotated[float, _SPAN] = 3_600.0

    # How old is too old, by state, for all, for one queue or for one pool: [purge_ages] ready = "6h",
    # [purge_ages.queues.mails] ready = "1h". What is not named here is in upkeep/rules.py, with its reason.
    purge_ages: Annotated[dict[str, Any], _purge_ages] = {}

    # Modules whose plain functions may be enqueued. None by default: a forged job must find nothing to call.
    allow: Annotated[tuple[str, ...], _modules] = ()

    # Modules with tasks, besides that of the app, imported by workers and by commands that import the app:
    # "shop.mails", or "shop.*" for all modules of a package. None by default: importing a module runs it.
    imports: Annotated[tuple[str, ...], _imports] = ()

    def __post_init__(self) -> None:
        for name, read in _readers().items():
            value = _value(name, getattr(self, name), "Settings(...)", read)
            msgspec.structs.force_setattr(self, name, value)

    def __repr__(self) -> str:
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """What rich prints, in tracebacks too; msgspec's own would show the password."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        keys = tuple(key.rpartition(":")[0] + ":***" for key in self.signing_keys)
        tokens = tuple(token.rpartition(":")[0] + ":***" for token in self.web_tokens)
        hidden = {"url": masked_url(self.url) if self.url else None, "signing_keys": keys, "web_tokens": tokens}
        return list({**shown, **hidden}.items())


def load(
    *,
    arguments: Mapping[str, Any] | None = None,
    directory: Path | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Gather the settings; the first wrong one is refused with `SettingsError`, saying where it stands.

    An argument that is None counts as not given, and so does an empty variable.
    """
    readers = _readers()
    directory = (Path.cwd() if directory is None else directory).resolve()
    found: dict[str, tuple[Any, str]] = {}
    for name, value, where in (  # weakest first, so that the stronger ones write over them
        *_from_pyproject(directory),
        *_from_relevo_toml(directory),
        *_from_environment(os.environ if environ is None else environ),
        *((name, value, "the arguments") for name, value in (arguments or {}).items() if value is not None),
    ):
        if name in readers:
            found[name] = value, where
        elif name in _MISPLACED:
            raise SettingsError(f"unknown setting {name!r} in {where}: write it as {_MISPLACED[name]}.")
        elif isinstance(value, dict):
            raise SettingsError(
                f"unknown table [{name}] in {where}: settings are not grouped. "
                "In relevo.toml they stand at the top level, in pyproject.toml directly under [tool.relevo]."
            )
        else:
            raise SettingsError(f"unknown setting {name!r} in {where}{did_you_mean(name, readers)}")
    # Only what is used is read: a REDIS_URL meant for another program must not stop this one.
    return Settings(**{name: _value(name, *given, readers[name]) for name, given in found.items()})


#: Variables of this process that are not in its environment, where whatever a job starts would inherit them.
_given_apart: dict[str, str] = {}


def secret_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that hold tokens, keys or the password of the server."""
    found = {name: environ[name] for name in ("RELEVO_SIGNING_KEYS", "RELEVO_WEB_TOKENS") if name in environ}
    url = environ.get("RELEVO_URL", "")
    return found | ({"RELEVO_URL": url} if masked_url(url) != url else {})


def give_apart(variables: Mapping[str, str]) -> None:
    """Let `load` find these, as if they were in the environment."""
    _given_apart.update(variables)


@contextmanager
def restored_environment() -> Iterator[None]:
    """The environment with what was given apart, for the import of a module that reads it for itself."""
    added = _given_apart.keys() - os.environ.keys()
    os.environ.update({name: _given_apart[name] for name in added})
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


#: Where what is found at the top level, or under a name of another system, belongs.
_MISPLACED = {
    **{name: f"`{name}` under [health_limits]" for name in NAMES},
    **{name: f"`{ours}` under [health_limits]" for name, ours in ELSEWHERE.items()},
    "include": '`imports = ["shop.mails"]`',
    "import_paths": '`imports = ["shop.mails"]`',
    "health_thresholds": "[health_limits]",
    "health_check_enabled": "`health`",
    "health_check_interval": "`health_every`",
    "dlq_enabled": "`failure_ttl`, how long dead letters are kept",
    "dlq_ttl": "`failure_ttl`",
    "dead_ttl": "`failure_ttl`",
    "data_ttl": "`data_ttl` of app.pool(…)",
    "dlq_max_entries": "`dead_max`",
    "purge_enabled": '`purge = "on"`',
    "purge_dry_run": '`purge = "observe"`',
    "purge_interval": "`purge_every`",
    **{name: f"`{state}` under [purge_ages]" for name, state in AGES_ELSEWHERE.items()},
}


def _readers() -> dict[str, Read]:
    hints = get_type_hints(Settings, include_extras=True)
    return {name: get_args(hints[name])[1] for name in Settings.__struct_fields__}


def _value(name: str, given: Any, where: str, read: Read) -> Any:
    if isinstance(given, dict):
        _check_places(name, given, where)
    try:
        return read(name, given)
    except OptionError as error:
        raise SettingsError(f"{error} (from {where})") from error


def _check_places(table: str, given: Mapping[Any, Any], where: str) -> None:
    """Refuse what belongs elsewhere: in TOML, what stands below the head of a table is part of it."""
    for name, value in given.items():
        if isinstance(value, dict):  # of a queue or a schedule, which may have any name
            continue
        found = f"unknown name {name!r} under [{table}] in {where}"
        if name in Settings.__struct_fields__:
            raise SettingsError(f"{found}: it is a setting of its own, and stands above the head of the first table.")
        if name in _MISPLACED and f"[{table}]" not in _MISPLACED[name]:
            raise SettingsError(f"{found}: write it as {_MISPLACED[name]}.")


def _from_environment(environ: Mapping[str, str]) -> Iterator[Given]:
    if environ is os.environ:
        environ = {**environ, **_given_apart}
    known = {f"RELEVO_{name.upper()}": name for name in Settings.__struct_fields__}
    # An empty variable is none: compose files pass unset variables as empty ones.
    if redis_url := environ.get("REDIS_URL"):
        yield "url", redis_url, "REDIS_URL"
    for variable, value in environ.items():
        if variable in known:
            if value:
                yield known[variable], value, variable
        elif variable.startswith("RELEVO_"):
            # A misspelt name is refused. Names unlike any setting belong to other programs: a build's RELEVO_SRC, or
            # the RELEVO_SERVICE_HOST that Kubernetes sets in every pod.
            name = variable.removeprefix("RELEVO_").lower()
            if name in _MISPLACED:
                yield name, value, variable  # refused with the right name, as in a file
                continue
            meant = did_you_mean(name, known.values())
            if meant and variable not in _OF_OTHERS:
                raise SettingsError(f"unknown environment variable {variable!r}{_in_capitals(meant)}")


#: Read where they are used: by the embedded server, the command line, the tests. Kubernetes sets the last one.
_OF_OTHERS = (
    "RELEVO_SERVER_BIN",
    "RELEVO_APP",
    "RELEVO_FAULT",
    "RELEVO_CHAOS",
    "RELEVO_TEST_SERVER",
    "RELEVO_TEST_URL",
    "RELEVO_PORT",
)


def _in_capitals(meant: str) -> str:
    return re.sub(r"'(\w+)'", lambda name: f"'RELEVO_{name[1].upper()}'", meant)


def _from_relevo_toml(directory: Path) -> Iterator[Given]:
    if found := find_settings(directory, "relevo.toml", lambda _, table: table):
        for name, value in found.table.items():
            yield name, value, str(found.path)


def settings_files(directory: Path | None = None) -> list[str]:
    """The files from which `load` takes settings."""
    directory = (Path.cwd() if directory is None else directory).resolve()
    given = [*_from_relevo_toml(directory), *_from_pyproject(directory)]
    return list(dict.fromkeys(where for _, _, where in given))


def _from_pyproject(directory: Path) -> Iterator[Given]:
    if found := find_settings(directory, "pyproject.toml", _of_relevo):
        for name, value in found.table.items():
            yield name, value, _in_pyproject(found.path)


def _of_relevo(path: Path, table: dict[str, Any]) -> dict[str, Any]:
    for key in ("tool", "relevo"):
        table = table.get(key, {})
        if not isinstance(table, dict):
            raise SettingsError(f"{_in_pyproject(path)}: a table is needed, found {table!r}.")
    return table


def _in_pyproject(path: Path) -> str:
    return f"[tool.relevo] of {path}"


def data_directory(name: str) -> Path:
    """Where the embedded server keeps its data: the nearest directory of that name in the project, else here."""
    path = Path(name).expanduser()
    if path.is_absolute():
        return path
    project = project_of(Path.cwd())
    for folder in project.folders:
        if folder != project.folders[0] and not is_own(folder):
            break
        if os.path.isdir(folder / path):  # noqa: PTH112 - False also where we may not look
            return folder / path
    for folder in project.above:
        if is_own(folder / path):
            warn_once(folder / path, project.end)
            break
    return project.folders[0] / path
