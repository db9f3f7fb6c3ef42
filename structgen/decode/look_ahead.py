"""What one forward pass told about tokens that were not taken yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from structgen.decode.rows import Row, Rows
    from structgen.models.protocol import Logits
    from structgen.models.token_tree import TokenTree

__all__ = ["LookAhead"]


@final
class LookAhead:
    """The logits behind a sequence and behind each token of a tree that may follow it.

    Attributes:
        start: how long the sequence was.
        tree: what may follow.
        told: the logits, ``1 + n`` rows: after the sequence, and after each token of the tree.

    Args:
        start: see above.
        tree: see above.
        told: see above.
        nodes: which tokens of the tree were run; None is all of them.
    """

    __slots__ = ("_children", "_was_run", "start", "told", "tree")

    def __init__(self, start: int, tree: TokenTree, told: Rows, nodes: Sequence[int] | None = None) -> None:
        self.start = start
        self.tree = tree
        self.told = told
        self._was_run = range(len(tree.token_ids)) if nodes is None else frozenset(nodes)
        self._children: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            self._children.setdefault((parent, token), node)

    @property
    def rows(self) -> Logits:
        """The logits as an array, ``[1 + n, V]``; a row of a token that was not run is NaN."""
        return self.told.on_host()

    def path(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that ``tokens``, which follow the sequence, run through for as long as they stay in the tree."""
        nodes: list[int] = []
        node: int | None = -1
        for token in tokens:
            node = self._children.get((-1 if node is None else node, token))
            if node is None:
                break
            nodes.append(node)
        return nodes

    def law(self, tokens: Sequence[int]) -> Row | None:
        """The logits after the sequence and ``tokens``; None where they leave the tree, or what was run of it."""
        nodes = self.path(tokens)
        if len(nodes) < len(tokens) or (nodes and nodes[-1] not in self._was_run):
            return None
        return self.told[1 + nodes[-1] if nodes else 0]
