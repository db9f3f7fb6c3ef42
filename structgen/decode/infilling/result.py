"""What infilling returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, final

from structgen.decode.captures import captures_of_tokens
from structgen.decode.value import value_of

if TYPE_CHECKING:
    from structgen.engine.vocabulary import Vocabulary
    from structgen.grammar.nodes import Grammar

__all__ = ["FilledHole", "InfillResult"]


@final
@dataclass(frozen=True, slots=True)
class FilledHole:
    """What was written into one hole.

    Attributes:
        data: its bytes.
        tokens: its token ids; as many as the hole takes, or fewer.
        log_prob: of its tokens and its end in the law that they were taken from, as its sampler has it; None where
            tokens of several holes were chosen together.
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
    """A text whose holes are filled; it is a member of the grammar.

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
        """The whole text as a Python value: see ``structgen.decode.value.value_of``."""
        return value_of(self.grammar, self.data)

    @cached_property
    def captures(self) -> dict[str, str | list[str]]:
        """The texts of the named parts of the grammar: see ``structgen.decode.captures.find_captures``."""
        return captures_of_tokens(self.grammar, self.tokens, self.vocabulary)

    def __str__(self) -> str:
        return self.text
