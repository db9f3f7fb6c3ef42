"""The outcomes of drafts, judged by the tokens of the output, whether the trees were run or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree

if TYPE_CHECKING:
    from structgen.decode.step.context import Context

__all__ = ["DraftOutcome", "PendingDrafts", "choice_count", "cut_to_depth", "draft_depths", "visited_siblings"]


def visited_siblings(tree: DraftTree, came: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int | None]]:
    """Yield the children of each accepted node, and which child was accepted; None for none of them.

    Forced children are left out, as are those without a known outcome.
    """
    nodes = tree.follow(came)
    for position, parent in enumerate((ROOT, *nodes)):
        children = tree.children(parent)
        if position < len(came) and children and tree.sources[children[0]] != FORCED:
            yield children, nodes[position] if position < len(nodes) else None


def choice_count(tree: DraftTree, came: Sequence[int]) -> int:
    """Return the number of choices that the rows of a tree decided: its accepted nodes without a forced child."""
    return sum(not any(tree.sources[child] == FORCED for child in tree.children(node)) for node in tree.follow(came))


def draft_depths(tree: DraftTree) -> list[int]:
    """Return the number of draft tokens on the path of each node, itself included; forced tokens do not count."""
    depths: list[int] = []
    for parent, source in zip(tree.parents, tree.sources, strict=True):
        depths.append((0 if parent == ROOT else depths[parent]) + (source != FORCED))
    return depths


def cut_to_depth(tree: DraftTree, depth: int) -> DraftTree:
    """Return the part of a tree with at most ``depth`` draft tokens on a path, and the forced tokens after them."""
    nodes = [node for node, at in enumerate(draft_depths(tree)) if at <= depth]
    return tree if len(nodes) == len(tree) else tree.kept(nodes)


class DraftOutcome(NamedTuple):
    """A draft and the tokens of the output after its root.

    Attributes:
        tree: the draft.
        came: the tokens after the position where it began.
        kind: the kind of that position.
    """

    tree: DraftTree
    came: tuple[int, ...]
    kind: int


@final
class PendingDrafts:
    """Keeps drafts of one output until the outcome of all their nodes is known.

    That is once the output has left the draft or is as long, whether the draft was run or not; so a draft that was not
    run costs nothing.  It holds for chosen draft tokens: a sampled one is accepted at random, and the token that came
    may be another.
    """

    def __init__(self) -> None:
        self._open: list[tuple[int, DraftTree, int]] = []

    def add(self, start: int, tree: DraftTree, kind: int) -> None:
        """Keep a draft after the first ``start`` tokens."""
        self._open.append((start, tree, kind))

    def settled(self, context: Context) -> list[DraftOutcome]:
        """Return and remove the drafts with known outcomes; drafts after tokens that were taken back are dropped."""
        tokens = context.tokens
        outcomes: list[DraftOutcome] = []
        still_open: list[tuple[int, DraftTree, int]] = []
        for start, tree, kind in self._open:
            came = tokens[start:]
            if start > len(tokens):
                continue
            if len(tree.follow(came)) < len(came) or len(came) >= tree.depth():
                outcomes.append(DraftOutcome(tree, came, kind))
            else:
                still_open.append((start, tree, kind))
        self._open = still_open
        return outcomes
