"""The distribution of whole sequences after a verified tree of drafts, by exact enumeration."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from verifier_outcomes import Distribution, EveryChance, distribution_of, random_distribution, random_mask, sampled_from

from structgen.decode.speculative.draft_tree import ROOT, DraftTree, SampledChildren
from structgen.decode.speculative.verifier import IndependentRejection, RecursiveRejection, Verifier
from structgen.methods.verifiers.tree_verification import verify_tree

Tokens = tuple[int, ...]
Shape = Callable[[Tokens], int]

VERIFIERS = [(RecursiveRejection(), False), (RecursiveRejection(), True), (IndependentRejection(), True)]
verifiers = pytest.mark.parametrize(
    ("verifier", "replaced"), VERIFIERS, ids=["without replacement", "either", "with replacement"]
)


class Toy:
    """A target, a drafter and a grammar whose distributions and masks depend on all earlier tokens."""

    def __init__(self, seed: int, size: int, length: int) -> None:
        self.size, self.length = size, length
        rng = random.Random(seed)
        prefixes = [each for n in range(length + 1) for each in itertools.product(range(size), repeat=n)]
        self.masks = {each: np.array(random_mask(rng, size)) for each in prefixes}
        self.target = {each: random_distribution(rng, size, self.masks[each].tolist()) for each in prefixes}
        self.draft = {each: random_distribution(rng, size) for each in prefixes}

    def distribution(self) -> dict[Tokens, Fraction]:
        found: dict[Tokens, Fraction] = {(): Fraction(1)}
        for _ in range(self.length):
            found = {
                (*tokens, token): each * p
                for tokens, each in found.items()
                for token, p in enumerate(self.target[tokens])
                if p
            }
        return found


def sampled_tree(toy: Toy, shape: Shape, chance: EveryChance, *, replaced: bool, cut: bool) -> DraftTree:
    """A tree with ``shape(tokens)`` sampled children per node; refused ones are left out if it is ``cut``."""
    tree = DraftTree()
    pending: list[tuple[int, Tokens]] = [(ROOT, ())]
    while pending:
        node, tokens = pending.pop()
        if not shape(tokens):
            continue
        distribution = toy.draft[tokens]
        drafts = sampled_from(distribution, shape(tokens), chance, replaced=replaced)
        kept = [draft for draft in drafts if toy.masks[tokens][draft]] if cut else drafts
        tree.sampled[node] = SampledChildren(distribution, tuple(kept), replaced)
        pending += [(tree.add(node, draft), (*tokens, draft)) for draft in dict.fromkeys(kept)]
    return tree


def verified(toy: Toy, tree: DraftTree, verifier: Verifier, chance: EveryChance, *, cut: bool) -> Tokens:
    """A sequence that starts with a verified tree and is completed by the target."""
    prefixes: list[Tokens] = [(), *(tuple(tree.prefix(node)) for node in range(len(tree)))]
    p: list[Distribution] = [toy.target[each] for each in prefixes]
    allowed = [toy.masks[each] for each in prefixes] if cut else None
    verification = verify_tree(p, tree, verifier, chance, allowed=allowed)
    tokens: Tokens = (*(tree.tokens[node] for node in verification.nodes), verification.token)
    while len(tokens) < toy.length:
        tokens = (*tokens, chance.draw(toy.target[tokens]))
    return tokens


SHAPES: dict[str, Shape] = {
    "two, then one": lambda tokens: (2, 1)[len(tokens)] if len(tokens) < 2 else 0,
    "two, then two after the first token": lambda tokens: 2 if tokens in ((), (0,)) else 0,
    "three, then as many as the token says": lambda tokens: 3 if not tokens else tokens[0] if len(tokens) < 2 else 0,
}


@pytest.mark.exhaustive
@verifiers
@pytest.mark.parametrize("cut", [False, True], ids=["whole", "cut"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_sequences_have_the_distribution_of_the_target(
    shape: Shape, cut: bool, verifier: Verifier, replaced: bool
) -> None:
    for seed in range(4):
        toy = Toy(seed, 3 if seed % 2 else 2, 3)
        found = distribution_of(
            lambda chance, t=toy: verified(
                t, sampled_tree(t, shape, chance, replaced=replaced, cut=cut), verifier, chance, cut=cut
            )
        )
        assert found == toy.distribution()


@pytest.mark.parametrize("seed", range(10))
def test_chosen_children_and_sampled_ones_in_one_tree(seed: int) -> None:
    """After a node with children that a rule chose, the target samples; any tree is right."""
    toy, rng = Toy(seed, 3, 3), random.Random(seed)
    second = [rng.sample(range(3), 2) for _ in range(3)]

    def run(chance: EveryChance) -> Tokens:
        tree = sampled_tree(toy, lambda tokens: 0 if tokens else 2, chance, replaced=False, cut=False)
        for node in range(len(tree)):
            for token in second[tree.tokens[node]]:
                tree.add(node, token)
        return verified(toy, tree, RecursiveRejection(), chance, cut=False)

    def the_other_way_round(chance: EveryChance) -> Tokens:
        tree = DraftTree()
        for token in second[0]:
            node = tree.add(ROOT, token)
            drafts = sampled_from(toy.draft[token,], 2, chance, replaced=False)
            tree.sampled[node] = SampledChildren(toy.draft[token,], tuple(drafts))
            for draft in drafts:
                tree.add(node, draft)
        return verified(toy, tree, RecursiveRejection(), chance, cut=False)

    assert distribution_of(run) == distribution_of(the_other_way_round) == toy.distribution()


def test_enumeration_notices_refused_children_that_the_verifier_does_not_know_of() -> None:
    """A tree that was cut is verified with its distributions from before the cut."""
    found = 0
    for seed in range(10):
        toy = Toy(seed, 3, 2)

        def run(chance: EveryChance, toy: Toy = toy) -> Tokens:
            tree = sampled_tree(toy, lambda tokens: 0 if tokens else 2, chance, replaced=False, cut=True)
            return verified(toy, tree, RecursiveRejection(), chance, cut=False)

        found += distribution_of(run) != toy.distribution()
    assert found >= 2


def test_enumeration_notices_children_that_are_taken_as_sampled_but_were_chosen() -> None:
    found = 0
    for seed in range(10):
        toy = Toy(seed, 3, 1)
        tree = DraftTree()
        best = int(toy.draft[()].argmax())
        tree.add(ROOT, best)
        tree.sampled[ROOT] = SampledChildren(toy.draft[()], (best,))
        found += distribution_of(
            lambda chance, t=toy, d=tree: verified(t, d, RecursiveRejection(), chance, cut=False)
        ) != (toy.distribution())
    assert found >= 5


def test_a_verifier_that_needs_replacement_refuses_drafts_without() -> None:
    tree = DraftTree()
    tree.add(ROOT, 1)
    tree.sampled[ROOT] = SampledChildren(np.array([0.5, 0.5]), (1,))
    p = [np.array([0.5, 0.5])] * 2
    with pytest.raises(ValueError, match=r"IndependentRejection: tokens must be sampled with replacement"):
        distribution_of(lambda chance: verify_tree(p, tree, IndependentRejection(), chance))
