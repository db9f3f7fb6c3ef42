"""Grammar-aligned decoding against enumeration of all outputs.

The tests compare bounds, and the distribution of the next output, computed from the trie.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from exact_target import total_variation
from toy_outputs import NO_EOS, TWO_EOS, Output, Toy, few_b, palindrome, toys, wants_c
from trie_walk_outcomes import next_distribution, nodes, success, walks_of

from structgen.errors import GenerationError
from structgen.methods.samplers.prefix_trie import PrefixTrie
from structgen.methods.samplers.trie_sampler import ASAp

TOYS = toys()
# All of these have outputs, and locally constrained decoding is far from the target.
FAR = {
    "one eos": Toy("a{4}|(b|c)[abc]{2,3}", 4, seed=3),
    "two eos": Toy("aa|(b|c)[abc]{1,3}", 4, TWO_EOS, seed=1),
    "no eos": Toy("abab|(b|c)[abc]{2}", 4, NO_EOS, seed=2),
    "tight budget": Toy("c|(a|b)(b|c)|abab|cabb?", 2, seed=5),
    "few b": Toy("[abc]{1,4}", 4, seed=4, always=few_b),
    "palindromes": Toy("[abc]{1,4}", 4, seed=4, score=palindrome),
    "scores": Toy("[abc]{1,3}", 3, seed=4, score=wants_c),
}
SMALL = {
    "letters": Toy("[ab]b?|cab", 3, seed=1),
    "no eos": Toy("ab|c[ab]", 2, NO_EOS, seed=3),
    "few b": Toy("[ab]{1,2}", 2, seed=4, always=few_b),
    "palindromes": Toy("[ac]{2}|b", 2, seed=5, score=palindrome),
    "scores": Toy("[ac]{1,2}", 2, seed=6, score=wants_c),
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAR)
def test_success_is_a_bound_that_only_falls(name: str) -> None:
    """At every node, over 60 calls with 5 outputs each, it falls, at last nearly to the expected future."""
    toy, trie = FAR[name], PrefixTrie()
    before: dict[Output, float] = {}
    gaps = []
    for seed in range(60):
        toy.samples(ASAp(5, trie=trie), seed=seed)
        now = {tokens: node.log_success for tokens, node in nodes(toy, trie)}
        assert set(before) <= set(now)
        for tokens, log_success in now.items():
            assert math.exp(log_success) >= success(toy, tokens, 0.0) * (1 - 1e-9)
            assert log_success <= before.get(tokens, 0.0)
        before = now
        gaps.append(math.exp(now[()]) - toy.z)
    assert gaps[-1] < 0.25 * gaps[0] + 1e-9


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", FAR)
def test_the_distribution_of_the_next_output_comes_near_the_target(name: str) -> None:
    """By the trie, it is at first that of locally constrained decoding, which is far, and comes ever nearer."""
    toy, trie = FAR[name], PrefixTrie()
    target = toy.normalised
    lcd = toy.lcd()
    assert total_variation(next_distribution(toy, trie), lcd) < 1e-9
    distances = [total_variation(lcd, target)]
    assert distances[0] > 0.05
    for seed, count in enumerate((10, 90, 700)):
        toy.samples(ASAp(count, trie=trie), seed=seed)
        distribution = next_distribution(toy, trie)
        assert set(distribution) == set(lcd)
        assert sum(distribution.values()) < 1 + 1e-9
        distances.append(total_variation(distribution, target))
    assert distances[3] < distances[1]
    assert distances[3] < 0.1 * distances[0]


@pytest.mark.parametrize("room", [PrefixTrie, lambda: PrefixTrie(max_bytes=0), lambda: PrefixTrie(max_nodes=2)])
@pytest.mark.parametrize("name", SMALL)
def test_outputs_have_the_distribution_that_the_trie_says(name: str, room: Callable[[], PrefixTrie]) -> None:
    """All outcomes of two outputs agree; the first has the distribution of locally constrained decoding."""
    toy = SMALL[name]

    def look(trie: PrefixTrie) -> tuple[tuple[Output, float], ...]:
        return tuple(sorted((x, round(p, 12)) for x, p in next_distribution(toy, trie).items()))

    first: dict[Output, float] = defaultdict(float)
    second: dict[Any, dict[Output | None, float]] = defaultdict(lambda: defaultdict(float))
    for chance, ((one,), (two,)), (_, distribution) in walks_of(toy, [1, 1], rejects=False, trie=room, look=look):
        if one is not None:
            first[one] += chance
        second[distribution][two] += chance
    assert dict(first) == pytest.approx(toy.lcd(), abs=1e-9)
    for distribution, found in second.items():
        total = sum(found.values())
        wanted = {x: p for x, p in distribution if p}
        assert {x: p / total for x, p in found.items() if x is not None} == pytest.approx(wanted, abs=1e-9)
    assert len(second) > 1


def test_outputs_that_are_sampled_together_do_not_teach_each_other() -> None:
    """Two in one batch both come from locally constrained decoding, independently."""
    toy = Toy("[abc]b?", 2, NO_EOS, seed=2)
    lcd = toy.lcd()
    joint: dict[tuple[Output | None, ...], float] = defaultdict(float)
    for chance, ((one, two),), _ in walks_of(toy, [2], rejects=False):
        joint[one, two] += chance
    assert dict(joint) == pytest.approx({(x, y): lcd[x] * lcd[y] for x in lcd for y in lcd}, abs=1e-9)


@pytest.mark.parametrize("name", TOYS)
def test_outputs_are_members_and_counted(name: str) -> None:
    toy = TOYS[name]
    found = toy.samples(ASAp(40, discard=5, batch=3), seed=2)
    assert sum(each.particles for each in found.samples) == 40
    assert found.weights == pytest.approx([each.particles / 40 for each in found.samples])
    assert not found.lossless
    assert found.log_evidence is None
    for each in found.samples:
        assert each.result.tokens in toy.target
        assert re.fullmatch(toy.pattern, each.result.text)
        assert each.result.logprob + each.result.log_z == pytest.approx(toy.log_p[each.result.tokens], abs=1e-9)
        assert each.score == pytest.approx(toy.score_of(each.result.tokens))


@pytest.mark.parametrize("seed", range(5))
def test_discarded_outputs_are_the_first(seed: int) -> None:
    toy = FAR["one eos"]

    def counts(sampler: ASAp) -> Counter[Output]:
        return Counter({each.result.tokens: each.particles for each in toy.samples(sampler, seed=seed).samples})

    assert counts(ASAp(3, discard=20)) == counts(ASAp(23)) - counts(ASAp(20))
    assert counts(ASAp(3, discard=20)) != counts(ASAp(3))


def test_distributions_that_are_known_are_not_asked_for_again() -> None:
    toy, trie = Toy("[ab]{1,3}", 3, seed=1), PrefixTrie()
    first = toy.samples(ASAp(300, trie=trie), seed=1)
    assert first.forwards <= len(toy.prefixes)
    second = toy.samples(ASAp(300, trie=trie), seed=2)
    assert second.forwards < first.forwards / 2
    forgetful = toy.samples(ASAp(300, trie=PrefixTrie(max_bytes=0)), seed=1)
    assert {each.result.tokens: each.particles for each in forgetful.samples} == {
        each.result.tokens: each.particles for each in first.samples
    }
    assert forgetful.forwards > first.forwards


def test_nothing_is_left_where_everything_is_forbidden() -> None:
    toy = Toy("[ab]{1,2}", 2, score=lambda text: False)
    assert toy.samples(ASAp(3)).samples == ()
    with pytest.raises(GenerationError, match=r"ASAp: the potentials forbade 2 outputs in a row; .*raise max_tries"):
        toy.samples(ASAp(3, max_tries=2))


def test_a_score_above_the_bound_is_an_error() -> None:
    toy = Toy("[abc]{1,3}", 3, seed=4, score=lambda text: 0.5)
    with pytest.raises(GenerationError, match="a score above score_bound=0"):
        toy.samples(ASAp(1))
    trie = PrefixTrie()
    toy.samples(ASAp(20, score_bound=2.0, trie=trie))
    for tokens, node in nodes(toy, trie):
        assert math.exp(node.log_success) >= success(toy, tokens, 2.0) * (1 - 1e-9)


@pytest.mark.parametrize(
    "arguments", [{"samples": 0}, {"discard": -1}, {"batch": 0}, {"max_tries": 0}, {"score_bound": math.nan}]
)
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"ASAp: {next(iter(arguments))} must be"):
        ASAp(**arguments)


def test_it_says_what_it_is() -> None:
    assert (ASAp.lossless, ASAp.takes_best) == (False, False)
    assert "more nearly" in ASAp.target
