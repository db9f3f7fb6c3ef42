"""Verifiers of whole chains: token by token as in speculative sampling, or as one block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from structgen.decode.speculative.verifier import (
    ChainVerifier,
    DistributionRows,
    VerificationResult,
    acceptance,
    reject_recursively,
    residual,
)

if TYPE_CHECKING:
    from structgen.decode.speculative.verifier import Chance

__all__ = ["BlockVerification", "ChainSampling"]


@final
@dataclass(frozen=True, slots=True)
class BlockVerification(ChainVerifier):
    """Takes the longest beginning of a chain that joint acceptance lets pass.

    Coins are asked from the whole chain downwards, which has the same law as asking for all and looking for the longest
    beginning that passed.

    Complexity: O(k), and O(n) for each beginning that does not pass.

    Source: Z. Sun et al., "Block Verification Accelerates Speculative Decoding" (ICLR 2025, arXiv 2403.10444,
        algorithm 2).
    """

    lossless: ClassVar[bool] = True

    def verify(
        self, p: DistributionRows, q: DistributionRows, drafts: Sequence[int], chance: Chance, /
    ) -> VerificationResult:
        """See ``ChainVerifier.verify``."""
        worth: list[Any] = [1]
        for position, draft in enumerate(drafts):
            if not q[position][draft] > 0:
                break  # it was not drawn from this law: the chain ends before it
            worth.append(acceptance(worth[-1] * p[position][draft], q[position][draft]))
        length = len(worth) - 1
        if chance.coin(worth[length]):
            return VerificationResult(tuple(range(length)), chance.draw(p[length]))
        for taken in range(length - 1, 0, -1):
            if not worth[taken] > 0:
                continue
            rest = residual(p[taken], q[taken], worth[taken])
            total = rest.sum()
            if total > 0 and chance.coin(acceptance(total, total + (1 - worth[taken]))):
                return VerificationResult(tuple(range(taken)), chance.draw(rest))
        rest = residual(p[0], q[0], 1)
        # An empty residual means that the laws are equal but for rounding: this has then no probability.
        return VerificationResult((), chance.draw(rest if rest.sum() > 0 else p[0]))


@final
@dataclass(frozen=True, slots=True)
class ChainSampling(ChainVerifier):
    """Takes drafts up to the first that is rejected.

    A draft ``x`` is taken with probability ``min(1, p(x) / q(x))``; in place of the one that is rejected comes a token
    of the residual ``max(p - q, 0)``, and behind a chain that is taken whole one of the last ``p``.

    Complexity: O(n) where a draft is rejected, and for the last token.

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
