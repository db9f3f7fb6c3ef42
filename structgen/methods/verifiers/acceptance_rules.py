"""Verifiers with other acceptance rules: k-sequential selection, and relaxed acceptance, which is not lossless.

K-sequential selection is for drafts that were sampled independently.  Each draft ``x`` is accepted with probability
``min(1, p(x) / (rho q(x)))``, up to the first that is.  With ``beta = sum of min(p / rho, q)``, one of ``k`` drafts is
accepted with probability ``1 - (1 - beta)**k``, and where none is, the token is sampled from what is left,

    p - min(p / rho, q) (1 - (1 - beta)**k) / beta,

which is nowhere negative where ``1 - (1 - beta)**k <= rho beta``.  The smallest such ``rho`` accepts
drafts with at least ``1 - 1/e`` times the probability of the best transport from drafts to tokens.

Relaxed acceptance accepts a draft if a criterion lets it pass, or else by recursive rejection: the output has another
distribution than the target.  What has no probability under the target is never accepted.

Source: Z. Sun et al., "SpecTr: Fast Speculative Decoding via Optimal Transport" (NeurIPS 2023, arXiv 2310.15141).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias, final

import numpy as np

from structgen.decode.speculative.verifier import Verifier, acceptance, reject_recursively

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.verifier import Chance

__all__ = ["Judge", "JudgeScore", "KSequential", "TypicalAcceptance", "min_rho", "select_k_sequentially"]

_FAR_BELOW: Final = 1e-3
_LEFT_OUT: Final = 1e-6
_CLOSE: Final = 1e-3


@final
@dataclass(frozen=True, slots=True)
class KSequential(Verifier):
    """Drafts that were drawn with replacement, each tried against the same distribution, as the module says.

    How many there are must not depend on which they are, but the grammar may refuse some of them.

    Attributes:
        rho: used at each choice; where it is too small for the distributions there, the number of drafts is, which
            always suffices.  It saves the time that None takes, which solves for the least one at each choice.

    Raises:
        ValueError: ``rho`` is not a finite number of at least 1.

    Complexity: O(n) for each of about five steps that solve for ``rho``, and where no draft is taken.
    """

    rho: float | None = None

    lossless: ClassVar[bool] = True
    replaced: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rho is not None and not (math.isfinite(self.rho) and self.rho >= 1):
            raise ValueError(f"KSequential: rho must be a finite number of at least 1; found {self.rho!r}")

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        return select_k_sequentially(p, q, drafts, chance, self.rho)


def select_k_sequentially(
    p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, rho: Any = None
) -> int:
    """Return the index of the next token.

    Args:
        p: the target's distribution, ``[n]``.
        q: the distribution of the drafts, ``[n]``.
        drafts: indices of tokens that were drawn independently.
        chance: answers what is left to chance.
        rho: in the numbers of the distributions; where it is too small for them, the number of drafts.  None is
            ``min_rho``.
    """
    drafts = [draft for draft in drafts if q[draft] > 0]
    count = len(drafts)
    if not count:
        return chance.draw(p)
    if rho is None:
        rho = min_rho(p, q, count)
    elif not _suffices(p, q, count, rho):
        rho = count
    for draft in drafts:
        if chance.coin(acceptance(p[draft], rho * q[draft])):
            return draft
    rest = _taken(p, q, rho)  # by one draft, rho times as large
    rest *= _tries(rest.sum() / rho, count) / rho
    np.subtract(p, rest, out=rest)
    np.maximum(rest, 0, out=rest)
    # An empty rest means that, but for rounding, one of the drafts is always taken.
    return chance.draw(rest if rest.sum() > 0 else p)


def min_rho(p: NDArray[Any], q: NDArray[Any], count: int) -> float:
    """Return the least ``rho`` for so many drafts, or up to about a thousandth more, never less (but for rounding).

    Tokens far less probable than the average are left out of ``beta`` where they have at most a millionth together:
    with less of it ``rho`` is larger, so that the choice stays lossless.

    Complexity: O(n) for each of about five steps.
    """
    if count <= 1:
        return 1.0
    target, draft = p.astype(np.float64, copy=False), q.astype(np.float64, copy=False)
    looked_at = np.flatnonzero(draft >= _FAR_BELOW / len(draft))
    if draft[looked_at].sum() >= 1 - _LEFT_OUT:
        target, draft = target[looked_at], draft[looked_at]
    scaled = np.empty_like(draft)

    def excess(rho: float) -> float:
        np.multiply(draft, rho, out=scaled)
        np.minimum(scaled, target, out=scaled)
        beta = float(scaled.sum()) / rho
        share: float = _tries(beta, count)
        return beta * (share - rho)

    low, high = 1.0, float(count)
    above, below = excess(low), excess(high)
    if above <= 0:
        return low
    # False position with the correction of Anderson and Bjoerck (1973); the excess falls as rho grows.
    moved_low: bool | None = None
    while high - low > _CLOSE and below < 0:
        middle = min(max((low * below - high * above) / (below - above), low + _CLOSE / 2), high - _CLOSE / 2)
        value = excess(middle)
        if value > 0:
            below *= _kept(value, above) if moved_low is True else 1
            low, above, moved_low = middle, value, True
        else:
            above *= _kept(value, below) if moved_low is False else 1
            high, below, moved_low = middle, value, False
    return high


def _kept(value: float, before: float) -> float:
    """How much of the value at the end that stays is kept where the other end moves for the second time."""
    kept = 1 - value / before
    return kept if kept > 0 else 0.5


def _tries(beta: Any, count: int) -> Any:
    """``(1 - (1 - beta)**count) / beta``, as a sum, in which nothing cancels; ``count`` where ``beta`` is zero."""
    total: Any = 0
    for _ in range(count):
        total = total * (1 - beta) + 1
    return total


def _taken(p: NDArray[Any], q: NDArray[Any], rho: Any) -> NDArray[Any]:
    taken: NDArray[Any] = q * rho
    np.minimum(taken, p, out=taken)
    return taken


def _suffices(p: NDArray[Any], q: NDArray[Any], count: int, rho: Any) -> bool:
    beta = _taken(p, q, rho).sum() / rho
    return bool(beta == 0 or _tries(beta, count) <= rho * (1 + 1e-12 if isinstance(beta, float) else 1))


JudgeScore: TypeAlias = "Callable[[NDArray[Any], NDArray[Any], int], float]"
"""How good a draft is: of the target's distribution ``[n]``, the drafter's ``[n]``.

And the index of the draft in them.
"""


@final
@dataclass(frozen=True, slots=True)
class TypicalAcceptance(Verifier):
    """A draft passes if the target finds it typical: ``p(x) > min(epsilon, delta exp(-H(p)))``, with the entropy ``H``.

    Where the target is unsure, its entropy is high, and less probable drafts pass.

    Attributes:
        epsilon: a draft that is more probable than this passes anywhere; in (0, 1].
        delta: positive; larger values let fewer drafts pass.

    Raises:
        ValueError: a value is out of range.

    Source: T. Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (ICML
        2024, arXiv 2401.10774, on typical acceptance), which takes drafts by this alone; here those that do not pass
        have a chance by recursive rejection.
    """

    epsilon: float = 0.09
    delta: float = 0.3

    lossless: ClassVar[bool] = False
    replaced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not 0 < self.epsilon <= 1:
            raise ValueError(f"TypicalAcceptance: epsilon must be in (0, 1]; found {self.epsilon!r}")
        if not (math.isfinite(self.delta) and self.delta > 0):
            raise ValueError(f"TypicalAcceptance: delta must be positive and finite; found {self.delta!r}")

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        threshold: float | None = None

        def passes(draft: int) -> bool:
            nonlocal threshold
            if p[draft] > self.epsilon:
                return True
            if threshold is None:
                threshold = min(self.epsilon, self.delta * math.exp(-_entropy(p)))
            return bool(p[draft] > threshold)

        return reject_recursively(p, q, drafts, chance, passes=passes)


@final
@dataclass(frozen=True, slots=True)
class Judge(Verifier):
    """A draft passes if a judge scores it at the threshold or above.

    Attributes:
        score: the judge; see ``Score``.  One that needs more than the two distributions, such as what a trained head
            makes of the target's hidden states, has to hold that itself.
        threshold: what a draft must score.

    Raises:
        ValueError: ``threshold`` is NaN.

    Source: G. Bachmann et al., "Judge Decoding: Faster Speculative Sampling Requires Going Beyond Model Alignment"
        (ICLR 2025, arXiv 2501.19309), where the judge is a linear head on the target's embedding of the draft.
    """

    score: JudgeScore
    threshold: float = 0.5

    lossless: ClassVar[bool] = False
    replaced: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if math.isnan(self.threshold):
            raise ValueError("Judge: threshold must be a number; found NaN")

    def choose(self, p: NDArray[Any], q: NDArray[Any], drafts: Sequence[int], chance: Chance, /) -> int:
        """See ``Verifier.choose``."""
        score, threshold = self.score, self.threshold
        return reject_recursively(p, q, drafts, chance, passes=lambda draft: score(p, q, draft) >= threshold)


def _entropy(p: NDArray[Any]) -> float:
    """In nats."""
    positive = p[p > 0].astype(np.float64, copy=False)
    return -float((positive * np.log(positive)).sum())
