"""The best sequences through a lattice, against all of them."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import numpy as np
import pytest
from handmade_passes import LETTERS, compiled
from lattice import Lattice, TokenNGram, rescored, tree_of

from structgen.decode.speculative.draft_tree import ROOT

PATTERNS = [None, "[a-f]*", "(ab|bc|cd)*", "(a|bb)*c?", "([ab]{2},)*"]


def a_lattice(rng: random.Random, positions: int, width: int) -> Lattice:
    tokens = tuple(tuple(rng.sample(range(LETTERS.size), rng.randint(1, width))) for _ in range(positions))
    return Lattice(tokens, tuple(tuple(rng.uniform(-4, 0) for _ in each) for each in tokens))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_they_are_the_best_of_all(pattern: str | None, order: int | None) -> None:
    for seed in range(12):
        rng = random.Random(seed)
        lattice = a_lattice(rng, rng.randint(1, 5), 4)
        scorer = None
        if order is not None:
            scorer = TokenNGram(LETTERS.size, order=order)
            scorer.learn_all(rng.choices(range(LETTERS.size), k=20) for _ in range(3))
        before = tuple(rng.choices(range(LETTERS.size), k=2))
        weight, count = rng.choice([0.0, 0.5, 1.0]), rng.choice([1, 3, 20])
        matcher = None if pattern is None else compiled(pattern).matcher()
        scores = {}
        for length in range(len(lattice.tokens), 0, -1):
            for places in itertools.product(*(range(len(each)) for each in lattice.tokens[:length])):
                tokens = tuple(lattice.tokens[index][place] for index, place in enumerate(places))
                if matcher is not None and (0 in tokens or matcher.validate(tokens) < length):
                    continue
                score = sum(lattice.log_p[index][place] for index, place in enumerate(places))
                for index in range(length if scorer is not None else 0):
                    score += weight * scorer.log_p((*before, *tokens[:index]), tokens[index])  # type: ignore[union-attr]
                scores[tokens] = score
            if scores:
                break
        expected = sorted(scores, key=lambda tokens: (-scores[tokens], tokens))[:count]
        found = rescored(lattice, count, before=before, scorer=scorer, weight=weight, matcher=matcher)
        assert [each.score for each in found] == pytest.approx([scores[tokens] for tokens in expected])
        assert [each.tokens for each in found] == expected


def test_states_that_are_too_many_are_cut_from_the_worst() -> None:
    rng = random.Random(1)
    lattice = a_lattice(rng, 6, 5)
    scorer = TokenNGram(LETTERS.size, order=2)
    scorer.learn(rng.choices(range(LETTERS.size), k=40))
    exact = rescored(lattice, 3, scorer=scorer)
    beam = rescored(lattice, 3, scorer=scorer, most_states=2)
    assert len(beam) == 3
    assert beam[0].score <= exact[0].score


def test_candidates_are_the_most_probable_with_their_probability() -> None:
    rows = np.random.default_rng(0).standard_normal((3, 40)).astype(np.float32)
    lattice = Lattice.of_logits(rows, 4)
    for row, tokens, log_p in zip(rows, lattice.tokens, lattice.log_p, strict=True):
        distribution = np.exp(row.astype(np.float64)) / np.exp(row.astype(np.float64)).sum()
        assert list(tokens) == np.argsort(-row, kind="stable")[:4].tolist()
        assert np.exp(log_p) == pytest.approx(distribution[list(tokens)], rel=1e-5)


def test_sequences_make_a_tree() -> None:
    lattice = Lattice(((1, 2), (3, 4)), ((math.log(0.5), math.log(0.25)), (math.log(0.75), math.log(0.125))))
    tree = tree_of(lattice, rescored(lattice, 3), source="heads")
    assert sorted(tree.prefix(node) for node in range(len(tree))) == [[1], [1, 3], [1, 4], [2], [2, 3]]
    node = tree.child(ROOT, 2)
    assert node is not None
    assert tree.confidences[node] == pytest.approx(0.25)
    assert set(tree.sources) == {"heads"}


def test_nothing_is_found_where_nothing_is_allowed() -> None:
    lattice = Lattice(((1,),), ((0.0,),))
    assert rescored(lattice, 2, matcher=compiled("b").matcher()) == []
    assert rescored(Lattice((), ()), 2) == []


def test_arguments_are_checked() -> None:
    for tokens, log_p in (((1,), ((0.0, 0.0),)), (((1, 1),), ((0.0, 0.0),))):
        with pytest.raises((ValueError, TypeError)):
            Lattice(tokens, log_p)  # type: ignore[arg-type]
    lattice = Lattice(((1,),), ((0.0,),))
    for settings in ({"count": 0}, {"count": 1, "weight": -1.0}, {"count": 1, "most_states": 0}):
        with pytest.raises(ValueError, match="rescored"):
            rescored(lattice, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("order", [0, 1, 2])
def test_counts_are_smoothed_by_those_of_shorter_runs(order: int) -> None:
    """Against the recursion of Witten and Bell in fractions; the probabilities sum to 1."""
    rng = random.Random(order)
    texts = [rng.choices(range(4), k=12) for _ in range(3)]
    model = TokenNGram(5, order=order)
    model.learn_all(texts)

    def probability(before: tuple[int, ...], token: int) -> Fraction:
        shorter = Fraction(1, 5) if not before else probability(before[1:], token)
        if not before:
            followers = [each for text in texts for each in text]
        else:
            followers = [
                text[place]
                for text in texts
                for place in range(len(before), len(text))
                if tuple(text[place - len(before) : place]) == before
            ]
        if not followers:
            return shorter
        kinds = len(set(followers))
        unseen = Fraction(kinds, kinds + len(followers))
        return unseen * shorter + (1 - unseen) * Fraction(followers.count(token), len(followers))

    for before in itertools.product(range(5), repeat=order):
        distribution = [math.exp(model.log_p((4, *before), token)) for token in range(5)]
        assert distribution == pytest.approx([float(probability(before, token)) for token in range(5)])
        assert sum(distribution) == pytest.approx(1)


def test_runs_are_forgotten_beyond_a_number() -> None:
    model = TokenNGram(100, order=1, most=10)
    model.learn(range(100))
    assert len(model) == 10
    assert math.exp(model.log_p((98,), 99)) > math.exp(model.log_p((5,), 6))
    with pytest.raises(ValueError, match="TokenNGram"):
        TokenNGram(0)
    with pytest.raises(ValueError, match="weights"):
        model.learn([1], 0.0)
