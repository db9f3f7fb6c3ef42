"""The session of a draft model, and the protocol of bridges to draft models with another vocabulary.

A session follows the output; a bridge translates between the vocabularies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.step.context import Context
from structgen.decode.step.logits_row import on_host
from structgen.errors import GenerationError, StructgenError, VocabularyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from structgen.decode.speculative.drafter import DraftTask, GrammarPosition
    from structgen.decode.speculative.tree_policy import Shape
    from structgen.engine import Vocabulary
    from structgen.methods.drafters.model_growth import ShapedDrafting
    from structgen.models.protocol import LanguageModel, Logits

__all__ = [
    "Bridge",
    "BridgeTask",
    "DraftSession",
    "DraftStage",
    "SharedTokens",
    "check_capacity",
    "common_length",
    "fitted_logits",
    "have_same_tokens",
    "vocabulary_of",
]

TokenPath = tuple[int, ...]


class DraftStage(Protocol):
    """Drafts for a draft model."""

    def draft(self, context: Context, position: GrammarPosition, most: int, /) -> DraftTree:
        """Return at most ``most`` allowed tokens that the draft model may predict after ``context``."""

    def observe(self, start: int, tree: DraftTree, rows: Logits, /) -> None:
        """Learn from a pass of the draft model: see ``Verified``."""


@final
class DraftSession:
    """A sequence of the draft model with its cache, and the logits that were computed after it.

    Close it to free the cache.

    Invariant: what ``rows`` returns depends on the sequence and the path alone, not on earlier calls (up to rounding of
    float32 sums).

    Args:
        model: the draft model.
    """

    __slots__ = ("_base", "_context", "_model", "_rows")

    def __init__(self, model: LanguageModel) -> None:
        self._model = model
        self._context = Context(model)
        self._base: list[int] = []
        self._rows: dict[TokenPath, Logits] = {}

    @property
    def forwards(self) -> int:
        """Forward passes that were run."""
        return self._context.forwards

    @property
    def cached(self) -> int:
        """How many tokens the cache holds."""
        return self._context.session.length

    def follow(self, tokens: Sequence[int]) -> None:
        """Move to the end of ``tokens``, at least one; the prefix shared with the last sequence stays cached."""
        base = list(tokens)
        before = len(self._base)
        if base[:before] == self._base:
            added = tuple(base[before:])
            count = len(added)
            self._rows = {path[count:]: row for path, row in self._rows.items() if path[:count] == added}
        else:
            self._rows = {}
        self._base = base

    def fits(self, path: TokenPath) -> bool:
        """Whether the model can read the sequence and ``path``."""
        bound = self._model.max_context
        return bound is None or len(self._base) + len(path) <= bound

    def rows(
        self,
        paths: Sequence[TokenPath],
        *,
        position: GrammarPosition | None = None,
        stage: DraftStage | None = None,
        most: int = 0,
    ) -> list[Logits | None]:
        """Return the logits after the sequence and each path; None for a path that is too long for the model.

        Missing rows are run in one forward pass over a tree if the session can branch; otherwise in one for each path.

        Args:
            paths: tokens after the sequence; the empty path is the sequence itself.
            position: the position in the grammar after the last path; needed for a stage only.
            stage: drafts the paths that will be requested next; used if there is a single path.
            most: the largest number of draft tokens that are of use.
        """
        missing = [path for path in dict.fromkeys(paths) if path not in self._rows and self.fits(path)]
        if len(missing) == 1:
            self._run(missing[0], missing, stage if position is not None else None, position, most)
        elif missing and self._context.branches:
            first = min(missing)
            self._run(first[: common_length(first, max(missing))], missing, None, None, 0)
        else:
            for path in missing:
                self._run(path, [path], None, None, 0)
        return [self._rows.get(path) for path in paths]

    def close(self) -> None:
        """Free the cache and forget the sequence."""
        self._context.close()
        self._context = Context(self._model)
        self._base = []
        self._rows = {}

    def _run(
        self,
        trunk: TokenPath,
        paths: Sequence[TokenPath],
        stage: DraftStage | None,
        position: GrammarPosition | None,
        most: int,
    ) -> None:
        """Run the sequence with ``trunk``, and after it the rest of the paths or the drafts of the stage."""
        context = self._context
        self._move([*self._base, *trunk])
        tree = DraftTree()
        for path in paths:
            tree.extend(ROOT, path[len(trunk) :])
        if stage is not None and position is not None and most > 0:
            tree = self._fitting(stage.draft(context, position, most), trunk)
        tokens = tree.token_tree() if len(tree) else None
        self._rows[trunk] = context.rows_on_host(1, tokens, again=True)[-1]
        ahead = context.ahead
        if tokens is None or ahead is None or ahead.start != len(context):
            if stage is not None:
                stage.observe(len(context), DraftTree(), self._rows[trunk][None])
            return
        for node in range(len(tree)):
            path = tuple(tree.prefix(node))
            row = ahead.row_after(path)
            if row is not None:
                self._rows[(*trunk, *path)] = on_host(row)
        if stage is not None:
            stage.observe(len(context), tree, ahead.rows)

    def _fitting(self, tree: DraftTree, trunk: TokenPath) -> DraftTree:
        """Return the part of a draft tree that fits into the context of the model."""
        if self.fits((*trunk, *([0] * tree.depth()))):
            return tree
        return tree.kept(node for node in range(len(tree)) if self.fits((*trunk, *tree.prefix(node))))

    def _move(self, tokens: list[int]) -> None:
        """Move to the end of ``tokens`` with something to run; rows of a look ahead are taken over."""
        context = self._context
        common = common_length(context.tokens, tokens)
        if common < len(context):
            context.truncate(common)
        context.append(tokens[common:])
        if not context.unseen:
            context.prepare()


def check_capacity(model: LanguageModel, length: int) -> None:
    """Refuse a prompt that is too long for a draft model.

    Raises:
        GenerationError: ``length`` tokens leave no capacity for one more.
    """
    if model.max_context is not None and length >= model.max_context:
        raise GenerationError(
            f"draft model {model.name!r}",
            "the prompt is too long for it",
            evidence=f"{length} tokens do not fit its context of {model.max_context}",
            remedy="let it read a part of the prompt: ShortContext(model=...)",
        )


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix of two sequences; slices are compared, so long ones cost little."""
    low, high = 0, min(len(first), len(second))
    step = 512
    while low < high and list(first[low : low + step]) == list(second[low : low + step]):
        low += step
    low = min(low, high)
    while low < high and first[low] == second[low]:
        low += 1
    return low


@final
@dataclass(frozen=True, slots=True)
class BridgeTask:
    """The two sides of a bridge.

    Attributes:
        model: the draft model.
        tokens: the prompt and the output so far, in tokens of the target.
        task: the output that is drafted for.
        shape: the tree policy.
        draws: whether children are sampled if the sampler samples; otherwise they are chosen.
    """

    model: LanguageModel
    tokens: Sequence[int]
    task: DraftTask
    shape: Shape
    draws: bool


class Bridge(ABC):
    """Translates between the vocabularies of a draft model and the target: a value.

    Source of all three bridges: N. Timor et al., "Accelerating LLM Inference with Lossless Speculative Decoding
    Algorithms for Heterogeneous Vocabularies" (ICML 2025, arXiv 2502.05202).
    """

    @abstractmethod
    def start(self, crossing: BridgeTask, /) -> ShapedDrafting:
        """Start drafting for an output.

        Raises:
            VocabularyError: the bridge cannot translate between these vocabularies.
            GenerationError: the prompt does not fit into the draft model's context.
            GrammarError: the grammar does not compile for the draft model's vocabulary.
        """


def vocabulary_of(model: LanguageModel) -> Vocabulary:
    """Return the vocabulary of a draft model.

    Raises:
        VocabularyError: it cannot be read.
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
    """Return whether each id has the same bytes in both, padding at the end of the larger one aside.

    The EOS ids may differ: see ``fitted_logits``.
    """
    if target is draft or target.digest == draft.digest:
        return True
    size = min(target.size, draft.size)
    rest = max(target.tokens, draft.tokens, key=len)[size:]
    return not any(rest) and target.tokens[:size] == draft.tokens[:size]


def fitted_logits(logits: Logits, target: Vocabulary, draft: Vocabulary) -> Logits:
    """Return logits of a draft model with the same tokens, in the width and with the EOS of the target.

    Args:
        logits: ``[draft.size]``.
        target: the vocabulary of the target.
        draft: the vocabulary of the draft model; see ``have_same_tokens``.
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

    If several ids have the same bytes, they are paired in ascending order.  All EOS ids of the draft model together are
    the first EOS id of the target.

    Attributes:
        target_ids: ids of the target, ascending, ``[n]``.
        draft_ids: ids of the draft model for the same bytes, ``[n]``.

    Args:
        target: the vocabulary of the target.
        draft: the vocabulary of the draft model.

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
        """Return the draft model's id of a token of the target, or None."""
        return self._to_draft.get(token)

    def row(self, logits: Logits) -> NDArray[np.float64]:
        """Return logits of the draft model, ``[size of the draft vocabulary]``, as logits over the target's ids.

        Tokens that are not shared have minus infinity.
        """
        row = np.full(self._size, -np.inf)
        row[self.target_ids] = logits[self.draft_ids]
        if self._target_eos and len(self._draft_eos):
            row[self._target_eos[0]] = np.logaddexp.reduce(logits[self._draft_eos].astype(np.float64))
        return row
