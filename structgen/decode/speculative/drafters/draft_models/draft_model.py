"""Another, smaller language model as a drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.drafters.bridges.bridge import Bridge, Crossing
from structgen.decode.speculative.drafters.bridges.vocabularies import are_same, fitted, vocabulary_of
from structgen.decode.speculative.drafters.draft_models.draft_session import DraftSession, check_room
from structgen.decode.speculative.drafters.draft_models.model_drafting import RowsDrafting
from structgen.decode.speculative.drafters.draft_models.model_growth import DraftRow, DraftRows
from structgen.decode.speculative.drafters.draft_models.staged import InnerStage
from structgen.decode.speculative.shapes.chain import Chain
from structgen.decode.speculative.shapes.growth import Shape
from structgen.errors import VocabularyError
from structgen.models.protocol import LanguageModel

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.drafters.draft_models.place import Place
    from structgen.engine import Vocabulary

__all__ = ["DraftModel", "SameTokensRows"]

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
        if not are_same(target, draft):
            if self.bridge is None:
                raise _differ(self.model, target, draft)
            return self.bridge.start(Crossing(self.model, context.tokens, task, self.shape, self.draws))
        check_room(self.model, len(context))
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

    def rows(self, paths: Sequence[tuple[int, ...]], places: Sequence[Place], most: int) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        found = self._session.rows(paths, place=places[-1], stage=self._stage, most=most)
        return [None if row is None else fitted(row, self._target, self._draft) for row in found]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        if self._stage is not None:
            self._stage.close()
        self._session.close()


def _differ(model: LanguageModel, target: Vocabulary, draft: Vocabulary) -> VocabularyError:
    same = sum(ours == theirs for ours, theirs in zip(target.tokens, draft.tokens, strict=False))
    return VocabularyError(
        f"draft model {model.name!r}",
        "its vocabulary is not the target's",
        evidence=f"{draft.size} and {target.size} tokens, of which {same} have the same id and bytes",
        remedy="draft with a model of the same family, or through its text: DraftModel(..., bridge=ExactStringMatch())",
    )
