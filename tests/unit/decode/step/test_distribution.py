"""The distribution of the next token, against sums over the whole vocabulary."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
from toy_outputs import NO_EOS, ONE_EOS, STOP, TWO_EOS, Toy

from structgen.decode.potentials import Hypothesis, Potential
from structgen.decode.sampling import Branches, Problem
from structgen.decode.step.distribution import BARE_END, Distribution, descending
from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.models import HashModel
from structgen.samplers import Lookahead, NGram

HIGH_EOS = Vocabulary([b"a", b"b", b"", b"c", b""], eos=[2, 4])


class Told(Potential):
    """Adds a score to each token, and a different one to each EOS id."""

    def __init__(self, added: list[float], masked: tuple[int, ...] = ()) -> None:
        self._added = np.array(added)
        self._row = np.full(1, -1, dtype=np.int32)
        for token in masked:
            self._row[0] &= ~(1 << token)

    def prefix(self, hypothesis: Hypothesis, /) -> float:
        return 0.0

    def complete(self, hypothesis: Hypothesis, /) -> float:
        return 0.0

    def logw_next(self, hypothesis: Hypothesis, /) -> Any:
        return self._added

    def allowed(self, hypothesis: Hypothesis, /) -> Any:
        return self._row


def branches_of(vocabulary: Vocabulary, pattern: str, *potentials: Potential, max_tokens: int = 4) -> Branches:
    model = HashModel(vocabulary, seed=5)
    problem = Problem(model, (0,), compile(regex(pattern), vocabulary), potentials, max_tokens)
    return Branches(problem)


@pytest.mark.parametrize("vocabulary", [ONE_EOS, TWO_EOS, HIGH_EOS, NO_EOS], ids=["one", "two", "high", "none"])
def test_the_stop_is_one_choice_of_the_probability_of_all_eos_ids(vocabulary: Vocabulary) -> None:
    eos = sorted(vocabulary.eos)
    with branches_of(vocabulary, "[abc]*") as branches:
        root = branches.root()
        (logits,) = branches.logits([root])
        p = np.exp(logits.astype(np.float64))
        p /= p.sum()
        for distribution in (
            branches.distribution(root, logits),
            branches.distribution(root, logits, branches.masks.all_ids),
        ):
            assert distribution.ids.tolist() == [token for token in range(vocabulary.size) if token not in eos[1:]]
            assert distribution.ids.dtype == np.int32
            wanted = [p[eos].sum() if token in eos else p[token] for token in distribution.ids.tolist()]
            assert np.exp(distribution.log_p) == pytest.approx(wanted, abs=1e-12)
            assert (distribution.log_p <= 0).all()
            assert math.exp(distribution.log_z) == pytest.approx(1, abs=1e-12)
            assert distribution.stop == (eos[0] if eos else None)
            assert not distribution.is_forced
            assert not distribution.ends
            for index, token in enumerate(distribution.ids.tolist()):
                assert distribution.index(token) == index
                step = distribution.step(index)
                assert step.token == (None if token in eos else token)
                assert step.logprob == pytest.approx(math.log(wanted[index]), abs=1e-9)
        assert len(branches.allowed(root)) == len(distribution)


def test_an_output_ends_without_eos_where_nothing_may_follow() -> None:
    with branches_of(NO_EOS, "ab") as branches:
        branch = branches.root()
        for _ in range(3):
            (logits,) = branches.logits([branch])
            distribution = branches.distribution(branch, logits)
            before = branch
            (branch,) = branches.take(branch, distribution, [0])
            if branch.finish_reason is not None:
                break
        assert (distribution.ids.tolist(), distribution.log_p.tolist(), distribution.log_z) == ([BARE_END], [0.0], 0.0)
        assert distribution.ends
        assert distribution.is_forced
        assert distribution.entropy == 0
        assert branches.is_stop(BARE_END)
        assert branch.hypothesis.data == b"ab"
        assert branch.path is before.path  # no step is added


def test_without_a_way_to_go_on_nothing_is_possible() -> None:
    with branches_of(ONE_EOS, "a+", Told([0.0] * 5, masked=(1,))) as branches:
        root = branches.root()
        (logits,) = branches.logits([root])
        distribution = branches.distribution(root, logits)
        assert (
            len(distribution),
            distribution.log_z,
            distribution.stop,
            distribution.is_possible,
            distribution.ends,
        ) == (0, -math.inf, None, False, False)
        assert distribution.entropy == 0
        assert branches.take(root, distribution, []) == []


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("masked", [(), (2,), (4,), (0,)])
def test_what_tokens_are_sampled_from_and_their_weights(masked: tuple[int, ...], looks: bool) -> None:
    """Tilts of EOS ids count each with its probability; weights correct for any tilts."""
    added = [0.3, -1.0, 0.5, -math.inf, -0.25]
    lookahead = Lookahead(NGram.of_texts(["ab", "ba"]), strength=1.0).start() if looks else None
    with branches_of(HIGH_EOS, "[abc]*", Told(added, masked)) as branches:
        branches.expectation = lookahead
        root = branches.root()
        (logits,) = branches.logits([root])
        p = np.exp(logits.astype(np.float64))
        p /= p.sum()
        distribution = branches.distribution(root, logits)
        stop = 4 if 2 in masked else 2  # either remaining id stands for both
        assert distribution.ids.tolist() == sorted({0, 1, 3, stop} - set(masked))
        merged = p * np.exp(added)
        weight = {0: merged[0], 1: merged[1], stop: merged[2] + merged[4], 3: 0.0}
        if lookahead is not None:
            plain = np.array([p[[2, 4]].sum() if token == stop else p[token] for token in distribution.ids.tolist()])
            tilts = lookahead.tilts(root, distribution.ids.astype(np.intp), np.log(plain))
            weight = {token: weight[token] * math.exp(tilts[at]) for at, token in enumerate(distribution.ids.tolist())}
            assert np.ptp(tilts) > 0
        wanted = np.array([weight[token] for token in distribution.ids.tolist()])
        wanted /= wanted.sum()
        assert np.exp(distribution.log_q) == pytest.approx(wanted, abs=1e-12)
        assert distribution.weights() / distribution.weights().sum() == pytest.approx(wanted, abs=1e-12)
        assert distribution.entropy == pytest.approx(-sum(q * math.log(q) for q in wanted if q))
        for index in np.flatnonzero(wanted).tolist():
            assert wanted[index] * math.exp(distribution.log_weight(index)) == pytest.approx(
                math.exp(distribution.log_p[index])
            )
        untilted = branches.distribution(root, logits, tilted=False)
        assert untilted.tilt is None
        assert np.array_equal(untilted.log_p, distribution.log_p)
        kept = np.array([token in (1, stop) for token in distribution.ids.tolist()])
        rest = distribution.only(kept)
        assert rest.ids.tolist() == distribution.ids[kept].tolist()
        assert np.exp(rest.log_q) == pytest.approx(wanted[kept] / wanted[kept].sum(), abs=1e-12)
        assert math.exp(rest.log_z) == pytest.approx(float(np.exp(distribution.log_p[kept]).sum()))
        assert rest.stop == stop
        assert distribution.only(distribution.ids == 1).is_forced
        assert distribution.only(distribution.ids == 1).stop is None


def test_a_distribution_says_the_same_as_a_toy_gone_through() -> None:
    """In every prefix of toys with a budget it agrees; where no token is left the steps stay the same."""
    for vocabulary in (ONE_EOS, TWO_EOS, NO_EOS):
        toy, rng = Toy("a[abc]{0,2}b|ccc|b", 3, vocabulary, seed=2), random.Random(1)
        with toy.branches() as branches:
            root = branches.root()
            branches.drop(root)
            known = [root]
            while known:
                branch = known.pop(rng.randrange(len(known)))
                (logits,) = branches.logits_at([branch])
                distribution = branches.distribution(branch, logits)
                wanted = toy.choices(branch.hypothesis.tokens)
                assert {STOP if token == toy.stop else token for token in distribution.ids.tolist()} == set(wanted)
                for index, token in enumerate(distribution.ids.tolist()):
                    log_p = float(distribution.log_p[index])
                    assert log_p == pytest.approx(wanted[STOP if token == toy.stop else token], abs=1e-6)
                    assert distribution.blank().step_of(token, log_p) == distribution.step(index)
                    child = branches.grown(branch, distribution.blank(), token, log_p)
                    assert (child.finish_reason is not None) == branches.is_stop(token)
                    if child.finish_reason is None:
                        known.append(child)


def test_ranks_are_those_of_a_sort() -> None:
    """1,000 distributions with ties and impossible tokens."""
    rng = random.Random(3)
    for _ in range(1000):
        size = rng.randint(1, 12)
        keys = [rng.choice([-math.inf, -3.0, -2.0, -1.0, -0.5]) for _ in range(size)]
        wanted = sorted(range(size), key=lambda index: (-keys[index], index))
        first = rng.randint(1, 14)
        assert list(descending(np.array(keys), first)) == wanted
        distribution = Distribution.of(np.arange(size, dtype=np.int32), np.array(keys) - 5, stop=size - 1)
        ranked = distribution.ranked(first)
        assert ranked.ids.tolist() == wanted[:first]
        assert ranked.log_p.tolist() == [keys[index] - 5 for index in wanted[:first]]
        if distribution.is_possible and keys[wanted[0]] > -math.inf:
            assert ranked.step(0) == distribution.step(wanted[0])
