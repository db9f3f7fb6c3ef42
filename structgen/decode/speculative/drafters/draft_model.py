"""Another, smaller language model as a drafter, which may have a drafter of its own (staged speculation).

Source: B. Spector and C. Re, "Accelerating LLM Inference with Staged Speculative Decoding" (2023, arXiv 2308.04623).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftState, DraftTask, GuardedDrafting, Verified
from structgen.decode.speculative.drafters.draft_session import DraftSession, check_capacity
from structgen.decode.speculative.drafters.model_growth import DraftRow, DraftRows, RowsDrafting
from structgen.decode.speculative.drafters.vocabulary_bridge import (
    Bridge,
    BridgeTask,
    fitted_logits,
    have_same_tokens,
    vocabulary_of,
)
from structgen.decode.speculative.fixed_tree import Chain
from structgen.decode.speculative.tree_policy import Shape
from structgen.decode.step.sampler import Greedy
from structgen.errors import LimitExceeded, VocabularyError
from structgen.models.protocol import LanguageModel

if TYPE_CHECKING:
    from structgen.decode.speculative.drafters.model_growth import DraftPosition
    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary
    from structgen.models.protocol import Logits

__all__ = ["DraftModel", "InnerStage", "SameTokensRows"]

_SEED: Final = 1
_MAX_STAGED: Final = 16


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

    def guess(self, context: Context, place: DraftPosition, most: int) -> DraftTree:
        """See ``Stage.guess``."""
        if self._drafting is None:
            self._drafting = GuardedDrafting(self._drafter, context, self._task)
        state = DraftState(place.matcher, place.mask, place.remaining, len(place.ids).bit_length())
        budget = min(most, _MAX_STAGED)
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


def _allowed(tree: DraftTree, place: DraftPosition, most: int) -> DraftTree:
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


_SHAPE: Final = Chain(length=5)


@final
@dataclass(frozen=True)
class DraftModel(Drafter):
    """A smaller model writes ahead, and the target reads what it wrote in one pass.

    Its laws are masked by the grammar, so that it never writes what could not be taken, and shaped by the sampler as
    those of the target are.  With a ``Multinomial`` the tokens of a draft are drawn from its laws, which the tree
    records; so a verifier takes as many of them as the two laws have in common.  With any other sampler, the most
    probable ones are chosen.

    Source: Y. Leviathan et al. (ICML 2023, arXiv 2211.17192); C. Chen et al. (2023, arXiv 2302.01318).

    Attributes:
        model: the draft model.
        shape: what a draft looks like.
        bridge: what to do where the model has another vocabulary than the target; None is to refuse it.
        drafter: what drafts for the draft model; None is nothing.  Not with a bridge.
        draws: whether tokens are drawn where the sampler draws; False chooses the most probable ones, and the output is
            the same as without drafts, seed for seed.

    Raises:
        ValueError: there are both a bridge and a drafter for the draft model.
    """

    model: LanguageModel
    shape: Shape = _SHAPE
    bridge: Bridge | None = None
    drafter: Drafter | None = None
    draws: bool = True

    def __post_init__(self) -> None:
        if self.bridge is not None and self.drafter is not None:
            raise ValueError(
                "DraftModel: what drafts for a draft model has to have its vocabulary; "
                f"found bridge={self.bridge!r} and drafter={self.drafter!r}"
            )

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        stage = "" if self.drafter is None else f" with {self.drafter.name}"
        return f"draft model {self.model.name}{stage}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            VocabularyError: the vocabularies differ and there is no bridge, or it does not lead from one to the other.
            GenerationError: the prompt does not fit the draft model's context.
        """
        target, draft = task.constraint.vocabulary, vocabulary_of(self.model)
        if not have_same_tokens(target, draft):
            if self.bridge is None:
                raise _vocabulary_error(self.model, target, draft)
            return self.bridge.start(BridgeTask(self.model, context.tokens, task, self.shape, self.draws))
        check_capacity(self.model, len(context))
        stage = None if self.drafter is None else InnerStage(self.drafter, task)
        return RowsDrafting(task, self.shape, SameTokensRows(self.model, target, stage), draws=self.draws)


@final
class SameTokensRows(DraftRows):
    """The rows of a draft model with the target's tokens.

    Args:
        model: the draft model.
        target: the vocabulary of the output.
        stage: what drafts for the draft model.
    """

    def __init__(self, model: LanguageModel, target: Vocabulary, stage: InnerStage | None = None) -> None:
        self._session = DraftSession(model)
        self._target = target
        self._draft = model.vocabulary
        self._stage = stage

    @property
    def session(self) -> DraftSession:
        """The draft model's own sequence."""
        return self._session

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._session.follow(tokens)

    def rows(
        self, paths: Sequence[tuple[int, ...]], places: Sequence[DraftPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        found = self._session.rows(paths, place=places[-1], stage=self._stage, most=most)
        return [None if row is None else fitted_logits(row, self._target, self._draft) for row in found]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        if self._stage is not None:
            self._stage.close()
        self._session.close()


def _vocabulary_error(model: LanguageModel, target: Vocabulary, draft: Vocabulary) -> VocabularyError:
    same = sum(ours == theirs for ours, theirs in zip(target.tokens, draft.tokens, strict=False))
    return VocabularyError(
        f"draft model {model.name!r}",
        "its vocabulary is not the target's",
        evidence=f"{draft.size} and {target.size} tokens, of which {same} have the same id and bytes",
        remedy="draft with a model of the same family, or through its text: DraftModel(..., bridge=ExactStringMatch())",
    )
