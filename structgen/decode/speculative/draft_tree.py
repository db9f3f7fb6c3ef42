"""Draft tokens at what comes next, as a tree of tokens."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, final

from structgen.models.protocol.tree import TokenTree

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["FORCED", "ROOT", "DraftTree", "SampledChildren", "merged_tree"]

ROOT: Final = -1
"""The parent of what follows the sequence itself."""

FORCED: Final = "forced"
"""The source of nodes for which the grammar leaves no choice: nobody drafted them, and they are taken for certain."""


@final
@dataclass(frozen=True)
class SampledChildren:
    """How the children of a node were drawn.

    How many there are may depend on those before, on what follows them in the tree, and on the grammar; not on what the
    next one would be.  Verifiers restrict the distribution to what the grammar allows, so a refused child may be
    missing.

    Attributes:
        distribution: what they were drawn from, float64 ``[V]``; it sums to 1.
        tokens: in the order in which they were drawn.
        replaced: whether each was drawn from the whole distribution, so that tokens may come twice; else from what
            those before it left of the distribution.
    """

    distribution: NDArray[np.float64]
    tokens: tuple[int, ...]
    replaced: bool = False


@final
class DraftTree:
    """Tokens that may come, each with how likely it is to be taken once its parent was.

    The children of a node are either chosen by a rule, whatever that is, or drawn at random from a distribution that
    the tree knows (``drawn``).

    Nodes are numbered in the order in which they are added: a parent stands before its children.

    Attributes:
        tokens: token ids.
        parents: the node that each follows; ``ROOT`` for the sequence itself.
        confidences: estimated probability that a node is taken given that its parent was, in [0, 1].
        drawn: by parent, how its children were drawn; a parent that is missing has chosen ones.
        sources: which drafter each node is from; the empty string where there is only one.
    """

    __slots__ = ("_children", "confidences", "drawn", "parents", "sources", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidences: list[float] = []
        self.drawn: dict[int, SampledChildren] = {}
        self.sources: list[str] = []
        self._children: dict[int, dict[int, int]] = {}

    @classmethod
    def chain(cls, tokens: Iterable[int], confidences: Iterable[float] | float = 1.0, *, source: str = "") -> Self:
        """A tree without forks.

        Args:
            tokens: token ids.
            confidences: one for each token, or the same for all.
            source: which drafter it is from.
        """
        tree = cls()
        tree.extend(ROOT, tokens, confidences, source=source)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, confidence: float = 1.0, *, source: str = "") -> int:
        """Add a token and return its node; one that is there already is found, and keeps the larger confidence."""
        children = self._children.setdefault(parent, {})
        node = children.get(token)
        if node is not None:
            self.confidences[node] = max(self.confidences[node], confidence)
            return node
        node = len(self.tokens)
        children[token] = node
        self.tokens.append(token)
        self.parents.append(parent)
        self.confidences.append(confidence)
        self.sources.append(source)
        return node

    def extend(
        self, parent: int, tokens: Iterable[int], confidences: Iterable[float] | float = 1.0, *, source: str = ""
    ) -> int:
        """Add tokens one after the other and return the last node; ``parent`` where there are none."""
        for token, confidence in _paired(tokens, confidences):
            parent = self.add(parent, token, confidence, source=source)
        return parent

    def child(self, parent: int, token: int) -> int | None:
        """The node of ``token`` after ``parent``."""
        return self._children.get(parent, {}).get(token)

    def children(self, parent: int) -> tuple[int, ...]:
        """The nodes after ``parent``, in the order in which they were added."""
        return tuple(self._children.get(parent, {}).values())

    def path(self, node: int) -> list[int]:
        """The nodes from a root down to ``node``."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def prefix(self, node: int) -> list[int]:
        """The tokens from a root down to ``node``."""
        return [self.tokens[each] for each in self.path(node)]

    def reach(self) -> list[float]:
        """For each node the estimated probability that it is taken: the product of confidences down to it."""
        reach: list[float] = []
        for parent, confidence in zip(self.parents, self.confidences, strict=True):
            reach.append(confidence if parent == ROOT else reach[parent] * confidence)
        return reach

    def depth(self) -> int:
        """How many tokens the longest path has."""
        return 1 + max(self.token_tree().depths(), default=-1)

    def leaves(self) -> Iterator[int]:
        """The nodes without children."""
        return (node for node in range(len(self)) if not self._children.get(node))

    def kept(self, nodes: Iterable[int]) -> DraftTree:
        """A tree of some of the nodes, renumbered; one whose parent is not among them is left out.

        Of drawn children, only what the grammar refuses may be left out, or all after one of them.
        """
        wanted = set(nodes)
        tree = DraftTree()
        renumbered = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if node in wanted and parent in renumbered:
                renumbered[node] = tree.add(
                    renumbered[parent], token, self.confidences[node], source=self.sources[node]
                )
        for parent, drawn in self.drawn.items():
            if parent in renumbered:
                known = tree._children.get(renumbered[parent], {})
                left = tuple(token for token in drawn.tokens if token in known)
                tree.drawn[renumbered[parent]] = SampledChildren(drawn.distribution, left, drawn.replaced)
        return tree

    def token_tree(self) -> TokenTree:
        """The tokens and parents alone, as a session takes them."""
        return TokenTree(tuple(self.tokens), tuple(self.parents))

    def __repr__(self) -> str:
        return f"<DraftTree of {len(self)} tokens>"


def _paired(tokens: Iterable[int], confidences: Iterable[float] | float) -> Iterable[tuple[int, float]]:
    if isinstance(confidences, int | float):
        return ((token, confidences) for token in tokens)
    return zip(tokens, confidences, strict=False)


def merged_tree(trees: Sequence[DraftTree]) -> DraftTree:
    """One tree of all paths: where several have a node, the first gives its source, the surest its confidence."""
    tree = DraftTree()
    for each in trees:
        numbers = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(each.tokens, each.parents, strict=True)):
            numbers[node] = tree.add(numbers[parent], token, each.confidences[node], source=each.sources[node])
    return tree
