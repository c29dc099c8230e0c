"""`relevo workflow`: the tree of a workflow, the list of the newest, and what can be done with one from a terminal."""

from __future__ import annotations

import re
import signal
import subprocess
from typing import Any, NamedTuple

import msgspec
import pytest

from relevo import Relevo, group
from relevo.cli.screen import Branch
from relevo.engine.job import State
from relevo.store.plan import Ahead, Ask
from relevo.workflows import store as flows
from relevo.workflows.cli import BAR, bar
from relevo.workflows.cli_tree import ROOM, forest
from relevo.workflows.workflow import Member, Workflow, WorkflowInfo, WorkflowProgress
from tests.eventually import PATIENCE, eventually
from tests.servers import Server
from tests.system.shell import Output, Terminal, command, environment, on_terminal, plain, relevo
from tests.working import drained, working

NO_SUCH_ID = "01k9q4w2zhq3mf7d0a2f"


class Tasks(NamedTuple):
    """What the workflows here are made of."""

    size: Any
    parse: Any
    total: Any
    more: Any
    mail: Any


@pytest.fixture
def tasks(app: Relevo) -> Tasks:
    @app.task(name="shop.parse", retries=0)
    def parse(page: str) -> int:
        if page.startswith("bad"):
            raise ValueError(f"no table in {page}")
        return len(page)

    @app.task(name="shop.more")
    async def more(n: int) -> int:
        if n:
            await (await app.aworkflow()).aadd(more.s(0), more.s(n - 1))
        return n

    size = app.task(name="shop.size")(lambda page: len(page))
    total = app.task(name="shop.total", queue="reports")(lambda sizes: sum(sizes))
    mail = app.task(name="shop.mail")(lambda text: None)
    return Tasks(size, parse, total, more, mail)


def shown(server: Server, app: Relevo, flow: Workflow[Any], *words: str, encoding: str = "utf-8") -> Output:
    action = words[:1] if words[:1] in (("cancel",), ("retry",)) else ()
    words = ("workflow", *action, flow.id, "--name", app.name, *words[len(action) :])
    return relevo(*words, url=server.url, PYTHONIOENCODING=encoding, PYTHONUTF8="0")


def work(app: Relevo) -> None:
    """Run all there is, callbacks too, in both queues."""
    queues = ["default", "reports"]
    with working(app, queues=queues):
        eventually(lambda: not any(app.queue(name).stats().living for name in queues))


def tree_of(seen: Output) -> list[str]:
    """The lines below the head, with times left out."""
    below = seen.out.split("\n\n", 1)[1]
    return [re.sub(r"  \d\d:\d\d:\d\d[^ ]*, [\w.]+", "", line) for line in below.splitlines()]


# The command line


@pytest.mark.parametrize("id", [NO_SUCH_ID, "*", "-" * 3000])
def test_a_workflow_that_does_not_exist_is_not_found(server: Server, app: Relevo, id: str) -> None:
    seen = relevo("workflow", "--name", app.name, "--json", "--", id, url=server.url)
    assert (seen.code, seen.json["error"]) == (1, "UnknownJob")
    assert seen.err.count("\n") == 1


def test_id_of_a_job_given_for_a_workflow_is_explained(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = (tasks.size.s("a") | tasks.mail.si("b")).enqueue()
    member = flow.info().members[0].id
    alone = tasks.size.enqueue("c").id
    seen = relevo("workflow", member, "--name", app.name, url=server.url)
    assert (seen.code, seen.out) == (1, "") and f"`relevo workflow {flow.id}` shows its workflow" in seen.err
    seen = relevo("workflow", alone, "--name", app.name, url=server.url)
    assert (seen.code, seen.out) == (1, "") and f"`relevo job {alone}` shows it" in seen.err
    for _ in range(2):  # while it lives, and when it has ended
        seen = relevo("job", flow.id, "--name", app.name, url=server.url)
        assert (seen.code, seen.out) == (1, "")
        assert f"is a workflow, not a job; `relevo workflow {flow.id}` shows it" in seen.err
        drained(app)


# The tree


def test_a_workflow_is_shown_as_a_tree_of_its_shape(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.parse.s("bb") | tasks.mail.si("x")).then(tasks.total.si([3])).enqueue()
    ids = [one.id for one in flow.info().members]
    seen = shown(server, app, flow)
    assert (seen.code, seen.err) == (0, "")
    head = [line.split() for line in seen.out.splitlines()[:5]]
    assert head[0] == ["▶", "workflow", flow.id, "is", "running"]
    assert head[1] == ["queue", "default"]
    assert " ".join(head[2]) == f"progress {'░' * BAR} 0 of 4 jobs ended: 4 open"
    assert (head[3][0], head[4][:2]) == ("began", ["so", "far"])
    assert tree_of(seen) == [
        "chain of 2, 4 jobs: 2 ready, 2 waiting",
        "├── group of 2, 3 jobs: 2 ready, 1 waiting",
        f"│   ├── ○ ready  shop.size  {ids[0]}",
        "│   └── chain of 2: 1 ready, 1 waiting",
        f"│       ├── ○ ready    shop.parse  {ids[1]}",
        f"│       └── · waiting  shop.mail   {ids[2]}",
        f"└── · waiting  shop.total  {ids[3]}",
    ]
    work(app)
    seen = shown(server, app, flow)
    assert seen.out.startswith(f"✓ workflow {flow.id} is done\n")
    assert f"{'█' * BAR}  4 of 4 jobs ended: 4 done" in seen.out
    assert "\ntook " in seen.out
    for one in flow.info().members:
        assert one.started_ms is not None and one.ended_ms is not None
        assert re.search(rf"✓ done  shop\.\w+ +{one.id}  \d\d:\d\d:\d\d(–\d\d:\d\d:\d\d)?, \d", seen.out)


def test_late_members_gathering_jobs_and_callbacks_are_drawn_apart(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = (group(tasks.more.s(1), tasks.size.s("a")) | group(tasks.total.s(), tasks.total.s())).on_success(
        tasks.mail.s("well")
    )
    held = flow.on_failure(tasks.mail.s("bad")).enqueue()
    work(app)
    seen = shown(server, app, held)
    info = held.info()
    assert info.progress.total == info.progress.done == 7
    joined = sorted(one.id for one in info.members if one.joined)
    (_, well), (_, bad) = info.callbacks
    assert tree_of(seen)[7:] == [
        "joined: 2 done",
        f"├── ✓ done  shop.more  {joined[0]}",
        f"└── ✓ done  shop.more  {joined[1]}",
        "1 job to gather results: 1 done",
        "callbacks",
        f"├── on_success  ✓ done       shop.mail  {well.id}",
        *(line for line in tree_of(seen) if f"└── on_failure  – cancelled  shop.mail  {bad.id}" in line),
    ]
    assert tree_of(seen)[0] == "chain of 2, 4 jobs: 4 done"
    assert "relevo.gather" not in seen.out


def test_members_without_any_record_keep_their_place(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.parse.s("b"), tasks.size.s("c")).enqueue()
    ids = [one.id for one in flow.info().members]
    for verb, key in (("HDEL", "jobs"), ("ZREM", "ready"), ("HDEL", "waiters")):
        server.command(verb, app.engine.keys_of("default").key(key), ids[1])
    assert shown(server, app, flow, "cancel").code == 0
    seen = shown(server, app, flow)
    assert "– workflow" in seen.out
    lines = tree_of(seen)
    assert lines[0] == "group of 3: 3 cancelled"
    for line, task, id in zip(lines[1:], ("size ", "parse", "size "), ids, strict=True):
        assert f"– cancelled  shop.{task}  {id}  ended " in line


def test_a_terminal_without_utf8_gets_letters_and_control_characters_are_escaped(
    server: Server, app: Relevo, tasks: Tasks
) -> None:
    flow = group(tasks.size.s("a"), tasks.size.s("b")).then(tasks.total.s()).enqueue()
    good, bad = app.queue().take(2)
    assert good.done(1) and bad.bury("\x1b[2J\nsecond line [bold red]x[/] \u202e")
    seen = shown(server, app, flow, encoding="ascii")
    assert seen.out.isascii()
    assert "\n|   +-- + done  shop.size" in seen.out
    assert "\n|   `-- x dead  shop.size" in seen.out
    assert "  \\x1b[2J second line [bold red]x[/] \\u202e\n" in seen.out
    assert not {"\x1b", "\u202e"} & set(shown(server, app, flow).out)


# Many members


def test_many_members_are_counted_and_only_some_drawn(server: Server, app: Relevo, tasks: Tasks) -> None:
    pages = ["bad" if n % 100 == 50 else "good" for n in range(2000)]
    flow = group(tasks.parse.s(page) for page in pages).then(tasks.total.s()).enqueue()
    work(app)
    seen = shown(server, app, flow)
    assert f"{'█' * (BAR - 1)}▒  2,001 of 2,001 jobs ended: 1,980 done, 21 failed" in seen.out
    lines = tree_of(seen)
    assert lines[0] == "chain of 2, 2,001 jobs: 20 dead, 1 cancelled, 1,980 done"
    assert lines[1] == "├── group of 2,000: 20 dead, 1,980 done"
    assert [line[8:14] for line in lines[2:12]] == ["✗ dead"] * 10
    assert all(line.endswith("  retries_exhausted: ValueError: no table in bad") for line in lines[2:12])
    assert [line[8:14] for line in lines[12:17]] == ["✓ done"] * 5
    assert lines[17] == "│   └── … 1,985 more"
    assert lines[18].startswith("└── – cancelled  shop.total")
    assert len(lines) == 19
    everything = shown(server, app, flow, "--all").out
    assert everything.count("✗ dead") == 20
    assert everything.count("✓ done") == 1980
    assert "more\n" not in everything
    members = shown(server, app, flow, "--json").json["members"]
    assert [one["state"] for one in members[:-1]] == ["dead" if page == "bad" else "done" for page in pages]


def test_states_of_many_living_members_are_all_known(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a") for _ in range(2000)).then(tasks.total.s()).enqueue()
    app.queue().take(3, lease="1m")
    seen = shown(server, app, flow)
    assert re.search(r"▶ running  shop\.size  \w{20}  since \d\d:\d\d:\d\d, \d+s\n", seen.out)
    lines = tree_of(seen)
    assert lines[1] == "├── group of 2,000: 3 running, 1,997 ready"
    assert [line[8:17] for line in lines[2:7]] == ["▶ running"] * 3 + ["○ ready  "] * 2
    flow.cancel()


def info_of(shape: Any, states: list[State]) -> WorkflowInfo:
    members = tuple(
        Member(id=f"{n:020}", queue="default", task="shop.size", state=state) for n, state in enumerate(states)
    )
    failed = sum(state is State.DEAD for state in states)
    progress = WorkflowProgress(len(states), len(states) - failed, failed, 0)
    return WorkflowInfo(
        id=NO_SUCH_ID,
        queue="default",
        state=State.DONE,
        progress=progress,
        began_ms=0,
        ended_ms=1,
        shape=shape,
        members=members,
    )


def lines_of(tree: Branch) -> int:
    return 1 + sum(map(lines_of, tree.branches))


def test_a_tree_has_room_on_a_screen_however_it_branches() -> None:
    cube = {
        "group": [{"group": [{"group": [f"{n}-{n + 19}"]} for n in range(m, m + 400, 20)]} for m in range(0, 8000, 400)]
    }
    states = [*[State.DONE] * 7999, State.DEAD]
    (tree,) = forest(info_of(cube, states))
    assert ROOM // 2 <= lines_of(tree) <= ROOM
    (tree,) = forest(info_of(cube, states), None)
    assert lines_of(tree) == 8000 + 400 + 20 + 1
    twenty_chords = {"chain": [part for n in range(0, 2020, 101) for part in ({"group": [f"{n}-{n + 99}"]}, n + 100)]}
    (tree,) = forest(info_of(twenty_chords, [State.DONE] * 2020))
    assert len(tree.branches) == 40
    assert lines_of(tree) <= ROOM
    (tree,) = forest(info_of({"chain": [{"group": ["0-49"]}, {"group": ["50-51"]}]}, [State.DONE] * 52))
    assert [len(branch.branches) for branch in tree.branches] == [50, 2], (
        "a small branch leaves its room to a large one"
    )


@pytest.mark.parametrize(
    ("done", "failed", "open", "drawn"),
    [
        (0, 0, 3, "░" * 20),
        (1, 9999, 0, "█" + "▒" * 19),
        (9998, 1, 1, "█" * 18 + "▒░"),
        (1, 1, 1, "█" * 8 + "▒" * 6 + "░" * 6),
        (0, 0, 0, "█" * 20),
    ],
)
def test_bar_shows_every_outcome_that_occurs(done: int, failed: int, open: int, drawn: str) -> None:
    assert bar(WorkflowProgress(done + failed + open, done, failed, open)) == drawn


# JSON


def test_a_workflow_as_json_has_every_field_of_its_info(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.parse.s("bad")).then(tasks.total.s()).on_failure(tasks.mail.s("x")).enqueue()
    work(app)
    seen = shown(server, app, flow, "--json")
    assert (seen.code, seen.json) == (0, msgspec.json.decode(msgspec.json.encode(flow.info())))
    assert set(seen.json) == {
        "id", "queue", "state", "progress", "began_ms", "ended_ms", "shape", "members", "callbacks",
    }  # fmt: skip
    done, dead, _ = seen.json["members"]
    assert set(done) == {
        "id", "queue", "task", "state", "joined", "started_ms", "ended_ms", "reason", "error",
    }  # fmt: skip
    assert (dead["state"], dead["error"]) == ("dead", "ValueError: no table in bad")


# Deeds


def test_failed_part_of_a_workflow_is_run_again(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("good"), tasks.size.s("bad")).then(tasks.total.using(queue="default").s()).enqueue()
    early = shown(server, app, flow, "retry")
    assert early.code == 1
    assert early.out.startswith("nothing to run again: only dead, cancelled or expired jobs can be\n")
    good, bad = app.queue().take(2)
    assert good.done(4) and bad.bury("no table")
    seen = shown(server, app, flow)
    assert seen.code == 0, "the command did what was asked"
    assert seen.out.startswith(f"✗ workflow {flow.id} is dead\n")
    assert shown(server, app, flow, "--watch").code == 1, "the exit code of watching is that of the workflow"
    seen = shown(server, app, flow, "retry")
    assert seen.code == 0
    assert seen.out.startswith(f"1 job will run again, and what waits for it\n\n▶ workflow {flow.id} is running\n")
    drained(app)
    assert shown(server, app, flow, "--watch").code == 0
    assert flow.result(timeout=PATIENCE) == 7


def test_a_workflow_is_cancelled_once(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.size.s("b")).then(tasks.total.s()).enqueue()
    seen = shown(server, app, flow, "cancel")
    assert seen.code == 0 and seen.out.startswith(f"cancelled 3 jobs\n\n– workflow {flow.id} is cancelled\n")
    seen = shown(server, app, flow, "cancel")
    assert seen.code == 1 and seen.out.startswith("nothing to cancel: it has ended\n")
    seen = shown(server, app, flow, "cancel", "--json")
    assert (seen.code, seen.json["cancelled"], seen.json["state"]) == (1, 0, "cancelled")
    seen = shown(server, app, flow, "retry", "--json")
    assert (seen.code, seen.json["retried"], seen.json["state"]) == (0, 3, "running")
    app.queue().take(1, lease="1m")
    seen = shown(server, app, flow, "cancel")
    assert seen.out.startswith("cancelled 3 jobs; workers were asked to stop those that run\n")
    assert flow.state() is State.RUNNING


# Watching


def test_watching_in_a_pipe_prints_each_change_and_the_end(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.size.s("b")).enqueue()
    words, env = command("workflow", flow.id, "--name", app.name, "--watch", "0.1"), environment(server.url)
    started = subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    assert started.stdout
    with started.stdout as out:
        assert out.readline()[8:] == "  running    0 of 2 jobs ended: 2 open\n"
        (lease,) = app.queue().take(1)
        assert lease.done(1)
        assert out.readline()[8:] == "  running    1 of 2 jobs ended: 1 done, 1 open\n"
        drained(app)
        assert out.readline()[8:] == "  done       2 of 2 jobs ended: 2 done\n"
        assert out.readline() == "\n"
        assert out.read().startswith(f"✓ workflow {flow.id} is done\n")
    assert started.wait(PATIENCE) == 0


@pytest.mark.parametrize("how", [None, signal.SIGINT])
def test_watching_refreshes_a_terminal_until_the_workflow_ends_or_it_is_interrupted(
    server: Server, app: Relevo, tasks: Tasks, how: signal.Signals | None
) -> None:
    flow = group(tasks.size.s("a"), tasks.size.s("b")).enqueue()
    with Terminal("workflow", flow.id, "--name", app.name, "--watch", "0.1", url=server.url) as terminal:
        terminal.shows("2 ready")
        if how is None:
            drained(app)
        assert terminal.ends(how) == (130 if how else 0)
        assert how or terminal.lines[-1].lstrip().startswith("└── ✓ done")
        assert "Traceback" not in terminal.seen
        assert "\x1b[?25h" in terminal.seen, "the cursor is back"
    flow.cancel()


# Eighty columns


def test_trees_and_tables_fit_into_eighty_columns(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a") | tasks.size.si("x"), tasks.parse.s("bad")).then(tasks.total.s())
    held = flow.on_failure(tasks.mail.s("x")).enqueue()
    work(app)
    tree, listed, status = (
        on_terminal(*words, "--name", app.name, url=server.url).out
        for words in (("workflow", held.id), ("workflow",), ("status",))
    )
    assert "\x1b[1;31m✗ dead" in tree
    lines = plain(tree)
    assert max(map(len, lines)) <= 80
    at = next(i for i, line in enumerate(lines) if line.startswith("│   └── ✗ dead  shop.parse"))
    assert lines[at + 1].strip() == "│       retries_exhausted: ValueError: no table in bad"
    lines = plain(listed)
    assert lines[0].split() == ["id", "queue", "state", "ended", "failed", "began", "took"]
    assert lines[1].split()[:5] == [held.id, "default", "dead", "4/4", "2"]
    assert max(map(len, lines)) <= 80
    (head,) = (line for line in plain(status) if line.startswith("queue "))
    assert " ".join(head.split()) == "queue ready scheduled waiting running done dead idle next due"
    assert len(head) <= 80


# The list


def test_workflows_of_all_queues_are_listed_newest_first(server: Server, app: Relevo, tasks: Tasks) -> None:
    first = (tasks.size.s("a") | tasks.mail.si("x")).enqueue()
    second = group(tasks.total.s([1]), tasks.size.s("a")).enqueue()
    third = (tasks.parse.s("bad") | tasks.mail.si("x")).enqueue()
    assert (first.queue, second.queue, third.queue) == ("default", "reports", "default")
    drained(app, queues=["default"])

    def listed(*words: str) -> list[str]:
        seen = relevo("workflow", "--name", app.name, "--json", *words, url=server.url)
        assert seen.code == 0
        return [row["id"] for row in seen.json["items"]]

    seen = relevo("workflow", "--name", app.name, "--queue", "defualt", url=server.url)
    assert (seen.code, seen.out) == (2, "") and "did you mean 'default'?" in seen.err
    assert listed() == [third.id, second.id, first.id]
    assert listed("--limit", "2") == [third.id, second.id]
    assert listed("--queue", "reports") == [second.id]
    rows = relevo("workflow", "--name", app.name, "--json", url=server.url).json["items"]
    assert set(rows[0]) == {"id", "queue", "state", "progress", "began_ms", "ended_ms"}
    assert rows[1]["progress"] == {"total": 2, "done": 1, "failed": 0, "open": 1}
    rows = [line.split() for line in relevo("workflow", "--name", app.name, url=server.url).out.splitlines()]
    assert rows[0] == ["ID", "QUEUE", "STATE", "ENDED", "FAILED", "BEGAN", "TOOK"]
    assert [row[:5] for row in rows[1:]] == [
        [third.id, "default", "dead", "2/2", "2"],
        [second.id, "reports", "running", "1/2", "0"],
        [first.id, "default", "done", "2/2", "0"],
    ]
    second.cancel()


def test_list_reads_few_workflows(server: Server, app: Relevo, tasks: Tasks) -> None:
    """Expired workflows are removed from the list when it is read."""
    keys = app.engine.keys_of("default")
    made = [(tasks.size.s("a") | tasks.mail.si("x")).enqueue().id for _ in range(3)]
    began = int(server.command("ZSCORE", keys.key("flows"), made[0]))
    gone = {f"{n:020}": began + 1_000_000 + n for n in range(130)} | {f"{n:020}": n for n in range(1000, 4000)}
    server.command("ZADD", keys.key("flows"), *(word for id, score in gone.items() for word in (score, id)))

    def looks() -> tuple[list[str], int]:
        count, answer = 0, None
        steps = flows.listed(keys, 3)
        try:
            while True:
                step = steps.send(answer)
                assert not isinstance(step, Ask)
                calls = list(step.calls) if isinstance(step, Ahead) else [step]
                count += len(calls)
                answers = [app.engine.run(call) for call in calls]
                answer = answers if isinstance(step, Ahead) else answers[0]
        except StopIteration as stop:
            return [id for id, _ in stop.value], count

    found, calls = looks()
    assert found == made[::-1]
    assert calls <= 130 + 3 * flows.PAGE
    found, calls = looks()
    assert found == made[::-1]
    assert calls <= flows.PAGE + 2
    assert relevo("workflow", "--name", app.name, "--limit", "1000", "--json", url=server.url).code == 0
    assert server.command("ZCARD", keys.key("flows")) > 500  # a list that is full of them is not read to its end


# Waiting jobs elsewhere


def test_waiting_jobs_are_shown_by_status_and_job(server: Server, app: Relevo, tasks: Tasks) -> None:
    flow = group(tasks.size.s("a"), tasks.size.s("b")).then(tasks.total.s()).enqueue()
    last = flow.info().members[-1].id
    seen = relevo("status", "--name", app.name, url=server.url)
    rows = [line.split() for line in seen.out.splitlines()]
    assert ["QUEUE", "READY", "SCHEDULED", "WAITING", "RUNNING", "DONE", "DEAD", "IDLE", "NEXT", "DUE"] in rows
    assert ["reports", "0", "0", "1", "0", "0", "0", "0", "-"] in rows
    seen = relevo("job", last, "--name", app.name, url=server.url)
    assert seen.out.startswith(f"job {last} is waiting\n")
    rows = [line.split() for line in seen.out.splitlines()]
    assert ["workflow", flow.id] in rows
    assert ["waits", "for", "2", "jobs", "to", "end"] in rows
    info = relevo("job", last, "--name", app.name, "--json", url=server.url).json
    assert (info["state"], info["waits_for"], info["workflow"]) == ("waiting", 2, flow.id)
    flow.cancel()
