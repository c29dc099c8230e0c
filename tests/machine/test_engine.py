"""Random work, lost replies, killed workers and moving time: the real scripts must do what the model does.

A failure prints the shortest story that leads to it, and a `@reproduce_failure(...)` line: put that line above
`class Machine` to see the same story again. `RELEVO_CHAOS=1` tells many more and longer stories.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from relevo.engine.client import Client
from relevo.store.keys import AppKeys
from tests.conftest import CHAOS
from tests.machine.engine import HOUR, MINUTE, Allowed, Engine, Spec
from tests.machine.model import ENDED, LIVING
from tests.machine.snapshot import NAMES, TASKS, TENANTS
from tests.servers import Server, available

SETTINGS = settings(
    max_examples=2000 if CHAOS else 60,
    stateful_step_count=80 if CHAOS else 50,
    deadline=None,
    derandomize=not CHAOS,  # the short pass tells the same stories each time
    print_blob=True,
    phases=[phase for phase in Phase if phase is not Phase.explain],  # minutes for little: the story says it all
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

PRIORITIES = st.sampled_from([100, 0, 150])
TASK = st.sampled_from(["task", *TASKS])
PLAIN = st.builds(lambda priority, task: Spec(priority, task=task), PRIORITIES, TASK)
RICH = st.builds(
    Spec,
    PRIORITIES,
    st.sampled_from(["", *TENANTS]),
    st.sampled_from([1.0, 2.0, 0.5]),
    st.sampled_from([0, MINUTE, 7 * MINUTE, 2 * HOUR]),
    st.sampled_from(["", "x", "y"]),
    st.sampled_from(["until_done", "queued", "add", str(24 * HOUR)]),
    st.booleans(),
    TASK,
)
SHARED = st.builds(
    lambda priority, tenant, weight, task: Spec(priority, tenant, weight, task=task),
    PRIORITIES,
    st.sampled_from(["", *TENANTS]),
    st.sampled_from([1.0, 2.0]),
    TASK,
)
ONE = st.tuples(PLAIN) | st.tuples(RICH)
MANY = st.lists(PLAIN, min_size=2, max_size=4) | st.lists(PLAIN | RICH, min_size=2, max_size=4)
ANY = st.integers(0, 15)
WANTED = st.sampled_from([1, 2, 5])
OUTCOMES = st.sampled_from(["ok", "ok", "fail", "fail", "back", "snooze", "cancelled", "broken", "expired"])
TOLD = {"number": ANY, "outcomes": st.lists(OUTCOMES, min_size=1, max_size=3), "has_record": st.booleans()}
WISHES = st.sampled_from(["look", "await", "discard", "undo"])
LOST = {"lost": st.just(True)}
LIMITED = st.sampled_from([*NAMES, "q:"])
HALTED = st.sampled_from(NAMES)
TERMS = st.sampled_from(
    [Allowed(1), Allowed(2), Allowed(None, 0.5, 1), Allowed(None, 2, 2), Allowed(1, 8, 3), Allowed(), Allowed()]
)


class Step(NamedTuple):
    """Something that can happen."""

    method: str
    arguments: dict[str, st.SearchStrategy[Any]]
    is_possible: Callable[[Engine], object] = lambda engine: True

    def __repr__(self) -> str:
        return self.method


# One rule that chooses among all steps, not a rule per step: Hypothesis leaves out half of a machine's rules in each
# example, and without pushes or claims a queue has no stories to tell. What is left out here is trouble.
WORK = [
    Step("enqueue", {"specs": ONE}),
    Step("claim", {"number": ANY, "want": WANTED}),
    Step("claim", {"number": ANY, "want": WANTED}),
    Step("finish", TOLD, lambda engine: engine.busy),
    Step("finish", TOLD | {"want": WANTED}, lambda engine: engine.busy),
    Step("worker", {"number": ANY, "does": st.just("answer the bell")}),
]
TROUBLE = {
    "crowds": [Step("enqueue", {"specs": MANY})],
    "lost pushes": [
        Step("enqueue", {"specs": ONE | MANY} | LOST),
        Step("repeat_push", {"number": ANY}, lambda engine: engine.unsure),
    ],
    "lost turns": [
        Step("claim", {"number": ANY, "want": WANTED} | LOST, lambda engine: engine.model.of(*LIVING)),
        Step("finish", TOLD | {"want": WANTED | st.just(0)} | LOST, lambda engine: engine.busy),
        Step("tell_again", {"number": ANY, "want": st.integers(0, 1)}, lambda engine: engine.told),
    ],
    "time": [
        Step("worker", {"number": ANY, "does": st.just("renew")}),
        Step("pass_time", {"minutes": st.sampled_from([1, 2, 5, 7, 60, 360])}),
        Step("finish_too_late", {"number": ANY, "outcome": OUTCOMES}, lambda engine: engine.zombies),
    ],
    "death": [Step("worker", {"number": ANY, "does": st.sampled_from(["die", "die in sight", "stop"])})],
    "people": [
        Step("person", {"number": ANY, "does": st.just("cancel")}, lambda engine: engine.model.jobs),
        Step("person", {"number": ANY, "does": st.just("revive")}, lambda engine: engine.model.of(*ENDED)),
        Step("person", {"number": ANY, "does": WISHES}, lambda engine: engine.model.jobs),
        Step("take", {"number": ANY}, lambda engine: engine.model.of("ready")),
        Step("hand_over", {"number": ANY}, lambda engine: engine.busy),
    ],
    "pauses": [Step("become", {"what": st.sampled_from(["paused", "paused for a while", "resumed", "resumed"])})],
    "limits": [
        Step("allow", {"name": LIMITED, "terms": TERMS}),
        Step("allow", {"name": LIMITED, "terms": TERMS}),
        Step("halt", {"name": HALTED, "minutes": st.sampled_from([None, None, 0, 3, 60])}),
        Step("trip", {"task": st.sampled_from(TASKS), "failed": st.integers(1, 2)}),
        Step("enqueue", {"specs": st.lists(SHARED, min_size=1, max_size=4)}),
    ],
    "losses": [Step("become", {"what": st.sampled_from(["cleared", "without scripts", "without counters"])})],
}


def some_step(machine: Machine) -> st.SearchStrategy[tuple[Step, dict[str, Any]]]:
    """A step and its arguments. Chosen without a look at the server, so that a story can be told again."""
    return st.sampled_from(machine.steps).flatmap(
        lambda step: st.tuples(st.just(step), st.fixed_dictionaries(step.arguments))
    )


class Machine(RuleBasedStateMachine):
    """Tells stories about an engine."""

    client: ClassVar[Client]
    numbers: ClassVar[Iterator[int]] = itertools.count(1)

    def __init__(self) -> None:
        super().__init__()
        self.engine = Engine(self.client, next(self.numbers))
        self.steps = WORK

    @initialize(kinds=st.sets(st.sampled_from(sorted(TROUBLE)), min_size=len(TROUBLE) // 2))
    def trouble(self, kinds: set[str]) -> None:
        self.steps = WORK + [step for kind in sorted(kinds) for step in TROUBLE[kind]]

    @rule(chosen=st.runner().flatmap(some_step))
    def then(self, chosen: tuple[Step, dict[str, Any]]) -> None:
        step, arguments = chosen
        if step.is_possible(self.engine):
            self.engine.tick()
            getattr(self.engine, step.method)(**arguments)

    @invariant()
    def server_and_model_agree(self) -> None:
        if not self.engine.is_compared:
            self.engine.agree()

    def teardown(self) -> None:
        self.engine.end()


@pytest.fixture
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    engine = os.environ.get("RELEVO_TEST_SERVER", "valkey")
    if available(engine) is None:
        pytest.skip(f"no {engine} on this machine")
    directory = tmp_path_factory.mktemp("machine")
    with Server(engine, directory=directory) as server:
        keys = AppKeys("relevo", "test", "machine")
        client = Client(server.url, keys, data_dir=directory, connect_timeout=30.0, call_timeout=30.0)
        yield client
        client.close()


@pytest.mark.timeout(7200 if CHAOS else 900)  # finding the shortest story may take five minutes
def test_a_queue_keeps_its_promises_whatever_happens(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing lost, nothing settled twice, strict priority and FIFO, no key left."""
    monkeypatch.setattr(Machine, "client", client, raising=False)
    run_state_machine_as_test(Machine, settings=SETTINGS)


# Stories the machine found, told again each time.
@pytest.fixture
def engine(client: Client) -> Iterator[Engine]:
    """An engine whose server and model agree after the story."""
    engine = Engine(client, 0)
    yield engine
    engine.agree()
    engine.end()


def test_the_same_retry_settled_twice_counts_once(engine: Engine) -> None:
    """The first settlement was carried out, only its reply was lost."""
    engine.enqueue([Spec(100)])
    engine.claim(0, 1)
    engine.finish(0, ["fail"], True, lost=True)
    engine.pass_time(2)
    engine.enqueue([Spec(0)])
    engine.claim(1, 1)  # the retry is ready now, behind another job
    engine.tell_again(0, 0)


def test_a_job_whose_call_went_to_a_dead_worker_is_found_by_an_idle_one(engine: Engine) -> None:
    """No worker may sleep for ever beside a ready job."""
    engine.claim(0, 1)
    engine.claim(1, 1)
    engine.worker(1, "die")
    engine.enqueue([Spec(100, tenant="a")])
    engine.pass_time(2)


def test_a_token_of_a_former_life_does_not_count(engine: Engine) -> None:
    """A dead job is revived while its first worker still waits for a reply."""
    engine.enqueue([Spec(100)])
    engine.claim(0, 1)
    engine.finish(0, ["broken"], True, lost=True)
    engine.person(0, "revive")
    engine.claim(1, 1)
    engine.tell_again(0, 0)


def test_an_idle_worker_finds_an_abandoned_job_although_the_call_went_to_a_dead_one(engine: Engine) -> None:
    """A job whose worker was seen dying does not wait for its lease to end."""
    engine.enqueue([Spec(100)])
    engine.claim(2, 1)
    engine.claim(0, 1)
    engine.claim(1, 1)
    engine.worker(1, "die")
    engine.worker(2, "die in sight")
    engine.pass_time(2)


def test_an_idle_worker_is_called_for_what_another_gives_back(engine: Engine) -> None:
    """A worker without room that hands a job back does not ask for it again."""
    engine.enqueue([Spec(100)])
    engine.claim(2, 1)
    engine.claim(0, 1)
    engine.finish(0, ["back"], True)
