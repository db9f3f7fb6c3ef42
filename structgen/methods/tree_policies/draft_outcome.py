"""What became of draft tokens, read from the tokens that came: of trees that were run, and of those that were not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = [
    "DraftOutcome",
    "PendingDrafts",
    "choice_count",
    "cut_to_depth",
    "draft_depths",
    "taken_nodes",
    "visited_siblings",
]


def taken_nodes(tree: DraftTree, came: Sequence[int]) -> list[int]:
    """The nodes of a tree that the tokens run through which came after it, for as long as they stay in it."""
    nodes: list[int] = []
    node = ROOT
    for token in came:
        child = tree.child(node, token)
        if child is None:
            break
        nodes.append(child)
        node = child
    return nodes


def visited_siblings(tree: DraftTree, came: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Each group of siblings after what was taken, and which of them was taken next; None for none of them.

    Siblings that were forced are nobody's draft tokens and left out, as are those without a result.
    """
    nodes = taken_nodes(tree, came)
    for position, parent in enumerate((ROOT, *nodes)):
        children = tree.children(parent)
        if position < len(came) and children and tree.sources[children[0]] != FORCED:
            yield children, nodes[position] if position < len(nodes) else None


def choice_count(tree: DraftTree, came: Sequence[int]) -> int:
    """How many choices the rows of a tree told the distribution of.

    Those of nodes that were taken and force nothing.
    """
    return sum(
        not any(tree.sources[child] == FORCED for child in tree.children(node)) for node in taken_nodes(tree, came)
    )


def draft_depths(tree: DraftTree) -> list[int]:
    """For each node how many draft tokens lie on the way to it, itself included; forced tokens are none."""
    depths: list[int] = []
    for parent, source in zip(tree.parents, tree.sources, strict=True):
        depths.append((0 if parent == ROOT else depths[parent]) + (source != FORCED))
    return depths


def cut_to_depth(tree: DraftTree, depth: int) -> DraftTree:
    """The part of a tree with at most ``depth`` draft tokens one after the other.

    With what is forced after the last.
    """
    kept = [node for node, at in enumerate(draft_depths(tree)) if at <= depth]
    return tree if len(kept) == len(tree) else tree.kept(kept)


class DraftOutcome(NamedTuple):
    """A draft and what came.

    Attributes:
        tree: the draft.
        came: the tokens after the place where it began.
        kind: of that place.
    """

    tree: DraftTree
    came: tuple[int, ...]
    kind: int


@final
class PendingDrafts:
    """Keeps drafts of one output until it is known what became of all their nodes.

    A draft that was not run, or not all of it (a shadow), is known once the output has left it or is as long.  That
    needs no pass and costs no row.  It holds for tokens that were chosen: whether a drawn one would have been accepted
    is up to chance, and the token that came may be another.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, DraftTree, int]] = []

    def add(self, start: int, tree: DraftTree, kind: int) -> None:
        """Keep a draft after the first ``start`` tokens."""
        self._open.append((start, tree, kind))

    def settled(self, context: Context) -> list[DraftOutcome]:
        """Return the drafts whose results are known, and forget them, as those after tokens that were taken back."""
        tokens = context.tokens
        found: list[DraftOutcome] = []
        left: list[tuple[int, DraftTree, int]] = []
        for start, tree, kind in self._open:
            came = tokens[start:]
            if start > len(tokens):
                continue
            if len(taken_nodes(tree, came)) < len(came) or len(came) >= tree.depth():
                found.append(DraftOutcome(tree, came, kind))
            else:
                left.append((start, tree, kind))
        self._open = left
        return found
