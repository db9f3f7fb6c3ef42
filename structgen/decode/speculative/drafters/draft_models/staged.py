"""A drafter that drafts for a draft model: staged speculation.

The draft model writes its draft as any model writes an output: where another drafter has guessed what it says next,
one pass tells several of its rows.  A row is the same whether it was guessed to be needed or not, and what is drawn
from it is drawn with the same random numbers; so the draft is the same, and only takes fewer passes.

Source: B. Spector and C. Re, "Accelerating LLM Inference with Staged Speculative Decoding" (2023, arXiv 2308.04623).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.sampler import Greedy
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import DraftState, DraftTask, Verified
from structgen.decode.speculative.guard import GuardedDrafting
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.drafter import Drafter
    from structgen.decode.speculative.drafters.draft_models.place import Place
    from structgen.models.protocol import Logits

__all__ = ["InnerStage"]

_SEED: Final = 1
_MOST: Final = 16


@final
class InnerStage:
    """The guesses of a drafter at what a draft model will say: a ``Stage``.

    They are guesses at the draft model's most probable tokens: whether the draft is drawn or chosen, a guess is right
    where it is what the draft model then takes.  A drafter that fails is not asked any more; the draft model goes on
    alone.

    Args:
        drafter: what guesses for the draft model.
        task: the output that the draft model drafts for.
    """

    def __init__(self, drafter: Drafter, task: DraftTask) -> None:
        self._drafter = drafter
        self._task = DraftTask(
            task.constraint, Greedy(), task.prompt_tokens, np.random.Generator(np.random.PCG64(_SEED))
        )
        self._drafting: GuardedDrafting | None = None

    def guess(self, context: Context, place: Place, most: int) -> DraftTree:
        """See ``Stage.guess``."""
        if self._drafting is None:
            self._drafting = GuardedDrafting(self._drafter, context, self._task)
        state = DraftState(place.matcher, place.mask, place.remaining, len(place.ids).bit_length())
        budget = min(most, _MOST)
        tree = self._drafting.propose(context, state, budget)
        try:
            return _allowed(tree, place, budget)
        except LimitExceeded:  # limits are for outputs, not for guesses
            return DraftTree()

    def told(self, start: int, tree: DraftTree, rows: Logits) -> None:
        """See ``Stage.told``."""
        if self._drafting is not None:
            self._drafting.observe(Verified(start, tree, rows))

    def close(self) -> None:
        """Let the drafter free what it kept for this output."""
        drafting, self._drafting = self._drafting, None
        if drafting is not None:
            drafting.close()


def _allowed(tree: DraftTree, place: Place, most: int) -> DraftTree:
    """The first ``most`` nodes of a tree that the grammar allows; behind the end of the output there is nothing."""
    matchers = {ROOT: place.matcher}
    ends = place.matcher.constraint.vocabulary.eos
    kept: list[int] = []
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if len(kept) >= most or parent not in matchers or token in ends:
            continue
        matcher = matchers[parent].fork()
        if matcher.accept(token):
            matchers[node] = matcher
            kept.append(node)
    return tree.kept(kept)
