"""What travels between processes: every public class is pickled and copied, or refuses with a reason."""

from __future__ import annotations

import copy
import functools
import multiprocessing
import pickle
import random
import threading
from collections.abc import Callable, Iterable, Mapping, Set
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from public_instances import MADE, PUBLIC, REFUSED, VOCABULARY, failure, instance, matcher, model
from pydantic import TypeAdapter

import structgen as sg
from structgen import drafters, errors, potentials
from structgen.cache import Locked
from structgen.decode.step.context import Context
from structgen.engine.mask import empty_masks
from structgen.errors import ArgumentError, StructgenError
from structgen.grammars import token
from structgen.program import Program, program
from structgen.travel import Live

GONE = [path for path in PUBLIC if path in REFUSED or path.rsplit(".", 1)[1] in REFUSED]
WAYS: dict[str, Callable[[Any], Any]] = {
    "pickle": lambda value: pickle.loads(pickle.dumps(value)),
    "the oldest pickle": lambda value: pickle.loads(pickle.dumps(value, protocol=2)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


def assert_alike(one: Any, other: Any, at: str, seen: set[tuple[int, int]]) -> None:
    """Compare two objects part by part, whatever their own equality says."""
    if one is other or (id(one), id(other)) in seen:
        return
    seen.add((id(one), id(other)))
    assert type(one) is type(other), at
    if isinstance(one, str | bytes | int | float | sg.Grammar | np.generic):
        assert one == other or (one != one and other != other), at  # noqa: PLR0124  NaN is no other
        return
    ours, theirs = parts(one), parts(other)
    assert list(ours) == list(theirs), at
    for name in ours:
        assert_alike(ours[name], theirs[name], f"{at}.{name}", seen)


@functools.singledispatch
def parts(value: Any) -> dict[Any, Any]:
    """All that an object holds, but locks, and what grows with a run or an engine."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return dict(enumerate(sorted(value, key=repr)))  # the order of a set is its history's, not its content's
    if isinstance(value, Iterable) and hasattr(value, "__len__"):
        return dict(enumerate(value))
    names = set(getattr(value, "__dict__", ()))
    for kind in type(value).__mro__:
        slots = kind.__dict__.get("__slots__", ())
        names |= {slots} if isinstance(slots, str) else set(slots)
    names -= {"__weakref__", "_lock", "_made", "_counts" if type(value).__name__ == "StateCounts" else ""}
    return {name: getattr(value, name) for name in sorted(names) if hasattr(value, name)}


@parts.register
def _(value: np.ndarray) -> dict[Any, Any]:
    return {"dtype": value.dtype.str, "shape": value.shape, "bytes": value.tobytes()}


@parts.register
def _(value: sg.Vocabulary) -> dict[Any, Any]:
    return {"tokens": value.tokens, "eos": value.eos, "special": value.special}


@parts.register
def _(value: sg.Constraint) -> dict[Any, Any]:
    report = replace(value.report, states=0, terms=0)  # these grow with use, and with nodes that are one object
    return {"grammar": value.grammar, "vocabulary": value.vocabulary, "limits": value.limits, "report": report}


@parts.register
def _(value: sg.Matcher) -> dict[Any, Any]:
    return {"constraint": value.constraint, "history": value.history_length, "mask": mask_of(value)}


@parts.register
def _(value: TypeAdapter) -> dict[Any, Any]:  # type: ignore[type-arg]  # singledispatch takes classes
    schema: dict[Any, Any] = value.json_schema()
    return schema


@parts.register
def _(value: BaseException) -> dict[Any, Any]:
    return {"text": str(value), "args": value.args, "cause": value.__cause__, **value.__dict__}


def mask_of(state: sg.Matcher) -> bytes:
    """The mask of the next token."""
    masks = empty_masks(state.constraint.vocabulary)
    state.fill_mask(masks)
    return masks.tobytes()


@pytest.mark.parametrize("path", [path for path in PUBLIC if path not in GONE])
def test_every_public_class_can_be_pickled_and_copied(path: str) -> None:
    """Also a class that is new: make one in ``MADE``, or say in ``REFUSED`` why it stays."""
    value = instance(path)
    assert isinstance(value, PUBLIC[path])
    for way, through in WAYS.items():
        assert_alike(value, through(value), way, set())


@pytest.mark.parametrize("path", GONE)
def test_what_belongs_to_a_process_says_so(path: str) -> None:
    """The error is a TypeError, as pickle's own would be, and says what to do."""
    kind = PUBLIC[path]
    context = Context(model(), (1,))
    made: dict[str, Callable[[], object]] = {
        "structgen.decode.sampling.Branch": lambda: kind(
            potentials.Hypothesis(sg.regex("a"), VOCABULARY), matcher(), context, 0.0, 0.0
        ),
        "structgen.program.Branch": lambda: kind(0, context),
    }
    value = made[path]() if path in made else object.__new__(kind)
    for through in WAYS.values():
        if through is copy.copy and path in made:
            continue  # a shallow copy shares the context
        with pytest.raises(TypeError, match=r"can't be pickled or copied; it holds .*; make it where") as caught:
            through(value)
        assert isinstance(caught.value, ArgumentError)
    assert path in made or issubclass(kind, Live)


def test_all_that_has_a_reason_is_public() -> None:
    """No name of a class that is gone stays in the lists."""
    for name in [*MADE, *REFUSED]:
        assert any(path == name or path.endswith(f".{name}") for path in PUBLIC), name


def test_errors_keep_their_cause_and_notes() -> None:
    """A cause that can't be pickled is left out; the error travels."""
    for cause in (ValueError("why"), StructgenError("a", "b")):
        error = errors.GrammarSyntaxError("regex", "is wrong", text="a(b", span=(1, 2))
        error.__cause__ = cause
        error.add_note("in a file")
        for through in WAYS.values():
            copied = through(error)
            assert (str(copied), copied.text, copied.span, copied.__notes__) == (
                str(error),
                "a(b",
                (1, 2),
                ["in a file"],
            )
            assert (type(copied.__cause__), str(copied.__cause__)) == (type(cause), str(cause))
    error.__cause__ = ValueError(lambda: None)
    error.span = lambda: None  # type: ignore[attr-defined]
    copied = WAYS["pickle"](error)
    assert (copied.__cause__, copied.span, copied.text) == (None, None, "a(b")
    assert copied.__notes__ == ["in a file", "it can't be pickled: span, __cause__"]
    assert copy.copy(error).__cause__ is error.__cause__


class Counting:
    """Counts how often it is pickled, and can't be unpickled if ``stays``."""

    def __init__(self, *, stays: bool = False) -> None:
        self.times, self.stays = 0, stays

    def __reduce__(self) -> tuple[Any, ...]:
        self.times += 1
        return (int, ("no number",)) if self.stays else (int, ("7",))


def test_what_an_error_holds_is_pickled_once() -> None:
    """The outcome of ``AnswerCut`` may be large; what fails only where it arrives is left out there."""
    error = StructgenError("a", "b")
    error.light, error.heavy = Counting(), Counting(stays=True)  # type: ignore[attr-defined]
    copied = WAYS["pickle"](error)
    assert (error.light.times, error.heavy.times) == (1, 1)  # type: ignore[attr-defined]
    assert (copied.light, copied.heavy, copied.subject) == (7, None, "a")
    assert copied.__notes__ == ["it can't be pickled: heavy"]


@pytest.mark.parametrize(
    "grammar",
    [
        sg.regex(r"(?:ab|[a-c]{2,4}é)*\d{1,3}"),
        sg.json_schema({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}}}),
        sg.json_schema({"type": "array", "items": {"enum": [1, 2, 3]}, "uniqueItems": True}),
        sg.lark('start: "(" start ")" | NAME\nNAME: /[ab]+/'),
        sg.select(["a", "ab"]).many(1, 3) + token("<end>"),
    ],
    ids=["regex", "schema", "values that differ", "lark", "special tokens"],
)
def test_masks_after_unpickling_are_those_before(grammar: sg.Grammar) -> None:
    """Along random walks with texts, refusals and rollbacks, byte by byte; in this process and in a bare engine."""
    generator = random.Random(1)
    special = {258: "<eos>", 259: "<end>"}
    vocabulary = sg.Vocabulary([*VOCABULARY.tokens, b""], eos=[258], special=special)
    other = sg.Vocabulary(vocabulary.tokens, eos=[258], special=special)
    for _ in range(3):
        state = sg.compile(grammar, vocabulary).matcher()
        taken: list[int | bytes] = []
        while not state.is_terminated and len(taken) < 12:
            choice = generator.random()
            allowed = [*state.allowed_tokens(1000), *([258] if state.is_accepting else [])]
            step = generator.choice(allowed) if allowed else 258
            if choice < 0.15 and taken:
                state.rollback(1)
                taken.pop()
            elif choice < 0.4 and vocabulary.tokens[step]:
                text = vocabulary.tokens[step] + b"\xff"
                assert state.accept_bytes(text) == len(text) - 1
                taken.append(vocabulary.tokens[step])
            else:
                assert not state.accept(0)
                assert state.accept(step)
                taken.append(step)
            independent = sg.compile(grammar, other).alone().matcher()
            for each in taken:
                assert independent.accept_bytes(each) if isinstance(each, bytes) else independent.accept(each)
            copied = WAYS["pickle"](state)
            assert copied.history_length == state.history_length == len(taken)
            assert mask_of(copied) == mask_of(state) == mask_of(independent)
            for back in range(1, len(taken) + 1):
                copied.rollback(1)
                assert copied.history_length == len(taken) - back
            assert mask_of(copied) == mask_of(sg.compile(grammar, vocabulary).matcher())


def test_copies_of_matchers_are_forks() -> None:
    """They share the constraint, and move alone."""
    state = matcher()
    for through in (copy.copy, copy.deepcopy):
        copied = through(state)
        assert copied.constraint is state.constraint
        assert copied.accept(ord("x"))
        assert copied.history_length == state.history_length + 1
        assert_alike(WAYS["pickle"](copied), copied, "copied", set())


def test_what_is_pickled_together_stays_together() -> None:
    """One constraint for its matchers; and in one process one engine, which compiles nothing twice."""
    state = matcher()
    constraint = state.constraint
    assert copy.copy(constraint) is constraint is copy.deepcopy(constraint)
    one, first, second = pickle.loads(pickle.dumps((constraint, state, state.fork())))
    assert first.constraint is second.constraint is one
    before = constraint.engine.native.statistics["terms"]
    copied = WAYS["pickle"](constraint)
    assert copied.engine is constraint.engine
    assert copied.engine.native.statistics["terms"] == before


def test_memories_are_copied_with_locks_of_their_own() -> None:
    """A drafter's memory that threads change may be pickled at any time."""
    store = drafters.DraftStore(max_tokens=200)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            store.add([5, 6, 7, 8] * 9)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        copies = [through(store) for _ in range(9) for through in WAYS.values()]
    finally:
        stop.set()
        writer.join()
    for copied in copies:
        assert isinstance(copied, Locked)
        assert copied._lock is not store._lock
        assert len(copied) == 37 * copied.outputs  # whole outputs only
    size = len(copies[-1])
    store.add([1, 2, 3])
    assert len(copies[-1]) == size


def test_local_programs_say_why_they_stay() -> None:
    """As functions do, programs travel by name."""

    @program
    def inner() -> str:
        """Say a word."""

    with pytest.raises(TypeError, match=r"it can't be pickled; .*inner is not there; define it at the top of a module"):
        pickle.dumps(inner)
    assert copy.copy(inner) is inner
    with pytest.raises(TypeError, match=r"tokenize function can't be pickled; .*<lambda> is defined within"):
        pickle.dumps(sg.Vocabulary([b"a"], tokenize=lambda text: [0] * len(text)))
    assert isinstance(pickle.loads(pickle.dumps(sg.extract)), Program)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_pool_survives_errors(method: str) -> None:
    """An error in a worker arrives as it is, and the next task works; constraints and matchers go both ways."""
    state = matcher()
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as pool:
        with pytest.raises(errors.GrammarSyntaxError) as caught:
            pool.submit(sg.regex, "a(b").result(timeout=60)
        assert_alike(caught.value.span, failure(lambda: sg.regex("a(b")).span, "span", set())
        compiled = pool.submit(sg.compile, sg.regex("[ab]*x{2,5}"), VOCABULARY).result(timeout=60)
        copied = pool.submit(copy.deepcopy, state).result(timeout=60)
    assert_alike(compiled, state.constraint, "compiled", set())
    assert_alike(copied, state, "matcher", set())
    assert (copied.accept_bytes(b"xxxxx"), state.history_length) == (4, 2)
