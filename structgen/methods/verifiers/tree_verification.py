"""Verification of whole chains, and of whole trees for custom loops.

Chains are verified token by token as in speculative sampling, or as one block; trees by a verifier at each node, or by
sample and match.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from structgen.decode.speculative.draft_tree import ROOT, DraftTree
from structgen.decode.speculative.verifier import (
    ChainVerifier,
    DistributionRows,
    VerificationResult,
    acceptance,
    reject_recursively,
    residual,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.draft_tree import SampledChildren
    from structgen.decode.speculative.verifier import Chance, Verifier

__all__ = [
    "BlockVerification",
    "ChainSampling",
    "restricted",
    "sample_and_match",
    "verify_tree",
]


@final
@dataclass(frozen=True, slots=True)
class BlockVerification(ChainVerifier):
    """Accepts the longest prefix of a chain that passes joint acceptance.

    Prefixes are tried from the whole chain downwards, which has the same distribution as trying all of them.

    Complexity: O(k), and O(n) for each prefix that does not pass.

    Source: Z. Sun et al., "Block Verification Accelerates Speculative Decoding" (ICLR 2025, arXiv 2403.10444,
        algorithm 2).
    """

    lossless: ClassVar[bool] = True

    def verify(
        self, p: DistributionRows, q: DistributionRows, drafts: Sequence[int], chance: Chance, /
    ) -> VerificationResult:
        """See ``ChainVerifier.verify``."""
        weights: list[Any] = [1]
        for position, draft in enumerate(drafts):
            if not q[position][draft] > 0:
                break  # not sampled from this distribution: the chain ends before it
            weights.append(acceptance(weights[-1] * p[position][draft], q[position][draft]))
        length = len(weights) - 1
        if chance.coin(weights[length]):
            return VerificationResult(tuple(range(length)), chance.draw(p[length]))
        for taken in range(length - 1, 0, -1):
            if not weights[taken] > 0:
                continue
            rest = residual(p[taken], q[taken], weights[taken])
            total = rest.sum()
            if total > 0 and chance.coin(acceptance(total, total + (1 - weights[taken]))):
                return VerificationResult(tuple(range(taken)), chance.draw(rest))
        rest = residual(p[0], q[0], 1)
        # An empty residual means that the distributions are equal up to rounding: this line has probability 0.
        return VerificationResult((), chance.draw(rest if rest.sum() > 0 else p[0]))


@final
@dataclass(frozen=True, slots=True)
class ChainSampling(ChainVerifier):
    """Accepts drafts up to the first rejection.

    A draft ``x`` is accepted with probability ``min(1, p(x) / q(x))``.  A rejected draft is replaced by a sample of the
    residual ``max(p - q, 0)``; after a whole chain, a token is sampled from the last ``p``.

    Complexity: O(n) for a rejected draft, and for the last token.

    Source: Y. Leviathan, M. Kalman, Y. Matias, "Fast Inference from Transformers via Speculative Decoding" (ICML 2023,
        arXiv 2211.17192, algorithm 1); C. Chen et al., "Accelerating Large Language Model Decoding with Speculative
        Sampling" (2023, arXiv 2302.01318).
    """

    lossless: ClassVar[bool] = True

    def verify(
        self, p: DistributionRows, q: DistributionRows, drafts: Sequence[int], chance: Chance, /
    ) -> VerificationResult:
        """See ``ChainVerifier.verify``."""
        for position, draft in enumerate(drafts):
            token = reject_recursively(p[position], q[position], (draft,), chance)
            if token != draft:
                return VerificationResult(tuple(range(position)), token)
        return VerificationResult(tuple(range(len(drafts))), chance.draw(p[len(drafts)]))


def sample_and_match(tree: DraftTree, draw: Callable[[int], int]) -> VerificationResult:
    """Walk down a tree as long as it has the sampled token.

    Args:
        tree: the draft tokens; token ids, or whatever ``draw`` returns.
        draw: samples the token after a node, ``ROOT`` for the first; called once for each accepted node.

    Complexity: one sample for each token of the result.
    """
    nodes: list[int] = []
    node = ROOT
    while True:
        token = draw(node)
        child = tree.child(node, token)
        if child is None:
            return VerificationResult(tuple(nodes), token)
        nodes.append(child)
        node = child


def verify_tree(
    p: DistributionRows, tree: DraftTree, verifier: Verifier, chance: Chance, *, allowed: DistributionRows | None = None
) -> VerificationResult:
    """Return the accepted path, and the token after it.

    After a node with chosen children, the target samples, and a child is accepted if it is the sample.

    Args:
        p: the target's distributions over all token ids, masked and shaped: ``[1 + len(tree)]`` rows of ``[V]``, before
            the tree and after each node.
        tree: the draft tokens, token ids.
        verifier: chooses where children were sampled.
        chance: makes the random decisions.
        allowed: the tokens that the grammar allows at the same positions, bool rows of ``[V]``; the draft distributions
            are restricted to them.  None leaves the distributions, and requires all sampled tokens in the tree, refused
            ones included.

    Raises:
        ValueError: children were sampled without replacement, and the verifier needs replacement.
    """
    nodes: list[int] = []
    node = ROOT
    while True:
        row = p[node + 1]
        sampled = tree.sampled.get(node)
        if sampled is None:
            token = chance.draw(row)
        else:
            _check(sampled, verifier)
            distribution, drafts = sampled.distribution, sampled.tokens
            if allowed is not None:
                distribution, drafts = restricted(distribution, drafts, allowed[node + 1])
            token = verifier.choose(row, distribution, drafts, chance)
        child = tree.child(node, token)
        if child is None:
            return VerificationResult(tuple(nodes), token)
        nodes.append(child)
        node = child


def restricted(
    distribution: NDArray[Any], drafts: Sequence[int], allowed: NDArray[np.bool_]
) -> tuple[NDArray[Any], tuple[int, ...]]:
    """Return a distribution restricted to the allowed tokens, ``[V]``, and the allowed drafts.

    The allowed drafts are samples of the restricted distribution, with and without replacement.  If no allowed token
    has any probability, it is all zero, and no draft is left.
    """
    masked = np.where(allowed, distribution, distribution * 0)
    total = masked.sum()
    return masked / total if total > 0 else masked, tuple(draft for draft in drafts if allowed[draft])


def _check(sampled: SampledChildren, verifier: Verifier) -> None:
    if verifier.replaced and not sampled.replaced:
        raise ValueError(
            f"{type(verifier).__name__}: tokens must be sampled with replacement; found {sampled.tokens!r}, sampled "
            "without; use RecursiveRejection(), which takes both"
        )
