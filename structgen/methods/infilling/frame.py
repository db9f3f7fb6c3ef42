"""A frame: fixed texts around holes; and the result of infilling: the filled holes and the whole text."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeAlias, final

from structgen.engine.parse.captures import captures_of_tokens, value_of
from structgen.errors import LimitExceeded
from structgen.markup import card, table, text_block

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["MAX_TOKENS", "FilledHole", "Frame", "Hole", "InfillResult", "Part", "hole"]


@final
@dataclass(frozen=True, slots=True)
class Hole:
    """A slot for generated text.

    Attributes:
        most: the maximal number of tokens of its filling, which may also be empty if the grammar allows it.

    Raises:
        ValueError: ``most`` is negative.
    """

    most: int

    def __post_init__(self) -> None:
        if isinstance(self.most, bool) or not isinstance(self.most, int) or self.most < 0:
            raise ValueError(f"hole: expected a number of tokens, 0 or more; found {self.most!r}")


MAX_TOKENS: Final = 16_384
"""Limit on the tokens of all holes of a frame together."""

Part: TypeAlias = "str | bytes | Hole"


def hole(most: int) -> Hole:
    """Return a hole for at most ``most`` tokens, for ``infill``.

    Raises:
        ValueError: ``most`` is not a number of tokens.
    """
    try:
        return Hole(operator.index(most))
    except TypeError:
        raise ValueError(f"hole: expected a number of tokens; found {most!r}") from None


@final
@dataclass(frozen=True, slots=True)
class Frame:
    """Fixed texts with holes between them, in the tokens of one vocabulary.

    The filled text contains each fixed text byte for byte. Its tokens are the canonical tokens of that text alone, and
    no token crosses the edge of a hole: the bytes are as requested, but the tokens may differ from the tokenizer's for
    the whole text.

    Attributes:
        texts: the tokens of the fixed texts, one more than there are holes; the first and the last may be empty.
        holes: the maximal number of tokens of each hole.
    """

    texts: tuple[tuple[int, ...], ...]
    holes: tuple[int, ...]

    @classmethod
    def of(cls, parts: Sequence[Part], vocabulary: Vocabulary) -> Frame:
        """Tokenize the fixed parts.

        Raises:
            ValueError: there is no hole, two holes are adjacent, or a part is neither text nor hole.
            VocabularyError: the vocabulary cannot spell a text.
            LimitExceeded: the holes take more than 16,384 tokens together.
        """
        if isinstance(parts, (str, bytes)):
            raise ValueError(
                f"infill: expected a list of texts and holes; found {parts!r:.60}; "
                "write for instance [text, hole(8), text]"
            )
        texts: list[bytes] = [b""]
        holes: list[int] = []
        for number, part in enumerate(parts):
            if isinstance(part, Hole):
                if holes and not texts[-1]:
                    raise ValueError(
                        f"infill: part {number} is a hole right after another one; merge them, or put text between them"
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
            raise ValueError("infill: there is no hole; put hole(tokens) where text is to be generated")
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
    """The filling of one hole.

    Attributes:
        data: its bytes.
        tokens: its token ids, at most as many as the hole takes.
        log_prob: of its tokens and its end in the sampler's distribution; None if tokens of several holes were chosen
            together.
    """

    data: bytes
    tokens: tuple[int, ...]
    log_prob: float | None = None

    @property
    def text(self) -> str:
        """The filling as text. A hole may begin or end within a character: such bytes become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    def __str__(self) -> str:
        return self.text


@final
@dataclass(frozen=True)
class InfillResult:
    """A text whose holes are filled; it is a string of the grammar.

    Attributes:
        data: the whole text as bytes.
        tokens: its token ids: the tokens of each fixed text and each filling, concatenated.
        fillings: one for each hole, from left to right.
        forwards: forward passes of the model.
        grammar: the grammar of the text.
        vocabulary: the vocabulary of the tokens.
    """

    data: bytes
    tokens: tuple[int, ...] = field(repr=False)
    fillings: tuple[FilledHole, ...]
    forwards: int
    grammar: Grammar = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    @cached_property
    def text(self) -> str:
        """The whole text. Bytes that are not UTF-8, which only a grammar over bytes allows, become U+FFFD."""
        return self.data.decode("utf-8", "replace")

    @cached_property
    def value(self) -> Any:
        """The whole text as a Python value: see ``structgen.engine.parse.captures.value_of``."""
        return value_of(self.grammar, self.data)

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of the named parts of the grammar: see ``structgen.engine.parse.captures.find_captures``."""
        return captures_of_tokens(self.grammar, self.tokens, self.vocabulary)

    def _repr_html_(self) -> str:
        rows = [(f"hole {number}", filling.text) for number, filling in enumerate(self.fillings, 1)]
        passes = ("cost", f"{self.forwards} forward passes")
        return card("Infilled text", text_block(self.text), table([*rows, passes]))

    def __str__(self) -> str:
        return self.text
