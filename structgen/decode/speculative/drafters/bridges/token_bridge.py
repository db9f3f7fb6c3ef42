"""The output of one model as the tokens of another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from structgen.decode.speculative.drafters.bridges.vocabularies import vocabulary_of
from structgen.decode.speculative.drafters.draft_models.draft_session import check_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.engine import Vocabulary
    from structgen.models.protocol import LanguageModel

__all__ = ["TokenBridge"]

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
        prompt_tokens: how many tokens at the beginning are the prompt.

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
        check_room(self._model, len(self.read(tokens)))

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
