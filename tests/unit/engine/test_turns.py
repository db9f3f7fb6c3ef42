"""An engine that grammars share is handed over: work that would hold up others moves to an engine of its own."""

from __future__ import annotations

import copy
import gc
import random
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import structgen as sg
from structgen.engine import Constraint, Matcher, Vocabulary, compile
from structgen.engine.lowering import shared_engine
from structgen.errors import LimitExceeded
from structgen.frontends.regex import search_language
from structgen.grammar.nodes import Complement, Grammar, Intersection

TEXTS = [a + b for a in "abcdefgh" for b in "abcdefgh"]


def vocabulary() -> Vocabulary:
    """Bytes and pairs of letters; one token is new each time, so that nobody else has the engine."""
    vocabulary.count += 1  # type: ignore[attr-defined]
    own = f"\x00 turns {vocabulary.count}".encode()  # type: ignore[attr-defined]
    return Vocabulary([b"", *(bytes([byte]) for byte in range(256)), *(text.encode() for text in TEXTS), own], eos=[0])


vocabulary.count = 0  # type: ignore[attr-defined]


def mask_of(matcher: Matcher) -> bytes:
    """The mask of the next token."""
    words = np.full((1, (matcher.constraint.vocabulary.size + 31) // 32), -1, dtype=np.int32)
    matcher.fill_mask(words)
    return words.tobytes()


@contextmanager
def wanted(made: Vocabulary) -> Iterator[None]:
    """Another thread waits for the shared engine, whenever work looks."""
    constraint = compile(sg.regex("[a-z]{1,9}"), made)
    native = constraint.engine.native
    native.pretend_wanted(True)
    try:
        yield
    finally:
        native.pretend_wanted(False)
    assert not constraint.native.has_moved
    assert constraint.engine.is_shared


def pairs(seed: int) -> Grammar:
    """Texts with one of 90 pairs of words in it: the first mask takes milliseconds."""
    chance = random.Random(seed)
    words = ["".join(chance.choices("abcdefgh", k=4)) for _ in range(180)]
    return sg.regex("|".join(f".*{one}.*{other}.*" for one, other in zip(words[:90], words[90:], strict=True)))


def test_a_heavy_mask_moves_and_stays_the_same() -> None:
    made = vocabulary()
    mask_of(compile(pairs(-1), made).matcher())
    assert shared_engine(made).native.statistics["steps"] > 300_000, "heavy enough for several turns"
    constraint = compile(pairs(0), made)
    assert constraint.engine.is_shared
    matcher = constraint.matcher()
    early = matcher.fork()
    with wanted(made):
        mask_of(matcher)
    assert constraint.native.has_moved
    assert not constraint.engine.is_shared
    assert_same_walks(matcher, constraint.alone().matcher())
    assert_same_walks(early, constraint.alone().matcher(), seed=1)
    assert compile(constraint.grammar, made) is constraint, "it is compiled, though not in the shared engine"


def test_a_heavy_compilation_moves() -> None:
    made = vocabulary()

    def contradicting(seed: int) -> Grammar:
        chance = random.Random(seed)
        parts: list[Grammar] = [sg.regex(".{14,90}")]
        for _ in range(2):
            words = chance.sample(TEXTS, 3)
            parts.append(search_language(f"{words[0]}.{{7}}{words[1]}"))
            parts.append(Complement(search_language(f"{words[1]}.{{4}}{words[2]}")))
        return Intersection(parts)

    engine = compile(contradicting(1), made).engine
    assert engine.is_shared, "nobody waits"
    assert engine.native.statistics["steps"] > 300_000, "heavy enough for several turns"
    with wanted(made):
        constraint = compile(contradicting(4), made)
    assert not constraint.engine.is_shared
    assert compile(constraint.grammar, made) is constraint
    assert_same_walks(constraint.matcher(), compile(constraint.grammar, vocabulary()).matcher(), length=4)


def assert_same_walks(one: Matcher, other: Matcher, seed: int = 0, length: int = 12) -> None:
    """They allow the same along a random walk, and back."""
    chance = random.Random(seed)
    masks = []
    for _ in range(length):
        masks.append(mask_of(one))
        assert masks[-1] == mask_of(other)
        allowed = one.allowed_tokens(400)
        assert allowed == other.allowed_tokens(400)
        if not allowed:
            break
        token = chance.choice(allowed)
        assert one.accept(token)
        assert other.accept(token)
    for mask in reversed(masks[: one.history_length]):
        one.rollback(1)
        assert mask_of(one) == mask


def read(matcher: Matcher, text: bytes) -> None:
    """Take the bytes of a text as tokens."""
    for byte in text:
        assert matcher.accept(byte + 1)


def test_a_constraint_that_has_used_its_states_moves() -> None:
    """Matchers of before go on, in both directions; and the shared engine keeps what others have there."""
    made = vocabulary()
    constraint = compile(sg.regex("a{0,60}x|b{0,60}y|c{0,60}z"), made, limits=sg.Limits(states=150))
    beside = compile(sg.regex("[a-h]{1,40}"), made).matcher()
    number = beside.mask_id
    first, second, third = (constraint.matcher() for _ in range(3))
    read(first, b"a" * 50)
    read(second, b"b" * 20)
    ended = second.fork()
    read(ended, b"by")
    assert ended.accept(0)
    assert not constraint.native.has_moved
    read(third, b"c" * 59)
    read(second, b"b" * 20)
    read(first, b"aa")
    mask_of(constraint.matcher())
    for byte in range(8):
        constraint.matcher().validate([98 + byte] * 60)
    assert constraint.native.has_moved
    assert beside.mask_id == number
    assert mask_of(first) == mask_of_text(constraint, b"a" * 52)
    back = copy.copy(first)
    back.rollback(3)
    assert mask_of(back) == mask_of_text(constraint, b"a" * 49)
    read(back, b"a" * 11)
    assert not back.accept(98)
    read(back, b"x")
    assert back.is_accepting
    assert third.forced_bytes() == b""
    read(third, b"c")
    assert third.forced_bytes() == b"z"
    assert ended.is_terminated
    assert not any(mask_of(ended))
    ended.rollback(3)
    assert mask_of(ended) == mask_of_text(constraint, b"b" * 20)
    first.reset()
    assert mask_of(first) == mask_of(constraint.matcher())


def mask_of_text(constraint: Constraint, text: bytes) -> bytes:
    """The mask after a text."""
    matcher = constraint.alone().matcher()
    assert all(matcher.accept(byte + 1) for byte in text)
    return mask_of(matcher)


def test_a_large_grammar_has_an_engine_of_its_own() -> None:
    made = vocabulary()
    names = {f"name{number}": {"enum": [f"{number} of a value", number]} for number in range(4_000)}
    small = compile(sg.json_schema({"enum": ["name1"]}), made)
    before = shared_engine(made).native.statistics["terms"]
    large = compile(sg.json_schema({"type": "object", "properties": names, "required": list(names)[:2]}), made)
    assert small.engine is shared_engine(made)
    assert not large.engine.is_shared
    assert shared_engine(made).native.statistics["terms"] == before
    assert compile(large.grammar, made) is large
    matcher = large.matcher()
    text = b'{"name0": 0, "name1": "1 of a value"}'
    assert matcher.accept_bytes(text) == len(text)
    assert matcher.is_accepting


@pytest.mark.parametrize(
    ("ask", "text", "steps"),
    [(mask_of, b"x", 150_000), (lambda matcher: matcher.accept(ord("x") + 1), b"", 20_000)],
    ids=["a mask", "a token"],
)
def test_what_a_limit_stops_is_not_tried_again(ask: Callable[[Matcher], object], text: bytes, steps: int) -> None:
    made = vocabulary()
    constraint = compile(sg.literal("x") + pairs(7), made, limits=sg.Limits(steps=steps))
    matcher = constraint.matcher()
    read(matcher, text)

    def spent(asked: Matcher) -> int:
        with pytest.raises(LimitExceeded, match=f"steps={steps}"):
            ask(asked)
        return constraint.engine.native.statistics["steps"]

    assert spent(matcher) > steps
    assert [spent(matcher) for _ in range(3)] == [0, 0, 0]
    assert spent(matcher.fork()) == 0
    roomy = compile(constraint.grammar, made).matcher()
    read(roomy, text)
    ask(roomy)


def test_constraints_are_freed_with_all_that_they_hold() -> None:
    """What moves a constraint does not keep it alive."""
    made = vocabulary()
    constraint = compile(sg.regex("ab*c"), made)
    matcher = constraint.matcher()
    gone = weakref.ref(constraint), weakref.ref(made), weakref.ref(constraint.engine)
    del matcher, constraint, made
    gc.collect()
    assert [one() for one in gone] == [None, None, None]
