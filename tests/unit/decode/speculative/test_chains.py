"""The distribution of whole sequences after a verified chain of drafts, by exact enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest
from verifier_outcomes import (
    Distribution,
    EveryChance,
    distribution_of,
    exact_distribution,
    masked,
    random_distribution,
    random_mask,
)

from structgen.decode.speculative.verifier import ChainVerifier, VerificationResult
from structgen.methods.verifiers.tree_verification import BlockVerification, ChainSampling

Tokens: TypeAlias = tuple[int, ...]
Distributions: TypeAlias = Callable[[Tokens], Distribution]
Verify: TypeAlias = Callable[[list[Distribution], list[Distribution], Tokens, EveryChance], VerificationResult]

VERIFIERS: list[ChainVerifier] = [ChainSampling(), BlockVerification()]
verifiers = pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda each: type(each).__name__)


class Toy:
    """A target and a drafter whose distributions depend on all earlier tokens, and a grammar that does, too.

    Those that are not sparse give every token positive probability, and allow every token.
    """

    def __init__(self, seed: int, size: int, length: int, *, sparse: bool = True) -> None:
        self.size, self.length = size, length
        rng = random.Random(seed)
        prefixes = [each for n in range(length + 1) for each in itertools.product(range(size), repeat=n)]
        self._masks = {each: random_mask(rng, size) if sparse else [True] * size for each in prefixes}
        self._targets = {each: random_distribution(rng, size, self._masks[each]) for each in prefixes}
        self._drafts = {each: random_distribution(rng, size) for each in prefixes}
        if not sparse:
            for distribution in (*self._targets.values(), *self._drafts.values()):
                distribution[:] = exact_distribution([rng.randint(1, 9) for _ in range(size)])

    def target(self, tokens: Tokens) -> Distribution:
        """The target's distribution, masked."""
        return self._targets[tokens]

    def draft(self, tokens: Tokens) -> Distribution:
        """The drafter's distribution, not masked."""
        return self._drafts[tokens]

    def masked_draft(self, tokens: Tokens) -> Distribution:
        """The drafter's distribution, masked; the target's own where the mask leaves nothing of it."""
        kept = masked(self._drafts[tokens], self._masks[tokens])
        return kept if kept.sum() else self._targets[tokens]

    def allows(self, tokens: Tokens, token: int) -> bool:
        return self._masks[tokens][token]

    def sequences(self) -> dict[Tokens, Fraction]:
        """The target's distribution over the sequences of positive probability."""
        found: dict[Tokens, Fraction] = {(): Fraction(1)}
        for _ in range(self.length):
            found = {
                (*tokens, token): each * p
                for tokens, each in found.items()
                for token, p in enumerate(self.target(tokens))
                if p
            }
        return found


def complete(toy: Toy, tokens: Tokens, chance: EveryChance) -> Tokens:
    """Complete a sequence without drafts."""
    while len(tokens) < toy.length:
        tokens = (*tokens, chance.draw(toy.target(tokens)))
    return tokens


def whole_chain(toy: Toy, verify: Verify, draft: Distributions, chance: EveryChance) -> tuple[Tokens, int]:
    """A verified chain of one token less than the output, and the rest from the target."""
    drafts: Tokens = ()
    q: list[Distribution] = []
    while len(drafts) < toy.length - 1:
        q.append(draft(drafts))
        drafts = (*drafts, chance.draw(q[-1]))
    p = [toy.target(drafts[:position]) for position in range(toy.length)]
    verification = verify(p, q, drafts, chance)
    assert verification.nodes == tuple(range(verification.accepted))
    return complete(toy, (*drafts[: verification.accepted], verification.token), chance), verification.accepted


def cut_chain(toy: Toy, verify: Verify, chance: EveryChance) -> Tokens:
    """Drafts from unmasked distributions, cut before the first refused token.

    They are verified over the allowed tokens alone.
    """
    drafts: Tokens = ()
    ids, p, q, ranks = [], [], [], []
    while True:
        allowed = [token for token in range(toy.size) if toy.allows(drafts, token)]
        ids.append(allowed)
        p.append(toy.target(drafts)[allowed])
        if len(drafts) == toy.length - 1:
            break
        distribution = toy.draft(drafts)
        token = chance.draw(distribution)
        if token not in allowed:
            break
        q.append(distribution[allowed] / distribution[allowed].sum())
        ranks.append(allowed.index(token))
        drafts = (*drafts, token)
    verification = verify(p, q, tuple(ranks), chance)
    return complete(toy, (*drafts[: verification.accepted], ids[verification.accepted][verification.token]), chance)


def sequences(toy: Toy, verify: Verify, draft: Distributions) -> dict[Tokens, Fraction]:
    return distribution_of(lambda chance: whole_chain(toy, verify, draft, chance)[0])


def mean_accepted(toy: Toy, verify: Verify, draft: Distributions) -> Fraction:
    found = distribution_of(lambda chance: whole_chain(toy, verify, draft, chance)[1])
    return sum((accepted * probability for accepted, probability in found.items()), Fraction(0))


@cache
def toys() -> list[Toy]:
    shapes = [(3, 3)] * 12 + [(2, 3)] * 16 + [(3, 2)] * 8 + [(2, 1), (1, 3)]
    dense = [Toy(seed, 3, 3, sparse=False) for seed in range(8)]
    return [*dense, *(Toy(seed, size, length) for seed, (size, length) in enumerate(shapes))]


@pytest.mark.exhaustive
@verifiers
def test_sequences_have_the_distribution_of_the_target(verifier: ChainVerifier) -> None:
    for toy in toys():
        assert sequences(toy, verifier.verify, toy.draft) == toy.sequences()
        assert sequences(toy, verifier.verify, toy.masked_draft) == toy.sequences()


@verifiers
def test_chains_that_the_grammar_cuts_have_it_too(verifier: ChainVerifier) -> None:
    for toy in toys():
        assert distribution_of(lambda chance, t=toy: cut_chain(t, verifier.verify, chance)) == toy.sequences()


def test_a_longer_chain_of_two_tokens() -> None:
    toy = Toy(99, 2, 4)
    for verifier in VERIFIERS:
        assert sequences(toy, verifier.verify, toy.draft) == toy.sequences()


@pytest.mark.exhaustive
def test_blocks_are_never_shorter_than_chains_and_often_longer() -> None:
    longer = 0
    for toy in toys():
        for draft in (toy.draft, toy.masked_draft):
            chain = mean_accepted(toy, ChainSampling().verify, draft)
            block = mean_accepted(toy, BlockVerification().verify, draft)
            assert block >= chain
            longer += block > chain
    assert longer > 20


def test_masking_the_drafts_of_a_chain_never_makes_it_shorter_at_its_first_token() -> None:
    """Later parts may be shorter, since other tokens are reached."""
    for toy in toys():
        p, mask = toy.target(()), [toy.allows((), token) for token in range(toy.size)]
        kept = masked(toy.draft(()), mask)
        assert not kept.sum() or np.minimum(p, kept).sum() >= np.minimum(p, toy.draft(())).sum()


def test_the_example_of_the_paper() -> None:
    """Two tokens have 1/3 and 2/3 for the target, 2/3 and 1/3 for the drafter, at every place.

    Of two drafts, verification token by token accepts 10/9, and by block 11/9, which is optimal.
    """
    p, q = exact_distribution([1, 2]), exact_distribution([2, 1])
    toy = Toy(0, 2, 3)
    toy.target = lambda tokens: p  # type: ignore[method-assign]
    draft = lambda tokens: q  # noqa: E731
    assert mean_accepted(toy, ChainSampling().verify, draft) == Fraction(10, 9)
    assert mean_accepted(toy, BlockVerification().verify, draft) == Fraction(11, 9)


def test_a_chain_without_drafts_is_a_draw() -> None:
    p = exact_distribution([1, 2])
    for verifier in VERIFIERS:
        found = distribution_of(lambda chance, v=verifier: v.verify([p], [], (), chance))
        assert found == {VerificationResult((), 0): Fraction(1, 3), VerificationResult((), 1): Fraction(2, 3)}


@verifiers
def test_drafts_of_no_probability_end_a_chain(verifier: ChainVerifier) -> None:
    p, q = [exact_distribution([1, 2]), exact_distribution([1, 1])], [exact_distribution([1, 0])]
    found = distribution_of(lambda chance: verifier.verify(p, q, (1,), chance))
    tokens = {0: Fraction(0), 1: Fraction(0)}
    for verification, probability in found.items():
        tokens[1 if verification.accepted else verification.token] += probability
    assert sum(tokens.values()) == 1
    assert not any(verification.accepted for verification in found) or type(verifier) is ChainSampling


# the same question, with wrong verifiers


def bonus_of_another_mask(
    p: list[Distribution], q: list[Distribution], drafts: Tokens, chance: EveryChance
) -> VerificationResult:
    """After a fully accepted chain the next token comes from the distribution before the chain's last token."""
    verification = ChainSampling().verify(p, q, drafts, chance)
    if verification.accepted == len(drafts) > 0:
        return VerificationResult(verification.nodes, chance.draw(p[-2]))
    return verification


def residual_without_the_worth(
    p: list[Distribution], q: list[Distribution], drafts: Tokens, chance: EveryChance
) -> VerificationResult:
    """The accepted length is decided as a block, but the next token comes from a single token's residual."""
    verification = BlockVerification().verify(p, q, drafts, chance)
    if verification.accepted < len(drafts):
        rest = np.maximum(p[verification.accepted] - q[verification.accepted], 0)
        return VerificationResult(verification.nodes, chance.draw(rest if rest.sum() else p[verification.accepted]))
    return verification


def unclipped_worth(
    p: list[Distribution], q: list[Distribution], drafts: Tokens, chance: EveryChance
) -> VerificationResult:
    """A surplus of one token pays for the next without a bound."""
    worth = Fraction(1)
    for position, draft in enumerate(drafts):
        worth *= p[position][draft] / q[position][draft]
        if not chance.coin(worth):
            rest = np.maximum(p[position] - q[position], 0)
            return VerificationResult(tuple(range(position)), chance.draw(rest if rest.sum() else p[position]))
    return VerificationResult(tuple(range(len(drafts))), chance.draw(p[-1]))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("wrong", "least"), [(bonus_of_another_mask, 8), (residual_without_the_worth, 3), (unclipped_worth, 8)]
)
def test_enumeration_notices_a_wrong_verifier(wrong: Verify, least: int) -> None:
    found = sum(sequences(toy, wrong, toy.draft) != toy.sequences() for toy in toys()[:16])
    assert found >= least
