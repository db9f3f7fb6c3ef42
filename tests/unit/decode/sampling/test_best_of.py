"""The best of several outputs: how they are sampled and scored, and which wins the vote.

Statistical tests have fixed seeds and an alpha below 1e-6; each states its number of draws.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import Any

import numpy as np
import pytest
from toy_outputs import Output, Toy, palindrome, toys

from structgen.decode import Result
from structgen.errors import GenerationError
from structgen.methods.samplers.best_of import BestOf, self_certainty

TOYS = toys()


def certainty_by_hand(toy: Toy, output: Output) -> float:
    """The mean over the choices of ``sum_v 1/V log(1/V / p_v)``, including the stop where the output has one."""
    found = []
    for length in range(len(output) + 1):
        if len(toy.choices(output[:length])) == 1:
            continue
        p = np.exp(toy.distribution(output[:length]))
        uniform = 1 / len(p)
        found.append(sum(uniform * math.log(uniform / each) for each in p))
    return sum(found) / len(found) if found else 0.0


@pytest.mark.parametrize("name", TOYS)
def test_self_certainty_is_that_of_the_model_where_there_is_a_choice(name: str) -> None:
    toy = TOYS[name]
    found = toy.samples(BestOf(100), seed=1)
    assert found.samples
    for each in found.samples:
        assert each.score == pytest.approx(certainty_by_hand(toy, each.result.tokens), abs=1e-6)
        assert each.result.tokens in toy.target
        assert re.fullmatch(toy.pattern, each.result.text)
        assert each.result.logprob + each.result.log_z == pytest.approx(toy.log_p[each.result.tokens], abs=1e-9)
    scores = [each.score for each in found.samples]
    assert scores == sorted(scores, reverse=True)
    assert found.best().tokens == found.samples[0].result.tokens


def test_masked_distributions_would_say_something_else() -> None:
    """A control: the same mean over masked distributions, or over forced places too, is another number."""
    toy = Toy("ca(b|c)ab?", 5, seed=1)
    output = toy.samples(BestOf(1)).best().tokens
    choices = [toy.choices(output[:n]) for n in range(len(output) + 1)]
    assert sum(len(each) == 1 for each in choices) >= 2
    right = certainty_by_hand(toy, output)
    masked = []
    for each in choices:
        log_p = np.array(list(each.values()))
        log_p -= np.logaddexp.reduce(log_p)
        if len(log_p) > 1:
            masked.append(-math.log(len(log_p)) - log_p.mean())
    everywhere = [self_certainty(toy.distribution(output[:n]).astype(np.float32)) for n in range(len(output) + 1)]
    assert abs(float(np.mean(masked)) - right) > 0.02
    assert abs(float(np.mean(everywhere)) - right) > 0.02
    assert toy.samples(BestOf(1)).samples[0].score == pytest.approx(right, abs=1e-6)


def test_self_certainty_of_simple_distributions() -> None:
    assert self_certainty(np.zeros(7, dtype=np.float32)) == pytest.approx(0.0, abs=1e-12)
    p = np.array([0.7, 0.2, 0.1])
    by_hand = sum(math.log(1 / 3 / each) for each in p) / 3
    logits = np.log(p).astype(np.float32)
    assert self_certainty(logits) == pytest.approx(by_hand, abs=1e-6)
    assert self_certainty(logits + np.float32(5)) == pytest.approx(by_hand, abs=1e-5)
    padded = np.concatenate((logits, np.full(4, -np.inf, dtype=np.float32)))
    assert self_certainty(padded) == pytest.approx(by_hand, abs=1e-6)
    assert self_certainty(np.array([-np.inf, 3.0], dtype=np.float32)) == 0.0


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name",
    [
        "one eos, [abc]{1,4}, 4 tokens",
        *(pytest.param(name, marks=pytest.mark.nightly) for name in ("no eos, (ab|c)*a?, 3 tokens", "few b, two eos")),
    ],
)
def test_outputs_are_those_of_locally_constrained_decoding(name: str) -> None:
    """Chi-square over 20,000 outputs, alpha 1e-6, accepts; for the target itself it fails.

    Without potentials the draws are stratified, which can only bring the counts nearer to their expectations.
    """
    toy = TOYS[name]
    draws = 20_000
    counts = Counter({each.result.tokens: each.particles for each in toy.samples(BestOf(draws)).samples})
    assert sum(counts.values()) == draws
    assert chi_square(counts, toy.lcd(), draws) < 0
    assert chi_square(counts, toy.normalised, draws) > 0


def chi_square(counts: Counter[Output], distribution: dict[Output, float], draws: int) -> float:
    """Pearson's statistic minus a bound that holds with probability 1 - 1e-6; rare outcomes are pooled."""
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


@pytest.mark.exhaustive
def test_side_by_side_each_comes_up_as_often() -> None:
    """The mean share of every output over 300 runs of 8 lies within 6 standard errors of its probability."""
    toy = Toy("[abc]{1,3}", 3, seed=6)
    runs = 300
    shares: dict[Output, list[float]] = {output: [] for output in toy.lcd()}
    for seed in range(runs):
        counts = Counter({each.result.tokens: each.particles for each in toy.samples(BestOf(8), seed=seed).samples})
        assert sum(counts.values()) == 8
        for output, values in shares.items():
            values.append(counts[output] / 8)
    for output, p in toy.lcd().items():
        error = max(float(np.std(shares[output])), math.sqrt(p * (1 - p) / 8)) / math.sqrt(runs)
        assert abs(float(np.mean(shares[output])) - p) < 6 * error


def test_they_share_their_prefixes() -> None:
    toy = Toy("[abc]{1,4}", 4, seed=6)
    found = toy.samples(BestOf(50))
    assert sum(each.particles for each in found.samples) == 50
    assert len({each.result.tokens for each in found.samples}) == len(found.samples)
    assert found.forwards <= 5
    assert found.tokens < 50 * 3


def test_other_scores() -> None:
    toy = Toy("[abc]{1,4}", 4, seed=6)
    by_model = toy.samples(BestOf(20, score="logprob"), seed=2)
    assert [each.score for each in by_model.samples] == pytest.approx(
        [toy.log_p[each.result.tokens] for each in by_model.samples]
    )
    mine = toy.samples(BestOf(20, score=lambda result: len(result.text)), seed=2)
    assert {each.result.tokens for each in mine.samples} == {each.result.tokens for each in by_model.samples}
    assert len(mine.best().text) == max(len(each.result.text) for each in mine.samples)
    without = toy.samples(BestOf(20, score=lambda r: -math.inf if "a" in r.text else 1.0), seed=2)
    assert {each.result.tokens for each in without.samples} == {
        each.result.tokens for each in mine.samples if "a" not in each.result.text
    }


def votes_by_hand(scores: list[tuple[float, Output, str, int]], power: float) -> dict[str, float]:
    """``(N - rank + 1) ** power`` for each of ``N`` outputs, copies included, summed by answer."""
    copies = [(-score, tokens, answer) for score, tokens, answer, count in scores for _ in range(count)]
    votes: dict[str, float] = {}
    for rank, (_, _, answer) in enumerate(sorted(copies), start=1):
        votes[answer] = votes.get(answer, 0.0) + (len(copies) - rank + 1) ** power
    return votes


@pytest.mark.parametrize("power", [0.0, 0.3, 1.2, 40.0])
def test_the_vote(power: float) -> None:
    toy = Toy("[abc]{1,4}", 4, seed=6)
    plain = toy.samples(BestOf(20), seed=3)
    voted = toy.samples(BestOf(20, vote=power, answer=lambda result: result.text[-1]), seed=3)
    scores = [(s.score, s.result.tokens, s.result.text[-1], s.particles) for s in plain.samples]
    votes = votes_by_hand(scores, power)
    winner = max(votes, key=lambda answer: votes[answer])
    assert len(votes) == 3
    assert voted.best().text[-1] == winner
    assert voted.best().tokens == min((-s, t) for s, t, answer, _ in scores if answer == winner)[1]
    for each in voted.samples:
        assert math.exp(each.log_weight) == pytest.approx(votes[each.result.text[-1]])
    if power == 0:  # a majority
        counts = Counter(dict.fromkeys("abc", 0))
        for _, _, answer, count in scores:
            counts[answer] += count
        assert votes == pytest.approx(dict(counts))
    if power == 40:  # the first alone
        assert voted.best().tokens == plain.best().tokens


def test_the_vote_may_overrule_the_score() -> None:
    """Otherwise the test above would prove nothing."""
    toy = Toy("[abc]{1,4}", 4, seed=6)
    different = 0
    for seed in range(20):
        first = toy.samples(BestOf(20), seed=seed).best()
        second = toy.samples(BestOf(20, vote=0.3, answer=lambda result: result.text[-1]), seed=seed).best()
        different += first.text[-1] != second.text[-1]
    assert different >= 2


def test_dead_ends_leave_outputs_out() -> None:
    toy = Toy("[abc]{3}", 3, seed=2, score=palindrome)
    found = toy.samples(BestOf(60), seed=1)
    assert 0 < sum(each.particles for each in found.samples) < 60
    assert all(palindrome(each.result.text) for each in found.samples)
    none = Toy("[abc]{1,2}", 2, score=lambda text: False).samples(BestOf(4))
    assert none.samples == ()
    with pytest.raises(GenerationError, match="all 4 weights are zero"):
        none.best()


def raises(result: Result) -> float:
    raise KeyError("x")


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (raises, r"score: it raised KeyError: 'x'; for '.+'; make it return a score"),
        (lambda result: math.nan, "score: it gives nan"),
        (lambda result: math.inf, "score: it gives inf"),
        (lambda result: "high", "score: it raised ValueError"),
    ],
)
def test_scores_that_are_no_numbers_are_errors(score: Any, message: str) -> None:
    with pytest.raises(GenerationError, match=message):
        Toy().samples(BestOf(2, score=score))


@pytest.mark.parametrize("arguments", [{"n": 0}, {"score": "loudness"}, {"vote": -1.0}, {"vote": math.nan}, {"n": 1.5}])
def test_arguments_out_of_range_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"BestOf: {next(iter(arguments))} must be"):
        BestOf(**arguments)


def test_it_says_what_it_is() -> None:
    assert (BestOf.lossless, BestOf.takes_best) == (False, True)
    assert "locally constrained" in BestOf.target
