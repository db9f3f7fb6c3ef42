"""What the rows of a forward pass say about tokens that the grammar allows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from structgen.decode.projection import allowed_ids
from structgen.decode.rows import on_host
from structgen.decode.speculative.draft_tree import FORCED, ROOT
from structgen.decode.speculative.drafters.recycling.choice import allowed_among
from structgen.decode.speculative.drafters.recycling.top_tokens import top_tokens

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.draft_tree import DraftTree
    from structgen.decode.speculative.drafter import Verified
    from structgen.engine import Matcher

__all__ = ["Reading", "learned_laws", "masks_along", "readings"]

_WIDER: Final = 2
_LEAST_WIDTH: Final = 16
"""So many times as many tokens are looked at as are wanted, and at least so many, since the grammar refuses some."""


class Reading(NamedTuple):
    """The most probable tokens behind a node.

    Attributes:
        node: of the tree; ``ROOT`` for the sequence itself.
        tokens: ids, the most probable first.
        logits: theirs.
    """

    node: int
    tokens: list[int]
    logits: list[float]


def readings(verified: Verified, count: int, matcher: Matcher | None = None) -> list[Reading]:
    """Return the most probable tokens behind each node that was run and behind which a token is chosen.

    Args:
        verified: a forward pass.
        count: how many tokens at most; they are among the ``2 * count`` or 16 that are most probable without a grammar,
            but where the grammar allows none of these.
        matcher: where the output stood, to leave out what the grammar refuses; None leaves out nothing.

    Complexity: one pass over the rows, a mask for each node.
    """
    tree, told = verified.tree, verified.told
    forced = {parent for parent, source in zip(tree.parents, tree.sources, strict=True) if source == FORCED}
    masks = None if matcher is None else masks_along(tree, matcher)
    was_run = told.were_run()
    nodes = [
        node
        for node in range(ROOT, len(tree))
        if was_run[node + 1] and node not in forced and (masks is None or node in masks)
    ]
    if not nodes:
        return []
    places = np.array(nodes) + 1
    width = count if masks is None else max(_WIDER * count, _LEAST_WIDTH)
    resident = told.resident_top(places.tolist(), width)
    if resident is not None:
        tokens, logits = resident
    elif was_run.all():  # a copy of the rows would cost as much as those that are not asked for
        tokens, logits = (found[places] for found in top_tokens(verified.rows, width))
    else:
        tokens, logits = top_tokens(verified.rows[places], width)
    possible = logits > -np.inf
    if masks is not None:
        possible &= allowed_among(np.stack([masks[node] for node in nodes]), tokens)
    result = []
    for index, node in enumerate(nodes):
        keep = np.flatnonzero(possible[index])[:count]
        ids, values = tokens[index][keep], logits[index][keep]
        if masks is not None and not len(keep):
            row = on_host(told[node + 1])
            every = allowed_ids(masks[node], len(row))
            best, largest = top_tokens(row[None, every], count)
            finite = largest[0] > -np.inf
            ids, values = every[best[0]][finite], largest[0][finite]
        result.append(Reading(node, ids.tolist(), values.tolist()))
    return result


def learned_laws(
    verified: Verified, before: Sequence[int], order: int, count: int
) -> Iterator[tuple[tuple[int, ...], list[int], list[float]]]:
    """What ``readings`` finds, with up to ``order`` tokens before each position in place of the node.

    Args:
        verified: a forward pass.
        before: the tokens before it, at least ``order`` of the last, or all.
        order: how many tokens to give.
        count: see ``readings``.
    """
    tree = verified.tree
    tails: dict[int, tuple[int, ...]] = {ROOT: tuple(before[-order:])}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        tails[node] = (*tails[parent], token)[-order:]
    for node, tokens, logits in readings(verified, count):
        yield tails[node], tokens, logits


def masks_along(tree: DraftTree, matcher: Matcher) -> dict[int, NDArray[np.int32]]:
    """What may come behind each node, int32 words ``[ceil(V / 32)]``, for those that the grammar allows.

    Args:
        tree: guesses.
        matcher: where the output stands; it is not moved.
    """
    masks = np.empty((1 + len(tree), (matcher.constraint.vocabulary.size + 31) // 32), dtype=np.int32)
    matchers = {ROOT: matcher}
    for node, (token, parent) in enumerate(zip(tree.tokens, tree.parents, strict=True)):
        if parent in matchers:
            fork = matchers[parent].fork()
            if fork.accept(token):
                matchers[node] = fork
    for node, each in matchers.items():
        each.fill_mask(masks, node + 1)
    return {node: masks[node + 1] for node in matchers if masks[node + 1].any()}
