"""The common behaviour of all strategies: protocol, several EOS ids or none, tight budgets, seeds."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from structgen.decode import Greedy, Multinomial, generate
from structgen.decode.sampling import SequenceSampler, sample
from structgen.engine import Vocabulary
from structgen.frontends.regex import regex
from structgen.methods.strategies import (
    AdaDec,
    AStar,
    Boundary,
    Cautious,
    Decide,
    FirstFinish,
    Foresight,
    QualityBeam,
    Superposed,
    Thinking,
    TransferQ,
)
from structgen.models import HashModel


def length(hypothesis: Any) -> float:
    return float(len(hypothesis.text))


STRATEGIES: list[Any] = [
    AStar(),
    AStar(lambda hypothesis: 0.0),
    AStar(lambda hypothesis: -length(hypothesis), admissible=False),
    AdaDec(0.1, lookahead=2),
    Cautious(0.1, 0.2, trials=4),
    Cautious(0.0, 0.0, trials=3, boundary=Boundary(most=1), sampler=Multinomial(temperature=2.0)),
    Decide(),
    Decide(tolerance=0.1),
    FirstFinish(3),
    FirstFinish(3, until=lambda hypothesis: "b" in hypothesis.text),
    Foresight(beams=2, rollouts=2, ahead=2),
    QualityBeam(length, beams=2),
    Thinking(1, end="b"),
    Superposed(),
    Superposed(1),
    Superposed(4, candidates=2),
    TransferQ(length, candidates=2),
    TransferQ(length, candidates=3, completions=3, policy=Multinomial(), sampler=Multinomial()),
]
NAMES = [f"{type(each).__name__}-{index}" for index, each in enumerate(STRATEGIES)]
PATTERN = "(a|b|ab|ba|abb){1,2}"
TOKENS = [b"a", b"b", b"ab", b"ba"]
VOCABULARIES = [
    Vocabulary([b"", *TOKENS], eos=[0]),
    Vocabulary([*TOKENS, b"", b"", b""], eos=[4, 6], special={5: "<|end|>"}),
    Vocabulary(TOKENS, eos=[]),
]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
@pytest.mark.parametrize("vocabulary", VOCABULARIES, ids=["one EOS", "several", "none"])
def test_outputs_are_members_whatever_ends_them(strategy: Any, vocabulary: Vocabulary) -> None:
    grammar = regex(PATTERN) if vocabulary.eos else regex("(a|b){3}")
    pattern = PATTERN if vocabulary.eos else "[ab]{3}"
    least = 1 if vocabulary.eos else 2
    for seed, budget in itertools.product(range(6), range(least, 6)):
        model = HashModel(vocabulary, seed=seed)
        sampled = sample(model, "ab", grammar, sampler=strategy, max_tokens=budget, seed=seed)
        again = sample(model, "ab", grammar, sampler=strategy, max_tokens=budget, seed=seed)
        assert sampled.samples
        assert [each.result.tokens for each in sampled.samples] == [each.result.tokens for each in again.samples]
        weights = [each.log_weight for each in sampled.samples]
        assert weights == sorted(weights, reverse=True)
        for result in sampled.results:
            assert re.fullmatch(pattern, result.text)
            assert len(result.tokens) <= budget
            log_p = float(sum(step.logprob + (step.log_z or 0.0) for step in result.steps))
            assert log_p == pytest.approx(log_prob(model, result.tokens, stops=bool(vocabulary.eos)))


def log_prob(model: HashModel, tokens: tuple[int, ...], *, stops: bool) -> float:
    """The model's own log-probability of an output and its stop, in one pass."""
    import numpy as np

    start = model.encode_prompt("ab")
    logits = model.start().extend_all([*start, *tokens]).astype(np.float64)[len(start) - 1 :]
    distribution = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
    total = sum(float(distribution[at, token]) for at, token in enumerate(tokens))
    return total + (float(np.logaddexp.reduce(distribution[-1, list(model.vocabulary.eos)])) if stops else 0.0)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_it_is_a_sampler_of_outputs_that_says_what_it_is(strategy: Any) -> None:
    assert isinstance(strategy, SequenceSampler)
    assert strategy.lossless is False
    assert strategy.takes_best
    assert strategy.target
    sampled = sample(HashModel(VOCABULARIES[0]), "ab", regex(PATTERN), sampler=strategy, max_tokens=4)
    assert not sampled.lossless
    assert sampled.log_evidence is None
    result = generate(HashModel(VOCABULARIES[0]), "ab", regex(PATTERN), sampler=strategy, max_tokens=4)
    assert result.tokens == sampled.best().tokens


@pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
def test_what_potentials_forbid_never_comes_up(strategy: Any) -> None:
    """A strategy may find nothing where only the end shows what is forbidden; none writes it."""
    for seed in range(8):
        model = HashModel(VOCABULARIES[0], seed=seed)
        early = sample(
            model, "ab", regex(PATTERN), sampler=strategy, potentials=[lambda text: "bb" not in text], max_tokens=4
        )
        for result in early.results:
            assert "bb" not in result.text
        nothing = sample(model, "ab", regex(PATTERN), sampler=strategy, potentials=[lambda text: False], max_tokens=3)
        assert nothing.samples == ()


def test_caches_are_freed() -> None:
    """Every session that a run opens is closed or empty at its end."""
    opened: list[Any] = []

    def track(session: Any) -> None:
        original = session.fork

        def fork() -> Any:
            copy = original()
            opened.append(copy)
            track(copy)
            return copy

        session.fork = fork

    class Counted(HashModel):
        def start(self) -> Any:
            session = super().start()
            opened.append(session)
            track(session)
            return session

    for strategy in STRATEGIES:
        opened.clear()
        sample(Counted(VOCABULARIES[0], seed=2), "ab", regex(PATTERN), sampler=strategy, max_tokens=4)
        assert opened
        assert all(session.length == 0 for session in opened), strategy


def test_a_greedy_sampler_may_be_given() -> None:
    for strategy in (Cautious(sampler=Greedy()), FirstFinish(sampler=Greedy()), Thinking(end="b", sampler=Greedy())):
        seeds = {
            sample(HashModel(VOCABULARIES[0]), "ab", regex(PATTERN), sampler=strategy, max_tokens=4, seed=seed)
            .best()
            .tokens
            for seed in range(5)
        }
        assert len(seeds) == 1
