"""An output so far: what potentials look at."""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, final

from structgen.decode.value import value_of

if TYPE_CHECKING:
    from structgen.engine import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["Hypothesis"]


@final
class Hypothesis:
    """The tokens of an output, or of its beginning; immutable.

    Attributes:
        tokens: their ids, EOS left out.
        data: their bytes, special tokens left out.
        grammar: what the output will be a member of.
        vocabulary: what the tokens belong to.
    """

    __slots__ = ("_text", "data", "grammar", "tokens", "vocabulary")

    def __init__(
        self, grammar: Grammar, vocabulary: Vocabulary, tokens: tuple[int, ...] = (), data: bytes | None = None
    ) -> None:
        self.grammar = grammar
        self.vocabulary = vocabulary
        self.tokens = tokens
        self.data = vocabulary.decode(tokens) if data is None else data
        self._text: str | None = None

    def extended(self, token: int) -> Hypothesis:
        """Return the hypothesis with one more token; O(length)."""
        return Hypothesis(
            self.grammar, self.vocabulary, (*self.tokens, token), self.data + self.vocabulary.decode([token])
        )

    @property
    def text(self) -> str:
        """The characters that are complete; bytes that are not UTF-8 become U+FFFD."""
        if self._text is None:
            self._text = codecs.getincrementaldecoder("utf-8")("replace").decode(self.data)
        return self._text

    def value(self) -> Any:
        """Return the value of a complete output: see ``structgen.decode.value.value_of``."""
        return value_of(self.grammar, self.data)

    def __repr__(self) -> str:
        return f"Hypothesis({self.text!r}, {len(self.tokens)} tokens)"
