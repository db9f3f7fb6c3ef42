"""Verification of a whole tree: a verifier at each node that is reached, from the root down."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.verification.verdict import Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.chance import Chance
    from structgen.decode.speculative.draft_tree import Drawn
    from structgen.decode.speculative.verification.verifier import Rows, Verifier

__all__ = ["restricted", "verify_tree"]


def verify_tree(
    p: Rows, tree: DraftTree, verifier: Verifier, chance: Chance, *, allowed: Rows | None = None
) -> Verdict:
    """Return the path that is taken, and the token that follows it.

    Behind a node whose children were chosen, not drawn, the target draws, and a child is taken that it happens to draw.

    Args:
        p: the target's laws over all token ids, masked and shaped: ``[1 + len(tree)]`` rows of ``[V]``, before the tree
            and after each node.
        tree: the guesses, token ids.
        verifier: chooses among drawn children.
        chance: answers what is left to chance.
        allowed: what the grammar allows at the same places, bool rows of ``[V]``; the drafters' laws are restricted to
            it.  None leaves the laws, and needs all tokens that were drawn to be in the tree, refused ones included.

    Raises:
        ValueError: children that are reached were drawn without replacement, and the verifier needs them drawn with it.
    """
    nodes: list[int] = []
    node = ROOT
    while True:
        row = p[node + 1]
        drawn = tree.drawn.get(node)
        if drawn is None:
            token = chance.draw(row)
        else:
            _check(drawn, verifier)
            law, drafts = drawn.law, drawn.tokens
            if allowed is not None:
                law, drafts = restricted(law, drafts, allowed[node + 1])
            token = verifier.choose(row, law, drafts, chance)
        child = tree.child(node, token)
        if child is None:
            return Verdict(tuple(nodes), token)
        nodes.append(child)
        node = child


def restricted(
    law: NDArray[Any], drafts: Sequence[int], allowed: NDArray[np.bool_]
) -> tuple[NDArray[Any], tuple[int, ...]]:
    """A law given that its token is allowed, ``[V]``, and those of the drafts that are.

    Tokens that are drawn until one is allowed have this law, with and without replacement, so what is left of the
    drafts was drawn from it.  It is all zero where nothing allowed has any probability, and no draft is left then.
    """
    kept = np.where(allowed, law, law * 0)
    total = kept.sum()
    return kept / total if total > 0 else kept, tuple(draft for draft in drafts if allowed[draft])


def _check(drawn: Drawn, verifier: Verifier) -> None:
    if verifier.replaced and not drawn.replaced:
        raise ValueError(
            f"{type(verifier).__name__}: tokens have to be drawn with replacement; found {drawn.tokens!r}, drawn "
            "without; use RecursiveRejection(), which takes both"
        )
