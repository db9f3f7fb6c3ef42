"""The most probable outputs, against enumeration."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from toy_outputs import Toy, few_b, toys

from structgen.decode.sampling import Branch
from structgen.engine import Vocabulary
from structgen.errors import GenerationError, LimitExceeded
from structgen.methods.samplers import best_first
from structgen.methods.samplers.best_first import BestFirst, ExactBest
from structgen.models import HashModel

TOYS = toys()


class Unpacked:
    """A model that runs one sequence in a forward pass."""

    def __init__(self, model: HashModel) -> None:
        self.vocabulary: Vocabulary = model.vocabulary
        self.max_context = None
        self.name = "unpacked"
        self.encode_prompt = model.encode_prompt
        self.start = model.start


def unpacked(toy: Toy) -> Toy:
    toy.__dict__["model"] = Unpacked(HashModel(toy.vocabulary, seed=toy.seed))
    return toy


@pytest.mark.parametrize("name", TOYS)
def test_the_first_are_the_most_probable_of_all(name: str) -> None:
    toy = TOYS[name]
    found = toy.samples(ExactBest(n=5))
    assert [each.result.tokens for each in found.samples] == toy.ranking[:5]
    for each in found.samples:
        assert each.score == each.log_weight == pytest.approx(toy.target[each.result.tokens], abs=1e-9)
        assert each.result.logprob + each.result.log_z == pytest.approx(toy.log_p[each.result.tokens], abs=1e-9)
        assert re.fullmatch(toy.pattern, each.result.text)
        assert each.result.unscored == 0
    assert found.best().tokens == toy.ranking[0]
    assert not found.lossless


@pytest.mark.parametrize("name", ["palindromes", "one eos, [abc]{1,4}, 4 tokens", "no eos, (ab|c)*a?, 3 tokens"])
def test_all_of_them_come_up_in_order(name: str) -> None:
    toy = TOYS[name]
    found = toy.samples(ExactBest(n=10_000))
    assert [each.result.tokens for each in found.samples] == toy.ranking
    assert len(toy.ranking) > 4


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_choices_that_were_not_kept_are_asked_for_again(kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(best_first, "_MAX_CHOICES", kept)
    toy = TOYS["one eos, [abc]{1,4}, 4 tokens"]
    assert [each.result.tokens for each in toy.samples(ExactBest(n=10_000)).samples] == toy.ranking


def test_ties_go_to_the_lower_ids() -> None:
    """Two tokens that spell the same have the same logits, and so do two orders of the same tokens."""

    class Flat(Unpacked):
        def start(self) -> Any:  # type: ignore[override]
            return FlatSession()

    class FlatSession:
        length = forwards = 0

        def extend(self, tokens: Sequence[int]) -> Any:
            return np.array([1.0, 0.5, 0.5, 0.5], dtype=np.float32)

        def truncate(self, length: int) -> None: ...
        def close(self) -> None: ...
        def fork(self) -> FlatSession:
            return FlatSession()

    vocabulary = Vocabulary([b"", b"b", b"a", b"a"], eos=[0])
    toy = Toy("[ab]{2}", 3, vocabulary)
    flat = Flat(HashModel(vocabulary))
    del flat.start
    toy.__dict__["model"] = flat
    found = toy.samples(ExactBest(n=4))
    assert [each.result.tokens for each in found.samples] == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert len({each.score for each in found.samples}) == 1


@pytest.mark.parametrize("seed", range(12))
def test_only_what_is_more_probable_is_run_through_the_model(seed: int) -> None:
    """With one sequence per pass, exactly the prefixes that are more probable than the best output are run."""
    toy = unpacked(Toy("[abc]{2,4}", 4, seed=seed))
    best = toy.target[toy.ranking[0]]
    prompt_distribution = {
        tokens: sum(toy.choices(tokens[:n])[tokens[n]] for n in range(len(tokens))) for tokens in toy.prefixes
    }
    needed = sum(log_p > best for log_p in prompt_distribution.values())
    with toy.branches() as branches:
        search = BestFirst(branches, limit=needed)
        assert next(search).branch.hypothesis.tokens == toy.ranking[0]
        assert search.expanded == needed
        assert branches.forwards == needed
    assert needed < len(toy.prefixes) / 2


def test_greedy_choices_would_not_do() -> None:
    """A control: the most probable output differs from the greedy one."""
    different = 0
    for seed in range(20):
        toy, greedy = Toy("[abc]{1,4}", 4, seed=seed), ()
        while (token := max(toy.choices(greedy), key=lambda t: toy.choices(greedy)[t])) != -1:
            greedy = (*greedy, token)
        best = toy.samples(ExactBest()).best().tokens
        different += best != greedy
        assert toy.target[best] >= toy.target[greedy]
    assert different > 3


@pytest.mark.parametrize("make", [lambda toy: toy, unpacked])
def test_a_limit_that_is_too_low_says_so(make: Any) -> None:
    toy = make(Toy("[abc]{2,4}", 4, seed=1))
    with pytest.raises(LimitExceeded, match=r"best-first search: more than limit=2 would be needed; .* raise limit"):
        toy.samples(ExactBest(limit=2))


def test_more_parallel_passes_change_nothing() -> None:
    for seed in range(6):
        packed, single = Toy("[abc]{2,4}", 4, seed=seed), unpacked(Toy("[abc]{2,4}", 4, seed=seed))
        first, second = packed.samples(ExactBest(n=3)), single.samples(ExactBest(n=3))
        assert [each.result.tokens for each in first.samples] == [each.result.tokens for each in second.samples]
        assert first.forwards < second.forwards


def test_a_bound_on_scores() -> None:
    """With a bound, outputs with positive scores are found; any score above it is an error, even off the best path."""
    toy = Toy("[abc]{1,3}", 3, seed=4, score=lambda text: 2.0 * text.count("c"))
    found = toy.samples(ExactBest(n=3, score_bound=6.0))
    assert [each.result.tokens for each in found.samples] == toy.ranking[:3]
    assert toy.ranking[:3] != Toy("[abc]{1,3}", 3, seed=4).ranking[:3]
    with pytest.raises(GenerationError, match=r"a score above score_bound=0; .*set score_bound"):
        toy.samples(ExactBest(n=100))


@pytest.mark.parametrize("seed", range(8))
def test_an_exact_heuristic_leads_straight_to_the_best(seed: int) -> None:
    toy = unpacked(Toy("[abc]{2,4}", 4, seed=seed, always=few_b))

    def rest(branch: Branch) -> float:
        """The largest amount that the rest of an output can add to a prefix."""
        tokens = branch.hypothesis.tokens
        totals = [total for output, total in toy.target.items() if output[: len(tokens)] == tokens]
        return max(totals, default=-math.inf) - toy.log_p_before(tokens)

    with toy.branches() as branches:
        found = [each.branch.hypothesis.tokens for each in islice(BestFirst(branches, limit=100, heuristic=rest), 3)]
    assert found == toy.ranking[:3]
    with toy.branches() as branches:
        search = BestFirst(branches, limit=100, heuristic=rest)
        best = next(search).branch.hypothesis.tokens
    assert search.expanded == len(best) + 1


def test_branching_looks_at_the_most_probable_alone() -> None:
    toy = Toy("[abc]{1,4}", 4, seed=2)
    with toy.branches() as branches:
        found = [each.branch.hypothesis.tokens for each in BestFirst(branches, limit=100, branching=1)]
    greedy: tuple[int, ...] = ()
    while (token := max(toy.choices(greedy), key=lambda t: toy.choices(greedy)[t])) != -1:
        greedy = (*greedy, token)
    assert found == [greedy]


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_heuristic_that_is_no_number_is_refused(value: float) -> None:
    with Toy().branches() as branches, pytest.raises(GenerationError, match=r"heuristic: it gives (nan|inf)"):
        BestFirst(branches, limit=9, heuristic=lambda branch: value)


def test_nothing_is_left_where_everything_is_forbidden() -> None:
    found = Toy("[abc]{1,2}", 2, score=lambda text: False).samples(ExactBest())
    assert found.samples == ()
    with pytest.raises(GenerationError, match="weights are zero"):
        found.best()


def test_large_vocabularies_are_looked_at_lazily() -> None:
    """Of 600 tokens that may follow anything, few are ever made into prefixes."""
    vocabulary = Vocabulary([b"", b"a", b"b", *(f"{number:04d}".encode() for number in range(600))], eos=[0])
    toy = Toy("([0-9]{4}){1,3}", 3, vocabulary, seed=1)
    found = toy.samples(ExactBest(limit=20_000))
    assert found.tokens < 6 * found.forwards  # up to four prefixes share a pass


@pytest.mark.parametrize("arguments", [{"limit": 0}, {"n": 0}, {"limit": 2.5}, {"score_bound": math.inf}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"ExactBest: {next(iter(arguments))} must be"):
        ExactBest(**arguments)


def test_it_says_what_it_is() -> None:
    assert (ExactBest.lossless, ExactBest.takes_best) == (False, True)
    assert "most probable" in ExactBest.target
