"""The contract of potentials, and what happens when they break it."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest

from structgen.decode import Multinomial
from structgen.decode.potentials import (
    ConstraintPotential,
    Hypothesis,
    Potential,
    PotentialEvaluator,
    Product,
    as_potential,
    potential,
)
from structgen.decode.sampling import AWRS, SMC, sample
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import GenerationError, VocabularyError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.models import HashModel
from structgen.testing import LawViolation, check_potential

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"ba", b"c", b"\xc3", b"\xa9"], eos=[0])
LETTERS = compile(regex("[abc]{0,6}"), VOCABULARY)
INFINITE = math.inf


def at(text: bytes, constraint: Constraint = LETTERS) -> Hypothesis:
    return Hypothesis(constraint.grammar, constraint.vocabulary, tuple(constraint.vocabulary.tokenize(text)))


@potential
def ends_in_a(text: str) -> bool:
    return text.endswith("a")


@potential(always=True)
def without_cc(text: str) -> bool:
    return "cc" not in text


class Counted(Potential):
    """A potential with a score for every token that forbids three equal tokens in a row."""

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        tokens = hypothesis.tokens
        if any(tokens[i] == tokens[i + 1] == tokens[i + 2] for i in range(len(tokens) - 2)):
            return -math.inf
        return 0.25 * tokens.count(1)

    def complete(self, hypothesis: Hypothesis, /) -> float:
        return self.prefix(hypothesis) - 1

    def logw_next(self, hypothesis: Hypothesis, /) -> Any:
        before = self.prefix(hypothesis)
        scores = [self.prefix(hypothesis.extended(token)) - before for token in range(hypothesis.vocabulary.size)]
        for stop in hypothesis.vocabulary.eos:
            scores[stop] = self.complete(hypothesis) - before
        return np.array(scores)

    def allowed(self, hypothesis: Hypothesis, /) -> Any:
        ids = np.isfinite(self.logw_next(hypothesis))
        bits = np.zeros((len(ids) + 31) // 32 * 32, dtype=np.uint8)
        bits[: len(ids)] = ids
        return np.packbits(bits, bitorder="little").view(np.int32)


OTHER = compile(regex("(ab|c)*a?"), VOCABULARY)


@pytest.mark.parametrize(
    "subject",
    [
        ends_in_a,
        without_cc,
        Counted(),
        ConstraintPotential(OTHER),
        Product([Counted(), without_cc]),
        ends_in_a * Counted(),
    ],
    ids=lambda subject: subject.name[:20],
)
def test_laws_hold(subject: Potential) -> None:
    check_potential(subject, LETTERS, random.Random(1))


class _Broken(Counted):
    def __init__(self, **methods: Any) -> None:
        for name, method in methods.items():
            setattr(self, name, method)


SILENT: dict[str, Any] = {"logw_next": lambda h: None, "allowed": lambda h: None}


@pytest.mark.parametrize(
    ("methods", "distribution"),
    [
        ({"prefix": lambda h: -INFINITE if len(h.data) == 2 else 0.0, **SILENT}, "goes on with score"),
        ({"prefix": lambda h: -INFINITE if h.data else 0.0, "complete": lambda h: 0.0}, "forbids what complete allows"),
        ({"prefix": lambda h: math.nan}, "prefix gives nan"),
        ({"complete": lambda h: INFINITE}, "complete gives inf"),
        ({"prefix": lambda h: random.random()}, "next evaluation"),
        ({"prefix_many": lambda hs: np.zeros(len(hs)) + 1}, "prefix_many disagrees"),
        ({"complete_many": lambda hs: np.zeros(len(hs)) + 9}, "complete_many disagrees"),
        ({"logw_next": lambda h: np.zeros(h.vocabulary.size)}, "logw_next of"),
        ({"allowed": lambda h: np.zeros(1, dtype=np.int32)}, "allowed leaves out token"),
    ],
)
def test_laws_find_what_is_broken(methods: dict[str, Any], distribution: str) -> None:
    with pytest.raises(LawViolation, match=distribution) as caught:
        check_potential(_Broken(**methods), LETTERS, random.Random(1))
    assert "potential _Broken" in str(caught.value)


def test_products_add_scores_and_stop_at_what_is_forbidden() -> None:
    asked: list[str] = []

    @potential(always=True)
    def second(text: str) -> float:
        asked.append(text)
        return 0.5

    both = without_cc * second * Counted()
    assert both.factors[0] is without_cc
    assert [factor.name for factor in both.factors] == ["without_cc", "second", "Counted"]
    assert both.prefix(at(b"aba")) == 0.5 + Counted().prefix(at(b"aba"))
    assert both.prefix(at(b"cc")) == -INFINITE
    assert asked == ["aba"]
    assert both.sees == "tokens"
    assert (without_cc * second).sees == "bytes"
    with pytest.raises(TypeError):
        without_cc * 3  # type: ignore[operator]


def test_functions_are_given_what_they_are_over() -> None:
    seen: list[Any] = []

    def note(subject: Any) -> bool:
        seen.append(subject)
        return True

    vocabulary = VOCABULARY
    hypothesis = Hypothesis(LETTERS.grammar, vocabulary, (1, 6))
    for over in ("text", "bytes", "tokens"):
        potential(over=over, always=True)(note).prefix(hypothesis)  # type: ignore[arg-type]
    assert seen == ["a", b"a\xc3", (1, 6)]  # an incomplete character is not text yet
    assert hypothesis.extended(7).text == "aé"
    schema = compile(json_schema({"type": "integer"}), Vocabulary([bytes([b]) for b in range(256)] + [b""], eos=[256]))
    value = potential(over="value")(lambda value: value > 3)
    assert value.complete(at(b"12", schema)) == 0.0
    assert value.complete(at(b"2", schema)) == -INFINITE
    assert value.prefix(at(b"2", schema)) == 0.0
    assert value(7) is True
    with pytest.raises(ValueError, match="a prefix has no value"):
        value.early(lambda value: True)
    with pytest.raises(ValueError, match="over must be one of text, bytes, tokens, value; found 'word'"):
        potential(over="word")  # type: ignore[call-overload]


def test_what_is_no_potential_is_refused() -> None:
    assert as_potential(without_cc) is without_cc
    assert isinstance(as_potential(OTHER), ConstraintPotential)
    assert as_potential(len).complete(at(b"ab")) == 2.0
    with pytest.raises(TypeError, match="found int"):
        as_potential(3)  # type: ignore[arg-type]


def test_two_languages_meet() -> None:
    """The intersection of ``a^n b^n c^m`` and ``a^m b^n c^n`` is not context-free; each output is in both."""
    from structgen.frontends.lark import lark

    vocabulary = Vocabulary([b"", b"a", b"b", b"ab", b"bb", b"c", b"bc"], eos=[0])
    first = compile(lark('start: ab c\nab: | "a" ab "b"\nc: | "c" c'), vocabulary)
    second = compile(lark('start: a bc\na: | "a" a\nbc: | "b" bc "c"'), vocabulary)
    model = HashModel(vocabulary, seed=2)
    texts = set()
    for proposal in (AWRS(), AWRS(mask_after=None), Multinomial()):
        for seed in range(20):
            sampler = SMC(16, proposal=proposal)
            found = sample(model, "ab", first, sampler=sampler, potentials=[second], max_tokens=9, seed=seed)
            texts |= {result.text for result in found.results}
    assert {"", "abc"} <= texts
    for text in texts:
        count = len(text) // 3
        assert text == "a" * count + "b" * count + "c" * count


def test_a_constraint_for_other_tokens_is_refused() -> None:
    other = compile(regex("a*"), Vocabulary([b"", b"a"], eos=[0]))
    with pytest.raises(VocabularyError, match=r"another vocabulary.*compile its grammar with model.vocabulary"):
        sample(HashModel(VOCABULARY), "ab", LETTERS, potentials=[other], max_tokens=6)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (lambda text: math.nan, r"potential <lambda>: complete gives nan; for '.*'; return a finite logarithm"),
        (lambda text: INFINITE, r"potential <lambda>: complete gives inf"),
        (lambda text: 1 / 0, r"potential <lambda>: complete raised ZeroDivisionError: division by zero; for '"),
        (lambda text: None, r"potential <lambda>: complete raised TypeError"),
        (lambda text: "yes", r"potential <lambda>: complete raised ValueError"),
    ],
)
def test_answers_that_are_no_scores_are_errors(score: Any, message: str) -> None:
    for sampler in (SMC(3), SMC(3, proposal=Multinomial())):
        with pytest.raises(GenerationError, match=message):
            sample(HashModel(VOCABULARY), "ab", LETTERS, sampler=sampler, potentials=[score], max_tokens=6)


def test_errors_of_the_other_methods_name_potential_and_text_too() -> None:
    def fail(hypothesis: Hypothesis) -> Any:
        raise KeyError("x")

    cases: list[tuple[dict[str, Any], str]] = [
        ({**SILENT, "logw_next": fail}, "logw_next raised KeyError"),
        ({**SILENT, "logw_next": lambda h: np.zeros(3)}, r"logw_next does not give .* shape \(3,\) for 8 tokens"),
        ({**SILENT, "logw_next": lambda h: np.full(8, math.nan)}, "logw_next does not give a finite logarithm"),
        ({"allowed": fail}, "allowed raised KeyError"),
    ]
    for methods, message in cases:
        with pytest.raises(GenerationError, match=rf"potential _Broken: {message}"):
            sample(HashModel(VOCABULARY), "ab", LETTERS, potentials=[_Broken(**methods)], max_tokens=6)


def test_a_prefix_that_forbids_what_may_be_complete_is_an_error() -> None:
    broken = _Broken(prefix=lambda h: -INFINITE if h.data == b"ab" else 0.0, complete=lambda h: 0.0, **SILENT)
    message = r"potential _Broken: it forbids a prefix and allows the same.* 'ab'"
    model = HashModel(VOCABULARY)
    with pytest.raises(GenerationError, match=message):
        sample(model, "ab", LETTERS, sampler=SMC(200), potentials=[broken], max_tokens=6)


def test_what_is_not_complete_is_not_asked_about_as_if_it_were() -> None:
    """A function of values cannot read the prefix of a value."""
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'[],"ab12')], eos=[0])
    constraint = compile(json_schema({"type": "array", "items": {"enum": [1, 2, "a", "b"]}, "maxItems": 3}), vocabulary)

    @potential(over="value")
    def no_repeats(value: list[Any]) -> bool:
        return len(set(value)) == len(value)

    short = potential(always=True)(lambda text: len(text) < 6)
    model = HashModel(vocabulary, seed=1)
    found = sample(model, "a", constraint, sampler=SMC(32), potentials=[short, no_repeats], max_tokens=12)
    assert found.samples
    assert all(len(set(result.value)) == len(result.value) and len(result.text) < 6 for result in found.results)


def test_each_question_is_asked_once() -> None:
    asked: list[str] = []

    @potential(always=True)
    def remember(text: str) -> bool:
        asked.append(text)
        return True

    found = sample(HashModel(VOCABULARY, seed=4), "ab", LETTERS, sampler=SMC(32), potentials=[remember], max_tokens=6)
    assert max(asked.count(text) for text in set(asked)) <= 2  # as a prefix, and as a complete output
    assert found.queries == len(asked)


def test_answers_are_shared_between_spellings_where_only_bytes_count() -> None:
    evaluator = PotentialEvaluator([without_cc, Counted()])
    for tokens in ((1, 2), (3,)):
        evaluator.prefix(Hypothesis(LETTERS.grammar, VOCABULARY, tokens))
    assert evaluator.evaluations == {"without_cc": 1, "Counted": 2}
