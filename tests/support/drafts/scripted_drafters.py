"""Drafters for tests: their draft tokens are known, right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, Verified
from structgen.decode.step.context import Context
from structgen.engine.mask import allowed_ids

__all__ = ["Knowing", "Noisy", "ScriptedDrafter"]


@dataclass(frozen=True, eq=False)
class ScriptedDrafter(Drafter, Drafting):
    """A drafter without state that records what it was told."""

    seen: list[Verified] = field(default_factory=list)

    @property
    def name(self) -> str:
        return type(self).__name__.lower()

    def start(self, context: Context, task: DraftTask) -> Drafting:
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        return DraftTree()

    def observe(self, verified: Verified) -> None:
        self.seen.append(verified)


@final
@dataclass(frozen=True, eq=False)
class Knowing(ScriptedDrafter):
    """Drafts the next tokens of a known output."""

    tokens: Sequence[int] = ()
    prompt_tokens: int = 0
    length: int = 4

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        begin = len(context) - self.prompt_tokens
        return DraftTree.chain(self.tokens[begin : begin + self.length])


@final
@dataclass(frozen=True, eq=False)
class Noisy(ScriptedDrafter):
    """Drafts random trees: allowed tokens at first, any tokens after them."""

    width: int = 3
    depth: int = 3
    _task: list[DraftTask] = field(default_factory=list)

    def start(self, context: Context, task: DraftTask) -> Drafting:
        self._task[:] = [task]
        return self

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        task = self._task[0]
        size = task.constraint.vocabulary.size
        ids = allowed_ids(state.mask, size)
        tree = DraftTree()
        layer = [ROOT]
        for depth in range(self.depth):
            among = ids if depth == 0 else range(size)
            layer = [
                tree.add(parent, int(task.generator.choice(among)), 0.5) for parent in layer for _ in range(self.width)
            ][: budget // 3]
        return tree
