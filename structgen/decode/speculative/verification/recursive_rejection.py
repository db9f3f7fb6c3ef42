"""Recursive rejection: one draft after the other is taken or rejected, and what is left to be drawn shrinks with each.

A draft ``x`` is taken with probability ``min(1, p(x) / q(x))``.  Where it is not, ``p`` becomes its residual,
``max(p - q, 0)`` renormalised, and the next draft is tried against that; where none is taken, the token is drawn from
the last residual.  Of tokens drawn without replacement, the law ``q`` of the next is what the rejected ones left.

For one draft this is speculative sampling (Leviathan et al. 2023, arXiv 2211.17192; Chen et al. 2023, arXiv
2302.01318).  Without replacement: W. Jeon et al., "Recursive Speculative Decoding" (2024, arXiv 2402.14160); Z. Chen
et al., "Sequoia" (2024, arXiv 2402.12374); Y. Li et al., "EAGLE-2" (2024, arXiv 2406.16858).  With replacement:
X. Miao et al., "SpecInfer" (2023, arXiv 2305.09781).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, final

import numpy as np

from structgen.decode.speculative.verification.verifier import Verifier

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.chance import Chance

__all__ = ["IndependentRejection", "RecursiveRejection", "acceptance", "reject_recursively", "residual"]

_CANCELS: Final = 0.01
_TINY: Final = 1e-290


@final
@dataclass(frozen=True, slots=True)
class RecursiveRejection(Verifier):
    """Drafts tried one after the other, each against what those before it left of their law.

    They may have been drawn with or without replacement.  Tokens that come again are passed over, and what is left of
    drafts with replacement is what drawing without would have given: only how many there are is left to chance.

    Complexity: O(1) where the first draft is taken, O(n) for each that is rejected.
    """

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = False

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return reject_recursively(p, q, drafts, chance)


@final
@dataclass(frozen=True, slots=True)
class IndependentRejection(Verifier):
    """Drafts that were drawn with replacement, tried one after the other, each against their whole law.

    Of the same drafts it may take more than ``RecursiveRejection`` or less, depending on the laws.

    Complexity: as ``RecursiveRejection``.
    """

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = True

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return reject_recursively(p, q, drafts, chance, replaced=True)


def reject_recursively(
    p: NDArray[Any],
    q: NDArray[Any],
    drafts: Sequence[int],
    chance: Chance,
    *,
    replaced: bool = False,
    passes: Callable[[int], bool] | None = None,
) -> int:
    """Return the index of the next token.

    Args:
        p: the target's law, ``[n]``.
        q: the law of the drafts, ``[n]``.
        drafts: indices, in the order in which they were drawn.
        chance: answers what is left to chance.
        replaced: whether each is tried against the whole law of the drafts; they must have been drawn with replacement.
        passes: takes a draft at once where it is True; asked only about drafts to which ``p`` gives a probability.
            What is chosen has the law ``p`` only where it is never True.
    """
    # Both laws are kept as weights with their sums.  Those of ``q`` need not be touched: of a draft that was rejected
    # nothing is left in ``p``, so that its ``q`` makes no difference any more.
    left = p
    p_total: Any = 1
    q_total: Any = 1
    scale: Any = 1  # of the two sums; an integer, not a float, as long as both are 1, so that fractions stay fractions
    rejected: set[int] = set()
    for draft in drafts:
        if not q[draft] > 0 or (draft in rejected and not replaced):
            continue
        if passes is not None and p[draft] > 0 and passes(draft):
            return draft
        if chance.coin(acceptance(left[draft] * q_total, q[draft] * p_total)):
            return draft
        rest = residual(left, q, scale)
        rest[draft] = 0
        total = rest.sum()
        if not total > _TINY:
            break  # the laws are equal but for rounding, so that rejection had no probability
        left, p_total = rest, total
        rejected.add(draft)
        if not replaced:
            q_total = _sum_without(q, q_total - q[draft], rejected)
            if not q_total > _TINY:
                break  # there is nothing left to draft
        scale = q_total / p_total
    return chance.draw(left)


def residual(p: NDArray[Any], q: NDArray[Any], scale: Any) -> NDArray[Any]:
    """``max(scale p - q, 0)``, ``[n]``."""
    rest: NDArray[Any] = p * scale
    np.subtract(rest, q, out=rest)
    np.maximum(rest, 0, out=rest)
    return rest


def acceptance(weight: Any, against: Any) -> Any:
    """``min(1, weight / against)``; zero where both are."""
    if not weight > 0:
        return 0
    return 1 if weight >= against else weight / against


def _sum_without(q: NDArray[Any], difference: Any, rejected: set[int]) -> Any:
    """The sum of what is not rejected; by subtraction where little cancels."""
    if difference > _CANCELS:
        return difference
    rest = q.copy()
    rest[list(rejected)] = 0
    return rest.sum()
