"""Verification with fixed noise: what the target takes is settled before anything is guessed.

The noise of each position depends on its key alone (``structgen.decode.gumbel_max``), so the target's token is a
function of its law and the key: drafting changes nothing about the output, token for token.  A drafter that chooses
with the same keys agrees with the target the more often the nearer its law is: with probability

    sum over i of 1 / (sum over j of max(p_j / p_i, q_j / q_i)),

which is at least ``(1 - d) / (1 + d)`` where ``d`` is the total variation distance of the laws, and no scheme without
communication can promise more.

Source: M. Daliri, C. Musco, A. T. Suresh, "Coupling without Communication and Drafter-Invariant Speculative Decoding"
    (2024, arXiv 2408.07978).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from structgen.decode.gumbel_max import choose_by_noise
from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.verification.sample_and_match import sample_and_match

if TYPE_CHECKING:
    from structgen.decode.speculative.verification.verdict import Verdict
    from structgen.decode.speculative.verification.verifier import Rows

__all__ = ["match_fixed_noise"]


def match_fixed_noise(p: Rows, tree: DraftTree, keys: Sequence[int]) -> Verdict:
    """Walk down a tree for as long as it holds what the target takes with the noise of each position.

    Args:
        p: the target's laws (they need not sum to 1) over all token ids, masked and shaped: ``[1 + len(tree)]`` rows of
            ``[V]``, before the tree and after each node.
        tree: the guesses, token ids.
        keys: of the noise of each position, at least one more than the tree is deep.
    """
    depths: dict[int, int] = {ROOT: 0}

    def draw(node: int) -> int:
        if node != ROOT:
            depths[node] = depths[tree.parents[node]] + 1
        return choose_by_noise(p[node + 1], keys[depths[node]])

    return sample_and_match(tree, draw)
