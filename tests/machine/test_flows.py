"""Random graphs of jobs over three queues, with failures, cancels, retries, dying workers and letters that come twice.

Whatever happens, in the end every job is where its parents' ends put it, and nothing ran once too often. A failure
tells its story. `RELEVO_SEED=7` plays number 7 alone: the same graph and the same failures, as far as real workers can
be told when to do what. `RELEVO_CHAOS=1` plays many more.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import pytest

from relevo import Job, JobInfo, Relevo, State, Task, Workflow
from relevo.engine import outbox as relay
from relevo.errors import JobError, UnknownJob
from relevo.store.keys import QueueKeys
from relevo.store.plan import Call
from relevo.worker import Worker
from relevo.worker import outbox_carrier as errands
from relevo.workflows.steps import Chain, Flow, Group, Step, chain, group
from tests.conftest import CHAOS, AppFactory
from tests.eventually import PATIENCE, aeventually

QUEUES = ("left", "middle", "right side")
FAILED = (State.DEAD, State.CANCELLED, State.EXPIRED)
SEEDS = [int(os.environ["RELEVO_SEED"])] if "RELEVO_SEED" in os.environ else range(400 if CHAOS else 6)


def keys_for(seed: int) -> list[str]:
    """Half of the stories are told where jobs and results are signed: signatures change nothing."""
    return ["k1:0123456789abcdef"] if seed % 2 else []


Action = Callable[[], Awaitable[None]]


Letters = dict[str, tuple[QueueKeys, bytes]]


@pytest.fixture
def letters(monkeypatch: pytest.MonkeyPatch) -> Letters:
    """All outbox messages that are delivered. What a dead relay had taken can soon be taken again."""
    seen: Letters = {}
    deliver = relay.deliver

    def noting(keys_of: Any, source: QueueKeys, letters: Iterable[tuple[str, bytes]], dead_max: int) -> Any:
        letters = list(letters)
        seen.update((id, (source, text)) for id, text in letters)
        return deliver(keys_of, source, letters, dead_max)

    monkeypatch.setattr(relay, "deliver", noting)
    monkeypatch.setattr(errands, "deliver", noting)
    monkeypatch.setattr(relay, "RESERVED_MS", 40)
    return seen


class Story:
    """An app, its workers, and what can happen to them."""

    def __init__(self, app: Relevo, seed: int, letters: Letters) -> None:
        self.app = app
        self.letters = letters
        self.chance = random.Random(seed)
        self.failing = 0.25
        #: by number: runs that reached the end of the function, and those of them that went well
        self.completed: Counter[int] = Counter()
        self.succeeded: Counter[int] = Counter()
        self._workers: list[tuple[Worker, asyncio.Task[None]]] = []
        self._is_staffed = False
        self._told: list[str] = []
        self._numbers = itertools.count()

        @app.task(name="step", retries=0)
        async def step(before: Any, number: int, more: int = 0) -> Any:
            # not the story's own dice: when jobs run is not ours to say
            dice = random.Random(f"{seed} {number} {self.completed[number]}")
            await asyncio.sleep(dice.choice([0, 0, 0.001, 0.01]))
            for _ in range(more):
                late: Step[Any, Any] = self.any_step(dice).s(None, self.number(), 0)
                await (await self.app.aworkflow()).aadd(late)
            self.completed[number] += 1
            if dice.random() < self.failing:
                raise ValueError("by chance")
            self.succeeded[number] += 1
            return [number, before]

        self.step = step

    def number(self) -> int:
        return next(self._numbers)

    def any_step(self, dice: random.Random) -> Task[[Any, int, int], Any]:
        return self.step.using(queue=dice.choice(QUEUES), result_ttl=dice.choice([0, 3600]))

    def say(self, *words: object) -> None:
        self._told.append(" ".join(map(str, words)))

    @property
    def told(self) -> str:
        return "\n".join(["", *self._told])

    # workers
    def start_worker(self, *queues: str) -> None:
        served = queues or self.chance.sample(QUEUES, self.chance.randint(1, 3))
        worker = Worker(self.app, queues=served, concurrency=self.chance.choice([1, 2, 10]))
        self._workers.append((worker, asyncio.create_task(worker.run())))

    async def stop_worker(self) -> None:
        if self._workers:
            worker, run = self._workers.pop(self.chance.randrange(len(self._workers)))
            worker.stop(fast=True)
            await asyncio.wait_for(run, PATIENCE)

    # letters
    async def deliver_old_letters(self, most: int = 10) -> None:
        """News comes once more, in any order, and some of it is old."""
        some = self.chance.sample(sorted(self.letters), min(len(self.letters), most))
        for id in some:
            source, text = self.letters[id]
            await self.app.engine.arun(relay.deliver(self.app.engine.keys_of, source, [(id, text)], 1000))

    async def take_letters_and_die(self) -> None:
        await self.app.engine.arun(relay.take_outbox(self.app.engine.keys_of(self.chance.choice(QUEUES))))

    # rest
    async def _at_rest(self) -> list[dict[str, int]] | None:
        """What was counted so far, if nothing runs, nothing can run, and nothing is on its way."""
        totals = []
        for queue in QUEUES:
            stats = await self.app.queue(queue).astats()
            soon = await self.app.engine.arun(self.app.engine.now_ms()) + 60_000
            letters: int = await self.app.engine.arun(
                Call([b"ZCOUNT", self.app.engine.keys_of(queue).key("errands"), 0, soon])
            )
            if stats.ready or stats.running or stats.scheduled or letters:
                return None
            totals.append(stats.totals)
        return totals

    async def _is_quiet(self) -> bool:
        """The queues are looked at one after the other: only if nothing moved in between were they at rest together."""
        before = await self._at_rest()
        return before is not None and before == await self._at_rest()

    async def _let_gates_close(self) -> bool:
        """Let the time pass after which what was never finished is cancelled; whether there was anything."""
        found = False
        for queue in QUEUES:
            key = self.app.engine.keys_of(queue).key("errands")
            ids: list[bytes] = await self.app.engine.arun(Call([b"ZRANGE", key, 0, -1]))
            for id in ids:
                if not id.endswith(b".gate"):
                    continue  # when its record will end, which is no end of this story
                await self.app.engine.arun(Call([b"ZADD", key, b"XX", 0, id]))
                found = True
        await self.app.engine.arun(self.app.engine.relay(*QUEUES))
        return found

    async def settle(self) -> None:
        if not self._is_staffed:
            self._is_staffed = True
            for queue in QUEUES:
                self.start_worker(queue)
        await aeventually(self._is_quiet, what=f"everything comes to rest:{self.told}")
        if await self._let_gates_close():
            await aeventually(self._is_quiet, what=f"everything comes to rest again:{self.told}")

    async def play(self, actions: list[Action], length: int, check: Action) -> None:
        """Let things happen, and look whether all is well when it is over, also if old news comes once more."""
        actions = [*actions, self.deliver_old_letters, self.take_letters_and_die, self.stop_worker]
        self.start_worker()
        for _ in range(length):
            await self.chance.choice(actions)()
            if self.chance.random() < 0.2 and len(self._workers) < 3:
                self.start_worker()
            await asyncio.sleep(self.chance.choice([0, 0, 0.002, 0.01, 0.02]))
        await self.settle()
        await check()
        await self.deliver_old_letters(1000)
        await self.settle()
        await check()
        self.failing = 0

    async def end(self) -> None:
        while self._workers:
            await self.stop_worker()
        await self.app.aclose()


class Graph(Story):
    """Jobs that depend on jobs."""

    def __init__(self, app: Relevo, seed: int, letters: Letters) -> None:
        super().__init__(app, seed, letters)
        self.jobs: list[Job[Any]] = []
        self.parents: list[dict[int, str]] = []
        #: how often it was asked to run
        self.lives: list[int] = []

    async def enqueue(self) -> None:
        number = self.number()
        known = self.chance.sample(range(number), min(number, self.chance.choice([0, 1, 1, 2, 3])))
        named = {one: self.chance.choice(["cancel", "cancel", "run", "wait"]) for one in known}
        parents = [(self.jobs[parent], when) for parent, when in named.items()]
        task = self.step.using(queue=self.chance.choice(QUEUES), depends_on=parents)
        self.jobs.append(await task.aenqueue(None, number))
        self.parents.append(named)
        self.lives.append(1)
        self.say("enqueue", number, self.jobs[-1].queue, named)

    async def cancel(self) -> None:
        number = self.chance.randrange(len(self.jobs))
        self.say("cancel", number, await self.jobs[number].acancel())

    async def retry(self) -> None:
        await self.retry_one(self.chance.randrange(len(self.jobs)))

    async def retry_one(self, number: int) -> bool:
        try:
            revived = await self.jobs[number].aretry()
        except JobError:  # one that it depends on has failed: it comes back with that one
            revived = False
        self.lives[number] += revived
        if revived:
            self.say("retry", number)
        return revived

    async def check(self) -> None:
        infos = [await job.ainfo() for job in self.jobs]
        for number, info in enumerate(infos):
            wrong = self._wrong(number, infos)
            assert not wrong, f"job {number} is {info.state} ({info.reason}): {wrong}{self.told}"
            assert self.completed[number] <= self.lives[number], f"job {number} ran too often{self.told}"
            assert self.succeeded[number] == (info.state is State.DONE), f"job {number} is {info.state}{self.told}"

    def _wrong(self, number: int, infos: list[JobInfo]) -> str:
        info, parents = infos[number], self.parents[number]
        states = {parent: infos[parent].state for parent in parents}
        failed = [one for one, when in parents.items() if when == "cancel" and states[one] in FAILED]
        awaited = [one for one, when in parents.items() if when == "wait" and states[one] in FAILED]
        unready = [one for one, when in parents.items() if when != "run" and states[one] is not State.DONE]
        if self.completed[number] and unready:
            return f"it ran, and these are not done: {unready} of {states}"
        match info.state:
            case State.DONE | State.DEAD:
                return "" if self.completed[number] else "it never ran"
            case State.CANCELLED if info.reason == "dependency_failed":
                return "" if failed else f"none of its parents failed: {states}"
            case State.CANCELLED:
                return ""
            case State.WAITING:
                if failed:
                    return f"it still waits, and {failed} failed"
                open = [one for one, state in states.items() if state is State.WAITING]
                return "" if awaited or open else f"it waits for no job: {states}"
            case _:
                return "it is not at rest"


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_graphs_end_as_the_ends_of_their_parents_require(
    app_factory: AppFactory, letters: Letters, seed: int
) -> None:
    story = Graph(app_factory(result_ttl="1h", signing_keys=keys_for(seed)), seed, letters)
    try:
        await story.enqueue()
        actions: list[Action] = [*[story.enqueue] * 8, *[story.cancel] * 2, *[story.retry] * 4]
        await story.play(actions, story.chance.randint(20, 60), story.check)
        # If what failed is run again, and fails no more, all of them end well.
        while any([await story.retry_one(number) for number in range(len(story.jobs))]):
            await story.settle()
            await story.check()
        assert {await job.astate() for job in story.jobs} == {State.DONE}, story.told
    finally:
        await story.end()


class Flows(Story):
    """Workflows, each with all three callbacks."""

    def __init__(self, app: Relevo, seed: int, letters: Letters) -> None:
        super().__init__(app, seed, letters)
        self.flows: list[tuple[Workflow[Any], Flow[Any, Any]]] = []
        self.calls: Counter[tuple[str, str]] = Counter()
        #: whether jobs of them add others
        self.grow = self.chance.random() < 0.3

        @app.task(name="call", queue=self.chance.choice(QUEUES))
        async def call(what: str) -> None:
            self.calls[(await app.aworkflow()).id, what] += 1

        self.call = call

    async def enqueue(self) -> None:
        drawn = self._draw(3, True)
        told = drawn.on_success(self.call.s("success")).on_failure(self.call.s("failure"))
        flow = await told.on_complete(self.call.s("complete")).aenqueue()
        self.flows.append((flow, drawn))
        self.say("enqueue", flow.id, drawn)

    def _draw(self, depth: int, is_first: bool) -> Flow[Any, Any]:
        kind = self.chance.choice(["step", "chain", "group"]) if depth else "step"
        if kind == "step":
            task, number = self.any_step(self.chance), self.number()
            more = self.chance.randint(1, 2) if self.grow and self.chance.random() < 0.2 else 0
            if is_first or self.chance.random() < 0.15:
                return task.si(None, number, more)
            behind: Step[Any, Any] = task.s(number, more)
            return behind
        count = self.chance.randint(0 if kind == "group" else 1, 4)
        parts = [self._draw(depth - 1, is_first and (kind == "group" or i == 0)) for i in range(count)]
        return group(parts) if kind == "group" else chain(*parts)

    def _any(self) -> Workflow[Any]:
        return self.chance.choice(self.flows)[0]

    async def cancel(self) -> None:
        flow = self._any()
        self.say("cancel", flow.id, await flow.acancel())

    async def retry(self) -> None:
        flow = self._any()
        self.say("retry", flow.id, await flow.aretry())

    async def cancel_member(self) -> None:
        member = self.chance.choice((await self._any().ainfo()).members)
        try:
            self.say("cancel job", member.id, await Job[Any](self.app.engine, member.id, member.queue).acancel())
        except UnknownJob:
            pass  # done, and not kept

    async def check(self) -> None:
        for flow, drawn in self.flows:
            info = await flow.ainfo()
            wrong = f"{info}{self.told}"
            # one that was about to join when its maker was stopped is shown, and counts for nothing
            members = [member for member in info.members if "before all of it was in place" not in member.error]
            states = {member.state for member in members}
            assert info.state.has_ended, wrong
            assert states <= {State.DONE, *FAILED}, wrong
            worst = next(
                (state for state in (State.DEAD, State.EXPIRED, State.CANCELLED) if state in states), State.DONE
            )
            assert info.state is worst, wrong
            assert (info.progress.total, info.progress.open) == (len(members), 0), wrong
            calls = {what: self.calls[flow.id, what] for what in ("success", "failure", "complete")}
            is_done = info.state is State.DONE
            assert calls["complete"] == 1, f"{calls} {wrong}"
            assert calls["success"] == is_done, f"{calls} {wrong}"
            assert calls["failure"] in ({0, 1} if is_done else {1}), f"{calls} {wrong}"
            if is_done and not self.grow:
                assert await flow.aresult(1) == meant(drawn), wrong
        assert set(self.succeeded.values()) <= {1}, f"{self.succeeded}{self.told}"


def meant(flow: Flow[Any, Any], *before: Any) -> Any:
    """What a flow gives if all goes well; `before`: what comes to it, if it is not the first."""
    match flow:
        case Chain(parts=parts):
            for part in parts:
                before = (meant(part, *before),)
            return before[0]
        case Group(members=members):
            return [meant(member, *before) for member in members]
        case Step(args=(number, _)):
            return [number, before[0]]
        case Step(args=(_, number, _)):
            return [number, None]
    raise AssertionError(flow)


@pytest.mark.parametrize("seed", SEEDS)
async def test_random_workflows_end_in_one_state_and_call_back_once(
    app_factory: AppFactory, letters: Letters, seed: int
) -> None:
    story = Flows(app_factory(signing_keys=keys_for(seed)), seed, letters)
    try:
        await story.enqueue()
        actions: list[Action] = [story.enqueue, story.enqueue, story.cancel, *[story.cancel_member] * 2]
        actions += [story.retry] * 4
        await story.play(actions, story.chance.randint(5, 20), story.check)
        # What failed can be run again until all of it has gone well.
        for flow, _ in story.flows:
            while await flow.astate() is not State.DONE:
                if not await flow.aretry():
                    # Only one that was cancelled while it was about to join, by a job that was stopped, is beyond help.
                    lost = {m.joined for m in (await flow.ainfo()).members if m.state is State.CANCELLED}
                    assert lost == {True}, f"nothing to retry: {await flow.ainfo()}{story.told}"
                    break
                await story.settle()
                await story.check()
    finally:
        await story.end()
