"""Accepted draws have exactly the distribution of the target, whatever the trie has learned before.

The tests enumerate all outcomes of one and two batches of tries, so that no randomness is left. Statistical tests
beside them have fixed seeds and an alpha of 1e-6.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from toy_outputs import NO_EOS, TWO_EOS, Output, Toy, few_b, palindrome, toys, wants_c
from trie_walk_outcomes import nodes, success, walks_of

from structgen.decode.sampling import Samples
from structgen.errors import GenerationError
from structgen.methods.samplers.prefix_trie import PrefixTrie
from structgen.methods.samplers.trie_sampler import ASAp, RejectionTrie
from structgen.models import HashModel

TOYS = toys()
SMALL = {
    "letters": Toy("[ab]b?", 2, seed=1),
    "two eos": Toy("a[bc]?|c", 2, TWO_EOS, seed=2),
    "no eos": Toy("ab|c[ab]", 2, NO_EOS, seed=3),
    "few b": Toy("[ab]{1,2}", 2, seed=4, always=few_b),
    "palindromes": Toy("[ac]{1,2}|b", 2, seed=5, score=palindrome),
    "scores": Toy("[ac]{1,2}", 2, seed=6, score=wants_c),
    "tight budget": Toy("abab|c", 2, seed=7),
}
TINY = {
    "letters": Toy("[abc]", 1, seed=1),
    "no eos": Toy("[abc]", 1, NO_EOS, seed=3),
    "scores": Toy("[abc]", 2, NO_EOS, seed=6, score=wants_c),
}
Outcome = tuple[Output | None, ...]
TRIES: dict[str, Callable[[], PrefixTrie]] = {
    "all kept": PrefixTrie,
    "no distributions kept": lambda: PrefixTrie(max_bytes=0),
    "no room": lambda: PrefixTrie(max_nodes=1),
    "little room": lambda: PrefixTrie(max_nodes=3, max_bytes=40),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", TRIES)
@pytest.mark.parametrize("name", SMALL)
def test_each_try_is_accepted_in_proportion_to_the_target(name: str, room: str) -> None:
    """The first try, and the second after any outcome of the first, accept with ``target(x) / s``."""
    toy = SMALL[name]
    first: dict[Output, float] = defaultdict(float)
    second: dict[Output | None, dict[Output, float]] = defaultdict(lambda: defaultdict(float))
    weight: dict[Output | None, float] = defaultdict(float)
    total = 0.0
    for chance, ((one,), (two,)), _ in walks_of(toy, [1, 1], rejects=True, score_bound=0.0, trie=TRIES[room]):
        total += chance
        weight[one] += chance
        if one is not None:
            first[one] += chance
        if two is not None:
            second[one][two] += chance
    assert total == pytest.approx(1, abs=1e-9)
    assert dict(first) == pytest.approx({x: math.exp(log) for x, log in toy.target.items()}, abs=1e-9)
    for one, found in second.items():
        accepted = sum(found.values())
        assert {x: p / accepted for x, p in found.items()} == pytest.approx(toy.normalised, abs=1e-9)
        if room == "no room":
            continue
        # A try that taught something makes the next one more likely to be accepted.
        assert accepted / weight[one] > toy.z * (1 + 1e-6) or toy.z > 1 - 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize("room", TRIES)
@pytest.mark.parametrize("name", TINY)
def test_tries_that_are_made_together_are_independent(name: str, room: str) -> None:
    """After any outcome of an earlier try, the joint distribution of two is the product of the target with itself.

    The target's.
    """
    toy = TINY[name]
    joint: dict[Output | None, dict[tuple[Output, Output], float]] = defaultdict(lambda: defaultdict(float))
    for chance, ((one,), (two, three)), _ in walks_of(toy, [1, 2], rejects=True, score_bound=0.0, trie=TRIES[room]):
        if two is not None and three is not None:
            joint[one][two, three] += chance
    p = toy.normalised
    assert set(joint) == {None, *p}
    for found in joint.values():
        both = sum(found.values())
        wanted = {(x, y): p[x] * p[y] for x, y in product(p, repeat=2)}
        assert {pair: chance / both for pair, chance in found.items()} == pytest.approx(wanted, abs=1e-9)


@pytest.mark.parametrize("toy", [Toy("[ab]c?", 2, NO_EOS, seed=3), Toy("a|cc?", 2, seed=6, score=wants_c)])
def test_rejections_of_a_batch_are_independent_too(toy: Toy) -> None:
    """The estimate of the evidence needs it: each of three tries accepts ``x`` with ``target(x) / s``, ``s = 1``."""
    joint: dict[Outcome, float] = defaultdict(float)
    for chance, (three,), _ in walks_of(toy, [3], rejects=True, score_bound=0.0, trie=PrefixTrie):
        joint[tuple(three)] += chance
    each: dict[Output | None, float] = {x: math.exp(log) for x, log in toy.target.items()}
    each[None] = 1 - sum(each.values())
    wanted = {found: math.prod(each[one] for one in found) for found in product(each, repeat=3)}
    assert dict(joint) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("name", TINY)
def test_what_several_tries_teach_together_is_right(name: str) -> None:
    """The try after two simultaneous ones has the distribution of the target too."""
    toy = TINY[name]
    after: dict[Outcome, dict[Output, float]] = defaultdict(lambda: defaultdict(float))
    for chance, (before, (three,)), _ in walks_of(toy, [2, 1], rejects=True, score_bound=0.0, trie=PrefixTrie):
        if three is not None:
            after[tuple(before)][three] += chance
    assert len(after) == (len(toy.normalised) + 1) ** 2
    for found in after.values():
        accepted = sum(found.values())
        assert {x: p / accepted for x, p in found.items()} == pytest.approx(toy.normalised, abs=1e-9)


def test_enumeration_notices_locally_constrained_decoding() -> None:
    """A control: walks that reject nothing do not have the distribution of the target."""
    toy = SMALL["letters"]
    found: dict[Output, float] = defaultdict(float)
    for chance, ((one,),), _ in walks_of(toy, [1], rejects=False, score_bound=0.0, trie=PrefixTrie):
        assert one is not None
        found[one] += chance
    assert dict(found) == pytest.approx(toy.lcd(), abs=1e-9)
    assert max(abs(found[x] - p) for x, p in toy.normalised.items()) > 0.02


def test_a_bound_above_the_scores_changes_the_rate_alone() -> None:
    toy = SMALL["scores"]
    found: dict[Output, float] = defaultdict(float)
    for chance, ((one,),), _ in walks_of(toy, [1], rejects=True, score_bound=1.5, trie=PrefixTrie):
        if one is not None:
            found[one] += chance
    wanted = {x: math.exp(log - 1.5) for x, log in toy.target.items()}
    assert dict(found) == pytest.approx(wanted, abs=1e-9)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        "one eos, [abc]{1,4}, 4 tokens",
        "two eos, a[abc]{0,2}b|ccc|b, 4 tokens",
        "palindromes of few b, no eos",
        "scores",
        *(
            pytest.param(name, marks=pytest.mark.nightly)
            for name in ("no eos, (ab|c)*a?, 3 tokens", "tight budget, no eos", "only the empty output")
        ),
    ],
)
def test_many_samples_have_the_distribution_of_the_target(name: str) -> None:
    """Chi-square over 2,000 outputs, alpha 1e-6, and the evidence within 6 standard errors."""
    toy = TOYS[name]
    found = toy.samples(RejectionTrie(2_000, max_tries=20_000), seed=11)
    counts = Counter({each.result.tokens: each.particles for each in found.samples})
    assert sum(counts.values()) == 2_000
    assert chi_square(counts, toy.normalised) < 0
    assert found.lossless
    assert found.log_evidence == pytest.approx(math.log(toy.z), abs=6 * (found.standard_error or 0) + 1e-9)
    assert found.weights == pytest.approx([each.particles / 2_000 for each in found.samples])
    for each in found.samples:
        assert re.fullmatch(toy.pattern, each.result.text)
        assert each.result.logprob + each.result.log_z == pytest.approx(toy.log_p[each.result.tokens], abs=1e-9)
        assert each.score == pytest.approx(toy.score_of(each.result.tokens))


def chi_square(counts: Counter[Output], distribution: dict[Output, float]) -> float:
    """Pearson's statistic minus a bound that holds with probability 1 - 1e-6; rare outcomes are pooled."""
    draws = sum(counts.values())
    assert set(counts) <= set(distribution)
    often = [output for output, p in distribution.items() if p * draws >= 8]
    observed = [counts[output] for output in often]
    expected = [distribution[output] * draws for output in often]
    if (rest := draws - sum(expected)) > 1e-6:
        observed.append(draws - sum(observed))
        expected.append(rest)
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    degrees = len(observed) - 1
    # Laurent and Massart (2000): P(chi2 >= d + 2 sqrt(d x) + 2 x) <= exp(-x).
    x = -math.log(1e-6)
    return statistic - (degrees + 2 * math.sqrt(degrees * x) + 2 * x)


@pytest.mark.parametrize("name", ["one eos, (ab|c)*a?, 3 tokens", "two eos, [abc]{1,4}, 4 tokens", "scores"])
def test_the_test_of_many_samples_has_power(name: str) -> None:
    """A control: it fails for locally constrained decoding, on 2,000 outputs with a new trie each."""
    toy = TOYS[name]
    distribution = toy.lcd()
    sampled = np.random.default_rng(3).multinomial(
        2_000, [p / sum(distribution.values()) for p in distribution.values()]
    )
    counts = Counter({x: int(n) for x, n in zip(distribution, sampled, strict=True) if n})
    assert chi_square(counts, toy.normalised) > 0
    assert chi_square(counts, distribution) < 0


def rate(found: Samples) -> float:
    return sum(each.particles for each in found.samples) / found.particles


def test_fewer_and_fewer_are_rejected() -> None:
    """A fresh trie accepts with the model's probability of the language; a complete one accepts nearly always."""
    toy = Toy("c(aa|bb)(a|b)?c?", 5, seed=3)
    trie = PrefixTrie()
    sampler = RejectionTrie(50, max_tries=100_000, trie=trie, batch=1)
    first = toy.samples(sampler, seed=1)
    assert first.particles > 50
    assert f"50 of {first.particles} tries were accepted" in first.verification
    for seed in range(2, 6):
        last = toy.samples(sampler, seed=seed)
    assert rate(last) > max(0.9, rate(first))
    assert math.exp(trie.root.log_success) == pytest.approx(toy.z, rel=0.05)
    assert last.forwards < first.forwards / 4


@pytest.mark.parametrize("name", ["palindromes", "scores", "few b", "one eos, a[abc]{0,2}b|ccc|b, 4 tokens"])
def test_what_the_trie_says_is_a_bound(name: str) -> None:
    """At every node it is at least the value from enumeration; nodes never rise."""
    toy, trie = TOYS[name], PrefixTrie()
    before: dict[Output, float] = {}
    for seed in range(12):
        toy.samples(RejectionTrie(5, trie=trie, max_tries=10_000), seed=seed)
        now = {tokens: node.log_success for tokens, node in nodes(toy, trie)}
        for tokens, log_success in now.items():
            assert math.exp(log_success) >= success(toy, tokens, 0.0) * (1 - 1e-9)
            assert log_success <= before.get(tokens, 0.0)
        before = now
    assert before[()] < math.log(toy.z) + 0.5


def test_a_trie_that_knows_all_rejects_nothing() -> None:
    toy, trie = Toy("[ab]{1,2}", 2, seed=1), PrefixTrie()
    toy.samples(RejectionTrie(400, trie=trie, max_tries=10_000))
    assert math.exp(trie.root.log_success) == pytest.approx(toy.z, rel=1e-12)
    found = toy.samples(RejectionTrie(100, trie=trie), seed=2, drafter=None)
    assert found.particles == 100
    assert found.forwards == 1
    assert found.log_evidence == pytest.approx(math.log(toy.z), abs=1e-12)
    assert found.standard_error == pytest.approx(0, abs=1e-6)


@pytest.mark.exhaustive
@pytest.mark.parametrize("max_bytes", [0, 200])
@pytest.mark.parametrize("max_nodes", [1, 4, 20])
def test_a_bounded_trie_is_as_exact(max_nodes: int, max_bytes: int) -> None:
    """Chi-square over 500 outputs, alpha 1e-6."""
    toy = Toy("[abc]{1,2}", 2, seed=9, always=few_b)
    trie = PrefixTrie(max_nodes=max_nodes, max_bytes=max_bytes)
    found = toy.samples(RejectionTrie(500, trie=trie, max_tries=20_000), seed=4)
    assert trie.size <= max_nodes
    assert sum(1 for _ in nodes(toy, trie)) == trie.size
    counts = Counter({each.result.tokens: each.particles for each in found.samples})
    assert chi_square(counts, toy.normalised) < 0


def test_too_many_tries_say_what_to_do() -> None:
    class Stubborn(HashModel):
        """Prefers a text that nothing admits."""

    toy = Toy("c{4}", 4, seed=1)
    toy.__dict__["model"] = Stubborn(toy.vocabulary, seed=1, writes="ababab")
    with pytest.raises(GenerationError) as caught:
        toy.samples(RejectionTrie(3, max_tries=4))
    assert caught.value.subject == "RejectionTrie"
    assert caught.value.problem == "4 tries resulted in 0 of 3 outputs"
    assert "not excluded have probability" in caught.value.evidence
    assert "max_tries" in caught.value.remedy
    assert "SMC" in caught.value.remedy


def test_a_score_above_the_bound_is_an_error() -> None:
    toy = Toy("[abc]{1,3}", 3, seed=4, score=lambda text: 0.5)
    with pytest.raises(GenerationError, match=r"a score above score_bound=0; 0.5 for .*let scores be at most 0"):
        toy.samples(RejectionTrie(1))
    found = toy.samples(RejectionTrie(500, score_bound=0.5))
    assert found.log_evidence == pytest.approx(math.log(toy.z), abs=6 * (found.standard_error or 0))


def test_nothing_is_left_where_everything_is_forbidden() -> None:
    found = Toy("[ab]{1,2}", 2, score=lambda text: False).samples(RejectionTrie(2))
    assert found.samples == ()
    assert found.log_evidence == -math.inf
    assert found.verification.startswith("0 of ")
    with pytest.raises(GenerationError, match="weights are zero"):
        found.best()


def test_a_trie_belongs_to_one_problem() -> None:
    trie = PrefixTrie()
    toy = Toy("[abc]{1,3}", 3, seed=4, always=few_b)
    toy.samples(RejectionTrie(2, trie=trie))
    toy.samples(ASAp(2, trie=trie))
    again = Toy("[abc]{1,3}", 3, seed=4)
    again.__dict__ |= {"model": toy.model, "potentials": toy.potentials}
    assert again.constraint is not toy.constraint
    again.samples(RejectionTrie(2, trie=trie))
    for other, what in (
        (Toy("[abc]{1,3}", 3, seed=4, always=few_b), "model"),
        (Toy("[abc]{1,2}", 3, seed=4), "constraint"),
        (Toy("[abc]{1,3}", 2, seed=4), "max_tokens"),
        (Toy("[abc]{1,3}", 3, seed=4), "list of potentials"),
    ):
        if what != "model":
            other.__dict__["model"] = toy.model
        with pytest.raises(ValueError, match=f"PrefixTrie: it was used with another {what},"):
            other.samples(RejectionTrie(2, trie=trie))
    with pytest.raises(ValueError, match="another score_bound"):
        toy.samples(RejectionTrie(2, trie=trie, score_bound=1.0))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"samples": 0}, "samples must be an integer"),
        ({"batch": 0}, "batch must be an integer"),
        ({"max_tries": 0}, "max_tries must be an integer"),
        ({"samples": 9, "max_tries": 8}, "each output takes a try; found max_tries=8 for samples=9"),
        ({"score_bound": math.inf}, "score_bound must be finite"),
    ],
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"RejectionTrie: {message}"):
        RejectionTrie(**arguments)


def test_tries_without_room_are_refused() -> None:
    with pytest.raises(ValueError, match="max_nodes must be at least 1"):
        PrefixTrie(max_nodes=0)
    with pytest.raises(ValueError, match="max_bytes must not be negative"):
        PrefixTrie(max_bytes=-1)


def test_it_says_what_it_is() -> None:
    assert (RejectionTrie.lossless, RejectionTrie.takes_best) == (True, False)
    assert "exactly" in RejectionTrie.target
