"""Workflows before anything is sent: what an expression means, which jobs it becomes, and what is refused."""

from __future__ import annotations

import datetime as dt
import itertools
import re
import zlib
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevo import Job, Relevo
from relevo.errors import OptionError, PayloadError, PayloadTooLarge, TargetError
from relevo.workflows.fitting import never_fits
from relevo.workflows.graph import Callback, Graph, Node, Shape
from relevo.workflows.graph import compile as compile_flow
from relevo.workflows.steps import MAX_JOBS, MAX_LEVELS, Chain, Flow, Group, Step, chain, group

ROOMY = 1_000_000

app = Relevo("shop")
other_app = Relevo("office")


@app.task(name="add")
def add(x: int, y: int) -> int:
    return x + y


@app.task(name="inc")
def inc(x: int) -> int:
    return x + 1


@app.task(name="total")
def total(numbers: list[int], *, scale: int = 1) -> int:
    return sum(numbers) * scale


@app.task(name="say")
async def say(x: int) -> str:
    return str(x)


@app.task(name="shout")
def shout(text: str) -> str:
    return text.upper()


@app.task(name="tell")
def tell(what: str = "") -> None: ...


@app.task(name="mix")
def mix(*parts: Any) -> int:
    return zlib.crc32(repr(parts).encode())


@other_app.task(name="file")
def file(x: int) -> int:
    return x


def drawn(flow: Flow[Any, Any]) -> Graph:
    return compile_flow(flow, limit=ROOMY)


def rows(flow: Flow[Any, Any]) -> list[tuple[str, tuple[int, ...], str, str]]:
    """The jobs of a flow in short: task, parents, what it takes, its arguments."""
    nodes = drawn(flow).nodes
    return [(n.step.task.target if n.step else "gather", n.parents, n.takes, n.fragment.decode()) for n in nodes]


def refusal(flow: Flow[Any, Any]) -> str:
    with pytest.raises(PayloadError) as refused:
        drawn(flow)
    return str(refused.value)


# -- expressions -------------------------------------------------------------------------------------


def test_a_chain_is_written_with_a_bar_or_by_name_and_one_inside_another_is_its_parts() -> None:
    steps = (add.s(1, 2), inc.s(), inc.s())
    assert chain(*steps) == steps[0] | steps[1] | steps[2] == steps[0].then(steps[1]).then(steps[2])
    front, back = inc.s(1) | inc.s(), inc.s() | say.s()
    assert (front | back).parts == (*front.parts, *back.parts)
    assert chain(front, inc.s(), back).parts == (*front.parts, inc.s(), *back.parts)


def test_a_group_is_written_with_its_members_or_with_anything_that_gives_them() -> None:
    members = [inc.s(i) for i in range(3)]
    assert group(*members) == group(members) == group(inc.s(i) for i in range(3)) == Group(tuple(members))
    assert group(members).then(total.s()) == group(members) | total.s()
    assert group(inc.s(1)).members == group([inc.s(1)]).members == (inc.s(1),)


def test_expressions_cannot_be_changed_and_can_be_used_again() -> None:
    step, start = inc.s(), inc.s(1)
    longer = start | step
    longest = longer | step | step
    assert longer.parts == (start, step)
    assert len(longest.parts) == 4
    for value, name in ((step, "args"), (longer, "parts"), (group(step), "members")):
        with pytest.raises(AttributeError):
            setattr(value, name, ())
    assert len(drawn(longest).nodes) == 4, "the same step twice is two jobs"
    assert drawn(longest) == drawn(longest)


def test_a_step_keeps_the_options_of_its_task() -> None:
    step = inc.using(priority=5, queue="fast", name="label").s(1)
    options = step.task.options
    assert (options.priority, options.queue, options.name) == (5, "fast", "label")
    assert drawn(step).nodes[0].step is step


def test_an_expression_is_shown_as_it_is_written() -> None:
    assert repr(add.s(1, y=2)) == "add.s(1, y=2)"
    assert repr(add.si(1, 2)) == "add.si(1, 2)"
    assert repr(inc.s(1) | group(inc.s())) == "Chain(parts=(inc.s(1), Group(members=(inc.s(),))))"


def test_a_flow_knows_its_app() -> None:
    assert inc.s(1).engine is app.engine
    assert group(group(), group() | file.si(1)).engine is other_app.engine
    assert group().engine is None
    assert group().on_complete(tell.si()).engine is app.engine


# -- jobs --------------------------------------------------------------------------------------------


def test_each_step_of_a_chain_receives_the_result_of_the_one_before() -> None:
    flow = add.s(1, 2) | add.s(5) | add.s(y=6) | say.s()
    assert rows(flow) == [
        ("add", (), "", '"a":[1,2]'),
        ("add", (0,), "one", '"a":[5]'),
        ("add", (1,), "one", '"k":{"y":6}'),
        ("say", (2,), "one", ""),
    ]
    assert (drawn(flow).outputs, drawn(flow).is_list, drawn(flow).shape) == ((3,), False, {"chain": ["0-3"]})


def test_a_complete_call_only_waits() -> None:
    assert rows(inc.s(1) | add.si(1, 2))[1] == ("add", (0,), "", '"a":[1,2]')
    assert rows(group(inc.s(1), inc.s(2)) | add.si(1, 2))[2] == ("add", (0, 1), "", '"a":[1,2]')
    assert rows(add.si(1, 2)) == [("add", (), "", '"a":[1,2]')]


def test_a_group_gives_the_list_of_its_results() -> None:
    flow = group(inc.s(i) for i in range(3))
    assert [row[1] for row in rows(flow)] == [(), (), ()]
    assert (drawn(flow).outputs, drawn(flow).is_list, drawn(flow).shape) == ((0, 1, 2), True, {"group": ["0-2"]})
    then = flow | total.s(scale=2)
    assert rows(then)[3:] == [("total", (0, 1, 2), "list", '"k":{"scale":2}')]
    assert (drawn(then).outputs, drawn(then).is_list) == ((3,), False)
    assert rows(group(inc.s(1)) | total.s())[1] == ("total", (0,), "list", "")


def test_each_member_of_a_group_receives_the_result_before_it() -> None:
    flow = inc.s(1) | group(inc.s(), add.s(5), add.si(1, 2))
    expected = [("inc", (0,), "one", ""), ("add", (0,), "one", '"a":[5]'), ("add", (0,), "", '"a":[1,2]')]
    assert rows(flow)[1:] == expected
    one_result = group(inc.s(1)) | group(total.s(), total.s())
    assert rows(one_result)[1:] == [("total", (0,), "list", "")] * 2, "one result needs no gathering"


def test_many_results_for_many_jobs_are_gathered_once() -> None:
    flow = group(inc.s(i) for i in range(3)) | group(total.s(), total.s(scale=2), add.si(1, 2))
    assert rows(flow)[3:] == [
        ("gather", (0, 1, 2), "list", ""),
        ("total", (3,), "one", ""),
        ("total", (3,), "one", '"k":{"scale":2}'),
        ("add", (3,), "", '"a":[1,2]'),
    ]
    assert drawn(flow).shape == {"chain": [{"group": ["0-2"]}, {"group": ["4-6"]}]}


def test_results_that_no_step_takes_are_waited_for_and_not_gathered() -> None:
    flow = group(inc.s(1), inc.s(2)) | group(add.si(1, 2), inc.si(1) | inc.s(), group())
    assert rows(flow)[2] == ("gather", (0, 1), "", '"a":[[]]')
    expected = [("add", (2,), ""), ("inc", (2,), ""), ("inc", (4,), "one"), ("gather", (2,), "")]
    assert [row[:3] for row in rows(flow)[3:]] == expected


def test_a_list_inside_a_list_is_gathered() -> None:
    flow = group(group(inc.s(1), inc.s(2)), inc.s(3) | group(inc.s(), inc.s()), inc.s(4))
    gathered = [(parents, takes) for task, parents, takes, _ in rows(flow) if task == "gather"]
    assert gathered == [((0, 1), "list"), ((4, 5), "list")]
    assert (drawn(flow).outputs, drawn(flow).is_list) == ((2, 6, 7), True)
    assert drawn(flow).shape == {"group": [{"group": ["0-1"]}, {"chain": [3, {"group": ["4-5"]}]}, 7]}


@pytest.mark.parametrize(
    ("flow", "first", "expected"),
    [
        (group(), 0, [("gather", (), "", '"a":[[]]')]),
        (group() | total.s(scale=2), 0, [("total", (), "", '"a":[[]],"k":{"scale":2}')]),
        (group() | mix.s(1, 2), 0, [("mix", (), "", '"a":[[],1,2]')]),
        (group(group(), inc.s(1)), 0, [("gather", (), "", '"a":[[]]'), ("inc", (), "", '"a":[1]')]),
        # what comes behind an empty group still waits for what is before it
        (inc.s(1) | group() | total.s(), 1, [("total", (0,), "", '"a":[[]]')]),
        (inc.s(1) | group(), 1, [("gather", (0,), "", '"a":[[]]')]),
        (
            group(inc.s(1), inc.s(2)) | group() | group(total.s(), total.s()),
            2,
            [("gather", (0, 1), "", '"a":[[]]'), ("total", (2,), "one", ""), ("total", (2,), "one", "")],
        ),
    ],
)
def test_an_empty_group_gives_an_empty_list(flow: Flow[Any, Any], first: int, expected: list[Any]) -> None:
    assert rows(flow)[first:] == expected
    assert not drawn(group()).is_list


def test_an_empty_list_is_read_as_the_worker_will_read_it() -> None:
    """A parameter that takes a list of results may be annotated with anything a JSON array is read to."""

    @app.task(name="spread")
    def spread(days: tuple[dt.date, ...]) -> None: ...

    @app.task(name="some")
    def some(numbers: Annotated[list[int], msgspec.Meta(min_length=1)]) -> None: ...

    assert rows(group() | spread.s()) == [("spread", (), "", '"a":[[]]')]  # type: ignore[operator]
    assert "some(): argument 'numbers': expected `array` of length >= 1" in refusal(group() | some.s())
    assert "inc(): argument 'x': expected `int`, got `array`" in refusal(group() | inc.s())  # type: ignore[operator]


# -- any expression ----------------------------------------------------------------------------------

STEPS = st.builds(
    lambda takes, args: mix.s(*args) if takes else mix.si(*args), st.booleans(), st.lists(st.integers(0, 9), max_size=2)
)
FLOWS = st.recursive(
    STEPS,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=4).map(lambda parts: chain(*parts))
        | st.lists(inner, max_size=4).map(group)
    ),
    max_leaves=25,
)
Before = frozenset[int]


class Reading:
    """An expression carried out by its plain meaning, without a graph: the other opinion."""

    def __init__(self) -> None:
        self.before: list[Before] = []
        """Of each call, the calls that must have ended, all by their number."""

    def read(self, flow: Flow[Any, Any], given: list[Any], before: Before) -> tuple[Any, Before]:
        match flow:
            case Step(task=task, args=args, takes_result=takes):
                self.before.append(before)
                number = len(self.before) - 1
                return task.func(*(given if takes else []), *args), before | {number}
            case Chain(parts=parts):
                for part in parts:
                    result, before = self.read(part, given, before)
                    given = [result]
                return result, before
            case Group(members=members):
                ends = [self.read(member, given, before) for member in members]
                return [result for result, _ in ends], before.union(*(ended for _, ended in ends))
        raise AssertionError(flow)


def carried_out(graph: Graph) -> tuple[Any, list[Before]]:
    """The result of a graph whose jobs run as a worker would run them, and what each call waited for."""
    results: list[Any] = []
    waited: list[set[int]] = []
    number = itertools.count()
    numbers: list[set[int]] = []
    for node in graph.nodes:
        envelope = msgspec.json.decode(b"{" + node.fragment + b"}")
        args, kwargs = envelope.get("a", []), envelope.get("k", {})
        received = [results[parent] for parent in node.parents]
        if node.takes == "one":
            assert len(node.parents) == 1
        if node.takes:
            args = [received[0] if node.takes == "one" else received, *args]
        results.append(node.step.task.func(*args, **kwargs) if node.step else args[0])
        waited.append(set().union(*(waited[parent] | numbers[parent] for parent in node.parents)))
        numbers.append({next(number)} if node.step else set())
    ends = [results[output] for output in graph.outputs]
    calls = [frozenset(before) for before, node in zip(waited, graph.nodes, strict=True) if node.step]
    return ends if graph.is_list else ends[0], calls


def nodes_in(shape: Shape) -> Iterator[int]:
    match shape:
        case int():
            yield shape
        case str():
            first, last = map(int, shape.split("-"))
            assert first < last
            yield from range(first, last + 1)
        case {"chain": parts} | {"group": parts}:
            for part in parts:
                yield from nodes_in(part)


@given(FLOWS)
@example(group(mix.s(1), mix.s(2)) | group() | group(mix.si(), group(), mix.s() | group(mix.s(), mix.s())))
def test_the_jobs_of_any_expression_give_what_the_expression_means(flow: Flow[Any, Any]) -> None:
    reading = Reading()
    result, _ = reading.read(flow, [], frozenset())
    graph = drawn(flow)
    assert carried_out(graph) == (result, reading.before)


@given(FLOWS)
def test_a_graph_of_any_expression_is_small_and_in_order(flow: Flow[Any, Any]) -> None:
    graph = drawn(flow)
    assert all(parent < i for i, node in enumerate(graph.nodes) for parent in node.parents)
    assert sum(len(node.parents) for node in graph.nodes) <= 2 * len(graph.nodes)
    assert list(nodes_in(graph.shape)) == [i for i, node in enumerate(graph.nodes) if node.step]
    assert msgspec.json.decode(msgspec.json.encode(graph.shape)) == graph.shape
    assert graph.outputs
    assert graph.is_list or len(graph.outputs) == 1


# -- size --------------------------------------------------------------------------------------------


def test_a_group_of_ten_thousand_has_a_short_shape() -> None:
    graph = drawn(inc.s(1) | group(add.s(i) for i in range(10_000)) | total.s())
    assert len(graph.nodes) == 10_002
    assert graph.shape == {"chain": [0, {"group": ["1-10000"]}, 10_001]}


def test_chords_in_a_row_have_few_edges() -> None:
    chords: Flow[Any, Any] = group(inc.s(i) for i in range(100)) | total.s()
    layers: Flow[Any, Any] = group(mix.s(i) for i in range(100))
    for _ in range(19):
        chords = chords | group(inc.s() for _ in range(100)) | total.s()
        layers = layers | group(mix.s() for _ in range(100))
    # between each two layers is a gather
    for flow, nodes, edges in ((chords, 2_020, 20 * 100 + 19 * 100), (layers, 2_000 + 19, 19 * 200)):
        graph = drawn(flow)
        assert len(graph.nodes) == nodes
        assert sum(len(node.parents) for node in graph.nodes) == edges


def test_too_many_jobs_are_refused() -> None:
    most = group(itertools.repeat(mix.s(), MAX_JOBS))
    assert len(drawn(most).nodes) == MAX_JOBS
    with pytest.raises(OptionError, match="at most 100,000 jobs"):
        drawn(most | total.s())
    with pytest.raises(OptionError, match="at most 100,000 jobs"):
        group(itertools.repeat(mix.s()))  # without end


def test_too_many_levels_are_refused() -> None:
    flow: Flow[Any, Any] = mix.s()
    for _ in range(MAX_LEVELS):
        flow = group(flow)
    assert len(drawn(flow).nodes) == MAX_LEVELS
    for more in (1, 10_000):
        for _ in range(more):
            flow = group(flow)
        with pytest.raises(OptionError, match="levels deep"):
            drawn(flow)


# -- arguments ---------------------------------------------------------------------------------------


def test_arguments_are_checked_before_anything_is_sent() -> None:
    assert refusal(inc.s("1")) == "inc(): argument 'x': expected `int`, got `str`"  # type: ignore[call-overload]
    assert refusal(inc.s(1) | add.s("2")) == "add(): argument 'y': expected `int`, got `str`"  # type: ignore[call-overload]
    assert refusal(inc.s(1) | add.si("2", 3)) == "add(): argument 'x': expected `int`, got `str`"  # type: ignore[arg-type]
    with pytest.raises(PayloadTooLarge, match=r"shout\(\): arguments"):
        compile_flow(inc.s(1) | shout.si("x" * 100), limit=100)


def test_missing_and_surplus_arguments_are_refused_and_the_first_is_explained() -> None:
    """The rules themselves are shown in test_codec."""
    message = refusal(inc.s(1) | add.s(1, 2))  # type: ignore[operator]
    assert "too many positional arguments" in message
    assert "the first of which is the result of what comes before" in message
    assert "argument 'x' is given, and is the result of what comes before" in refusal(inc.s(1) | add.s(x=1, y=2))  # type: ignore[operator]
    assert refusal(inc.s() | inc.s()).startswith("inc(): missing a required argument: 'x'")


def test_a_task_that_takes_no_first_argument_is_refused_behind_another() -> None:
    @app.task(name="nothing")
    def nothing() -> None: ...

    @app.task(name="named")
    def named(*, x: int) -> None: ...

    for step in (nothing.s(), named.s(x=1)):
        assert "takes no argument for the result of what comes before; use .si(…)" in refusal(mix.s() | step)  # type: ignore[operator]
    assert len(drawn(mix.s() | nothing.si() | named.si(x=1)).nodes) == 3


# -- results that never fit --------------------------------------------------------------------------


def test_a_result_that_never_fits_is_refused_before_anything_is_sent() -> None:
    assert refusal(say.s(1) | inc.s()) == (  # type: ignore[operator]
        "inc(): argument 'x' is annotated `int`, and never fits what comes before: say() -> str. "
        "Use .si(…) for a call that takes nothing from there"
    )
    assert "tell() -> None" in refusal(tell.s() | inc.s())  # type: ignore[operator]
    assert "inc() -> int" in refusal(tell.s() | group(inc.si(1) | shout.s()))  # type: ignore[operator]
    listed = group(inc.s(1), inc.s(2))
    assert "the list of results of inc() -> int" in refusal(listed | inc.s())  # type: ignore[operator]
    assert "the list of results of say() -> str" in refusal(group(say.s(1)) | total.s())  # type: ignore[operator]
    assert ": a list of results." in refusal(listed | group(inc.s(), inc.s()))  # type: ignore[arg-type]
    assert "the list of results of groups" in refusal(group(listed, listed) | total.s())  # type: ignore[operator]
    assert len(drawn(say.s(1) | inc.si(1)).nodes) == 2


SAMPLES: list[tuple[Any, Any]] = [
    (None, None), (bool, True), (int, 1), (float, 1.5), (str, "a"), (bytes, b"a"), (list, [1]), (list[int], [1]),
    (tuple[int, ...], (1,)), (set[str], {"a"}), (frozenset, frozenset()), (dict, {"a": 1}), (dict[str, int], {}),
]  # fmt: skip


def test_nothing_that_could_be_read_is_refused() -> None:
    for (given_type, value), (wanted, _) in itertools.product(SAMPLES, repeat=2):
        try:
            msgspec.json.decode(msgspec.json.encode(value), type=wanted)
        except msgspec.ValidationError:
            continue
        assert not never_fits(type(None) if given_type is None else given_type, wanted), (given_type, wanted)


@pytest.mark.parametrize(
    ("never", "pairs"),
    [
        (False, [(Any, int), (int, Any), (int | None, str), (str, int | str), (object, int), (dict, Node),
                 (str, dt.date), (int, float), (float, int), (list[str], list[int]),
                 (Annotated[int, msgspec.Meta(ge=0)], str)]),
        (True, [(bool, int), (int, bool), (type(None), int), (str, float), (dict[str, int], list), (list[int], dict),
                (set, str)]),
    ],
    ids=["in doubt it is let through", "certain"],
)  # fmt: skip
def test_a_result_is_refused_only_where_it_certainly_never_fits(never: bool, pairs: list[tuple[Any, Any]]) -> None:
    for given_type, wanted in pairs:
        assert never_fits(given_type, wanted) is never, (given_type, wanted)


def test_without_annotations_everything_is_let_through() -> None:
    @app.task(name="bare")
    def bare(x):  # type: ignore[no-untyped-def]
        return x

    assert len(drawn(inc.s(1) | bare.s() | inc.s() | group(bare.s(), bare.s()) | bare.s()).nodes) == 6


# -- callbacks ---------------------------------------------------------------------------------------


def test_callbacks_are_complete_calls_at_the_end_of_a_flow() -> None:
    done, over, broken = tell.si("done"), tell.s("over"), tell.si("broken")
    flow = inc.s(1) | inc.s()
    flow_with_callbacks = flow.on_success(done).on_complete(over).on_failure(broken)
    assert drawn(flow_with_callbacks).callbacks == (
        Callback("on_success", done, b'"a":["done"]'),
        Callback("on_complete", over, b'"a":["over"]'),
        Callback("on_failure", broken, b'"a":["broken"]'),
    )
    assert drawn(flow_with_callbacks).nodes == drawn(flow).nodes
    assert drawn(flow).callbacks == (), "the first is as it was"
    assert drawn(group(inc.s(1)).on_failure(broken)).callbacks[0].step == broken


@pytest.mark.parametrize("wrong", [tell, inc.s(1) | inc.s(), group(inc.s(1)), "tell", None, lambda: 0])
def test_a_callback_is_one_call_and_nothing_else(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"on_failure: one complete call such as notify.si\(7\) is needed, found"):
        (inc.s(1) | inc.s()).on_failure(wrong)


def test_the_arguments_of_callbacks_are_checked() -> None:
    assert "inc(): missing a required argument: 'x'" in refusal(inc.s(1).on_success(inc.s()))
    with pytest.raises(TargetError, match="one app"):
        drawn(inc.s(1).on_success(file.si(1)))
    with pytest.raises(OptionError, match="unique"):
        drawn(inc.s(1).on_success(inc.using(unique=True).si(1)))


def test_a_second_callback_of_a_kind_and_a_part_with_callbacks_are_refused() -> None:
    flow_with_callbacks = inc.s(1).on_success(tell.si())
    assert isinstance(flow_with_callbacks, Chain) and flow_with_callbacks.parts == (inc.s(1),)
    already, whole = "on_success is tell.si() already", "put .on_success(tell.si()) on the whole flow"
    ways: list[tuple[Callable[[], Any], str]] = [
        (lambda: flow_with_callbacks.on_success(tell.si()), already),
        (lambda: flow_with_callbacks | inc.s(), whole),
        (lambda: inc.s(1) | flow_with_callbacks, whole),
        (lambda: group(flow_with_callbacks), whole),
        (lambda: chain(flow_with_callbacks, inc.s()), whole),
    ]
    for build, why in ways:
        with pytest.raises(OptionError, match=re.escape(why)):
            build()


# -- what is no step ---------------------------------------------------------------------------------


def a_function(x: int) -> int:
    return x


NOT_STEPS: list[tuple[Any, str]] = [
    (inc, "inc is a task and not a call of it: write inc.s(…)"),
    (Job(app.engine, "01k9q4w2zhq3mf7d0a2f", "default"), "job 01k9q4w2zhq3mf7d0a2f is enqueued already"),
    (a_function, "a_function is a function and not a step: decorate it with @app.task"),
    ((inc.s(1), inc.s()), "steps are given one by one: write chain(*steps)"),
    ({"x": inc.s(1)}, "steps are given one by one"),
    (5, "a flow is made of steps such as add.s(2), found 5"),
    (None, "a flow is made of steps such as add.s(2), found None"),
]


@pytest.mark.parametrize(("thing", "why"), NOT_STEPS)
def test_other_values_than_steps_are_refused_with_what_to_write(thing: Any, why: str) -> None:
    ways: list[Callable[[], Any]] = [
        lambda: chain(thing, inc.s()),
        lambda: inc.s(1) | thing,
        lambda: thing | inc.s(),
        lambda: inc.s(1).then(thing),
        lambda: group(inc.s(1), thing),
        lambda: group([inc.s(1), thing]),
    ]
    for build in ways:
        with pytest.raises(TargetError, match=re.escape(why)):
            build()
    with pytest.raises(OptionError, match="a chain needs at least one step"):
        chain()  # type: ignore[call-overload]


def test_tasks_of_two_apps_are_refused() -> None:
    for flow in (inc.s(1) | file.s(), group(inc.s(1), group(file.s(1))), group() | total.s() | file.si(1)):
        with pytest.raises(TargetError, match="tasks of one app, found 'office' and 'shop'"):
            drawn(flow)


def test_a_name_is_a_label_and_nothing_unique_is_in_a_flow() -> None:
    @app.task(name="once", unique=True)
    def once(x: int) -> int:
        return x

    for task in (once, inc.using(unique="queued"), inc.using(unique="10m"), inc.using(name="a", unique=True)):
        with pytest.raises(OptionError, match=r"cannot be part of it; write .using\(unique=False\)"):
            drawn(inc.s(1) | task.s())
    for task in (once.using(unique=False), inc.using(name="a"), inc.using(name="a", unique=False)):
        assert len(drawn(inc.s(1) | task.s()).nodes) == 2
