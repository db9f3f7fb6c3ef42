"""What one forward pass told about tokens that were not taken yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, final

import numpy as np

if TYPE_CHECKING:
    from structgen.models.protocol import Logits
    from structgen.models.token_tree import TokenTree

__all__ = ["LookAhead"]


@final
class LookAhead:
    """The logits behind a sequence and behind each token of a tree that may follow it.

    Attributes:
        start: how long the sequence was.
        tree: what may follow.
        rows: the logits, ``[1 + n, V]``: after the sequence, and after each token of the tree.
    """

    __slots__ = ("_children", "rows", "start", "tree")

    def __init__(self, start: int, tree: TokenTree, rows: Logits) -> None:
        self.start = start
        self.tree = tree
        self.rows = rows
        self._children: dict[tuple[int, int], int] = {}
        for node, (token, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
            self._children.setdefault((parent, token), node)

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

    def law(self, tokens: Sequence[int]) -> Logits | None:
        """The logits after the sequence and ``tokens``; None where they leave the tree, or what was run of it."""
        nodes = self.path(tokens)
        if len(nodes) < len(tokens):
            return None
        row: Logits = self.rows[1 + nodes[-1] if nodes else 0]
        return None if np.isnan(row[0]) else row
