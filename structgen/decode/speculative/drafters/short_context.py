"""Drafts from a part of a long prompt, chosen by the words that it shares with the end of the prompt.

Source of the idea: G. Chen et al., "Long-Context Inference with Retrieval-Augmented Speculative Decoding" (RAPID, 2025,
arXiv 2502.20330).  Only its mechanics are here: what is drafted is verified by the target as it is, and nothing of the
drafter's law enters the target's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import numpy as np

from structgen.decode.speculative.draft_tree import DraftTree
from structgen.decode.speculative.drafter import Drafter, Drafting, DraftTask
from structgen.decode.speculative.drafters.draft_model import SameTokensRows
from structgen.decode.speculative.drafters.model_growth import DraftRow, DraftRows, RowsDrafting
from structgen.decode.speculative.drafters.vocabulary_bridge import have_same_tokens, vocabulary_of
from structgen.decode.speculative.fixed_tree import Chain
from structgen.decode.speculative.tree_policy import Shape
from structgen.errors import VocabularyError
from structgen.models.protocol import LanguageModel

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftState
    from structgen.decode.speculative.drafters.model_growth import DraftPosition
    from structgen.decode.step.context import Context

__all__ = ["ShortContext", "relevance", "shortened"]

_K1: Final = 1.5
_B: Final = 0.75
_WORD: Final = 1 << 31


def relevance(chunks: Sequence[Sequence[int]], question: Sequence[int]) -> list[float]:
    """Score chunks of tokens by the tokens and pairs of tokens that they share with a question.

    BM25 with tokens and pairs as terms, ``k1 = 1.5`` and ``b = 0.75``; each term of the question counts once.

    Source: S. Robertson and H. Zaragoza, "The Probabilistic Relevance Framework: BM25 and Beyond" (2009).

    Args:
        chunks: token ids of each.
        question: token ids.

    Returns:
        For each chunk a score of at least 0; 0 where nothing is shared.

    Complexity: O(n log n) for n tokens.
    """
    if not chunks:
        return []
    wanted = np.unique(_terms(question))
    counts = np.zeros((len(chunks), len(wanted)))
    lengths = np.zeros(len(chunks))
    for index, chunk in enumerate(chunks):
        terms, times = np.unique(_terms(chunk), return_counts=True)
        lengths[index] = len(chunk)
        at = np.searchsorted(wanted, terms)
        inside = at < len(wanted)
        inside[inside] = wanted[at[inside]] == terms[inside]
        counts[index, at[inside]] = times[inside]
    holding = (counts > 0).sum(axis=0)
    rarity = np.log1p((len(chunks) - holding + 0.5) / (holding + 0.5))
    norm = _K1 * (1 - _B + _B * lengths / max(float(lengths.mean()), 1.0))
    scores = counts * (_K1 + 1) / (counts + norm[:, None]) @ rarity
    return [float(score) for score in scores]


def _terms(tokens: Sequence[int]) -> NDArray[np.int64]:
    """A number for each token and each pair of neighbours."""
    ids = np.asarray(tokens, dtype=np.int64)
    return np.concatenate((ids, (ids[:-1] + 1) * _WORD + ids[1:]))


_QUESTION: Final = 64
_SHAPE: Final = Chain(length=5)


@final
@dataclass(frozen=True)
class ShortContext(Drafter):
    """The target itself, or a draft model with its vocabulary, drafts from a part of the prompt.

    The part is the beginning of the prompt, its end, and those chunks between them that share most words with the end
    of the prompt and with what stands of the output; all in their order.  It is chosen anew as the output grows.
    Prompts that are not longer than ``tokens`` are not drafted for: a draft would cost what the target costs.

    Attributes:
        model: what drafts; None is the target itself.
        shape: what a draft looks like.
        tokens: how many tokens of the prompt are read.
        head: how many of them are its beginning.
        tail: how many of them are its end.
        chunk: how many tokens are chosen together.
        refresh: the part is chosen anew after so many tokens of the output; None chooses once.
        draws: as for ``DraftModel``.

    Raises:
        ValueError: a number is not positive, or ``head`` and ``tail`` leave no room for a chunk.
    """

    model: LanguageModel | None = None
    shape: Shape = _SHAPE
    tokens: int = 512
    head: int = 64
    tail: int = 128
    chunk: int = 64
    refresh: int | None = 128
    draws: bool = True

    def __post_init__(self) -> None:
        for name in ("tokens", "head", "tail", "chunk", "refresh"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"ShortContext: {name} must be an integer of at least 1; found {value!r}")
        if self.head + self.tail + self.chunk > self.tokens:
            raise ValueError(
                "ShortContext: head, tail and a chunk must fit into tokens; "
                f"found {self.head} + {self.tail} + {self.chunk} > {self.tokens}"
            )

    @property
    def name(self) -> str:
        """See ``Drafter.name``."""
        return "short context" if self.model is None else f"short context of {self.model.name}"

    def start(self, context: Context, task: DraftTask) -> Drafting:
        """See ``Drafter.start``.

        Raises:
            VocabularyError: the vocabularies differ.
        """
        if task.prompt_tokens <= self.tokens:
            return _NoDrafting()
        model = context.model if self.model is None else self.model
        target = task.constraint.vocabulary
        if not have_same_tokens(target, vocabulary_of(model)):
            raise VocabularyError(
                f"draft model {model.name!r}",
                "its vocabulary is not the target's",
                evidence=f"{model.vocabulary.size} and {target.size} tokens",
                remedy="draft with the target itself, ShortContext(), or with a model of the same family",
            )
        rows = _ShortRows(SameTokensRows(model, target), self, task.prompt_tokens)
        return RowsDrafting(task, self.shape, rows, draws=self.draws)


@final
class _NoDrafting(Drafting):
    """Guesses nothing."""

    def propose(self, context: Context, state: DraftState, budget: int) -> DraftTree:
        """See ``Drafting.propose``."""
        return DraftTree()


@final
class _ShortRows(DraftRows):
    """The rows of a model that reads a part of the prompt."""

    def __init__(self, rows: SameTokensRows, setting: ShortContext, prompt_tokens: int) -> None:
        self._rows = rows
        self._setting = setting
        self._prompt_tokens = prompt_tokens
        self._chosen: tuple[tuple[int, ...], list[int]] | None = None  # what was asked, and the part

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        prompt, output = tokens[: self._prompt_tokens], tokens[self._prompt_tokens :]
        setting = self._setting
        told = 0 if setting.refresh is None else len(output) // setting.refresh * setting.refresh
        question = (*prompt[-_QUESTION:], *output[:told][-_QUESTION:])
        if self._chosen is None or self._chosen[0] != question:
            self._chosen = question, shortened(prompt, question, setting)
        self._rows.follow([*self._chosen[1], *output])

    def rows(
        self, paths: Sequence[tuple[int, ...]], places: Sequence[DraftPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        return self._rows.rows(paths, places, most)

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._rows.close()


def shortened(prompt: Sequence[int], question: Sequence[int], setting: ShortContext) -> list[int]:
    """Return the part of a prompt that is read: at most ``setting.tokens`` of its tokens, in their order.

    Of equally relevant chunks those nearer to the end are taken.

    Args:
        prompt: token ids, more than ``setting.tokens``.
        question: what the chunks are compared with.
        setting: how much is read.

    Complexity: O(n log n).
    """
    middle = prompt[setting.head : len(prompt) - setting.tail]
    chunks = [middle[at : at + setting.chunk] for at in range(0, len(middle), setting.chunk)]
    scores = relevance(chunks, question)
    ranked = sorted(range(len(chunks)), key=lambda index: (-scores[index], -index))
    room = setting.tokens - setting.head - setting.tail
    taken: list[int] = []
    for index in ranked:
        if len(chunks[index]) <= room:
            taken.append(index)
            room -= len(chunks[index])
    found = list(prompt[: setting.head])
    for index in sorted(taken):
        found += chunks[index]
    return [*found, *prompt[len(prompt) - setting.tail :]]
