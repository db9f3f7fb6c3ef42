"""Which guesses pay: a part of a tree for which the passes that it is expected to save are worth its rows.

What a node saves is a forward pass, if it is taken and the model is asked what follows it.  Where the grammar forces
what follows, the loop needs no model, so the node saves nothing by itself: node and forced tokens together save the
pass that would have run them, if the end of the forced tokens is reached in the tree.  That pass would have had a row
for each of them, so rows that are taken cost nothing, and those that are not are the price.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from structgen.decode.speculative.draft_tree import FORCED, ROOT, DraftTree

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.cost import CostModel

__all__ = ["expected_saving", "pruned_tree"]

_ROUNDING: Final = 1e-12


def pruned_tree(tree: DraftTree, cost: CostModel, budget: int, *, pending: int = 1, branches: bool = True) -> DraftTree:
    """Return the part of a tree that is expected to save the most time; nothing where none is saved.

    The best of all parts that hold the parents of their nodes, exactly, for any cost.  Where children were drawn, no
    choice among nodes may depend on which ones were, so such a tree is only cut off at its end, at the budget.

    Args:
        tree: the guesses, forced tokens among them (``FORCED``).
        cost: of passes.
        budget: the most nodes of the part.
        pending: rows that the pass has in any case.
        branches: whether all of a tree is run, or only one chain of it: then the part is the best chain.

    Complexity: O(n log n) without forced tokens, else O(n * budget); well under a millisecond for 100 nodes.
    """
    if tree.drawn:
        return tree if len(tree) <= budget else tree.kept(range(budget))
    budget = min(budget, len(tree))
    if budget < 1:
        return DraftTree()
    relatives = cost.relatives(pending + len(tree))
    price = relatives[pending : pending + budget + 1] - relatives[pending]
    least = float(np.diff(price).min())
    blocks = _blocks(tree, relatives, least)
    if not branches:
        chosen = _best_chain(blocks, price)
    else:
        blocks = _promising(blocks, least)
        rank = _largest if FORCED not in tree.sources else _packed
        chosen = rank(blocks, price)
    nodes = [node for block in chosen for node in block.nodes]
    return tree if len(nodes) == len(tree) else tree.kept(nodes)


def expected_saving(tree: DraftTree, cost: CostModel, *, pending: int = 1) -> float:
    """The time that a tree is expected to save if all of it is run, in passes over one row; negative where it does not.

    Args:
        tree: the guesses, forced tokens among them.
        cost: of passes.
        pending: rows that the pass has in any case.
    """
    relatives = cost.relatives(pending + len(tree))
    gain = sum(block.gain for block in _blocks(tree, relatives, math.inf))
    return float(gain - (relatives[pending + len(tree)] - relatives[pending]))


class _NodeBlock(NamedTuple):
    """Nodes one behind the other that are of use together or not at all."""

    nodes: list[int]
    parent: int
    """Index of the block that it follows."""
    gain: float
    """How much of a pass over one row it is expected to save."""

    @property
    def size(self) -> int:
        return len(self.nodes)


def _blocks(tree: DraftTree, relatives: NDArray[np.float64], least: float) -> list[_NodeBlock]:
    """The blocks of a tree, each behind its parent.

    A node and the forced tokens behind it are one, unless a part of them might pay: rows that are taken over from the
    pass that the rest needs.  It cannot where they save no more in that pass than ``least``, which a row costs in this.
    """
    times = relatives.tolist()
    steps = [0.0, 0.0, *np.maximum.accumulate(np.diff(relatives[1:])).tolist()]  # the dearest row of a pass
    runs, parents, reach = _runs(tree)
    blocks: list[_NodeBlock] = []
    last = {ROOT: ROOT}  # of each run its last block
    for index, (run, parent, likely) in enumerate(zip(runs, parents, reach, strict=True)):
        above, length = last[parent], len(run)
        if likely * steps[length] <= least + _ROUNDING:
            blocks.append(_NodeBlock(run, above, likely * times[length]))
        else:
            for rows, node in zip(range(length, 0, -1), run, strict=True):
                blocks.append(_NodeBlock([node], above, likely * (times[rows] - times[rows - 1])))
                above = len(blocks) - 1
        last[index] = len(blocks) - 1
    return blocks


def _runs(tree: DraftTree) -> tuple[list[list[int]], list[int], list[float]]:
    """Each node that is not forced with what is forced behind it, the run that it follows, and how likely it is."""
    runs: list[list[int]] = []
    parents: list[int] = []
    reach: list[float] = []
    of: list[int] = []  # of each node its run
    for node, (parent, confidence, source) in enumerate(zip(tree.parents, tree.confidences, tree.sources, strict=True)):
        above = ROOT if parent == ROOT else of[parent]
        if source == FORCED and above != ROOT:
            runs[above].append(node)
        else:
            likely = min(confidence, 1.0)
            reach.append(likely if above == ROOT else reach[above] * likely)
            parents.append(above)
            above = len(runs)
            runs.append([node])
        of.append(above)
    return runs, parents, reach


def _promising(blocks: list[_NodeBlock], least: float) -> list[_NodeBlock]:
    """Leave out what cannot pay even if each row costs only ``least``; renumbered."""
    worth = [block.gain - least * block.size for block in blocks]
    for index in range(len(blocks) - 1, -1, -1):
        parent = blocks[index].parent
        if worth[index] > 0 and parent != ROOT:
            worth[parent] += worth[index]
    numbers = {ROOT: ROOT}
    kept: list[_NodeBlock] = []
    for index, block in enumerate(blocks):
        if worth[index] > 0 and block.parent in numbers:
            numbers[index] = len(kept)
            kept.append(block._replace(parent=numbers[block.parent]))
    return kept


def _largest(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best of blocks of one node each: of every number the likeliest ones, which hold their parents."""
    gains = np.array([block.gain for block in blocks])
    order = np.argsort(-gains, kind="stable")[: len(price) - 1]
    saved = np.concatenate(([0.0], np.cumsum(gains[order]))) - price[: len(order) + 1]
    return [blocks[index] for index in sorted(order[: int(saved.argmax())])]


def _packed(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The best of blocks of any sizes and gains, by the knapsack over a tree in depth-first order.

    ``best[i][b]`` is the largest gain from exactly ``b`` nodes of the blocks from the ``i``-th on; a block that is left
    out takes all that follow it along.
    """
    order, after = _depth_first(blocks)
    count, room = len(order), len(price)
    best = np.full((count + 1, room), -np.inf)
    best[count, 0] = 0.0
    for at in range(count - 1, -1, -1):
        block = blocks[order[at]]
        row = best[at]
        row[:] = best[after[at]]
        if block.size < room:
            np.maximum(row[block.size :], best[at + 1, : room - block.size] + block.gain, out=row[block.size :])
    left = int((best[0] - price).argmax())
    chosen: list[int] = []
    at = 0
    while at < count:
        if best[at, left] == best[after[at], left]:
            at = after[at]
            continue
        chosen.append(order[at])
        left -= blocks[order[at]].size
        at += 1
    return [blocks[index] for index in sorted(chosen)]


def _depth_first(blocks: list[_NodeBlock]) -> tuple[list[int], list[int]]:
    """The blocks in depth-first order, and for each place in it the one behind all that follow that block."""
    children: dict[int, list[int]] = {}
    sizes = [1] * len(blocks)
    for index in range(len(blocks) - 1, -1, -1):
        parent = blocks[index].parent
        children.setdefault(parent, []).append(index)
        if parent != ROOT:
            sizes[parent] += sizes[index]
    order: list[int] = []
    stack = children.get(ROOT, [])
    while stack:
        index = stack.pop()
        order.append(index)
        stack += children.get(index, [])
    return order, [at + sizes[index] for at, index in enumerate(order)]


def _best_chain(blocks: list[_NodeBlock], price: NDArray[np.float64]) -> list[_NodeBlock]:
    """The chain from a root that saves the most."""
    best, end = 0.0, ROOT
    gains: list[float] = []
    sizes: list[int] = []
    for index, block in enumerate(blocks):
        above = block.parent
        gains.append(block.gain + (0.0 if above == ROOT else gains[above]))
        sizes.append(block.size + (0 if above == ROOT else sizes[above]))
        if sizes[index] < len(price) and gains[index] - price[sizes[index]] > best:
            best, end = float(gains[index] - price[sizes[index]]), index
    chain: list[_NodeBlock] = []
    while end != ROOT:
        chain.append(blocks[end])
        end = blocks[end].parent
    return chain[::-1]
