"""Relaxed acceptance: drafts are taken that the target might not have drawn, where they seem good enough.

Each draft is taken if a criterion lets it pass, or else by recursive rejection.  That is faster and not lossless: the
outcome has another law than the target.  What the target gives no probability, so whatever the grammar or the sampler's
truncation excludes, is never taken, whatever the criterion says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, final

import numpy as np

from structgen.decode.speculative.verifier import Verifier, reject_recursively

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from structgen.decode.speculative.verifier import Chance

__all__ = ["Judge", "JudgeScore", "TypicalAcceptance"]

JudgeScore: TypeAlias = "Callable[[NDArray[Any], NDArray[Any], int], float]"
"""How good a draft is: of the target's law ``[n]``, the drafter's ``[n]``, and the index of the draft in them."""


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
        score: the judge; see ``Score``.  One that needs more than the two laws, such as what a trained head makes of
            the target's hidden states, has to hold that itself.
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
