"""The vocabulary of tokenizers that are written in Python and spell bytes as GPT-2 does, as Dream's is.

Such a tokenizer comes with the code of its model, has no ``tokenizer.json``, and no class that others could know.  What
all of them have is ``byte_decoder``, the byte of each character that their tokens are written in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from structgen.engine.vocabulary import Vocabulary
from structgen.errors import VocabularyError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["load_vocabulary"]


def load_vocabulary(tokenizer: Any, *, size: int, eos: Sequence[int], mask_token: int) -> Vocabulary:
    """Read the vocabulary of a tokenizer object of transformers, fast or slow.

    Args:
        tokenizer: the tokenizer.
        size: width of the model's logits.
        eos: ids that end a text.
        mask_token: MASK, which is special whether or not the tokenizer says so.

    Raises:
        VocabularyError: the bytes of its tokens are not well defined.
    """
    if hasattr(tokenizer, "backend_tokenizer") or not isinstance(getattr(tokenizer, "byte_decoder", None), dict):
        return Vocabulary.load(tokenizer, size=size, eos=eos, special={mask_token: None})
    special: dict[int, str | None] = {mask_token: None}
    tokens = [b""] * size
    for text, token in tokenizer.get_vocab().items():
        if token < size and token not in tokenizer.added_tokens_decoder:
            tokens[token] = _bytes_of(text, tokenizer.byte_decoder)
    for token, added in tokenizer.added_tokens_decoder.items():
        if token >= size:
            continue
        if added.special or token in special:
            special[token] = added.content
        else:
            tokens[token] = added.content.encode()

    def encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text, add_special_tokens=False)]

    return Vocabulary(tokens, eos=eos, special=special, tokenize=encode)


def _bytes_of(text: str, decoder: dict[str, int]) -> bytes:
    try:
        return bytes(decoder[character] for character in text)
    except KeyError as error:
        raise VocabularyError(
            "vocabulary",
            f"token {text!r} is not spelled in the tokenizer's own alphabet of bytes",
            evidence=f"it has no byte for {error.args[0]!r}",
        ) from error
