"""Cautious decoding: its exact distribution on a toy language, and the number of trials."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter

import jsonschema
import pytest
from toy_language import STOP, Prefix, ToyLanguage, strays

from structgen.decode.sampling import sample
from structgen.decode.step.sampler import Greedy
from structgen.engine import Vocabulary, compile
from structgen.errors import GenerationError
from structgen.frontends.json_schema import json_schema
from structgen.frontends.regex import regex
from structgen.methods.strategies import Boundary, Cautious
from structgen.models import HashModel

VOCABULARY = Vocabulary([b"", b"a", b"b", b"ab", b","], eos=[0])
PATTERN = "(a|b|,){1,3}"
BUDGET = 3


def toy(seed: int) -> ToyLanguage:
    return ToyLanguage(HashModel(VOCABULARY, seed=seed), "ab", PATTERN, BUDGET)


def trials_of(language: ToyLanguage, prefix: Prefix, marks: str, most: int) -> dict[Prefix, float]:
    """The distribution of one trial."""
    found: dict[Prefix, float] = {}
    pending: list[tuple[Prefix, float]] = [((), 1.0)]
    while pending:
        trial, p = pending.pop()
        text = language.text(tuple(token for token in trial if token != STOP))
        if trial and (trial[-1] == STOP or len(trial) == most or any(mark in text for mark in marks)):
            found[trial] = found.get(trial, 0.0) + p
        else:
            pending += [((*trial, token), p * q) for token, q in language.distribution((*prefix, *trial)).items()]
    return found


def exact_distribution(
    language: ToyLanguage, threshold: float, full: float, max_trials: int, most: int
) -> dict[Prefix, float]:
    def choose(prefix: Prefix) -> dict[Prefix, float]:
        entropy = language.entropy(prefix)
        if entropy <= threshold:
            count = 1
        elif entropy >= full:
            count = max_trials
        else:
            count = 1 + math.ceil((max_trials - 1) * (entropy - threshold) / (full - threshold))
        if count == 1:
            return {(token,): p for token, p in language.distribution(prefix).items()}
        before = language.log_p(prefix)

        def rank(trial: Prefix) -> tuple[float, Prefix]:
            mean = (language.log_p((*prefix, *trial)) - before) / len(trial)
            return -mean, tuple(token for token in trial if token != STOP)

        found: dict[Prefix, float] = {}
        distribution = trials_of(language, prefix, ",", most)
        for sampled in itertools.product(distribution, repeat=count):
            best = min(sampled, key=rank)
            found[best] = found.get(best, 0.0) + math.prod(distribution[trial] for trial in sampled)
        return found

    return language.distribution_of_outputs(choose)


@pytest.mark.nightly
@pytest.mark.parametrize("seed", [9, 18])
def test_outputs_have_exactly_the_distribution_of_the_best_trial(seed: int) -> None:
    """Of 3,000 runs per model, alpha 1e-7, counts fit, and do not fit plain sampling or trials without doubt."""
    language = toy(seed)
    sampler = Cautious(threshold=0.6, full=1.1, trials=3, boundary=Boundary(marks=",", forced=False, most=2))
    constraint = compile(regex(PATTERN), VOCABULARY)
    counts: Counter[Prefix] = Counter()
    for run in range(3_000):
        sampled = sample(language.model, "ab", constraint, sampler=sampler, max_tokens=BUDGET, seed=run)
        counts[sampled.best().tokens] += 1
    right = exact_distribution(language, 0.6, 1.1, 3, 2)
    assert sum(right.values()) == pytest.approx(1)
    assert not strays(counts, right, 1e-7)
    plain = language.distribution_of_outputs(
        lambda prefix: {(token,): p for token, p in language.distribution(prefix).items()}
    )
    assert strays(counts, plain, 1e-7)
    assert strays(counts, exact_distribution(language, 0.3, 0.3, 3, 2), 1e-7)


def test_the_number_of_trials_grows_with_entropy() -> None:
    sampler = Cautious(threshold=1.0, full=2.0, trials=5)
    asked = [sampler.trials_at(entropy) for entropy in (0.0, 1.0, 1.01, 1.25, 1.26, 1.5, 1.75, 1.99, 2.0, 9.0)]
    assert asked == [1, 1, 2, 2, 3, 3, 4, 5, 5, 5]
    assert Cautious(threshold=1.0, full=1.0, trials=5).trials_at(1.0) == 1
    assert Cautious(threshold=1.0, full=1.0, trials=5).trials_at(1.1) == 5


def test_entropy_is_that_of_what_the_mask_leaves() -> None:
    """Where the grammar leaves no choice there is no doubt, however uncertain the model is."""
    model = HashModel(VOCABULARY, seed=0)
    # Only the token "a" spells something that fits, five times; then only the stop is possible.
    cautious = Cautious(threshold=0.0, full=0.0, trials=8)
    sampled = sample(model, "ab", regex("a{5}"), sampler=cautious, max_tokens=5)
    assert sampled.best().text == "aaaaa"
    assert sampled.tokens == 6


def test_greedy_trials_are_one_and_share_their_passes() -> None:
    model = HashModel(VOCABULARY, seed=2)
    language = ToyLanguage(model, "ab", PATTERN, BUDGET)
    sampler = Cautious(threshold=0.0, full=0.0, trials=16, sampler=Greedy())
    sampled = sample(model, "ab", regex(PATTERN), sampler=sampler, max_tokens=BUDGET)
    expected = language.greedy(())
    assert sampled.best().tokens == expected[:-1]
    assert sampled.forwards <= len(expected)
    assert sampled.tokens == len(expected)


def test_a_trial_ends_at_marks_forced_text_and_its_most() -> None:
    vocabulary = Vocabulary([b"", b"a", b"b", b"\xc3", b"\xa9", b"\xa9b"], eos=[0])
    model = HashModel(vocabulary)
    from structgen.decode.sampling import Branches, Problem
    from structgen.methods.strategies.branch_ops import look, take

    constraint = compile(regex("[ab]{2}(é|a)b?aa"), vocabulary)
    with Branches(Problem(model, (1,), constraint, (), 9)) as branches:
        branch = branches.root()

        def add(token: int) -> None:
            nonlocal branch
            (distribution,) = look(branches, [branch])
            (branch,) = take(branches, branch, distribution, [distribution.ids.tolist().index(token)])

        marked, forced = Boundary(marks="bé", forced=False, most=9), Boundary(marks="", forced=True, most=9)
        add(1)
        assert not marked.ends(branch, 1)
        assert Boundary(marks="", forced=False, most=1).ends(branch, 1)
        add(2)
        assert marked.ends(branch, 2)
        assert not forced.ends(branch, 2)
        add(3)
        assert not marked.ends(branch, 3)  # half a character
        assert forced.ends(branch, 3)
        add(5)
        assert marked.ends(branch, 4)  # both halves, the second in a longer token
        assert Boundary(marks="é", forced=False).ends(branch, 4)


@pytest.mark.parametrize("budget", [2, 3, 4, 7, 30])
def test_outputs_are_members_within_any_budget(budget: int) -> None:
    vocabulary = Vocabulary([b"", *(bytes([byte]) for byte in b'{}":,0123456789truefalsn ab[]')], eos=[0])
    schema = {"type": "array", "items": {"enum": [True, 12, "ab"]}, "maxItems": 3}
    constraint = compile(json_schema(schema), vocabulary)
    for seed in range(10):
        model = HashModel(vocabulary, seed=seed)
        sampled = sample(
            model, "12", constraint, sampler=Cautious(threshold=0.2, full=0.5, trials=4), max_tokens=budget, seed=seed
        )
        result = sampled.best()
        assert len(result.tokens) <= budget
        jsonschema.validate(json.loads(result.text), schema)
        again = sample(
            model, "12", constraint, sampler=Cautious(threshold=0.2, full=0.5, trials=4), max_tokens=budget, seed=seed
        )
        assert again.best().tokens == result.tokens


def test_potentials_count_and_forbid() -> None:
    """A score of 30 for one text wins wherever a trial reaches it; forbidden texts never occur."""
    model = HashModel(VOCABULARY, seed=3)
    sampler = Cautious(threshold=0.0, full=0.0, trials=64, boundary=Boundary(marks="", forced=False))
    wanted = sample(
        model, "ab", regex("[ab]{2}"), sampler=sampler, potentials=[lambda text: 30.0 if text == "ba" else 0.0], seed=1
    )
    assert wanted.best().text == "ba"
    for seed in range(20):
        sampled = sample(
            model, "ab", regex("[ab]{2}"), sampler=sampler, potentials=[lambda text: text != "ab"], seed=seed
        )
        assert re.fullmatch("[ab]{2}", sampled.best().text)
        assert sampled.best().text != "ab"
    nothing = sample(model, "ab", regex("[ab]{2}"), sampler=sampler, potentials=[lambda text: False])
    assert nothing.samples == ()
    with pytest.raises(GenerationError, match="forbade"):
        nothing.best()


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match=r"Cautious: trials .* found 0"):
        Cautious(trials=0)
    with pytest.raises(ValueError, match="Cautious: threshold"):
        Cautious(threshold=-0.1)
    with pytest.raises(ValueError, match="Cautious: threshold"):
        Cautious(threshold=math.nan)
    with pytest.raises(ValueError, match="Cautious: full"):
        Cautious(threshold=2.0, full=1.0)
    with pytest.raises(ValueError, match="Boundary: most"):
        Boundary(most=0)
