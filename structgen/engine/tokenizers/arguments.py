"""Checks of what a caller passes as tokens and ids; each names the argument and what was found."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from structgen.engine.tokenizers.table import MAX_TOKEN_BYTES, MAX_TOKENS
from structgen.errors import VocabularyError

__all__ = ["by_id", "checked_id", "checked_tokens", "listed", "some"]

_Item = TypeVar("_Item")

_SUBJECT = "vocabulary"


def checked_tokens(tokens: Sequence[bytes], size: int | None) -> list[bytes]:
    """Copy the tokens, padded with empty ones to ``size``."""
    slots = list(tokens)
    if not {*map(type, slots)} <= {bytes}:
        token = next(token for token, piece in enumerate(slots) if type(piece) is not bytes)
        raise VocabularyError(
            _SUBJECT,
            f"token {token} is not bytes",
            evidence=f"found {type(slots[token]).__name__} {slots[token]!r:.40}",
            remedy="pass what the token adds to the output, as bytes; Vocabulary.load reads tokenizers",
        )
    if (longest := max(map(len, slots), default=0)) > MAX_TOKEN_BYTES:
        raise VocabularyError(
            _SUBJECT, f"a token has {longest} bytes", evidence=f"at most {MAX_TOKEN_BYTES} are possible"
        )
    if size is None:
        size = len(slots)
    if not len(slots) <= operator.index(size) <= MAX_TOKENS:
        raise VocabularyError(
            _SUBJECT,
            f"size must lie between the number of tokens and {MAX_TOKENS}",
            evidence=f"found size={size} for {len(slots)} tokens",
            remedy="pass the width of the model's logits; with_size() cuts a vocabulary down",
        )
    return slots + [b""] * (size - len(slots))


def checked_id(token: int, role: str, size: int) -> int:
    """Return the id as an int; numbers of numpy and torch are ids too."""
    try:
        number = operator.index(token)
    except TypeError as error:
        raise VocabularyError(_SUBJECT, f"{role} id {token!r:.40} is not an integer") from error
    if not 0 <= number < size:
        raise VocabularyError(
            _SUBJECT,
            f"{role} id {number} is out of range",
            evidence=f"the vocabulary has {size} ids",
            remedy=f"use ids in 0..{size - 1}, or pass size= if the model's logits are wider",
        )
    return number


def by_id(special: Mapping[int, str | None] | Iterable[int]) -> Mapping[int, str | None]:
    """Texts by id, None for those that have none yet."""
    return special if isinstance(special, Mapping) else dict.fromkeys(listed(special, "special"))


def listed(values: Iterable[_Item], role: str) -> Iterable[_Item]:
    """Refuse what a caller may write for a list of one: a number or a text."""
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise VocabularyError(
            _SUBJECT,
            f"{role} must be a list of tokens",
            evidence=f"found {values!r}",
            remedy=f"pass {role}=[{values!r}]",
        )
    return values


def some(values: Iterable[object]) -> str:
    """List the first eight values."""
    listed = list(values)
    return ", ".join(map(repr, listed[:8])) + (f" and {len(listed) - 8} more" if len(listed) > 8 else "")
