"""Draft models with another vocabulary than the target: the bridge protocol, and the tokens that both share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

import numpy as np

from structgen.errors import StructgenError, VocabularyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftTask
    from structgen.decode.speculative.drafters.model_growth import ShapedDrafting
    from structgen.decode.speculative.tree_policy import Shape
    from structgen.engine import Vocabulary
    from structgen.models.protocol import LanguageModel, Logits

__all__ = ["Bridge", "BridgeTask", "SharedTokens", "fitted_logits", "have_same_tokens", "vocabulary_of"]


@final
@dataclass(frozen=True, slots=True)
class BridgeTask:
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
    def start(self, crossing: BridgeTask, /) -> ShapedDrafting:
        """Begin to guess for an output.

        Raises:
            VocabularyError: there is no way from one vocabulary to the other.
            GenerationError: the prompt does not fit the draft model's context.
            GrammarError: the grammar does not compile for the draft model's vocabulary.
        """


def vocabulary_of(model: LanguageModel) -> Vocabulary:
    """The vocabulary of a draft model.

    Raises:
        VocabularyError: it cannot be had.
    """
    try:
        return model.vocabulary
    except (StructgenError, OSError, ValueError, ImportError, AttributeError) as error:
        raise VocabularyError(
            f"draft model {model.name!r}",
            "its vocabulary cannot be read",
            evidence=f"{type(error).__name__}: {error}",
            remedy="put its tokenizer beside its weights, or draft with another model",
        ) from error


def have_same_tokens(target: Vocabulary, draft: Vocabulary) -> bool:
    """Whether each id stands for the same bytes in both, but for padding at the end of the wider one.

    Which ids end an output may differ: see ``fitted``.
    """
    if target is draft or target.digest == draft.digest:
        return True
    size = min(target.size, draft.size)
    rest = max(target.tokens, draft.tokens, key=len)[size:]
    return not any(rest) and target.tokens[:size] == draft.tokens[:size]


def fitted_logits(logits: Logits, target: Vocabulary, draft: Vocabulary) -> Logits:
    """Logits of a draft model with the same tokens, as wide as the target's, with the ends that the target knows.

    Args:
        logits: ``[draft.size]``.
        target: of the model that is drafted for.
        draft: of the draft model; ``are_same``.
    """
    if draft.size == target.size and draft.eos == target.eos:
        return logits
    row = np.full(target.size, -np.inf, dtype=np.float32)
    size = min(draft.size, target.size)
    row[:size] = logits[:size]
    if set(draft.eos) != set(target.eos):
        row[list(target.eos)] = -np.inf
        if draft.eos and target.eos:
            row[target.eos[0]] = np.logaddexp.reduce(logits[list(draft.eos)])
    return row


@final
class SharedTokens:
    """The tokens that two vocabularies have in common, by their bytes.

    Where several ids have the same bytes, the lowest of one goes with the lowest of the other, and so on.  That the
    output ends is one event in both, whatever ids say so: all EOS ids of the draft model together are the first one of
    the target.

    Attributes:
        target_ids: ids of the target, ascending, ``[n]``.
        draft_ids: those of the draft model for the same bytes, ``[n]``.

    Args:
        target: of the model that is drafted for.
        draft: of the draft model.

    Complexity: O(V), once.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self._size = target.size
        waiting: dict[bytes, list[int]] = {}
        for token in range(draft.size - 1, -1, -1):
            if draft.tokens[token]:
                waiting.setdefault(draft.tokens[token], []).append(token)
        pairs = [
            (token, waiting[piece].pop()) for token, piece in enumerate(target.tokens) if piece and waiting.get(piece)
        ]
        self.target_ids: NDArray[np.intp] = np.array([pair[0] for pair in pairs], dtype=np.intp)
        self.draft_ids: NDArray[np.intp] = np.array([pair[1] for pair in pairs], dtype=np.intp)
        self._to_draft = dict(pairs)
        self._target_eos = target.eos[:1]
        self._draft_eos = np.array(draft.eos, dtype=np.intp)

    def __len__(self) -> int:
        return len(self.target_ids)

    def draft_id(self, token: int) -> int | None:
        """The draft model's id of a token of the target; None where it has none."""
        return self._to_draft.get(token)

    def row(self, logits: Logits) -> NDArray[np.float64]:
        """Logits of the draft model as logits over the target's ids, minus infinity for what is not shared.

        Args:
            logits: ``[size of the draft vocabulary]``.
        """
        row = np.full(self._size, -np.inf)
        row[self.target_ids] = logits[self.draft_ids]
        if self._target_eos and len(self._draft_eos):
            row[self._target_eos[0]] = np.logaddexp.reduce(logits[self._draft_eos].astype(np.float64))
        return row
