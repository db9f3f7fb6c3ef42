"""Bridges to a draft model with other tokens: by the tokens that both have, and by text that matches exactly.

``GrammarReference`` is the grammar over the draft model's tokens and ``TokenBridge`` its token stream.
``TokenIntersection`` drafts in the shared tokens; ``ExactStringMatch`` has the draft model write text, which the
target reads in its own tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree
from structgen.decode.speculative.grammar_position import GrammarPosition
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
from structgen.methods.drafters.model_growth import (
    DraftRow,
    DraftRows,
    ModelGrowth,
    RowsDrafting,
    ShapedDrafting,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.decode.speculative.drafter import DraftState
    from structgen.decode.step.context import Context
    from structgen.engine import Constraint, Matcher, Vocabulary
    from structgen.models.protocol import LanguageModel

__all__ = ["ExactStringMatch", "GrammarReference", "TokenBridge", "TokenIntersection", "retokenized"]


@final
class GrammarReference:
    """The same grammar compiled for another vocabulary, with a matcher that follows the bytes of the output.

    Args:
        constraint: of the output.
        vocabulary: of the draft model.

    Raises:
        GrammarError: the grammar does not compile for it.
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
        """A matcher of its own after the tokens of an output; None where the draft model cannot write them."""
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
"""Tokens of the output that are read together; what is complete is not read again."""


@final
class TokenBridge:
    """Reads the tokens of a target as bytes, and these by a draft model's own tokenizer.

    The prompt is read as one text; the output in pieces of 64 tokens, so that what is long written needs no work, and
    the draft model's tokens of it stay what they are.  Whatever came before, equal tokens are read equally.

    A special token becomes the special token of the same text where the draft model has it, and nothing at all where
    it has not: chat templates differ, and the marks of one are noise to a model that was not trained with them.  Where
    the draft model's own prompts begin with a special token (BOS), so does this.

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
        self._known: list[tuple[tuple[int, ...], list[int]]] = []  # pieces, and what they are read as

    def read(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft model's tokens for a prompt and an output; never none.

        Raises:
            VocabularyError: the draft model's tokens cannot spell the text.

        Complexity: O(n) comparisons; what differs from the last call is tokenized anew.
        """
        found = list(self._head)
        start, end, index = 0, min(self._prompt_tokens, len(tokens)), 0
        while start < len(tokens):
            piece = tuple(tokens[start:end])
            if index == len(self._known) or self._known[index][0] != piece:
                del self._known[index:]
                self._known.append((piece, self._read(piece)))
            found += self._known[index][1]
            start, end, index = end, end + _PIECE, index + 1
        return found or list(self._fallback)

    def check_room(self, tokens: Sequence[int]) -> None:
        """Refuse a prompt that the draft model cannot read: see ``draft_session.check_room``."""
        check_capacity(self._model, len(self.read(tokens)))

    def text(self, tokens: Sequence[int]) -> list[int]:
        """Return the draft model's tokens for tokens that follow."""
        return self._read(tuple(tokens))

    def _read(self, tokens: tuple[int, ...]) -> list[int]:
        found: list[int] = []
        data = bytearray()
        for token in tokens:
            if token not in self._special:
                data += self._target.tokens[token]
                continue
            found += self._draft.tokenize(bytes(data))
            data.clear()
            special = self._special[token]
            if special is not None:
                found.append(special)
        return found + self._draft.tokenize(bytes(data))


_shared = lru_cache(maxsize=8)(SharedTokens)


@final
@dataclass(frozen=True, slots=True)
class TokenIntersection(Bridge):
    """The draft model's distribution is restricted to tokens whose bytes are a token of both, and renormalised.

    These are real distributions over the target's tokens, so drafts can be drawn from them and verified; what the draft
    model would have said with other tokens is lost.  Good where most tokens are shared.

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
        self._bridge.check_room(crossing.tokens)
        self._session = DraftSession(crossing.model)

    def follow(self, tokens: Sequence[int]) -> None:
        """See ``DraftRows.follow``."""
        self._session.follow(self._bridge.read(tokens))

    def rows(
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
    ) -> Sequence[DraftRow | None]:
        """See ``DraftRows.rows``."""
        found = self._session.rows([self._read(path) for path in paths])
        return [None if row is None else self._shared.row(row) for row in found]

    def close(self) -> None:
        """See ``DraftRows.close``."""
        self._session.close()

    def _read(self, path: tuple[int, ...]) -> tuple[int, ...]:
        """The draft model's tokens for drafted ones; only those that the grammar forced may not be shared."""
        found: list[int] = []
        for token in path:
            same = self._shared.draft_id(token)
            found += self._bridge.text([token]) if same is None else (same,)
        return tuple(found)


@final
@dataclass(frozen=True, slots=True)
class ExactStringMatch(Bridge):
    """The draft model writes text in its own tokens, masked by the same grammar, and the target's tokens spell it.

    What it writes is chosen, not drawn: a draft token is right where the target writes the same.  So the output is the
      same
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
        self._reference = GrammarReference(constraint, self._draft)
        self._rows = _TextRows(DraftSession(model))

    def grow(self, context: Context, state: DraftState, budget: int) -> tuple[DraftTree, DraftTree]:
        """See ``ShapedDrafting.grow``; budgets count tokens of either model alike."""
        tokens = context.tokens
        try:
            matcher = self._reference.at(tokens[self._task.prompt_tokens :])
            root = None if matcher is None else GrammarPosition.after(matcher, state.remaining)
        except LimitExceeded:
            root = None
        if root is None:
            return DraftTree(), DraftTree()
        self._rows.follow(self._bridge.read(tokens))
        growth = ModelGrowth(self._rows, root, Greedy(), drawn=False, most=self._shape.max_children, budget=budget)
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
        self, paths: Sequence[tuple[int, ...]], positions: Sequence[GrammarPosition], most: int
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
