"""Jacobi's iteration under a grammar: its fixed point is the output of sequential decoding."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from handmade_passes import LETTERS, compiled, state_of, task_of

from structgen.decode import Context, Greedy, Multinomial, Sampler, generate
from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import GrammarPosition, Verified
from structgen.decode.speculative.speculation import Speculation
from structgen.decode.step.sampler import GumbelMax
from structgen.frontends.regex import regex
from structgen.methods.drafters.jacobi import ChooseToken, Jacobi, jacobi_sweep, most_probable, rows_along, with_noise
from structgen.models.toy.hash import HashModel

PATTERNS = ["[a-f]*", "(a|bcd|[ef]{2}[.])*", "(ab|cd,[ab]|[def],)*[.]", "((a|b)(c|de)f,)*"]
WINDOW = 9


def one_by_one(
    model: HashModel, pattern: str, count: int, draw: Callable[[np.ndarray, int], int]
) -> tuple[list[int], int]:
    """The first tokens, up to the ``count``-th choice and the forced tokens after it, and the number of choices.

    A token after which nothing is chosen is left out, as the stop is, since drafting it is useless.
    """
    matcher = compiled(pattern).matcher()
    tokens: list[int] = []
    chosen = before = 0
    while True:
        allowed = [token for token in range(LETTERS.size) if matcher.fork().accept(token)]
        if allowed == [0]:
            return tokens[:before], chosen
        if len(allowed) > 1 and chosen == count:
            return tokens, chosen
        token = allowed[0]
        if len(allowed) > 1:
            row = model.start().extend([1, *tokens]).astype(np.float64)[allowed]
            token = allowed[draw(row, chosen)]
            chosen += 1
            before = len(tokens)
        if token == 0:
            return tokens, chosen
        assert matcher.accept(token)
        tokens.append(token)


def chooser(sampler: Sampler, seed: int) -> tuple[ChooseToken, Callable[[np.ndarray, int], int]]:
    """For the iteration, and for sequential decoding, a generator that is sampled from in turn."""
    if isinstance(sampler, Greedy):
        return most_probable, lambda row, _: int(row.argmax())
    assert isinstance(sampler, Multinomial | GumbelMax)
    generator = np.random.Generator(np.random.PCG64(seed))
    return with_noise(sampler, seed), lambda row, _: sampler.draw(row, generator)


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "sampler",
    [Greedy(), Multinomial(), Multinomial(0.6, top_p=0.9), GumbelMax()],
    ids=["greedy", "sampled", "shaped", "noise"],
)
def test_the_fixed_point_is_the_sequence(pattern: str, sampler: Sampler) -> None:
    """It is reached from any first draft tokens, with at least one more right token after each pass."""
    for seed in range(8):
        model = HashModel(LETTERS, seed=seed)
        choose, draw = chooser(sampler, seed)
        expected, chosen = one_by_one(model, pattern, WINDOW, draw)
        choice = GrammarPosition.of(state_of(compiled(pattern).matcher()))
        rng = random.Random(seed)
        noise = [np.array([rng.random() for _ in range(LETTERS.size)], dtype=np.float32) for _ in range(3 * WINDOW)]
        draft = jacobi_sweep(choice, noise, 0, WINDOW, choose).tokens
        rounds = 0
        while True:
            rows = [
                model.start().extend([1]),
                *(model.start().extend([1, *draft[:end]]) for end in range(1, len(draft) + 1)),
            ]
            tree = jacobi_sweep(choice, rows, 0, WINDOW, choose)
            rounds += 1
            right = next(
                (place for place, (one, other) in enumerate(zip(tree.tokens, expected, strict=False)) if one != other),
                min(len(tree), len(expected)),
            )
            assert right >= min(rounds, len(expected))
            if tree.tokens == draft:
                break
            draft = tree.tokens
        assert draft == expected
        assert rounds <= chosen + 1  # the last one finds that nothing changes


@pytest.mark.exhaustive
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), GumbelMax()], ids=["greedy", "sampled", "noise"])
@pytest.mark.parametrize("window", [1, 3, 12])
def test_outputs_are_the_same_in_no_more_passes(sampler: Sampler, window: int) -> None:
    fewer = 0
    for seed in range(6):
        for pattern in PATTERNS[1:]:
            model = HashModel(LETTERS, seed=seed)
            plain = generate(model, "a", regex(pattern), max_tokens=30, sampler=sampler, seed=seed, drafter=None)
            drafter = Speculation(Jacobi(window, seed=seed))
            found = generate(model, "a", regex(pattern), max_tokens=30, sampler=sampler, seed=seed, drafter=drafter)
            assert found.tokens == plain.tokens
            assert found.stats.forwards <= plain.stats.forwards
            fewer += plain.stats.forwards - found.stats.forwards
    assert fewer > 0


def test_with_the_noise_of_the_output_a_settled_model_is_followed() -> None:
    """Where distributions do not depend on the drafts, draft tokens with the same random numbers are right.

    Others are not.
    """

    class Constant(HashModel):
        def logits(self, state: int, matched: int) -> np.ndarray:
            return np.zeros(LETTERS.size, dtype=np.float32)

    model = Constant(LETTERS)
    forwards = {}
    for sampler in (Multinomial(), GumbelMax()):
        for seed in (None, 4):
            result = generate(
                model,
                "a",
                regex("[a-f]{24}"),
                max_tokens=24,
                sampler=sampler,
                seed=4,
                drafter=Speculation(Jacobi(6, seed=seed)),
            )
            forwards[type(sampler).__name__, seed] = result.stats.forwards
    assert forwards["Multinomial", 4] == forwards["GumbelMax", 4] == 5  # one, then 1 + 6 tokens a pass
    assert min(forwards["Multinomial", None], forwards["GumbelMax", None]) > 15


def test_a_chain_is_always_allowed() -> None:
    rng = np.random.default_rng(0)
    for pattern in PATTERNS:
        matcher = compiled(pattern).matcher()
        for _ in range(20):
            rows = list(rng.standard_normal((4, LETTERS.size)).astype(np.float32))
            tree = jacobi_sweep(GrammarPosition.of(state_of(matcher)), rows, 1, 6)
            assert matcher.validate(tree.tokens) == len(tree)
            assert list(tree.parents) == list(range(-1, len(tree) - 1))


def test_rows_are_followed_as_far_as_they_were_run() -> None:
    tree = DraftTree.chain([1, 2, 3])
    tree.add(ROOT, 4)
    rows = np.arange(5, dtype=np.float32)[:, None] * np.ones((1, 9), dtype=np.float32)
    assert [row[0] for row in rows_along(Verified(1, tree, rows), [1, 2, 7])] == [0, 1, 2]
    assert [row[0] for row in rows_along(Verified(1, tree, rows), [4])] == [0, 4]
    rows[2] = np.nan
    assert [row[0] for row in rows_along(Verified(1, tree, rows), [1, 2, 3])] == [0, 1]


def test_drafts_that_stood_are_trusted_more() -> None:
    constraint = compiled("[a-f]*")
    context = Context(HashModel(LETTERS), [1])
    drafting = Jacobi(3).start(context, task_of(constraint))
    state = state_of(constraint.matcher())
    assert len(drafting.propose(context, state, 9)) == 0  # no row is known
    drafting.observe(Verified(1, DraftTree(), np.eye(9, dtype=np.float32)[[2]]))
    context.append([2])
    tree = drafting.propose(context, state, 9)
    assert tree.tokens == [2, 2, 2]
    drafting.observe(Verified(2, tree, np.eye(9, dtype=np.float32)[[3, 2, 2, 2]]))
    context.append([3])
    again = drafting.propose(context, state, 9)
    assert again.tokens == [2, 2, 2]
    assert FORCED not in again.sources
    assert again.confidences[0] > tree.confidences[0]
    assert len(drafting.propose(context, state, 2)) == 2


def test_a_window_holds_something() -> None:
    with pytest.raises(ValueError, match="window"):
        Jacobi(0)
