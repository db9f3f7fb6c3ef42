"""Verifiers with other acceptance rules: k-sequential selection, and relaxed acceptance, which is not lossless.

K-sequential selection is for independent samples.  Drafts ``x`` are tried in order, each accepted with probability
``min(1, p(x) / (rho q(x)))``.  With ``beta = sum of min(p / rho, q)``, one of ``k`` drafts is accepted with probability
``1 - (1 - beta)**k``; if none is, the token is sampled from the residual

    p - min(p / rho, q) (1 - (1 - beta)**k) / beta,

which is nonnegative if ``1 - (1 - beta)**k <= rho beta``.  The smallest such ``rho`` accepts drafts with at least
``1 - 1/e`` times the probability of the best transport from drafts to tokens.

Relaxed acceptance accepts a draft if a criterion passes it, and otherwise by recursive rejection; the output then
differs from the target's distribution.  A token of probability 0 under the target is never accepted.

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
    """K-sequential selection, for drafts that were sampled with replacement.

    The number of drafts must not depend on the samples, but the grammar may refuse some of them.

    Attributes:
        rho: the constant at each choice; where it is too small, the number of drafts is used, which always suffices.
            None solves for the smallest one at each choice, which takes longer.

    Raises:
        ValueError: ``rho`` is not a finite number of at least 1.

    Complexity: O(n) for each of about five steps that solve for ``rho``, and if no draft is accepted.
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
        q: the draft distribution, ``[n]``.
        drafts: indices of tokens that were sampled independently.
        chance: makes the random decisions.
        rho: the constant, in the number type of the distributions; if it is too small, the number of drafts is used.
            None is ``min_rho``.
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
    # An empty residual means that, up to rounding, one of the drafts is always accepted.
    return chance.draw(rest if rest.sum() > 0 else p)


def min_rho(p: NDArray[Any], q: NDArray[Any], count: int) -> float:
    """Return the smallest ``rho`` for this many drafts, up to about a thousandth too large, never too small.

    Tokens far less probable than the average are left out of ``beta`` if they have at most a millionth together: that
    makes ``rho`` larger, so the choice stays lossless.

    Complexity: O(n) for each of about five steps.
    """
    if count <= 1:
        return 1.0
    target, draft = p.astype(np.float64, copy=False), q.astype(np.float64, copy=False)
    likely = np.flatnonzero(draft >= _FAR_BELOW / len(draft))
    if draft[likely].sum() >= 1 - _LEFT_OUT:
        target, draft = target[likely], draft[likely]
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
    # False position with the correction of Anderson and Bjoerck (1973); the excess decreases in rho.
    moved_low: bool | None = None
    while high - low > _CLOSE and below < 0:
        middle = min(max((low * below - high * above) / (below - above), low + _CLOSE / 2), high - _CLOSE / 2)
        value = excess(middle)
        if value > 0:
            below *= _damping(value, above) if moved_low is True else 1
            low, above, moved_low = middle, value, True
        else:
            above *= _damping(value, below) if moved_low is False else 1
            high, below, moved_low = middle, value, False
    return high


def _damping(value: float, before: float) -> float:
    """The factor on the value at the fixed end if the other end moves for the second time."""
    factor = 1 - value / before
    return factor if factor > 0 else 0.5


def _tries(beta: Any, count: int) -> Any:
    """Return ``(1 - (1 - beta)**count) / beta`` as a sum without cancellation; ``count`` if ``beta`` is 0."""
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
"""Scores a draft: called with the distributions of target and drafter, ``[n]``, and the index of the draft."""


@final
@dataclass(frozen=True, slots=True)
class TypicalAcceptance(Verifier):
    """A draft passes if it is typical of the target: ``p(x) > min(epsilon, delta exp(-H(p)))``, with the entropy ``H``.

    If the target is uncertain, its entropy is high, and less probable drafts pass.

    Attributes:
        epsilon: a draft that is more probable than this always passes; in (0, 1].
        delta: positive; larger values let fewer drafts pass.

    Raises:
        ValueError: a value is out of range.

    Source: T. Cai et al., "Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads" (ICML
        2024, arXiv 2401.10774, on typical acceptance), which accepts by this criterion alone; here recursive rejection
        may accept the other drafts.
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
    """A draft passes if a judge scores it at least the threshold.

    Attributes:
        score: the judge; see ``JudgeScore``.  It must hold any further input itself, such as hidden states of the
            target.
        threshold: the smallest score that passes.

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
    """The entropy in nats."""
    positive = p[p > 0].astype(np.float64, copy=False)
    return -float((positive * np.log(positive)).sum())
