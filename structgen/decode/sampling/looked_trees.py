"""The trees that passes of a run looked at, and where sequences stand in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from structgen.decode.speculative.draft_stats import SourceStats
from structgen.decode.speculative.draft_tree import ROOT

if TYPE_CHECKING:
    from structgen.decode.context import Context
    from structgen.decode.speculative.draft_tree import DraftTree

__all__ = ["LookedTrees", "Place"]


@final
@dataclass(eq=False, slots=True)
class _Looked:
    """A tree that was looked at.

    Attributes:
        tree: what was run.
        taken: the nodes that some sequence took.
        heights: of each node how many more tokens the tree has behind it, at the most.
    """

    tree: DraftTree
    taken: set[int] = field(default_factory=set)
    heights: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.heights = [0] * len(self.tree)
        for node in range(len(self.tree) - 1, -1, -1):
            parent = self.tree.parents[node]
            if parent != ROOT:
                self.heights[parent] = max(self.heights[parent], self.heights[node] + 1)

    def depth_taken(self) -> int:
        """How many tokens of it some sequence took, one behind the other."""
        return max((len(self.tree.path(node)) for node in self.taken), default=0)


class Place(NamedTuple):
    """Where a sequence stands in the tree that was looked at last behind it or its beginning."""

    looked: _Looked
    node: int

    @property
    def tree(self) -> DraftTree:
        """The tree."""
        return self.looked.tree

    @property
    def height(self) -> int:
        """How many tokens the longest path has that goes on from here."""
        heights = self.looked.heights
        return 1 + max(heights, default=-1) if self.node == ROOT else heights[self.node]


@final
class LookedTrees:
    """All of them.  Sequences that split stay in the same tree, each at its own place."""

    def __init__(self) -> None:
        self._all: list[_Looked] = []
        self._places: dict[Context, Place] = {}

    def look(self, context: Context, tree: DraftTree) -> None:
        """A pass looked at ``tree`` behind a sequence."""
        self._all.append(_Looked(tree))
        self._places[context] = Place(self._all[-1], ROOT)

    def leave(self, context: Context) -> None:
        """A sequence goes on outside of its tree, or no more."""
        self._places.pop(context, None)

    def height(self, context: Context) -> int:
        """How far the tree goes on that a sequence stands in."""
        place = self._places.get(context)
        return 0 if place is None else place.height

    def split(self, context: Context, tokens: Sequence[int], children: Sequence[Context]) -> Place | None:
        """A sequence goes on with each of ``tokens``; return where it stood.

        Args:
            context: that of the sequence, which one of ``children`` may be.
            tokens: none twice.
            children: the contexts that go on with them.
        """
        place = self._places.pop(context, None)
        if place is not None:
            for token, child in zip(tokens, children, strict=True):
                node = place.tree.child(place.node, token)
                if node is not None:
                    place.looked.taken.add(node)
                    self._places[child] = Place(place.looked, node)
        return place

    def sources(self) -> dict[str, SourceStats]:
        """What each drafter brought; tokens that several sequences took count once."""
        drafted = Counter(source for each in self._all for source in each.tree.sources)
        taken = Counter(each.tree.sources[node] for each in self._all for node in each.taken)
        return {name: SourceStats(count, taken[name]) for name, count in sorted(drafted.items())}

    def lengths(self) -> dict[int, int]:
        """How many trees were followed how far."""
        return dict(sorted(Counter(each.depth_taken() for each in self._all).items()))
