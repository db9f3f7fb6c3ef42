"""Bridges to a draft model with other tokens.

``TokenIntersection`` drafts in the shared tokens; ``ExactStringMatch`` has the draft model write text, which is
tokenized for the target.  ``GrammarReference`` is the grammar over the draft model's tokens, ``TokenBridge`` its token
stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.drafter import DraftState, GrammarPosition
from structgen.decode.step.sampler import Greedy
from structgen.engine import compile
from structgen.errors import LimitExceeded, VocabularyError
from structgen.methods.drafters.draft_session import (
    Bridge,
    BridgeTask,
    DraftSession,
    SharedTokens,
    check_capacity,
    common_length,
    vocabulary_of,
)
from structgen.methods.drafters.model_growth import DraftRow, DraftRows, ModelGrowth, RowsDrafting, ShapedDrafting

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.step.context import Context
    from structgen.engine import Constraint, Matcher, Vocabulary
    from structgen.models.protocol import LanguageModel

__all__ = ["ExactStringMatch", "GrammarReference", "TokenBridge", "TokenIntersection", "retokenized"]


@final
class GrammarReference:
    """The same grammar compiled for another vocabulary, with a matcher that follows the bytes of the output.

    Args:
        constraint: the constraint on the output.
        vocabulary: the vocabulary of the draft model.

    Raises:
        GrammarError: the grammar does not compile for this vocabulary.
        VocabularyError: its tokens cannot spell the grammar.
    """

    def __init__(self, constraint: Constraint, vocabulary: Vocabulary) -> None:
        self._target = constraint.vocabulary
        self._special = {
            token: other
            for other, text in vocabulary.special.items()
            for token, name in self._target.special.items()
            if text == name
        }
        self._matcher = compile(constraint.grammar, vocabulary, limits=constraint.limits).matcher()
        self._output: list[int] = []

    def at(self, output: Sequence[int]) -> Matcher | None:
        """Return a new matcher after the tokens of an output; None if the draft model's tokens cannot spell them."""
        common = common_length(self._output, output)
        self._matcher.rollback(len(self._output) - common)
        del self._output[common:]
        for token in output[common:]:
            if not self._take(token):
                return None
            self._output.append(token)
        return self._matcher.fork()

    def _take(self, token: int) -> bool:
        piece = self._target.tokens[token]
        if not piece:
            return token in self._special and self._matcher.accept(self._special[token])
        count = self._matcher.accept_bytes(piece)
        if 0 < count < len(piece):
            self._matcher.rollback(1)
        return count == len(piece)


_PIECE: Final = 64
"""The tokens of the output that are tokenized together; a complete piece is not tokenized again."""


@final
class TokenBridge:
    """Translates target tokens into a draft model's tokens, by their bytes.

    The prompt is tokenized as one text, the output in pieces of 64 tokens, so that complete pieces need no work and
    keep their tokens.  Equal tokens give equal results, whatever came before.

    A special token becomes the draft model's special token of the same text, or is left out: chat templates differ, and
    the marks of one are noise to another model.  If the draft model's prompts begin with a special token (BOS), so does
    the result.

    Args:
        target: the vocabulary of the output.
        model: the draft model.
        prompt_tokens: how many tokens at the start are the prompt.

    Raises:
        VocabularyError: the draft model's vocabulary cannot be read.
    """

    def __init__(self, target: Vocabulary, model: LanguageModel, prompt_tokens: int) -> None:
        self._target = target
        self._model = model
        self._draft = vocabulary_of(model)
        self._prompt_tokens = prompt_tokens
        names = {text: token for token, text in reversed(list(self._draft.special.items()))}
        self._special = {token: names.get(text) for token, text in target.special.items()}
        self._head: list[int] = []
        for token in model.encode_prompt("a", chat=False):
            if token not in self._draft.special:
                break
            self._head.append(token)
        self._fallback = model.encode_prompt("", chat=False)
        self._pieces: list[tuple[tuple[int, ...], list[int]]] = []  # pieces with their draft model tokens

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft model's tokens for a prompt and an output; never empty.

        Raises:
            VocabularyError: the draft model's tokens cannot spell the text.

        Complexity: O(n) comparisons; only pieces that differ from the last call are tokenized.
        """
        result = list(self._head)
        start, end, index = 0, min(self._prompt_tokens, len(tokens)), 0
        while start < len(tokens):
            piece = tuple(tokens[start:end])
            if index == len(self._pieces) or self._pieces[index][0] != piece:
                del self._pieces[index:]
                self._pieces.append((piece, self._read(piece)))
            result += self._pieces[index][1]
            start, end, index = end, end + _PIECE, index + 1
        return result or list(self._fallback)

    def check_capacity(self, tokens: Sequence[int]) -> None:
        """Refuse a prompt that is too long for the draft model: see ``draft_session.check_capacity``."""
        check_capacity(self._model, len(self.read(tokens)))

    def text(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft model's tokens for tokens of the output."""
        return self._read(tuple(tokens))

    def _read(self, tokens: tuple[int, ...]) -> list[int]:
        result: list[int] = []
        data = bytearray()
        for token in tokens:
            if token not in self._special:
                data += self._target.tokens[token]
                continue
            result += self._draft.tokenize(bytes(data))
            data.clear()
            special = self._special[token]
            if special is not None:
                result.append(special)
        return result + self._draft.tokenize(bytes(data))


_shared = lru_cache(maxsize=8)(SharedTokens)


@final
@dataclass(frozen=True, slots=True)
class TokenIntersection(Bridge):
    """Restricts the draft model's distribution to the tokens that both vocabularies have, and renormalises it.

    It is a distribution over target tokens, so drafts can be sampled from it and verified.  The probability of other
    tokens is lost, so it works well if most tokens are shared.

    Source: see ``Bridge``; there "TLI".
    """

    def start(self, crossing: BridgeTask) -> ShapedDrafting:
        """See ``Bridge.start``."""
        rows = _SharedRows(crossing)
        return RowsDrafting(crossing.task, crossing.shape, rows, draws=crossing.draws)


@final
class _SharedRows(DraftRows):
    def __init__(self, crossing: BridgeTask) -> None:
        target: Vocabulary = crossing.task.constraint.vocabulary
        draft = vocabulary_of(crossing.model)
        self._shared = _shared(target, draft)
        if not len(self._shared):
            raise VocabularyError(
                f"draft model {crossing.model.name!r}",
                "no token has the same bytes as one of the target's",
                evidence=f"{draft.size} and {target.size} tokens",
                remedy="draft through its text: bridge=ExactStringMatch()",
            )
        self._bridge = TokenBridge(target, crossing.model, crossing.task.prompt_tokens)
        self._bridge.check_capacity(crossing.tokens)
        self._session = DraftSession(crossing.model)

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._session.follow(self._bridge.read(tokens))

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        rows = self._session.rows([self._read(path) for path in paths])
        return [None if row is None else self._shared.row(row) for row in rows]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()

    def _read(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The draft model's tokens for a path; only tokens that the grammar forces may be unshared."""
        result: list[int] = []
        for token in path:
            same = self._shared.draft_id(token)
            result += self._bridge.text([token]) if same is None else (same,)
        return tuple(result)


@final
@dataclass(frozen=True, slots=True)
class ExactStringMatch(Bridge):
    """The draft model writes text in its own tokens, masked by the same grammar; it is tokenized for the target.

    Draft tokens are chosen, not sampled, so the output of a seed is the same as without drafts.  The two models need to
    have only bytes in common.

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
        self._bridge.check_capacity(crossing.tokens)
        self._reference = GrammarReference(constraint, self._draft)
        self._rows = _TextRows(DraftSession(model))

    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """See ``ShapedDrafting.grow``; budgets count tokens of either model."""
        tokens = context.tokens
        try:
            matcher = self._reference.at(tokens[self._task.prompt_tokens :])
            root = None if matcher is None else GrammarPosition.after(matcher, state.remaining)
        except LimitExceeded:
            root = None
        if root is None:
            return DraftTree(), DraftTree()
        self._rows.follow(self._bridge.read(tokens))
        growth = ModelGrowth(self._rows, root, Greedy(), sampled=False, most=self._shape.max_children, budget=budget)
        tree = self._shape.grow(growth, budget, kind=state.kind)
        target = self._task.constraint.vocabulary
        return retokenized(tree, self._draft, target), DraftTree()

    def end(self) -> None:
        """See ``ShapedDrafting.end``."""
        self._rows.close()


@final
class _TextRows(DraftRows):
    """The logits rows of a draft model in its own tokens."""

    def __init__(self, session: DraftSession) -> None:
        self._session = session

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``; the tokens are the draft model's."""
        self._session.follow(tokens)

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        return self._session.rows(paths)

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()


def retokenized(tree: DraftTree, draft: Vocabulary, target: Vocabulary) -> DraftTree:
    """Return the texts of a tree in the tokens of another vocabulary; a path ends before a special token.

    The confidence of a token is the product of the confidences that begin in it.  The last token of a path may differ
    from the target's tokenization of a longer text.

    Args:
        tree: tokens of ``draft``.
        draft: the vocabulary of ``tree``.
        target: the vocabulary of the result.

    Complexity: one call of the tokenizer for each leaf.
    """
    result = DraftTree()
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
        result.extend(ROOT, tokens, _confidences([target.tokens[token] for token in tokens], starts))
    return result


def _confidences(pieces: Sequence[bytes], starts: Sequence[tuple[int, float]]) -> list[float]:
    """For each piece, the product of the confidences that start in it."""
    result: list[float] = []
    waiting = list(reversed(starts))
    end = 0
    for piece in pieces:
        end += len(piece)
        confidence = 1.0
        while waiting and waiting[-1][0] < end:
            confidence *= waiting.pop()[1]
        result.append(confidence)
    return result
