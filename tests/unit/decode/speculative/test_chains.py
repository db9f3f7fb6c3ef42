"""The law of whole sequences, of which a drafted chain is verified first, by exact enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import TypeAlias

import numpy as np
import pytest
from verifier_outcomes import EveryChance, Law, exact_law, law_of, masked, random_law, random_mask

from structgen.decode.speculative.verifier import ChainVerifier, VerificationResult
from structgen.methods.verifiers.tree_verification import BlockVerification, ChainSampling

Tokens: TypeAlias = tuple[int, ...]
Laws: TypeAlias = Callable[[Tokens], Law]
Verify: TypeAlias = Callable[[list[Law], list[Law], Tokens, EveryChance], VerificationResult]

VERIFIERS: list[ChainVerifier] = [ChainSampling(), BlockVerification()]
verifiers = pytest.mark.parametrize("verifier", VERIFIERS, ids=lambda each: type(each).__name__)


class Toy:
    """A target and a drafter whose laws depend on all tokens before, and a grammar that does, too.

    Those that are not sparse give everything a probability, and allow everything.
    """

    def __init__(self, seed: int, size: int, length: int, *, sparse: bool = True) -> None:
        self.size, self.length = size, length
        rng = random.Random(seed)
        prefixes = [each for n in range(length + 1) for each in itertools.product(range(size), repeat=n)]
        self._masks = {each: random_mask(rng, size) if sparse else [True] * size for each in prefixes}
        self._targets = {each: random_law(rng, size, self._masks[each]) for each in prefixes}
        self._drafts = {each: random_law(rng, size) for each in prefixes}
        if not sparse:
            for law in (*self._targets.values(), *self._drafts.values()):
                law[:] = exact_law([rng.randint(1, 9) for _ in range(size)])

    def target(self, tokens: Tokens) -> Law:
        """Masked."""
        return self._targets[tokens]

    def draft(self, tokens: Tokens) -> Law:
        """Not masked."""
        return self._drafts[tokens]

    def masked_draft(self, tokens: Tokens) -> Law:
        """The target's own where the mask leaves nothing of the drafter's."""
        kept = masked(self._drafts[tokens], self._masks[tokens])
        return kept if kept.sum() else self._targets[tokens]

    def allows(self, tokens: Tokens, token: int) -> bool:
        return self._masks[tokens][token]

    def sequences(self) -> dict[Tokens, Fraction]:
        """The law of the target, of what has a probability."""
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
    """Go on without drafts."""
    while len(tokens) < toy.length:
        tokens = (*tokens, chance.draw(toy.target(tokens)))
    return tokens


def whole_chain(toy: Toy, verify: Verify, draft: Laws, chance: EveryChance) -> tuple[Tokens, int]:
    """A chain of one token less than the output, verified, and the rest from the target."""
    drafts: Tokens = ()
    q: list[Law] = []
    while len(drafts) < toy.length - 1:
        q.append(draft(drafts))
        drafts = (*drafts, chance.draw(q[-1]))
    p = [toy.target(drafts[:position]) for position in range(toy.length)]
    verdict = verify(p, q, drafts, chance)
    assert verdict.nodes == tuple(range(verdict.accepted))
    return complete(toy, (*drafts[: verdict.accepted], verdict.token), chance), verdict.accepted


def cut_chain(toy: Toy, verify: Verify, chance: EveryChance) -> Tokens:
    """Drafts from laws without masks, cut before the first that is refused, verified over the allowed tokens alone."""
    drafts: Tokens = ()
    ids, p, q, ranks = [], [], [], []
    while True:
        allowed = [token for token in range(toy.size) if toy.allows(drafts, token)]
        ids.append(allowed)
        p.append(toy.target(drafts)[allowed])
        if len(drafts) == toy.length - 1:
            break
        law = toy.draft(drafts)
        token = chance.draw(law)
        if token not in allowed:
            break
        q.append(law[allowed] / law[allowed].sum())
        ranks.append(allowed.index(token))
        drafts = (*drafts, token)
    verdict = verify(p, q, tuple(ranks), chance)
    return complete(toy, (*drafts[: verdict.accepted], ids[verdict.accepted][verdict.token]), chance)


def sequences(toy: Toy, verify: Verify, draft: Laws) -> dict[Tokens, Fraction]:
    return law_of(lambda chance: whole_chain(toy, verify, draft, chance)[0])


def mean_accepted(toy: Toy, verify: Verify, draft: Laws) -> Fraction:
    found = law_of(lambda chance: whole_chain(toy, verify, draft, chance)[1])
    return sum((accepted * probability for accepted, probability in found.items()), Fraction(0))


@cache
def toys() -> list[Toy]:
    shapes = [(3, 3)] * 12 + [(2, 3)] * 16 + [(3, 2)] * 8 + [(2, 1), (1, 3)]
    dense = [Toy(seed, 3, 3, sparse=False) for seed in range(8)]
    return [*dense, *(Toy(seed, size, length) for seed, (size, length) in enumerate(shapes))]


@verifiers
def test_sequences_have_the_law_of_the_target(verifier: ChainVerifier) -> None:
    for toy in toys():
        assert sequences(toy, verifier.verify, toy.draft) == toy.sequences()
        assert sequences(toy, verifier.verify, toy.masked_draft) == toy.sequences()


@verifiers
def test_chains_that_the_grammar_cuts_have_it_too(verifier: ChainVerifier) -> None:
    for toy in toys():
        assert law_of(lambda chance, t=toy: cut_chain(t, verifier.verify, chance)) == toy.sequences()


def test_a_longer_chain_of_two_tokens() -> None:
    toy = Toy(99, 2, 4)
    for verifier in VERIFIERS:
        assert sequences(toy, verifier.verify, toy.draft) == toy.sequences()


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
    """What follows may be shorter: other tokens are reached."""
    for toy in toys():
        p, mask = toy.target(()), [toy.allows((), token) for token in range(toy.size)]
        kept = masked(toy.draft(()), mask)
        assert not kept.sum() or np.minimum(p, kept).sum() >= np.minimum(p, toy.draft(())).sum()


def test_the_example_of_the_paper() -> None:
    """Two tokens with 1/3 and 2/3 for the target, 2/3 and 1/3 for the drafter, wherever they stand.

    Of two drafts, token by token takes 10/9, and the block 11/9, which is the best that there is.
    """
    p, q = exact_law([1, 2]), exact_law([2, 1])
    toy = Toy(0, 2, 3)
    toy.target = lambda tokens: p  # type: ignore[method-assign]
    draft = lambda tokens: q  # noqa: E731
    assert mean_accepted(toy, ChainSampling().verify, draft) == Fraction(10, 9)
    assert mean_accepted(toy, BlockVerification().verify, draft) == Fraction(11, 9)


def test_a_chain_without_drafts_is_a_draw() -> None:
    p = exact_law([1, 2])
    for verifier in VERIFIERS:
        found = law_of(lambda chance, v=verifier: v.verify([p], [], (), chance))
        assert found == {VerificationResult((), 0): Fraction(1, 3), VerificationResult((), 1): Fraction(2, 3)}


@verifiers
def test_drafts_of_no_probability_end_a_chain(verifier: ChainVerifier) -> None:
    p, q = [exact_law([1, 2]), exact_law([1, 1])], [exact_law([1, 0])]
    found = law_of(lambda chance: verifier.verify(p, q, (1,), chance))
    tokens = {0: Fraction(0), 1: Fraction(0)}
    for verdict, probability in found.items():
        tokens[1 if verdict.accepted else verdict.token] += probability
    assert sum(tokens.values()) == 1
    assert not any(verdict.accepted for verdict in found) or type(verifier) is ChainSampling


# the same question, asked of verifiers that are wrong


def bonus_of_another_mask(p: list[Law], q: list[Law], drafts: Tokens, chance: EveryChance) -> VerificationResult:
    """Behind a chain that is taken whole comes a token of the law before its last token."""
    verdict = ChainSampling().verify(p, q, drafts, chance)
    if verdict.accepted == len(drafts) > 0:
        return VerificationResult(verdict.nodes, chance.draw(p[-2]))
    return verdict


def residual_without_the_worth(p: list[Law], q: list[Law], drafts: Tokens, chance: EveryChance) -> VerificationResult:
    """How much is taken is decided as a block, but what follows comes from the residual of a single token."""
    verdict = BlockVerification().verify(p, q, drafts, chance)
    if verdict.accepted < len(drafts):
        rest = np.maximum(p[verdict.accepted] - q[verdict.accepted], 0)
        return VerificationResult(verdict.nodes, chance.draw(rest if rest.sum() else p[verdict.accepted]))
    return verdict


def unclipped_worth(p: list[Law], q: list[Law], drafts: Tokens, chance: EveryChance) -> VerificationResult:
    """A surplus of one token pays for the next without a bound."""
    worth = Fraction(1)
    for position, draft in enumerate(drafts):
        worth *= p[position][draft] / q[position][draft]
        if not chance.coin(worth):
            rest = np.maximum(p[position] - q[position], 0)
            return VerificationResult(tuple(range(position)), chance.draw(rest if rest.sum() else p[position]))
    return VerificationResult(tuple(range(len(drafts))), chance.draw(p[-1]))


@pytest.mark.parametrize(
    ("wrong", "least"), [(bonus_of_another_mask, 8), (residual_without_the_worth, 3), (unclipped_worth, 8)]
)
def test_enumeration_notices_a_wrong_verifier(wrong: Verify, least: int) -> None:
    found = sum(sequences(toy, wrong, toy.draft) != toy.sequences() for toy in toys()[:16])
    assert found >= least
