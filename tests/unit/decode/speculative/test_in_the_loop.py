"""Drafters around drafters, in real generations: outputs are the same, in fewer passes."""

from __future__ import annotations

from typing import Any

import pytest
from scripted_drafters import Knowing, Noisy

from structgen.decode import generate
from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.drafter import Drafter
from structgen.decode.speculative.speculation import Speculation
from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel
from structgen.shapes import EXP3, UCB, Bandit, Goodput, Pearl

COST = CostModel(0.05)


@pytest.mark.parametrize("seed", range(3))
def test_outputs_are_the_same_in_fewer_passes(json_vocabulary: Vocabulary, seed: int) -> None:
    model = HashModel(json_vocabulary, seed=seed)
    constraint = compile(regex("([a-z]{8} ){6}end"), json_vocabulary)
    options: dict[str, Any] = {"max_tokens": 70, "seed": seed}
    plain = generate(model, "say", constraint, drafter=None, **options)
    knowing = Knowing(tokens=plain.tokens, prompt_tokens=plain.stats.prompt_tokens, length=6)
    arms = (Noisy(), knowing)
    drafters: tuple[Drafter, ...] = (
        Goodput(knowing, COST),
        Pearl(knowing),
        Bandit(arms, UCB(0.3), COST),
        Bandit(arms, EXP3(0.2), COST),
        Goodput(Bandit((Pearl(knowing), Noisy()), cost=COST), COST),
    )
    for drafter in drafters:
        for cost in (None, COST):
            found = generate(model, "say", constraint, drafter=Speculation(drafter, cost=cost), **options)
            assert found.tokens == plain.tokens
            assert found.stats.forwards < 0.75 * plain.stats.forwards
            assert found.stats.drafts is not None
            assert "knowing" in found.stats.drafts.sources


def test_what_does_not_pay_is_given_up(json_vocabulary: Vocabulary) -> None:
    """Wrong draft tokens cost rows: with goodput, most passes have none."""
    model = HashModel(json_vocabulary, seed=5)
    constraint = compile(regex("[a-z]{60}"), json_vocabulary)
    plain = generate(model, "say", constraint, max_tokens=70, drafter=None)
    wrong = Knowing(tokens=plain.tokens[::-1], prompt_tokens=plain.stats.prompt_tokens, length=4)
    always = generate(model, "say", constraint, max_tokens=70, drafter=wrong).stats.drafts
    seldom = generate(model, "say", constraint, max_tokens=70, drafter=Goodput(wrong, CostModel(0.3))).stats.drafts
    assert always is not None
    assert seldom is not None
    assert seldom.drafted < always.drafted / 3
