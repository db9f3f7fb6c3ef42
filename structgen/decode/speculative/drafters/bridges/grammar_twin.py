"""The grammar of an output over the tokens of a draft model."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from structgen.decode.speculative.drafters.draft_models.draft_session import common_length
from structgen.engine import compile

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.engine import Constraint, Matcher, Vocabulary

__all__ = ["GrammarTwin"]


@final
class GrammarTwin:
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
        """A matcher of its own behind the tokens of an output; None where the draft model cannot write them."""
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
