"""Drafts that are compared with what came after them, whether they were run or not."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.shapes.outcome import taken

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.draft_tree import DraftTree

__all__ = ["Outcome", "Watch"]


class Outcome(NamedTuple):
    """A draft and what came.

    Attributes:
        tree: the draft.
        came: the tokens behind the place where it began.
        kind: of that place.
    """

    tree: DraftTree
    came: tuple[int, ...]
    kind: int


@final
class Watch:
    """Keeps drafts of one output until it is known what became of all their nodes.

    A draft that was not run, or not all of it (a shadow), is known once the output has left it or is as long.  That
    needs no pass and costs no row.  It holds for tokens that were chosen: whether a drawn one would have been accepted
    is up to chance, and the token that came may be another.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, DraftTree, int]] = []

    def add(self, start: int, tree: DraftTree, kind: int) -> None:
        """Keep a draft behind the first ``start`` tokens."""
        self._open.append((start, tree, kind))

    def settled(self, context: Context) -> list[Outcome]:
        """Return the drafts of which all is known, and forget them, as those behind tokens that were taken back."""
        tokens = context.tokens
        found: list[Outcome] = []
        left: list[tuple[int, DraftTree, int]] = []
        for start, tree, kind in self._open:
            came = tokens[start:]
            if start > len(tokens):
                continue
            if len(taken(tree, came)) < len(came) or len(came) >= tree.depth():
                found.append(Outcome(tree, came, kind))
            else:
                left.append((start, tree, kind))
        self._open = left
        return found
