"""Early exits: their drafts are read off verified states, and decide where drafts end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from structgen.decode import Context, Greedy, Multinomial, Sampler, start_generation
from structgen.decode.step.distribution import project
from structgen.engine import compile
from structgen.engine.mask import allowed_ids
from structgen.frontends.regex import regex
from structgen.methods.drafters.dynamic_exit import DynamicExit, ExitRates

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.models.llama.model import LlamaModel


def test_rates_forget() -> None:
    rates = ExitRates((2, 4), layers=8, head=1.0, decay=0.5)
    assert rates.rates().tolist() == [0.5, 0.5]
    for taken in ([1.0, 0.0], [1.0, 0.5], [0.0, 1.0]):
        rates.add(np.array(taken))
    # Weights 1/4, 1/2 and 1, and a prior of one position at a half.
    assert rates.rates() == pytest.approx([(0.75 + 0.5) / 2.75, (0.25 + 1 + 0.5) / 2.75])


def test_tokens_per_layer_by_hand() -> None:
    """All outcomes of a draft are counted: the tokens until the first refused one, and one of the target's."""
    rates = ExitRates((2, 4), layers=8, head=1.0, decay=1.0)
    for taken in ([1.0, 1.0], [0.0, 1.0], [0.0, 1.0]):
        rates.add(np.array(taken))
    found = rates.tokens_per_layer(3)
    for at, (exit_, rate) in enumerate(zip((2, 4), rates.rates(), strict=True)):
        for length in range(4):
            tokens = sum(
                (rate**taken) * (1 - rate if taken < length else 1) * (taken + 1) for taken in range(length + 1)
            )
            assert found[at, length] == pytest.approx(tokens / (length * (exit_ + 1) + 9))
    assert rates.best(3) == max(
        ((exit_, length) for exit_ in (2, 4) for length in range(4)),
        key=lambda choice: found[(2, 4).index(choice[0]), choice[1]],
    )


def test_what_pays_is_chosen() -> None:
    """An exit that is always right is used as far as allowed; if none is ever right, nothing is drafted."""
    for taken, expected in (((0.0, 1.0), (4, 5)), ((0.0, 0.0), (2, 0)), ((1.0, 1.0), (2, 5))):
        rates = ExitRates((2, 4), layers=8, head=0.0, decay=1.0)
        for _ in range(500):
            rates.add(np.array(taken))
        assert rates.best(5) == expected


@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(0.8, top_k=30)], ids=["greedy", "sampled"])
def test_exits_are_compared_with_the_target(
    llama: LlamaModel, monkeypatch: pytest.MonkeyPatch, sampler: Sampler
) -> None:
    """The rates use the numbers that fresh drafts after the accepted tokens give."""
    exits = (1, 3, 6)
    noted: list[NDArray[np.float64]] = []
    original = ExitRates.add

    def add(self: ExitRates, taken: NDArray[np.float64]) -> None:
        noted.append(taken)
        original(self, taken)

    monkeypatch.setattr(ExitRates, "add", add)
    constraint = compile(regex("([a-z]{1,6} ){2,6}[a-z]+x"), llama.vocabulary)
    size = llama.vocabulary.size
    prompt = llama.vocabulary.tokenize(b"say")
    with Context(llama, prompt) as context:
        drafter = DynamicExit(exits, every=1, longest=3)
        generation = start_generation(context, constraint, max_tokens=30, sampler=sampler, drafter=drafter, seed=1)
        for _ in generation:
            pass
        tokens = list(generation.tokens)
        assert context.session.watched == ()  # type: ignore[attr-defined]
    expected = []
    matcher, mask = constraint.matcher(), np.zeros((1, (size + 31) // 32), dtype=np.int32)
    for count, token in enumerate(tokens):
        matcher.fill_mask(mask)
        ids = allowed_ids(mask[0], size)
        if len(ids) > 1:
            rows = []
            for exit_ in exits:
                row = llama.start().skipping(range(exit_), capacity=100).extend([*prompt, *tokens[:count]])
                rows.append(row)
            if isinstance(sampler, Multinomial):
                distributions = [sampler.shaped(project(row, ids, 0.0).log_p) for row in rows]
                distributions = [distribution / distribution.sum() for distribution in distributions]
                expected.append([np.minimum(distribution, distributions[-1]).sum() for distribution in distributions])
            else:
                expected.append([float(ids[row[ids].argmax()] == token) for row in rows])
        matcher.accept(token)
    assert len(noted) > 10
    at = 0
    for taken in noted:  # some positions are skipped; the others come in order
        while not np.allclose(taken, expected[at], atol=1e-4):
            at += 1
        at += 1
    assert all(taken[-1] == pytest.approx(1, abs=1e-4) for taken in noted)
    assert len(noted) >= len(expected) / 2


def test_exits_lie_evenly(llama: LlamaModel) -> None:
    from structgen.methods.drafters.dynamic_exit import _even_exits

    assert _even_exits(30) == (3, 7, 11, 14, 18, 22)
    assert _even_exits(6) == (1, 2, 3, 4)
    assert _even_exits(1) == (1,)
