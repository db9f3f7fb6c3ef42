"""Expectations of prefixes, against enumeration of all texts."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest
from exact_target import exact_target, log_total

from structgen.decode.sampling import SMC, Branch, Branches, Problem, sample
from structgen.decode.step.context import Context
from structgen.decode.step.result import Step
from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.methods.samplers.ngram_lookahead import END
from structgen.models import HashModel
from structgen.samplers import Lookahead, NGram

VOCABULARY = Vocabulary([b"", b"a", b"b", b"c", b"ab"], eos=[0])
TEXTS = ["abab", "abc", "b", "cab", "abab"]


def test_distributions_are_normalised_and_smoothed_as_stated() -> None:
    ngram = NGram.of_texts(TEXTS, order=2)
    for context in (b"", b"a", b"z"):
        distribution = ngram.distribution(context)
        assert distribution.shape == (257,)
        assert distribution.sum() == pytest.approx(1)
        assert (distribution > 0).all()
    # Six of a, then b: one kind; 7 of b, then a (2), c (1), end (4): three kinds. All symbols: a 6, b 7, c 2, end 5.
    unigram = np.full(257, (4 / 24) / 257)
    for symbol, count in ((ord("a"), 6), (ord("b"), 7), (ord("c"), 2), (END, 5)):
        unigram[symbol] += count / 24
    assert ngram.distribution(b"") == pytest.approx(unigram)
    after_a = unigram / 7
    after_a[ord("b")] += 6 / 7
    assert ngram.distribution(b"a") == pytest.approx(after_a)
    assert ngram.distribution(b"z") == pytest.approx(unigram)
    assert NGram().distribution(b"x") == pytest.approx(np.full(257, 1 / 257))
    assert NGram().context(b"abc") == b"bc"
    assert NGram(order=1).context(b"abc") == b""
    with pytest.raises(ValueError, match="order must be at least 1"):
        NGram(order=0)
    with pytest.raises(ValueError, match="must not be negative"):
        NGram([(b"a", -1.0)])


def test_the_model_of_a_vocabulary_knows_its_tokens() -> None:
    vocabulary = Vocabulary([b"the", b"then", b"zq", b"", b"that"], eos=[3])
    distribution = NGram.of_vocabulary(vocabulary, order=2).distribution(b"t")
    assert distribution.argmax() == ord("h")
    assert distribution[ord("h")] > 4 * np.sort(distribution)[-2]


def expected(ngram: NGram, pattern: str, begun: bytes, horizon: int) -> float:
    """By enumeration of all texts: those that end in the language, and those of full length that still may."""
    total = 0.0
    for length in range(horizon + 1):
        for letters in itertools.product(b"abc", repeat=length):
            text = begun
            chance = 1.0
            for letter in letters:
                chance *= float(ngram.distribution(ngram.context(text))[letter])
                text += bytes([letter])
            if length == horizon:
                tails = itertools.chain.from_iterable(itertools.product("abc", repeat=n) for n in range(7))
                lives = any(re.fullmatch(pattern, text.decode() + "".join(tail)) for tail in tails)
                total += chance * lives
            elif re.fullmatch(pattern, text.decode()):
                total += chance * float(ngram.distribution(ngram.context(text))[END])
    return total


def reached(branches: Branches, tokens: tuple[int, ...]) -> Branch:
    branch = branches.root()
    for token in tokens:
        (branch,) = branches.split(branch, [Step(token, False, 0.0, 0.0)], [0.0])
    return branch


@pytest.mark.exhaustive
@pytest.mark.parametrize("pattern", ["a{4}|(b|c)(a|b|c){2,3}", "(ab|c)*", "[abc]{0,3}", "(a|b)*c"])
@pytest.mark.parametrize("order", [1, 2, 3])
def test_expectations_are_those_of_all_texts(pattern: str, order: int) -> None:
    ngram = NGram.of_texts(TEXTS, order=order)
    constraint = compile(regex(pattern), VOCABULARY)
    model = HashModel(VOCABULARY)
    with Branches(Problem(model, (1,), constraint, (), 6), Context(model, [1])) as branches:
        matched = [
            tokens
            for tokens in [(), (2,), (1,), (3, 1), (4,), (3,)]
            if constraint.matcher().validate(tokens) == len(tokens)
        ]
        for horizon in (1, 2, 4):
            expectation = Lookahead(ngram, horizon=horizon, strength=1.0).start()
            for tokens in matched:
                branch = reached(branches, tokens)
                right = expected(ngram, pattern, branch.hypothesis.data, horizon)
                assert expectation.log_h(branch) == pytest.approx(math.log(right))
                half = Lookahead(ngram, horizon=horizon, strength=0.5).start()
                assert half.log_h(branch) == pytest.approx(math.log(right) / 2)


def test_tilts_are_the_expectations_after_each_token() -> None:
    ngram = NGram.of_texts(TEXTS)
    constraint = compile(regex("a{4}|(b|c)(a|b|c){2,3}"), VOCABULARY)
    model = HashModel(VOCABULARY)
    with Branches(Problem(model, (1,), constraint, (), 6), Context(model, [1])) as branches:
        root = branches.root()
        ids = np.array([1, 2, 3, 4])
        log_p = np.log([0.1, 0.2, 0.3, 0.4])
        wide = Lookahead(ngram, strength=1.0).start()
        after = [wide.log_h(reached(branches, (token,))) for token in (1, 2, 3)]
        tilts = wide.tilts(root, ids, log_p)
        assert tilts[:3] == pytest.approx(after)
        # Token 4, "ab", is dead: it has no expectation and counts like the others.
        assert tilts[3] == pytest.approx(np.dot([0.1, 0.2, 0.3], after) / 0.6)
        narrow = Lookahead(ngram, strength=1.0, width=2).start().tilts(root, ids[:3], log_p[:3])
        assert narrow[1:] == pytest.approx(after[1:])
        assert narrow[0] == pytest.approx(np.dot([0.2, 0.3], after[1:]) / 0.5)


def test_beyond_the_limit_nothing_is_known_against_a_state() -> None:
    constraint = compile(regex("[abc]{0,60}"), VOCABULARY)
    model = HashModel(VOCABULARY)
    with Branches(Problem(model, (1,), constraint, (), 60), Context(model, [1])) as branches:
        root = branches.root()
        assert Lookahead(horizon=50, strength=1.0, limit=1).start().log_h(root) == pytest.approx(math.log(4 / 257))
        assert Lookahead(horizon=50, strength=1.0, limit=9999).start().log_h(root) < math.log(4 / 257)
        assert Lookahead(strength=0).start().log_h(root) == 0


@pytest.mark.exhaustive
def test_a_good_draft_makes_estimates_vary_less() -> None:
    """Over 60 runs each, the spread of the evidence falls by at least a third."""
    model = HashModel(VOCABULARY, seed=1)
    pattern = "a{4}|(b|c)(a|b|c){2,3}"
    constraint = compile(regex(pattern), VOCABULARY)
    target = exact_target(model, "ab", pattern, 4)
    fitted = NGram.of_texts([VOCABULARY.decode(output) for output in target], order=3)
    spread = {}
    for name, lookahead in (("without", None), ("with", Lookahead(fitted, strength=1.0))):
        sampler = SMC(8, lookahead=lookahead)
        found = [sample(model, "ab", constraint, sampler=sampler, max_tokens=4, seed=seed) for seed in range(60)]
        values = [math.exp((each.log_evidence or 0.0) - log_total(target)) for each in found]
        spread[name] = float(np.sqrt(np.mean((np.array(values) - 1) ** 2)))
    assert spread["with"] < 0.7 * spread["without"]


@pytest.mark.parametrize(
    "arguments", [{"horizon": 0}, {"width": 0}, {"limit": 0}, {"strength": 1.5}, {"strength": math.nan}]
)
def test_numbers_out_of_range_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Lookahead: "):
        Lookahead(**arguments)  # type: ignore[arg-type]
