"""Where a piece of an output ends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.sampling.branches import Branch

__all__ = ["Boundary"]


@final
@dataclass(frozen=True, slots=True)
class Boundary:
    """Where a piece of an output ends: a trial, or a step of a search.  It ends with the output at the latest.

    Attributes:
        marks: characters after which a piece ends; ``""`` for none.
        forced: whether it ends where the grammar leaves no choice of what follows, as after the value of a field.
        most: the most tokens of a piece.

    Raises:
        ValueError: ``most`` is less than 1.
    """

    marks: str = ".,;:!?\n"
    forced: bool = True
    most: int = 64

    def __post_init__(self) -> None:
        if not isinstance(self.most, int) or self.most < 1:
            raise ValueError(f"Boundary: most must be an integer of at least 1; found {self.most!r}")

    def ends(self, branch: Branch, written: int) -> bool:
        """Whether a piece ends after ``branch``, of which ``written`` tokens, at least one, belong to the piece."""
        if branch.finish_reason is not None or written >= self.most:
            return True
        return self._is_marked(branch) or (self.forced and bool(branch.matcher.forced_bytes()))

    def _is_marked(self, branch: Branch) -> bool:
        """Whether the last token completes one of the marks."""
        data, vocabulary = branch.hypothesis.data, branch.hypothesis.vocabulary
        before = len(data) - len(vocabulary.decode(branch.hypothesis.tokens[-1:]))
        return any(mark in data[max(0, before - len(mark) + 1) :] for mark in map(str.encode, self.marks))
