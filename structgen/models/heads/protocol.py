"""What a drafter needs of trained heads; no tensor of any framework crosses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from structgen.models.protocol import Logits, States, TrimmedHead

__all__ = ["DraftHeads", "HeadSession"]


@runtime_checkable
class HeadSession(Protocol):
    """Heads behind one sequence; not for use by two threads at a time."""

    def follow(self, position: int, token_ids: Sequence[int], states: States, /) -> None:
        """Stand behind the last of some tokens.

        What it holds of earlier tokens stays if they reach up to these, and is dropped otherwise.

        Args:
            position: of the first.
            token_ids: at least one.
            states: what the network's last layer made of each, ``[len(token_ids), width]``, before the final norm.
        """

    def logits(self, paths: Sequence[Sequence[int]], /, *, head: TrimmedHead | None = None) -> Logits:
        """Return what may follow each of some continuations.

        Args:
            paths: tokens behind the sequence: from one to ``DraftHeads.depth`` of them, all as many.
            head: what to compute; None for all tokens.

        Returns:
            float32 ``[len(paths), V]``, or ``[len(paths), len(head.ids)]``; the caller owns the array.

        Raises:
            GenerationError: nothing is followed yet, paths are of different lengths, or too long.
        """


@runtime_checkable
class DraftHeads(Protocol):
    """Trained heads of a model: unchanging, so any number of sequences may share them."""

    @property
    def name(self) -> str:
        """What messages and statistics call them."""

    @property
    def depth(self) -> int | None:
        """How many tokens a path may have at most; None where there is no bound."""

    @property
    def width(self) -> int:
        """How long the states are that they were trained for."""

    def start(self) -> HeadSession:
        """Return a session that follows nothing yet."""
