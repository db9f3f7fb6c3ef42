"""What became of guesses, read from the tokens that came: it need not have been run for that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree

__all__ = ["choices", "depths", "shallower", "taken", "visited"]


def taken(tree: DraftTree, came: Sequence[int]) -> list[int]:
    """The nodes of a tree that the tokens run through which came behind it, for as long as they stay in it."""
    nodes: list[int] = []
    node = ROOT
    for token in came:
        child = tree.child(node, token)
        if child is None:
            break
        nodes.append(child)
        node = child
    return nodes


def visited(tree: DraftTree, came: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Each group of siblings behind what was taken, and which of them was taken next; None for none of them.

    Siblings that were forced are nobody's guesses and left out, as are those of which it is not known yet.
    """
    nodes = taken(tree, came)
    for position, parent in enumerate((ROOT, *nodes)):
        children = tree.children(parent)
        if position < len(came) and children and tree.sources[children[0]] != FORCED:
            yield children, nodes[position] if position < len(nodes) else None


def choices(tree: DraftTree, came: Sequence[int]) -> int:
    """How many choices the rows of a tree told the law of: those of nodes that were taken and force nothing."""
    return sum(not any(tree.sources[child] == FORCED for child in tree.children(node)) for node in taken(tree, came))


def depths(tree: DraftTree) -> list[int]:
    """For each node how many guesses lie on the way to it, itself included; forced tokens are none."""
    depths: list[int] = []
    for parent, source in zip(tree.parents, tree.sources, strict=True):
        depths.append((0 if parent == ROOT else depths[parent]) + (source != FORCED))
    return depths


def shallower(tree: DraftTree, depth: int) -> DraftTree:
    """The part of a tree with at most ``depth`` guesses one behind the other, with what is forced behind the last."""
    kept = [node for node, at in enumerate(depths(tree)) if at <= depth]
    return tree if len(kept) == len(tree) else tree.kept(kept)
