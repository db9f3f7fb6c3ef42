"""phi-decoding: its exact distribution on a toy language, and each of its parts."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter

import jsonschema
import numpy as np
import pytest
from toy_language import STOP, Prefix, ToyLanguage, strays

from structgen.decode.sampling import sample
from structgen.decode.step.sampler import Greedy
from structgen.engine import Vocabulary, compile
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.strategies import Boundary, Foresight
from structgen.methods.strategies.foresight import Valued, alike, step_weights
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"c"], eos=[0])
PATTERN = "(a|b|c){1,3}"
BUDGET = 3
AHEAD = 2
DRAWN = 3


def marks(texts: list[str]) -> list[str]:
    """Texts with the same end belong to one cluster."""
    return [text[-1:] for text in texts]


def weights_by_hand(steps: list[tuple[int, float, str]], temperature: float) -> list[float]:
    """Weights from counts, futures and clusters; a step that was sampled twice occurs twice."""
    total = sum(count for count, _, _ in steps)
    shares = [sum(count for count, _, mark in steps if mark == own) / total for _, _, own in steps]
    advantages = [count * math.exp(future / temperature) for count, future, _ in steps]
    alignments = [count * math.exp(share / temperature) for (count, _, _), share in zip(steps, shares, strict=True)]
    return [(a / sum(advantages) + c / sum(alignments)) / 2 for a, c in zip(advantages, alignments, strict=True)]


def exact_distribution(
    language: ToyLanguage, *, width: float, agreement: float, temperature: float = 0.6
) -> dict[Prefix, float]:
    """The distribution of one beam whose steps are single tokens."""

    def future(prefix: Prefix, token: int) -> tuple[float, str]:
        """The mean log-probability of the following tokens, or of the stop itself, and the text from the token on."""
        start = (*prefix, token)
        if token == STOP:
            return language.options(prefix)[STOP], ""
        path = (*start, *language.greedy(start, AHEAD))
        text = language.text(tuple(t for t in path if t != STOP))
        return (language.log_p(path) - language.log_p(start)) / (len(path) - len(start)), text[
            len(language.text(prefix)) :
        ]

    def choose(prefix: Prefix) -> dict[Prefix, float]:
        options, distribution = language.options(prefix), language.distribution(prefix)
        found: dict[Prefix, float] = {}
        for sampled in itertools.product(distribution, repeat=DRAWN):
            chance = math.prod(distribution[token] for token in sampled)
            means = np.array([options[token] for token in sampled])
            kept = [
                t
                for t in dict.fromkeys(sampled)
                if options[t] >= min(means.mean() - min(width, 1e9) * means.std(), means.max())
            ]
            counts = Counter(sampled)
            steps = [(counts[token], *future(prefix, token)) for token in kept]
            steps = [(count, value, text[-1:]) for count, value, text in steps]
            total = sum(count for count, _, _ in steps)
            agree = max(sum(c for c, _, mark in steps if mark == own) for _, _, own in steps) / total >= agreement
            for token, p in zip(kept, weights_by_hand(steps, temperature), strict=True):
                added: Prefix = (token,)
                if agree and token != STOP:
                    added = (token, *language.greedy((*prefix, token)))
                found[added] = found.get(added, 0.0) + chance * p
        return found

    return language.distribution_of_outputs(choose)


@pytest.mark.nightly
@pytest.mark.parametrize(("seed", "width", "agreement"), [(18, math.inf, 1.1), (16, 0.5, 1.1), (22, 1.0, 0.7)])
def test_outputs_have_exactly_the_distribution_of_the_search(seed: int, width: float, agreement: float) -> None:
    """Of 1,000 runs per case, alpha 1e-7, counts fit, and do not fit plain sampling or a search without pruning."""
    language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)
    constraint = compile(regex(PATTERN), VOCABULARY)
    sampler = Foresight(
        beams=1,
        rollouts=DRAWN,
        ahead=AHEAD,
        boundary=Boundary(most=1),
        width=width,
        agreement=agreement,
        clusters=marks,  # type: ignore[arg-type]
    )
    counts: Counter[Prefix] = Counter()
    for run in range(1_000):
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET, seed=run)
        counts[sampled.best().tokens] += 1
    right = exact_distribution(language, width=width, agreement=agreement)
    assert sum(right.values()) == pytest.approx(1)
    assert not strays(counts, right, 1e-7)
    assert strays(
        counts, language.distribution_of_outputs(lambda p: {(t,): q for t, q in language.distribution(p).items()}), 1e-7
    )
    if width < math.inf:
        assert strays(counts, exact_distribution(language, width=math.inf, agreement=1.1), 1e-7)


def test_weights_join_advantage_and_agreement() -> None:
    steps = [(2, -1.0, "x"), (1, -0.5, "y"), (3, -2.0, "x"), (1, -1.2, "z")]
    valued = [Valued(count, value + 7, mark) for count, value, mark in steps]  # earlier steps make no difference
    assert step_weights(valued, 0.6).tolist() == pytest.approx(weights_by_hand(steps, 0.6))
    dead = [Valued(1, -math.inf, "x"), Valued(3, -1.0, "y")]
    assert step_weights(dead, 0.6).tolist() == pytest.approx([0, 1])
    assert step_weights([Valued(1, -math.inf, "x"), Valued(3, -math.inf, "y")], 0.6).tolist() == [0.25, 0.75]


def test_texts_that_share_most_of_their_characters_are_alike() -> None:
    first, second, third, fourth = alike(["the sum is 12", "the sum is 13", "it rains", "so the sum is 12"])
    assert first == second == fourth != third
    assert alike([]) == []
    assert alike(["", "", "a"])[0] == alike(["", "", "a"])[1] != alike(["", "", "a"])[2]
    chain = alike(["abcdefgh", "efghijkl", "cdefghij"])
    assert len(set(chain)) == 1  # the third joins the other two


def test_greedy_steps_of_one_beam_are_greedy_decoding() -> None:
    for seed in range(10):
        language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)
        sampler = Foresight(beams=1, sampler=Greedy(), agreement=1.1)
        sampled = sample(language.model, "ab", regex(PATTERN), sampler=sampler, max_tokens=BUDGET)
        assert sampled.best().tokens == language.greedy(())[:-1]


def test_several_outputs_are_ordered_by_their_means() -> None:
    sampled = sample(
        HashModel(VOCABULARY, seed=22), "ab", regex(PATTERN), sampler=Foresight(beams=4, agreement=1.1), max_tokens=3
    )
    assert 1 < len(sampled.samples) <= 4
    means = [(result.logprob + result.log_z) / len(result.steps) for result in sampled.results]
    assert [each.log_weight for each in sampled.samples] == pytest.approx(means)
    assert means == sorted(means, reverse=True)


@pytest.mark.parametrize("budget", [2, 3, 4, 7, 30])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'{}":,0123456789truefalsn ab[]')], eos=[0])
    schema = {"type": "array", "items": {"enum": [True, 12, "ab"]}, "maxItems": 3}
    constraint = compile(json_schema(schema), vocabulary)
    for seed in range(6):
        model = HashModel(vocabulary, seed=seed)
        sampler = Foresight(beams=2, rollouts=3, ahead=4)
        sampled = [sample(model, "12", constraint, sampler=sampler, max_tokens=budget, seed=seed) for _ in "12"]
        assert [result.tokens for result in sampled[0].results] == [result.tokens for result in sampled[1].results]
        for result in sampled[0].results:
            assert len(result.tokens) <= budget
            jsonschema.validate(json.loads(result.text), schema)


def test_what_is_forbidden_is_not_written() -> None:
    model = HashModel(VOCABULARY, seed=22)
    for seed in range(10):
        sampled = sample(
            model,
            "ab",
            regex(PATTERN),
            sampler=Foresight(beams=3),
            potentials=[lambda t: "c" in t],
            max_tokens=3,
            seed=seed,
        )
        for result in sampled.results:
            assert re.fullmatch(PATTERN, result.text)
            assert "c" in result.text


def test_bad_numbers_are_refused() -> None:
    for bad in (
        {"beams": 0},
        {"rollouts": 0},
        {"ahead": 0},
        {"temperature": 0.0},
        {"width": -1.0},
        {"agreement": math.nan},
    ):
        with pytest.raises(ValueError, match="Foresight: "):
            Foresight(**bad)  # type: ignore[arg-type]
