"""Sample and match: the target chooses as ever, and a guess is taken where it is what was chosen.

This needs neither the law of the guesses nor a mask: any way to choose a token, asked once for each position that is
reached, stays what it is.  So it serves guesses that a rule chose, greedy decoding, fixed noise, and constraints that
are only asked about single tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from structgen.decode.awrs import Number, Weighted
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.verification.verdict import Verdict, WeightedVerdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.verification.verifier import Rows

__all__ = ["match_greedily", "match_greedily_chain", "sample_and_match", "sample_and_match_weighted"]


def sample_and_match(tree: DraftTree, draw: Callable[[int], int]) -> Verdict:
    """Walk down a tree for as long as it holds what is drawn.

    Args:
        tree: the guesses; token ids, or whatever ``draw`` returns.
        draw: the token after a node, ``ROOT`` for the first; asked for each node that is taken, once.

    Complexity: one draw for each token of the outcome.
    """
    nodes: list[int] = []
    node = ROOT
    while True:
        token = draw(node)
        child = tree.child(node, token)
        if child is None:
            return Verdict(tuple(nodes), token)
        nodes.append(child)
        node = child


def sample_and_match_weighted(tree: DraftTree, draw: Callable[[int], Weighted[Number]]) -> WeightedVerdict[Number]:
    """As ``sample_and_match``, of draws with weights, which are multiplied along the way.

    Where each draw is right on average given the tokens before it, as those of ``structgen.decode.awrs`` are, so is the
    product for the whole sequence: E[weight 1{tokens}] is the probability that the model gives to these tokens if they
    are all admitted, else zero.  Only tokens that were drawn are asked about; no mask is needed.
    """
    nodes: list[int] = []
    weights: list[Number] = []
    node = ROOT
    while True:
        drawn = draw(node)
        weights.append(drawn.weight)
        child = None if drawn.token is None else tree.child(node, drawn.token)
        if child is None:
            return WeightedVerdict(tuple(nodes), drawn.token, tuple(weights))
        nodes.append(child)
        node = child


def match_greedily(rows: Rows, tree: DraftTree) -> Verdict:
    """Walk down a tree for as long as it holds the most probable token; of equally probable ones the first.

    Args:
        rows: logits, log-probabilities or laws over all token ids, masked: ``[1 + len(tree)]`` rows, before the tree
            and after each node.
        tree: the guesses, token ids.
    """
    return sample_and_match(tree, lambda node: _best(rows[node + 1]))


def match_greedily_chain(rows: Rows, tokens: Iterable[int]) -> Verdict:
    """As ``match_greedily``, of a chain: ``[1 + k]`` rows, each with the token that was guessed as an index into it."""
    guesses: Sequence[int] = list(tokens)
    for position, guess in enumerate(guesses):
        best = _best(rows[position])
        if best != guess:
            return Verdict(tuple(range(position)), best)
    return Verdict(tuple(range(len(guesses))), _best(rows[len(guesses)]))


def _best(row: NDArray[Any]) -> int:
    return int(row.argmax())
