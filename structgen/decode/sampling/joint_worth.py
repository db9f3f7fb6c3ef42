"""How far ahead to look where several sequences are run in one pass, and the next pass is spared only for all of them.

Sequences that grow together need a pass for their next tokens as long as one of them does.  So what is looked at behind
one of them is worth as much as what is looked at behind the others, and the price of a row is that of a row nobody
asks for later.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from structgen.decode.speculative.cost import CostModel
    from structgen.decode.speculative.draft_tree import DraftTree

__all__ = ["Outlook", "joint_depth", "outlook"]


class Outlook(NamedTuple):
    """What may be known of one sequence after further tokens: the ``d``-th entries are about ``d + 1`` more of them.

    Attributes:
        shares: estimated probability that the law behind so many tokens is known.
        nodes: rows that it takes.
        particles: how many the sequence stands for, each of which takes tokens of its own.
    """

    shares: list[float]
    nodes: list[int]
    particles: int = 1


def outlook(tree: DraftTree, particles: int = 1) -> Outlook:
    """What a pass tells that runs ``tree`` behind a sequence of so many particles."""
    depths = tree.token_tree().depths()
    deepest = 1 + max(depths, default=-1)
    shares, nodes = [0.0] * deepest, [0] * deepest
    for depth, reach in zip(depths, tree.reach(), strict=True):
        shares[depth] += reach
        nodes[depth] += 1
    return Outlook([min(share, 1.0) for share in shares], nodes, particles)


def joint_depth(outlooks: Sequence[Outlook], cost: CostModel, *, pending: int, budget: int) -> int:
    """Return to which depth it pays to look ahead: the one that is expected to save the most time, or 0.

    A round that needs no pass saves one over one row.  A row that is taken would have been run later, at the price of a
    row, by a pass that had to come or by the one that is spared.

    Args:
        outlooks: of all sequences that grow together; of those that this pass need not run, without nodes.
        cost: of passes.
        pending: rows that the pass has in any case.
        budget: the most nodes, of all sequences together.

    Complexity: O(sequences * depth).
    """
    best, found = 0.0, 0
    gain, rows = 0.0, 0
    before = cost.relative(pending)
    for depth in range(max((len(each.shares) for each in outlooks), default=0)):
        level = [each for each in outlooks if depth < len(each.shares)]
        rows += sum(each.nodes[depth] for each in level)
        if len(level) < len(outlooks) or rows > budget:
            break
        price = cost.relative(pending + rows) - before
        taken = sum(each.shares[depth] for each in level if each.nodes[depth])
        spared = math.prod(each.shares[depth] ** each.particles for each in level)
        gain += spared + (max(taken - 1.0, 0.0) * price / rows if rows else 0.0)
        if gain - price > best:
            best, found = gain - price, depth + 1
    return found
