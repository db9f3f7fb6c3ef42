"""How a draft model with another vocabulary is made use of."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafter import DraftTask
    from structgen.decode.speculative.drafters.draft_models.model_drafting import ShapedDrafting
    from structgen.decode.speculative.shapes.growth import Shape
    from structgen.models.protocol import LanguageModel

__all__ = ["Bridge", "Crossing"]


@final
@dataclass(frozen=True, slots=True)
class Crossing:
    """What a bridge leads from and to.

    Attributes:
        model: the draft model.
        tokens: the prompt and what stands of the output, as the target has them.
        task: the output that is drafted for.
        shape: grows trees.
        draws: whether children may be drawn, not chosen, where the sampler draws tokens.
    """

    model: LanguageModel
    tokens: Sequence[int]
    task: DraftTask
    shape: Shape
    draws: bool


class Bridge(ABC):
    """A way between two vocabularies: a value.

    Source of all three: N. Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
        Heterogeneous Vocabularies" (ICML 2025, arXiv 2502.05202).
    """

    @abstractmethod
    def start(self, crossing: Crossing, /) -> ShapedDrafting:
        """Begin to guess for an output.

        Raises:
            VocabularyError: there is no way from one vocabulary to the other.
            GenerationError: the prompt does not fit the draft model's context.
            GrammarError: the grammar does not compile for the draft model's vocabulary.
        """
