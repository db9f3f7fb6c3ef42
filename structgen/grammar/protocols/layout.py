"""Layouts: texts with places such as ``$name``, in which some parts are tokens of their own."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from structgen.grammar.nodes import (
    ANY_CHAR,
    Complement,
    Grammar,
    Repeat,
    SpecialToken,
    literal,
    sequence,
)

__all__ = ["Layout", "Place", "free_text", "spelled", "stop_of"]

_PLACE: Final = re.compile(r"\$(name|arguments|id|text|thought)")


@final
@dataclass(frozen=True, slots=True)
class Place:
    """Where something stands that the family does not fix: ``name``, ``arguments``, ``id``, ``text`` or ``thought``."""

    name: str


@final
@dataclass(frozen=True, slots=True)
class Layout:
    """Texts and places in their order.

    Attributes:
        parts: no two texts stand side by side, and none is empty.
    """

    parts: tuple[str | Place, ...]

    @classmethod
    def of(cls, text: str) -> Layout:
        """Read a layout.

        >>> Layout.of("<f=$name>").parts
        ('<f=', Place(name='name'), '>')
        """
        pieces = _PLACE.split(text)
        parts = (Place(piece) if at % 2 else piece for at, piece in enumerate(pieces))
        return cls(tuple(part for part in parts if part))

    @property
    def places(self) -> tuple[str, ...]:
        """The names of the places, in order."""
        return tuple(part.name for part in self.parts if isinstance(part, Place))

    @property
    def beginning(self) -> str:
        """The text before the first place."""
        return self.parts[0] if self.parts and isinstance(self.parts[0], str) else ""

    @property
    def end(self) -> str:
        """The text after the last place."""
        return self.parts[-1] if self.parts and isinstance(self.parts[-1], str) else ""

    def filled(self, values: Mapping[str, Grammar], tokens: Sequence[str]) -> Grammar:
        """The layout with ``values`` in its places; ``tokens`` are the parts of its texts that are tokens."""
        return sequence(
            *(values[part.name] if isinstance(part, Place) else spelled(part, tokens) for part in self.parts)
        )


def spelled(text: str, tokens: Sequence[str]) -> Grammar:
    """A text in which each of ``tokens`` is a special token where the vocabulary has one.

    >>> print(spelled("a<b>c", ["<b>"]))
    "a" token?("<b>") "c"
    """
    return sequence(*(SpecialToken(piece, or_text=True) if is_token else literal(piece)
                      for piece, is_token in _pieces(text, tokens)))  # fmt: skip


def free_text(stop: str) -> Grammar:
    """Any text in which ``stop`` does not occur; of an empty ``stop``, any text."""
    anything = Repeat(ANY_CHAR, 0, None)
    return Complement(sequence(anything, literal(stop), anything)) if stop else anything


def stop_of(text: str, tokens: Sequence[str]) -> str:
    """What in ``text`` tells that free text before it has ended.

    That is its first token, or else all of it without white space before.
    """
    for piece, is_token in _pieces(text, tokens):
        if is_token:
            return piece
    return text.lstrip()


def _pieces(text: str, tokens: Sequence[str]) -> Iterable[tuple[str, bool]]:
    if not tokens:
        return [(text, False)] if text else []
    longest_first = sorted(tokens, key=len, reverse=True)
    pieces = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text)
    return [(piece, at % 2 == 1) for at, piece in enumerate(pieces) if piece]
