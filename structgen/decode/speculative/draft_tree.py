"""The tree of draft tokens that one forward pass verifies."""

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
"""The parent of the first tokens, which follow the sequence itself."""

FORCED: Final = "forced"
"""The source of nodes that the grammar forces: no drafter proposed them, and they are always accepted."""


@final
@dataclass(frozen=True)
class SampledChildren:
    """How the children of a node were sampled.

    Their number may depend on the earlier children, on their descendants and on the grammar, but not on the next
    sample. Verifiers restrict the distribution to the allowed tokens, so a refused child may be missing.

    Attributes:
        distribution: what the children were sampled from, float64 ``[V]``; it sums to 1.
        tokens: in the order in which they were sampled.
        replaced: whether they were sampled with replacement, so that a token may occur twice.
    """

    distribution: NDArray[np.float64]
    tokens: tuple[int, ...]
    replaced: bool = False


@final
class DraftTree:
    """Draft tokens, each with its estimated acceptance probability given that its parent is accepted.

    The children of a node are either chosen by a rule or sampled.  The tree records in ``sampled`` what they were
    sampled from.

    Nodes are numbered in the order in which they are added, so a parent comes before its children.

    Attributes:
        tokens: token ids.
        parents: the parent of each node; ``ROOT`` for the first tokens.
        confidences: estimated probability that a node is accepted given that its parent is, in [0, 1].
        sampled: by parent, how its children were sampled; the children of other parents were chosen.
        sources: the drafter of each node; the empty string if there is only one drafter.
    """

    __slots__ = ("_children", "confidences", "parents", "sampled", "sources", "tokens")

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.confidences: list[float] = []
        self.sampled: dict[int, SampledChildren] = {}
        self.sources: list[str] = []
        self._children: dict[int, dict[int, int]] = {}

    @classmethod
    def chain(cls, tokens: Iterable[int], confidences: Iterable[float] | float = 1.0, *, source: str = "") -> Self:
        """Return a tree with one path, with one confidence for each token or the same for all."""
        tree = cls()
        tree.extend(ROOT, tokens, confidences, source=source)
        return tree

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int, confidence: float = 1.0, *, source: str = "") -> int:
        """Add a token and return its node; an existing node keeps the larger confidence."""
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
        """Add tokens one after the other and return the last node; ``parent`` if there are none."""
        for token, confidence in _paired(tokens, confidences):
            parent = self.add(parent, token, confidence, source=source)
        return parent

    def include(self, tree: DraftTree, confidences: Sequence[float], sources: Sequence[str]) -> None:
        """Add all paths of another tree, without its distributions, with these confidences and sources of its nodes."""
        numbers = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
            numbers[node] = self.add(numbers[parent], token, confidences[node], source=sources[node])

    def child(self, parent: int, token: int) -> int | None:
        """Return the node of ``token`` after ``parent``."""
        return self._children.get(parent, {}).get(token)

    def children(self, parent: int) -> tuple[int, ...]:
        """Return the nodes after ``parent``, in the order in which they were added."""
        return tuple(self._children.get(parent, {}).values())

    def follow(self, tokens: Iterable[int]) -> list[int]:
        """Return the nodes that ``tokens`` lead through, up to the first token that is not in the tree."""
        nodes: list[int] = []
        parent = ROOT
        for token in tokens:
            child = self.child(parent, token)
            if child is None:
                break
            nodes.append(child)
            parent = child
        return nodes

    def path(self, node: int) -> list[int]:
        """Return the nodes from a root down to ``node``."""
        nodes = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return nodes[::-1]

    def prefix(self, node: int) -> list[int]:
        """Return the tokens from a root down to ``node``."""
        return [self.tokens[each] for each in self.path(node)]

    def reach(self) -> list[float]:
        """Return the estimated acceptance probability of each node: the product of the confidences on its path."""
        reach: list[float] = []
        for parent, confidence in zip(self.parents, self.confidences, strict=True):
            reach.append(confidence if parent == ROOT else reach[parent] * confidence)
        return reach

    def depth(self) -> int:
        """Return the number of tokens of the longest path."""
        return 1 + max(self.token_tree().depths(), default=-1)

    def leaves(self) -> Iterator[int]:
        """Return the nodes without children."""
        return (node for node in range(len(self)) if not self._children.get(node))

    def kept(self, nodes: Iterable[int]) -> DraftTree:
        """Return a tree of some of the nodes, renumbered; a node whose parent is not among them is left out.

        Of sampled children, only those that the grammar refuses may be left out, or all from some child on.
        """
        retained = set(nodes)
        tree = DraftTree()
        renumbered = {ROOT: ROOT}
        for node, (token, parent) in enumerate(zip(self.tokens, self.parents, strict=True)):
            if node in retained and parent in renumbered:
                renumbered[node] = tree.add(
                    renumbered[parent], token, self.confidences[node], source=self.sources[node]
                )
        for parent, sampled in self.sampled.items():
            if parent in renumbered:
                children = tree._children.get(renumbered[parent], {})
                tokens = tuple(token for token in sampled.tokens if token in children)
                tree.sampled[renumbered[parent]] = SampledChildren(sampled.distribution, tokens, sampled.replaced)
        return tree

    def token_tree(self) -> TokenTree:
        """Return the tokens and parents alone, as a session takes them."""
        return TokenTree(tuple(self.tokens), tuple(self.parents))

    def __repr__(self) -> str:
        return f"<DraftTree of {len(self)} tokens>"


def _paired(tokens: Iterable[int], confidences: Iterable[float] | float) -> Iterable[tuple[int, float]]:
    if isinstance(confidences, int | float):
        return ((token, confidences) for token in tokens)
    return zip(tokens, confidences, strict=False)


def merged_tree(trees: Sequence[DraftTree]) -> DraftTree:
    """Return one tree of all paths; a shared node has the source of the first tree and the largest confidence."""
    tree = DraftTree()
    for each in trees:
        tree.include(each, each.confidences, each.sources)
    return tree
