"""Copies against a search for the last tokens at every position."""

from __future__ import annotations

import numpy as np
import pytest
from drafter_replay import draft_for
from word_vocabulary import draft_vocabulary

from structgen.decode.speculative.drafters.prompt_lookup import CopySpec
from structgen.engine import compile
from structgen.grammar.nodes import ByteClass, Repeat

ANYTHING = compile(Repeat(ByteClass([(97, 122)]), 0, None), draft_vocabulary())


def copied(tokens: list[int], gamma: int, most: int) -> list[int]:
    """The tokens after the latest earlier occurrence of the last ``gamma`` tokens."""
    for end in range(len(tokens) - 1, gamma - 1, -1):
        if tokens[end - gamma : end] == tokens[len(tokens) - gamma :]:
            return tokens[end : end + most]
    return []


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("gamma", [1, 2, 5])
def test_the_latest_place_is_copied(seed: int, gamma: int) -> None:
    generator = np.random.default_rng([seed, gamma])
    tokens = generator.integers(98, 101, size=int(generator.integers(1, 40))).tolist()
    drafting, context, state = draft_for(CopySpec(gamma=gamma, most=7), ANYTHING, tokens)
    for _ in range(12):
        tree = drafting.propose(context, state, 24)
        assert tree.tokens == copied(tokens, gamma, 7)
        assert tree.parents == list(range(-1, len(tree) - 1))
        if generator.random() < 0.3:
            length = int(generator.integers(1, len(tokens) + 1))
            context.truncate(length)
            del tokens[length:]
        more = generator.integers(98, 101, size=3).tolist()
        context.append(more)
        tokens += more


def test_the_budget_is_kept() -> None:
    drafting, context, state = draft_for(CopySpec(gamma=2, most=64), ANYTHING, [*range(98, 118), 98, 99])
    assert [len(drafting.propose(context, state, budget)) for budget in (0, 1, 5, 40)] == [0, 1, 5, 20]


@pytest.mark.parametrize("settings", [{"gamma": 0}, {"most": 0}, {"most": 65}])
def test_numbers_out_of_range_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="CopySpec: "):
        CopySpec(**settings)
