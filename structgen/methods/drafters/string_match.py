"""String-level exact match: the draft model writes text, and the target reads it in its own tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafters.draft_session import DraftSession
from structgen.decode.speculative.drafters.model_growth import (
    DraftPosition,
    DraftRow,
    DraftRows,
    ModelGrowth,
    ShapedDrafting,
)
from structgen.decode.speculative.drafters.vocabulary_bridge import Bridge, BridgeTask, vocabulary_of
from structgen.decode.step.sampler import Greedy
from structgen.errors import LimitExceeded, VocabularyError
from structgen.methods.drafters.token_bridge import GrammarTwin, TokenBridge

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafter import DraftState
    from structgen.decode.step.context import Context
    from structgen.engine import Vocabulary

__all__ = ["ExactStringMatch", "retokenized"]


@final
@dataclass(frozen=True, slots=True)
class ExactStringMatch(Bridge):
    """The draft model writes text in its own tokens, masked by the same grammar, and the target's tokens spell it.

    What it writes is chosen, not drawn: a guess is right where the target writes the same.  So the output is the same
    as without drafts, seed for seed.  Tokens of the two models need not have anything in common but bytes.

    Source: see ``Bridge``; there "SLEM".
    """

    def start(self, crossing: BridgeTask) -> ShapedDrafting:
        """See ``Bridge.start``."""
        return _TextDrafting(crossing)


@final
class _TextDrafting(ShapedDrafting):
    def __init__(self, crossing: BridgeTask) -> None:
        super().__init__(crossing.task, crossing.shape)
        model, constraint = crossing.model, crossing.task.constraint
        self._draft = vocabulary_of(model)
        self._bridge = TokenBridge(constraint.vocabulary, model, crossing.task.prompt_tokens)
        self._bridge.check_room(crossing.tokens)
        self._twin = GrammarTwin(constraint, self._draft)
        self._rows = _TextRows(DraftSession(model))

    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """See ``ShapedDrafting.grow``; budgets count tokens of either model alike."""
        tokens = context.tokens
        try:
            matcher = self._twin.at(tokens[self._task.prompt_tokens :])
            root = None if matcher is None else DraftPosition.after(matcher, state.remaining)
        except LimitExceeded:
            root = None
        if root is None:
            return DraftTree(), DraftTree()
        self._rows.follow(self._bridge.read(tokens))
        growth = ModelGrowth(self._rows, root, Greedy(), drawn=False, most=self._shape.most_children, budget=budget)
        tree = self._shape.grow(growth, budget, kind=state.kind)
        target = self._task.constraint.vocabulary
        return retokenized(tree, self._draft, target), DraftTree()

    def end(self) -> None:
        """See ``ShapedDrafting.end``."""
        self._rows.close()


@final
class _TextRows(DraftRows):
    """The rows of a draft model in its own tokens."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``; the tokens are the draft model's."""
        self._session.follow(tokens)

    def rows(
        self, paths: Sequence[tuple[int, ...]], places: Sequence[DraftPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        return self._session.rows(paths)

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()


def retokenized(tree: DraftTree, draft: Vocabulary, target: Vocabulary) -> DraftTree:
    """The texts of a tree in the tokens of another vocabulary, without special tokens and what follows them.

    Each token is as likely as all tokens of the first tree that begin in it together.  The last token of a path may
    come out otherwise in what the target writes, where that goes on.

    Args:
        tree: tokens of ``draft``.
        draft: the vocabulary of ``tree``.
        target: the vocabulary of what is returned.

    Complexity: one call of the tokenizer for each leaf.
    """
    found = DraftTree()
    for leaf in tree.leaves():
        data = bytearray()
        starts: list[tuple[int, float]] = []
        for node in tree.path(leaf):
            piece = draft.tokens[tree.tokens[node]]
            if not piece:
                break
            starts.append((len(data), 1.0 if tree.sources[node] == FORCED else tree.confidences[node]))
            data += piece
        try:
            tokens = target.tokenize(bytes(data))
        except VocabularyError:
            continue
        found.extend(ROOT, tokens, _confidences([target.tokens[token] for token in tokens], starts))
    return found


def _confidences(pieces: Sequence[bytes], starts: Sequence[tuple[int, float]]) -> list[float]:
    """For each piece, the product of the confidences that start in it."""
    found: list[float] = []
    waiting = list(reversed(starts))
    end = 0
    for piece in pieces:
        end += len(piece)
        confidence = 1.0
        while waiting and waiting[-1][0] < end:
            confidence *= waiting.pop()[1]
        found.append(confidence)
    return found
