"""Exhausted step limits of the engine, and calls that no longer exhaust them."""

from __future__ import annotations

import gc
import json
import random
import weakref

import numpy as np
import pytest

from structgen import memory_cache
from structgen.engine import Matcher, Vocabulary, compile, lowering
from structgen.errors import LimitExceeded
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex, search_language
from structgen.grammar.limits import Limits
from structgen.grammar.nodes import Complement, Grammar, Intersection

WORDS = ["ab1", "b12", "bc1", "c12", "ca1", "a12", "d9", "9d", "77", "z-z"]
EXPLODING = r"(?:(?:[ab]{1,63}c?){1,99}d?){1,99}"


def vocabulary() -> Vocabulary:
    """Bytes and some longer tokens; a new vocabulary each time, for an engine without history."""
    words = [a + b + c for a in "abcd" for b in "abcd" for c in "abcd"]
    return Vocabulary([bytes([value]) for value in range(256)] + [word.encode() for word in words], eos=[0])


def mask_of(matcher: Matcher) -> bytes:
    """The mask of the next token."""
    words = np.full((1, (matcher.constraint.vocabulary.size + 31) // 32), -1, dtype=np.int32)
    matcher.fill_mask(words)
    return words.tobytes()


@pytest.mark.parametrize(
    "grammar",
    [
        regex(EXPLODING),
        Intersection([search_language("a.{5}b"), Complement(search_language("ab.{3}c")), regex(".{12,90}")]),
    ],
)
def test_a_spent_limit_raises_and_leaves_the_matcher_as_it_was(grammar: Grammar) -> None:
    """With any number of steps a mask or token is either exact or an error; a matcher goes on after an error."""
    expected = compile(grammar, vocabulary()).matcher()
    text = b"abacabadabbacabd"
    raised = 0
    for steps in (50, 400, 3_000, 25_000, 200_000, 1_600_000):
        expected.reset()
        try:
            matcher = compile(grammar, vocabulary(), limits=Limits(steps=steps)).matcher()
        except LimitExceeded as error:
            assert (error.limit, error.maximum) == ("steps", steps)  # noqa: PT017
            raised += 1
            continue
        for token in text:
            before = matcher.history_length
            try:
                found = mask_of(matcher)
            except LimitExceeded as error:
                assert (error.limit, error.maximum) == ("steps", steps)  # noqa: PT017
                assert f"steps={steps}" in str(error)  # noqa: PT017
                raised += 1
            else:
                assert found == mask_of(expected)
            try:
                accepted = matcher.accept(token)
            except LimitExceeded as error:
                assert error.limit == "steps"  # noqa: PT017
                assert matcher.history_length == before
                break
            assert accepted == expected.accept(token)
            assert matcher.is_accepting == expected.is_accepting
    assert raised >= 2
    assert steps == 1_600_000
    assert matcher.history_length == len(text)


def _read(matcher: Matcher, text: bytes) -> None:
    for token in text:
        mask_of(matcher)
        matcher.accept(token)


def test_an_error_of_one_constraint_is_not_that_of_another() -> None:
    """A constraint that has reached its limit leaves others on the same engine exact."""
    shared = vocabulary()
    grammar = regex(EXPLODING)
    small = compile(grammar, shared, limits=Limits(steps=2_000)).matcher()
    with pytest.raises(LimitExceeded):
        _read(small, b"abcdabcd" * 9)
    large, alone = compile(grammar, shared).matcher(), compile(grammar, vocabulary()).matcher()
    for token in b"abcdabcdab":
        assert mask_of(large) == mask_of(alone)
        assert large.accept(token)
        assert alone.accept(token)


@pytest.mark.parametrize(
    ("grammar", "text", "steps"),
    [
        # Counts in counts: among the readings of a text, those with fewer repetitions left add nothing.
        (regex(r"(?:.{1,63}\.){1,127}[a-z0-9-]+\.?"), b"a.b.c.a.b.c.a.b.c.a.b", 200_000),
        # A date that must match a longer pattern: the count of its dashes shows that this is impossible.
        (
            Intersection(
                [
                    regex(r"\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])T([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)"),
                    search_language(r"\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ"),
                ]
            ),
            b"2016-01-05T16:51:00",
            60_000,
        ),
        # Ten words that all must occur in sixty letters: a search that places them first finishes fast.
        (
            Intersection([regex(".{60}"), *map(search_language, WORDS)]),
            b"ab12",
            3_000_000,
        ),
    ],
)  # fmt: skip
def test_what_takes_few_steps(grammar: Grammar, text: bytes, steps: int) -> None:
    """Constraints that once took seconds now use a small part of the default limit, for each mask and token."""
    matcher = compile(grammar, vocabulary(), limits=Limits(steps=steps)).matcher()
    for token in text:
        mask_of(matcher)
        assert matcher.accept(token)
    mask_of(matcher)


def test_taking_many_tokens_at_once_is_not_bounded_by_the_steps_of_one() -> None:
    """Bytes that are accepted in one call may take the steps of one token each."""
    grammar = regex(r"(?:[ab]{1,9}c?){1,50}")
    limits = Limits(steps=20_000)
    matcher = compile(grammar, vocabulary(), limits=limits).matcher()
    text = b"abac" * 40
    assert matcher.accept_bytes(text) == len(text)
    assert matcher.validate(list(b"abab")) == 4


def test_thousands_of_members_take_memory_in_proportion() -> None:
    """Optional members come in their order, any of them; to compile 4,000 takes about twice what 2,000 take."""
    chance, shared, held = random.Random(3), vocabulary(), []
    for count in (1, 2_000, 4_000):
        names = [f"{count}.{number}" for number in range(count)]
        schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
        matcher = compile(json_schema(schema), shared).matcher()
        assert shared.engine is not None
        held.append(shared.engine.native.statistics["bytes"])
    assert held[2] - held[1] < 2.5 * (held[1] - held[0])
    for _ in range(4):
        chosen = sorted(chance.sample(names, 3), key=names.index)
        text = json.dumps(dict.fromkeys(chosen)).encode()
        assert matcher.validate(list(text)) == len(text)
        swapped = json.dumps(dict.fromkeys(reversed(chosen))).encode()
        assert matcher.validate(list(swapped)) < len(swapped)


def test_an_engine_that_has_grown_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of constraints for equal grammars does not keep an engine that a newer one has replaced."""
    made, grammar = vocabulary(), regex("a+b")
    matcher = compile(grammar, made).matcher()
    assert made.engine is not None
    engine = weakref.ref(made.engine)
    monkeypatch.setattr(memory_cache, "_megabytes", 0)
    lowering._ENGINES.fit()
    other = compile(regex("c"), made)
    assert engine() is not None, "a matcher is in use"
    assert other.engine is made.engine
    del matcher
    gc.collect()
    assert engine() is None
    assert compile(grammar, made).matcher().accept(ord("a"))
