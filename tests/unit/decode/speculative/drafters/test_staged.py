"""Drafters of drafters: the same drafts in fewer passes of the draft model."""

from __future__ import annotations

from typing import Any

import pytest
from drafter_tasks import position, task_of

from structgen.decode import Context, Greedy, Multinomial, generate
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.speculative.fixed_tree import Chain, Fixed
from structgen.decode.speculative.tree_policy import Shape
from structgen.engine import Constraint, Vocabulary, compile
from structgen.errors import DraftWarning
from structgen.frontends.regex import regex
from structgen.methods.drafters.draft_model import DraftModel
from structgen.models import HashModel


@pytest.fixture(scope="module")
def constraint(ab_vocabulary: Vocabulary) -> Constraint:
    return compile(regex("([ab]{1,4}(c|dd)){1,9}"), ab_vocabulary)


@pytest.mark.parametrize("shape", [Chain(6), Fixed.branching(3, 2, 1)], ids=repr)
@pytest.mark.parametrize("sampler", [Greedy(), Multinomial(), Multinomial(0.4, top_k=8)], ids=str)
@pytest.mark.parametrize("inner", ["the model", "another", "wrong"])
def test_drafts_are_the_same(constraint: Constraint, shape: Shape, sampler: Any, inner: str) -> None:
    """Tokens, confidences and distributions are equal, step by step along an output.

    There are never more passes, and fewer where it helps.
    """
    model = HashModel(constraint.vocabulary, seed=3)
    stages: dict[str, Drafter] = {
        "the model": DraftModel(model, Chain(4)),
        "another": DraftModel(HashModel(constraint.vocabulary, seed=4), Fixed.branching(2, 2)),
        "wrong": Wrong(),
    }
    alone, helped = DraftModel(model, shape), DraftModel(model, shape, drafter=stages[inner])
    context = Context(model, [4])
    draftings = [drafter.start(context, task_of(constraint, [4], sampler, seed=5)) for drafter in (alone, helped)]
    for step in range(6):
        state = position(context, constraint, 1)
        first, second = (drafting.propose(context, state, 24) for drafting in draftings)
        assert (first.tokens, first.parents, first.sources) == (second.tokens, second.parents, second.sources)
        assert first.confidences == pytest.approx(second.confidences, abs=1e-12)
        assert first.sampled.keys() == second.sampled.keys()
        assert all(
            first.sampled[node].distribution == pytest.approx(second.sampled[node].distribution, abs=1e-12)
            for node in first.sampled
        )
        if not len(first):
            break
        came = first.prefix(next(iter(first.leaves())))
        context.append([token for token in came[: 1 + step % 4] if token not in constraint.vocabulary.eos])
    passes = [drafting._rows.session.forwards for drafting in draftings]  # type: ignore[attr-defined]
    assert passes[1] <= passes[0]
    if inner == "the model" and sampler == Greedy() and isinstance(shape, Chain):
        assert passes[1] <= passes[0] / 2


def test_the_stage_is_told_what_came(constraint: Constraint) -> None:
    """It sees the draft model's sequence and rows, and is closed at the end."""
    model = HashModel(constraint.vocabulary, seed=3)
    stage = Wrong()
    drafted = generate(model, "ab", constraint, max_tokens=24, drafter=DraftModel(model, Chain(3), drafter=stage))
    assert drafted.tokens == generate(model, "ab", constraint, max_tokens=24, drafter=None).tokens
    assert stage.log[-1] == "closed"
    told = [entry for entry in stage.log if isinstance(entry, Verified)]
    assert told
    assert all(len(entry.rows) == 1 + len(entry.tree) for entry in told)


def test_a_stage_that_fails_is_dropped_alone(constraint: Constraint) -> None:
    """There is one warning, and the draft model goes on drafting."""
    model = HashModel(constraint.vocabulary, seed=3)
    alone, failing = DraftModel(model, Chain(3)), DraftModel(model, Chain(3), drafter=Failing())
    plain = generate(model, "ab", constraint, max_tokens=24, drafter=alone)
    with pytest.warns(DraftWarning, match="drafter 'failing'") as caught:
        drafted = generate(model, "ab", constraint, max_tokens=24, drafter=failing)
    assert len(caught) == 1
    assert drafted.tokens == plain.tokens
    assert drafted.stats.accepted == plain.stats.accepted > 0


def test_names_say_who_drafts_for_whom(constraint: Constraint) -> None:
    """Statistics of the two can be distinguished."""
    model = HashModel(constraint.vocabulary, name="small")
    assert DraftModel(model).name == "draft model small"
    assert DraftModel(model, drafter=Wrong()).name == "draft model small with wrong"


class Wrong(Drafter):
    """Drafts wrong tokens: refused ones, ends, and some allowed ones."""

    name = "wrong"

    def __init__(self) -> None:
        self.log: list[Any] = []

    def start(self, context: Context, task: DraftTask) -> Drafting:
        assert task.sampler == Greedy()
        return _Wrong(self.log)


class Failing(Drafter):
    """Fails at the start."""

    name = "failing"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        raise RuntimeError("no")


class _Wrong(Drafting):
    def __init__(self, log: list[Any]) -> None:
        self._log = log

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        self._log.append(budget)
        tree = DraftTree()
        for first in (0, 7, 1, 2, 3):
            tree.extend(ROOT, [first, 1, 0, 2])
        return tree

    def observe(self, verified: Verified) -> None:
        self._log.append(verified)

    def close(self) -> None:
        self._log.append("closed")
