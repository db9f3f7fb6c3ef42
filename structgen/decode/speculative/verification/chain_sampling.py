"""Speculative sampling of a chain: token after token, each as if it were the only guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

from structgen.decode.speculative.verification.recursive_rejection import reject_recursively
from structgen.decode.speculative.verification.verdict import Verdict
from structgen.decode.speculative.verification.verifier import ChainVerifier, Rows

if TYPE_CHECKING:
    from structgen.decode.speculative.chance import Chance

__all__ = ["ChainSampling"]


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

    def verify(self, p: Rows, q: Rows, drafts: Sequence[int], chance: Chance, /) -> Verdict:
        """See ``ChainVerifier.verify``."""
        for position, draft in enumerate(drafts):
            token = reject_recursively(p[position], q[position], (draft,), chance)
            if token != draft:
                return Verdict(tuple(range(position)), token)
        return Verdict(tuple(range(len(drafts))), chance.draw(p[len(drafts)]))
