"""Drafters whose tokens are right with a given probability, on an endless text: rounds without models."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import final

import numpy as np

from structgen.decode.speculative.cost import CostModel
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.step.context import Context
from structgen.decode.step.sampler import Greedy
from structgen.engine import Vocabulary, compile
from structgen.frontends.regex import regex
from structgen.models.toy.hash import HashModel

VOCABULARY = Vocabulary([b"", *(bytes([97 + letter]) for letter in range(26))], eos=[0])
CONSTRAINT = compile(regex("[a-z]*"), VOCABULARY)
WRONG = 26  # never comes


def token(position: int) -> int:
    """The token of the text at a place."""
    return 1 + position % 25


def task_of(seed: int = 0) -> DraftTask:
    """An output whose grammar allows all letters."""
    return DraftTask(CONSTRAINT, Greedy(), 1, np.random.default_rng(seed))


def state_of(kind: int = 0) -> DraftState:
    """The state at a place of the text."""
    return DraftState(CONSTRAINT.matcher(), np.full(1, -1, dtype=np.int32), 1000, kind)


@final
@dataclass(frozen=True, eq=False)
class Lucky(Drafter, Drafting):
    """Drafts a chain; each token is right with a probability that depends on the kind of position.

    Attributes:
        title: its name.
        right: by kind, or for all.
        length: of the chain.
        asked: the positions at which it was asked.
    """

    title: str
    right: dict[int, float] | float
    length: int = 4
    asked: list[int] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.title

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        self.asked.append(len(context))
        rng = random.Random(f"{self.title}{len(context)}")
        chance = self.right[state.kind] if isinstance(self.right, dict) else self.right
        tree, node = DraftTree(), ROOT
        for ahead in range(min(self.length, budget)):
            draft = token(len(context) + ahead) if rng.random() < chance else WRONG
            node = tree.add(node, draft, 0.5)
        return tree

    def observe(self, verified: Verified) -> None:
        pass


@dataclass(frozen=True)
class Round:
    """What a pass did: the kind of position, the tree that was run, and how many tokens were accepted."""

    kind: int
    tree: DraftTree
    told: int

    def time(self, cost: CostModel) -> float:
        return cost.relative(1 + len(self.tree))


def rounds(
    drafter: Drafter, count: int, *, kind: Callable[[int], int] = lambda _: 0, seed: int = 0, budget: int = 64
) -> Iterator[Round]:
    """Write the text in ``count`` passes."""
    context = Context(HashModel(VOCABULARY), [token(0)])
    task = task_of(seed)
    drafting = drafter.start(context, task)
    for number in range(count):
        state = state_of(kind(number))
        start = len(context)
        tree = drafting.propose(context, state, budget)
        drafting.observe(Verified(start, tree, np.zeros((1 + len(tree), VOCABULARY.size), dtype=np.float32)))
        node: int | None = ROOT
        while node is not None:
            node = tree.child(node, token(len(context)))
            context.append([token(len(context))])
        yield Round(state.kind, tree, len(context) - start)
    drafting.close()
    context.close()
