"""First finish search: its exact distribution on a toy language."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter

import pytest
from toy_language import STOP, Prefix, ToyLanguage, strays

from structgen.decode.sampling import sample
from structgen.decode.step.sampler import Greedy
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.regex import regex
from structgen.methods.strategies import FirstFinish
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b"|"], eos=[0])
PATTERN = r"(a|b){0,2}\|a?"
BUDGET = 4


def plain(language: ToyLanguage, prefix: Prefix = ()) -> dict[Prefix, float]:
    """The distribution of the tokens added to a prefix, up to the stop."""
    found: dict[Prefix, float] = {}
    pending: list[tuple[Prefix, float]] = [((), 1.0)]
    while pending:
        added, p = pending.pop()
        if added[-1:] == (STOP,):
            found[added] = p
        else:
            pending += [((*added, token), p * q) for token, q in language.distribution((*prefix, *added)).items()]
    return found


def exact_distribution(language: ToyLanguage, samples: int, until: str | None) -> dict[Prefix, float]:
    distributions = plain(language)

    def arrival(path: Prefix) -> Prefix:
        """The prefix with which a path has won."""
        for size in range(1, len(path)):
            if until is not None and until in language.text(path[:size]):
                return path[:size]
        return path

    arrivals: dict[Prefix, float] = {}
    for path, p in distributions.items():
        arrivals[arrival(path)] = arrivals.get(arrival(path), 0.0) + p
    found: dict[Prefix, float] = {}
    for sampled in itertools.product(arrivals, repeat=samples):
        winner = min(sampled, key=lambda path: (len(path), -language.log_p(path), tuple(t for t in path if t != STOP)))
        chance = math.prod(arrivals[path] for path in sampled)
        rests = {(): 1.0} if winner[-1] == STOP else plain(language, winner)
        for rest, q in rests.items():
            output = (*winner, *rest)[:-1]
            found[output] = found.get(output, 0.0) + chance * q
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize(("seed", "until"), [(0, None), pytest.param(5, None, marks=pytest.mark.nightly), (7, "|")])
def test_outputs_have_exactly_the_distribution_of_the_first(seed: int, until: str | None) -> None:
    """Of 1,200 runs per case, alpha 1e-7, counts fit, and do not fit one sample or the shortest output."""
    language = ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)
    constraint = compile(regex(PATTERN), VOCABULARY)
    sampler = FirstFinish(3, until=None if until is None else lambda hypothesis: until in hypothesis.text)
    counts: Counter[Prefix] = Counter()
    for run in range(1_200):
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET, seed=run)
        counts[sampled.best().tokens] += 1
    right = exact_distribution(language, 3, until)
    assert sum(right.values()) == pytest.approx(1)
    assert not strays(counts, right, 1e-7)
    assert strays(counts, exact_distribution(language, 1, until), 1e-7)
    if until is not None:
        assert strays(counts, exact_distribution(language, 3, None), 1e-7)


@pytest.mark.parametrize("budget", [1, 2, 3, 5, 9])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    constraint = compile(regex(PATTERN), VOCABULARY)
    for seed in range(30):
        model = HashModel(VOCABULARY, seed=seed)
        results = [
            sample(model, "ab", constraint, sampler=FirstFinish(4), max_tokens=budget, seed=seed).best() for _ in "12"
        ]
        assert re.fullmatch(PATTERN, results[0].text)
        assert len(results[0].tokens) <= budget
        assert results[0].tokens == results[1].tokens


def test_others_are_given_up() -> None:
    """No further token is sampled for any path once one has won."""
    model = HashModel(VOCABULARY, seed=0)
    sampled = sample(model, "ab", regex("(a|b){1,40}"), sampler=FirstFinish(8), max_tokens=40, seed=3)
    assert sampled.particles == 8
    assert sampled.tokens <= 8 * (len(sampled.best().tokens) + 1)
    alone = sample(model, "ab", regex("(a|b){1,40}"), sampler=FirstFinish(8, sampler=Greedy()), max_tokens=40)
    assert alone.tokens == len(alone.best().tokens) + 1  # equal samples are one


def test_nothing_is_sampled_that_is_forbidden() -> None:
    model = HashModel(VOCABULARY, seed=0)
    grammar = regex("[ab]{1,3}")
    for seed in range(20):
        sampled = sample(model, "ab", grammar, sampler=FirstFinish(3), potentials=[lambda t: "b" in t], seed=seed)
        assert "b" in sampled.best().text
    with pytest.raises(GenerationError, match="until: it raised ZeroDivisionError"):
        sample(model, "ab", grammar, sampler=FirstFinish(2, until=lambda hypothesis: bool(1 // 0)))
    with pytest.raises(ValueError, match="FirstFinish: samples"):
        FirstFinish(0)
