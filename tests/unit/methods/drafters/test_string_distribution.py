"""The distribution of the first target token of a text.

It is compared with an enumeration of texts and with sums over tokenizations.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest

from structgen.engine import Vocabulary
from structgen.methods.drafters.string_rejection import NextTokenDistribution, TokenPrefixes, string_distribution

LETTERS = b"abc"
# Tokens of the target and of the draft model; the first id of each is EOS.
PAIRS = {
    "finer": ([b"", b"a", b"b", b"c", b"ab", b"abc", b"bca"], [b"", b"a", b"b", b"c"]),
    "coarser": ([b"", b"a", b"b", b"c"], [b"", b"a", b"b", b"c", b"ab", b"abc", b"cab"]),
    "crossing": ([b"", b"a", b"b", b"c", b"abc", b"bb", b"cab"], [b"", b"a", b"b", b"c", b"ab", b"bc", b"ca", b"aa"]),
    "twice": ([b"", b"a", b"b", b"c", b"aa", b"aa", b"aaaa"], [b"", b"a", b"b", b"c", b"a", b"aa", b"aab"]),
}
BOUNDS = list(itertools.product((1, 2), (1, 2), (1, 2), (0.0, 0.3)))
UNBOUNDED: dict[str, Any] = {"contexts": None, "tokens": None, "depth": None, "least": 0.0}


def vocabularies(name: str) -> tuple[Vocabulary, Vocabulary]:
    target, draft = PAIRS[name]
    return Vocabulary(target, eos=[0]), Vocabulary(draft, eos=[0])


def model(size: int, seed: int) -> Any:
    """A distribution over draft tokens that depends on all earlier tokens; some tokens have probability zero."""

    @cache
    def distribution(context: tuple[int, ...]) -> NextTokenDistribution:
        random = np.random.default_rng([seed, *context])
        ids = np.sort(random.choice(size, size=int(random.integers(2, size + 1)), replace=False))
        return NextTokenDistribution(ids, random.dirichlet(np.ones(len(ids))))

    return distribution


def by_texts(distribution: Any, target: Vocabulary, draft: Vocabulary, most: int) -> Counter[int]:
    """Write texts token by token until they are longer than every token, and take the longest target token off each."""
    found: Counter[int] = Counter()
    pending: list[tuple[tuple[int, ...], bytes, float]] = [((), b"", 1.0)]
    while pending:
        context, text, mass = pending.pop()
        following = distribution(context)
        for token, p in zip(following.ids.tolist(), following.p.tolist(), strict=True):
            longer = text + draft.tokens[token]
            if token not in draft.eos and len(longer) < most:
                pending.append(((*context, token), longer, mass * p))
                continue
            fitting = [(len(piece), -i) for i, piece in enumerate(target.tokens) if piece and longer.startswith(piece)]
            found[-max(fitting)[1] if fitting else 0] += mass * p
    return found


def prefix(distribution: Any, draft: Vocabulary, text: bytes, context: tuple[int, ...] = ()) -> float:
    """The probability that the written text begins with ``text``: the sum over all its tokenizations."""
    if not text:
        return 1.0
    following = distribution(context)
    total = 0.0
    for token, p in zip(following.ids.tolist(), following.p.tolist(), strict=True):
        piece = draft.tokens[token]
        if piece.startswith(text) and piece:
            total += p
        elif piece and text.startswith(piece):
            total += p * prefix(distribution, draft, text[len(piece) :], (*context, token))
    return total


def asked(distribution: Any) -> Any:
    return lambda contexts: [distribution(tuple(context)) for context in contexts]


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(6))
def test_without_bounds_it_is_the_distribution_of_texts(name: str, seed: int) -> None:
    """It equals an enumeration of all texts; it sums to 1, since every letter is a token of the target."""
    target, draft = vocabularies(name)
    distribution = model(draft.size, seed)
    found = string_distribution(asked(distribution), TokenPrefixes(target, draft), target, draft, **UNBOUNDED)
    assert found is not None
    expected = by_texts(distribution, target, draft, most=4)
    assert found.tolist() == pytest.approx([expected[token] for token in range(target.size)], abs=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(6))
def test_it_is_a_difference_of_sums_over_tokenizations(name: str, seed: int) -> None:
    """It is the probability of a start with the token, minus that of a longer token: sums over all tokenizations."""
    target, draft = vocabularies(name)
    distribution = model(draft.size, seed)
    found = string_distribution(asked(distribution), TokenPrefixes(target, draft), target, draft, **UNBOUNDED)
    assert found is not None
    pieces = sorted({piece for piece in target.tokens if piece})
    for piece in pieces:
        longer = [other for other in pieces if other.startswith(piece) and other != piece]
        nearest = [other for other in longer if not any(other.startswith(x) and other != x for x in longer)]
        expected = prefix(distribution, draft, piece) - sum(prefix(distribution, draft, other) for other in nearest)
        assert found[target.tokens.index(piece)] == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize(
    ("contexts", "tokens", "depth", "least"), itertools.product((1, 2), (1, 2), (1, 2), (0.0, 0.3))
)
def test_bounds_move_mass_to_shorter_tokens(name: str, contexts: int, tokens: int, depth: int, least: float) -> None:
    """It is still a distribution, and the model is asked no more often than the bound.

    The lost mass goes to shorter tokens.
    """
    target, draft = vocabularies(name)
    distribution = model(draft.size, 9)
    calls: list[int] = []

    def distributions(wanted: Sequence[tuple[int, ...]]) -> list[NextTokenDistribution]:
        calls.append(len(wanted))
        return [distribution(tuple(context)) for context in wanted]

    table = TokenPrefixes(target, draft)
    found = string_distribution(
        distributions, table, target, draft, contexts=contexts, tokens=tokens, depth=depth, least=least
    )
    exact = string_distribution(asked(distribution), table, target, draft, **UNBOUNDED)
    assert found is not None
    assert exact is not None
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1, abs=1e-12)
    assert calls[0] == 1
    assert len(calls) <= 1 + depth
    assert max(calls) <= contexts
    lengths = np.array([len(piece) for piece in target.tokens])
    assert found @ lengths <= exact @ lengths + 1e-12


def test_where_nothing_can_be_said_there_is_no_distribution() -> None:
    """At the start there is none at all; later the remaining mass stays with the token so far."""
    target, draft = vocabularies("finer")
    table = TokenPrefixes(target, draft)
    assert string_distribution(lambda contexts: [None], table, target, draft, **UNBOUNDED) is None
    first = NextTokenDistribution(np.array([1, 2]), np.array([0.25, 0.75]))
    found = string_distribution(
        lambda contexts: [None if context else first for context in contexts], table, target, draft, **UNBOUNDED
    )
    assert found is not None
    assert found.tolist() == [0, 0.25, 0.75, 0, 0, 0, 0]


def test_texts_that_no_token_begins_are_missing() -> None:
    """They have no probability, and no other token gets theirs."""
    target, draft = Vocabulary([b"", b"a", b"ab"], eos=[0]), Vocabulary([b"", b"a", b"b", b"c"], eos=[0])
    distribution = NextTokenDistribution(np.arange(4), np.array([0.1, 0.2, 0.3, 0.4]))
    found = string_distribution(
        lambda contexts: [distribution] * len(contexts), TokenPrefixes(target, draft), target, draft, **UNBOUNDED
    )
    assert found is not None
    assert found.tolist() == pytest.approx([0.1, 0.2 * 0.7, 0.2 * 0.3])
