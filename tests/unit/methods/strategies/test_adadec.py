"""AdaDec against a second implementation over a toy language, and its learned threshold."""

from __future__ import annotations

import json
import math
import random

import jsonschema
import numpy as np
import pytest
from toy_language import STOP, Prefix, ToyLanguage

from structgen.decode.sampling import sample
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.strategies import AdaDec, Trace, learn_threshold, trace
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
PATTERN = "(a|b|c){2,4}"
BUDGET = 4


def mean_ahead(language: ToyLanguage, output: Prefix, token: int, lookahead: int) -> float:
    """The mean log-probability of a token and what follows it greedily."""
    start = (*output, token)
    path = start if token == STOP else (*start, *language.greedy(start, lookahead))
    return (language.log_p(path) - language.log_p(output)) / (len(path) - len(output))


def decoded(language: ToyLanguage, threshold: float, candidates: int, lookahead: int) -> tuple[Prefix, int]:
    """The output, and how often the look-ahead chose another token than the most probable."""
    output: Prefix = ()
    turned = 0
    while True:
        options = language.options(output)
        ranked = sorted(options, key=lambda token: -options[token])  # stable: the first of equal ones
        count = candidates if language.entropy(output) > threshold else 1
        means = {token: mean_ahead(language, output, token, lookahead) for token in ranked[:count]}
        best = max(means.items(), key=lambda item: item[1])[0]
        turned += best != ranked[0]
        if best == STOP:
            return output, turned
        output = (*output, best)


@pytest.mark.parametrize(("threshold", "candidates", "lookahead"), [(0.7, 3, 2), (0.0, 2, 3), (0.4, 4, 0), (9.0, 4, 2)])
def test_it_takes_the_token_with_the_best_continuation(threshold: float, candidates: int, lookahead: int) -> None:
    constraint = compile(regex(PATTERN), VOCABULARY)
    turns = 0
    for seed in range(25):
        language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)
        sampler = AdaDec(threshold, candidates=candidates, lookahead=lookahead)
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET)
        right, turned = decoded(language, threshold, candidates, lookahead)
        assert sampled.best().tokens == right
        turns += turned
        if turned:
            assert sampled.best().tokens != language.greedy(())[:-1] or turned > 1
    # The look-ahead matters unless it never takes place, or is the token's own probability.
    assert (turns > 5) == (threshold < 1 and lookahead > 0)


@pytest.mark.parametrize("budget", [2, 3, 4, 7, 30])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'{}":,0123456789truefalsn ab[]')], eos=[0])
    schema = {"type": "array", "items": {"enum": [True, 12, "ab"]}, "maxItems": 3}
    constraint = compile(json_schema(schema), vocabulary)
    for seed in range(10):
        model = HashModel(vocabulary, seed=seed)
        result = sample(model, "12", constraint, sampler=AdaDec(0.2), max_tokens=budget).best()
        assert len(result.tokens) <= budget
        jsonschema.validate(json.loads(result.text), schema)


def test_what_is_forbidden_is_not_written() -> None:
    """The text is forbidden only at its end: the look-ahead meets the end and avoids it."""
    model = HashModel(VOCABULARY, seed=0)
    grammar = regex("[ab]{2}")
    free = sample(model, "ab", grammar, sampler=AdaDec(0.0, candidates=4, lookahead=4)).best().text
    other = sample(
        model, "ab", grammar, sampler=AdaDec(0.0, candidates=4, lookahead=4), potentials=[lambda text: text != free]
    )
    assert other.best().text != free


def test_a_trace_has_the_entropy_and_mistakes_of_each_choice() -> None:
    for seed in range(10):
        language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)
        reference = "cab"
        tokens = VOCABULARY.tokenize(reference)
        steps = trace(language.model, "ab", regex(PATTERN), reference, max_tokens=BUDGET)
        expected = []
        for at, token in enumerate([*tokens, STOP]):
            prefix = tuple(tokens[:at])
            if len(language.options(prefix)) > 1:
                expected.append((language.entropy(prefix), language.best(prefix) != token))
        assert [step.mistaken for step in steps] == [mistaken for _, mistaken in expected]
        assert [step.entropy for step in steps] == pytest.approx([entropy for entropy, _ in expected])


def test_references_that_are_no_members_are_refused() -> None:
    model = HashModel(VOCABULARY)
    with pytest.raises(ValueError, match="refuses the reference at token 4"):
        trace(model, "ab", regex(PATTERN), "cccca")
    with pytest.raises(ValueError, match="an incomplete string"):
        trace(model, "ab", regex(PATTERN), "c")
    with pytest.raises(ValueError, match="has 4 tokens, max_tokens is 3"):
        trace(model, "ab", regex(PATTERN), "cccc", max_tokens=3)


@pytest.mark.exhaustive
def test_the_threshold_is_where_mistakes_become_likely() -> None:
    """It agrees with a fine search of the best penalised likelihood, over thresholds and slopes."""
    rng = random.Random(0)
    steps = []
    for _ in range(600):
        entropy = rng.uniform(0, 4)
        steps.append(Trace(entropy, rng.random() < 1 / (1 + math.exp(-3.0 * (entropy - 1.7)))))
    x = np.array([step.entropy for step in steps])
    y = np.array([step.mistaken for step in steps], dtype=float)
    learned = learn_threshold(steps)
    assert abs(learned - 1.7) < 0.2

    def loss(threshold: float, slope: float) -> float:
        z = slope * (x - threshold)
        return float((np.logaddexp(0, z) - y * z).sum()) + 1e-3 * len(x) * (slope * x.std()) ** 2 / 2

    grid = [
        (loss(threshold, slope), threshold)
        for threshold in np.arange(1.4, 2.0, 0.002)
        for slope in np.arange(1, 6, 0.05)
    ]
    assert learned == pytest.approx(min(grid)[1], abs=0.004)


def test_thresholds_of_special_cases() -> None:
    assert learn_threshold([Trace(0.1, False), Trace(2.0, False)]) == math.inf
    assert learn_threshold([Trace(0.1, True), Trace(2.0, True)]) == 0.0
    clear = learn_threshold([Trace(h / 10, h >= 12) for h in range(20)])
    assert 1.1 < clear < 1.2  # what separates them without error
    for bad in ([], [Trace(1.0, True), Trace(1.0, False)], [Trace(0.1, True), Trace(2.0, False)]):
        with pytest.raises(ValueError, match="learn_threshold"):
            learn_threshold(bad)


def test_bad_numbers_are_refused() -> None:
    for bad in ({"threshold": -1.0}, {"threshold": math.nan}, {"candidates": 0}, {"lookahead": -1}, {"lookahead": 1.5}):
        with pytest.raises(ValueError, match="AdaDec: "):
            AdaDec(**{"threshold": 1.0, **bad})  # type: ignore[arg-type]
