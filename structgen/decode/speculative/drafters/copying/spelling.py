"""Texts as the tokens that a model would write them in."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, final

from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from structgen.engine import Vocabulary

__all__ = ["Spelling"]

_MOST: Final = 512


@final
class Spelling:
    """The canonical tokens of short texts; those of the last 512 are kept.

    Args:
        vocabulary: the tokens.
    """

    __slots__ = ("_known", "_vocabulary")

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: OrderedDict[bytes, list[int]] = OrderedDict()

    def of(self, data: bytes) -> list[int]:
        """The tokens of a text; none where characters are broken, which the tokenizer itself cannot spell."""
        known = self._known.get(data)
        if known is None:
            try:
                known = self._vocabulary.tokenize(data.decode())
            except (UnicodeDecodeError, VocabularyError):
                known = []
            self._known[data] = known
            if len(self._known) > _MOST:
                self._known.popitem(last=False)
        return known

    def behind(self, word: bytes, text: bytes) -> list[int]:
        """The tokens of ``text`` as they are behind the beginning of its first word, which stands already.

        Where no token of both together begins at ``text``, those of ``text`` alone.
        """
        if word and text:
            length = 0
            tokens = self.of(word + text)
            for index, token in enumerate(tokens):
                if length == len(word):
                    return tokens[index:]
                length += len(self._vocabulary.tokens[token])
        return self.of(text)
