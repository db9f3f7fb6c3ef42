"""What a caller is told of an output while it is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

__all__ = ["Chunk"]


@final
@dataclass(frozen=True, slots=True)
class Chunk:
    """What one turn of the loop adds to the output.

    Attributes:
        text: the characters that are complete now; all texts joined are the text of the result.
        tokens: the tokens; a run of several was forced.
        forced: the grammar left no choice.
        start: how many tokens of the output stand before it: fewer than were told where some were taken back.
    """

    text: str
    tokens: tuple[int, ...]
    forced: bool
    start: int = 0
