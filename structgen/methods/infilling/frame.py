"""A frame: the given text around holes; and what infilling returns, the filled holes and the whole output."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from structgen.decode.parse.captures import captures_of_tokens, value_of
from structgen.errors import LimitExceeded

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["MAX_TOKENS", "FilledHole", "Frame", "Hole", "InfillResult", "Part", "hole"]


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


MAX_TOKENS: Final = 16_384
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
                        f"infill: part {number} is a hole right after another one; make them one hole, or put text "
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
        if sum(holes) > MAX_TOKENS:
            raise LimitExceeded(
                "infill",
                limit="tokens of all holes together",
                maximum=MAX_TOKENS,
                evidence=f"found {sum(holes)}",
                remedy="make the holes smaller",
            )
        return cls(tuple(tuple(vocabulary.tokenize(text)) for text in texts), tuple(holes))


def _bytes_of(text: str | bytes, number: int) -> bytes:
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as error:
        raise ValueError(f"infill: part {number} has a lone surrogate at character {error.start}") from error


@final
@dataclass(frozen=True, slots=True)
class FilledHole:
    """What was written into one hole.

    Attributes:
        data: its bytes.
        tokens: its token ids; as many as the hole takes, or fewer.
        log_prob: of its tokens and its end in the distribution that they were taken from, as its sampler has it; None
            where tokens of several holes were chosen together.
    """

    data: bytes
    tokens: tuple[int, ...]
    log_prob: float | None = None

    @property
    def text(self) -> str:
        """The filling as text.  A hole may begin or end within a character: such bytes become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


@final
@dataclass(frozen=True)
class InfillResult:
    """A text whose holes are filled; it is a string of the grammar.

    Attributes:
        data: the whole text as bytes.
        tokens: its token ids: those of each fixed text and of each filling by themselves.
        fillings: one for each hole, from left to right.
        forwards: forward passes of the model.
        grammar: what it is a member of.
        vocabulary: what its tokens belong to.
    """

    data: bytes
    tokens: tuple[int, ...] = field(repr=False)
    fillings: tuple[FilledHole, ...]
    forwards: int
    grammar: Grammar = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    @cached_property
    def text(self) -> str:
        """The whole text.  Bytes that are not UTF-8, which only a grammar over bytes allows, become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def value(self) -> Any:
        """The whole text as a Python value: see ``structgen.decode.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of the named parts of the grammar: see ``structgen.decode.parse.captures.find_captures``."""
        return captures_of_tokens(self.grammar, self.tokens, self.vocabulary)

    def __str__(self) -> str:
        return self.text
