"""What is given of a text that has holes."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeAlias, final

from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary

__all__ = ["MOST_TOKENS", "Frame", "Hole", "Part", "hole"]


@final
@dataclass(frozen=True, slots=True)
class Hole:
    """A place that is to be filled with text.

    Attributes:
        most: the most tokens that its filling may have; it may have fewer, and none where the grammar lets it.

    Raises:
        ValueError: ``most`` is negative.
    """

    most: int

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 0:
            raise ValueError(f"hole: expected a number of tokens, 0 or more; found {self.most!r}")


MOST_TOKENS: Final = 16_384
"""Tokens that the holes of a frame may have together."""

Part: TypeAlias = "str | bytes | Hole"


def hole(most: int) -> Hole:
    """Return a place for at most ``most`` tokens, for ``infill``.

    Raises:
        ValueError: ``most`` is no number of tokens.
    """
    try:
        return Hole(operator.index(most))
    except TypeError:
        raise ValueError(f"hole: expected a number of tokens; found {most!r}") from None


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """Fixed texts with holes between them, in the tokens of one vocabulary.

    A fixed text stands in the filled text byte for byte.  Its tokens are the canonical ones of this text alone, and no
    token reaches across the edge of a hole: what is written has the bytes that were asked for, but its tokens may be
    others than those of the tokenizer for the whole text.

    Attributes:
        texts: the tokens of the fixed texts, one more than there are holes; the first and the last may be empty.
        holes: the most tokens of each hole.
    """

    texts: tuple[tuple[int, ...], ...]
    holes: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Part], vocabulary: Vocabulary) -> Frame:
        """Tokenize the fixed parts.

        Raises:
            ValueError: there is no hole, two holes have nothing between them, or a part is neither text nor hole.
            VocabularyError: a text has bytes that no tokens spell.
            LimitExceeded: the holes take more than 16,384 tokens together.
        """
        if isinstance(parts, (str, bytes)):
            raise ValueError(f"infill: expected a list of texts and holes; found {parts!r:.60}; put it into a list")
        texts: list[bytes] = [b""]
        holes: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, Hole):
                if holes and not texts[-1]:
                    raise ValueError(
                        f"infill: part {number} is a hole right behind another one; make them one hole, or put text "
                        "between them"
                    )
                holes.append(part.most)
                texts.append(b"")
            elif isinstance(part, (str, bytes)):
                texts[-1] += _bytes_of(part, number)
            else:
                raise ValueError(
                    f"infill: part {number} is neither text nor hole; found {part!r:.60}; use hole(tokens)"
                )
        if not holes:
            raise ValueError("infill: there is no hole; put hole(tokens) where something is to be written")
        if sum(holes) > MOST_TOKENS:
            raise LimitExceeded(
                "infill",
                limit="tokens of all holes together",
                maximum=MOST_TOKENS,
                evidence=f"found {sum(holes)}",
                remedy="make the holes smaller",
            )
        return cls(tuple(tuple(vocabulary.tokenize(text)) for text in texts), tuple(holes))


def _bytes_of(text: str | bytes, number: int) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ValueError(f"infill: part {number} has a lone surrogate at character {error.start}") from error
