"""Block verification: how much of a chain is taken is decided for all its tokens together.

Token by token, a draft that the target likes more than the drafter did is taken, and its surplus is of no use to the
drafts behind it.  Here it is: a beginning of ``i`` drafts is worth

    w(0) = 1,    w(i) = min(1, w(i - 1) p(x_i) / q(x_i)),

and the longest beginning is taken that its own coin lets pass: the whole chain with probability ``w(k)``, a shorter one
with ``s / (s + 1 - w(i))``, where ``s`` is the sum of the residual ``max(w(i) p - q, 0)`` of the position behind it.
What follows is drawn from that residual, and from ``p`` behind the whole chain.  On average this takes at least as
many drafts as deciding token by token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from structgen.decode.speculative.verification.recursive_rejection import acceptance, residual
from structgen.decode.speculative.verification.verdict import Verdict
from structgen.decode.speculative.verification.verifier import ChainVerifier, Rows

if TYPE_CHECKING:
    from structgen.decode.speculative.chance import Chance

__all__ = ["BlockVerification"]


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

    def verify(self, p: Rows, q: Rows, drafts: Sequence[int], chance: Chance, /) -> Verdict:
        """See ``ChainVerifier.verify``."""
        worth: list[Any] = [1]
        for position, draft in enumerate(drafts):
            if not q[position][draft] > 0:
                break  # it was not drawn from this law: the chain ends before it
            worth.append(acceptance(worth[-1] * p[position][draft], q[position][draft]))
        length = len(worth) - 1
        if chance.coin(worth[length]):
            return Verdict(tuple(range(length)), chance.draw(p[length]))
        for taken in range(length - 1, 0, -1):
            if not worth[taken] > 0:
                continue
            rest = residual(p[taken], q[taken], worth[taken])
            total = rest.sum()
            if total > 0 and chance.coin(acceptance(total, total + (1 - worth[taken]))):
                return Verdict(tuple(range(taken)), chance.draw(rest))
        rest = residual(p[0], q[0], 1)
        # An empty residual means that the laws are equal but for rounding: this has then no probability.
        return Verdict((), chance.draw(rest if rest.sum() > 0 else p[0]))
